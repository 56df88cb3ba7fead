"""Small problems of every form, on which a method or an engine is tried."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import models, problems
from fedminimax.data.clients import ClientData
from fedminimax.network import Network
from fedminimax.penalties import ChiSquare, CVaR
from fedminimax.problems import MinimaxProblem, PersonalizedProblem, RobustProblem, Task
from fedminimax.sets import Box

FENCE = 0.1
"""Where the sets of :func:`fenced` end."""


def small(name: str) -> Task:
    """Return a small problem by name, its clients of unequal weight or size.

    "quadratic" and "fair" have a shared y, "regression" and "classification" weights on clients, "nodes" and "node models" a
    network. The first of each pair has a known solution, and data as precise as JAX is now; the second float32 data and sets.
    """
    return _made(name, bool(jnp.zeros(()).dtype == jnp.float64))


@functools.cache  # one problem object a task: its compiled programs are then shared by all that is tried on it
def _made(name: str, double: bool) -> Task:
    if name == "quadratic":
        return problems.quadratic(5, examples=6, noise=0.3, weights=[1, 2, 3, 4, 5])
    if name == "nodes":
        return problems.personalized_quadratic(Network.ring(5), 0.7, examples=6, noise=0.3)
    if name == "regression":
        task = problems.robust_regression(5, 4, 6, rho=0.1, sigma=0.5)
        return dataclasses.replace(task, problem=task.problem.replace(weights=[1, 2, 3, 4, 5]))
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    fields = {"inputs": (rng.normal(size=(60, 4)) + labels[:, None]).astype(np.float32), "labels": labels.astype(np.int32)}
    clients = ClientData.from_owner(fields, np.repeat(np.arange(5), [6, 6, 6, 21, 21]))
    if name == "node models":
        made = problems.personalized_training(models.Logistic(3), clients, 3, 0.3, Network.star(5))
        return Task(made, clients)
    if name == "classification":
        return Task(problems.robust_model(models.Linear(3), clients, 3, penalty=CVaR(0.5)), clients)
    return Task(problems.fair_classification(models.Logistic(3), clients, 3, penalty=0.1), clients)


def names_for(kind: type) -> tuple[str, str]:
    """Return the names of the two small problems of a form."""
    if kind is PersonalizedProblem:
        return "nodes", "node models"
    return ("regression", "classification") if kind is RobustProblem else ("quadratic", "fair")


@functools.cache
def fenced(kind: type) -> Task:
    """Minimise x, maximise y, between -0.1 and 0.1. Whoever takes a gradient outside of the sets sends NaN."""
    inside = Box(-FENCE, FENCE)
    clients = ClientData.equal({"one": np.ones(6, np.float32)}, 3)

    def number(v: Any) -> Any:
        return v * jnp.where(jnp.abs(v) > FENCE * (1 + 1e-5), jnp.nan, 1.0)

    def robust(x: Any, batch: Any) -> jax.Array:
        return jnp.mean(batch["one"]) * (1 + number(x))

    def shared(x: Any, y: Any, batch: Any) -> jax.Array:
        return jnp.mean(batch["one"]) * (number(x) + number(y))

    zero = jnp.zeros(())
    if kind is RobustProblem:
        return Task(RobustProblem(robust, zero, ChiSquare(0.1), x_set=inside), clients)
    return Task(MinimaxProblem(shared, zero, zero, x_set=inside, y_set=inside), clients)


def poisoned(clients: ClientData) -> ClientData:
    """Return the clients with the data of the first one broken, as if it broke while training."""
    fields = jax.tree.map(np.array, clients.fields)
    fields["a" if "a" in fields else "labels"][: int(clients.sizes[0])] = np.nan
    return ClientData(fields, *(getattr(clients, name) for name in ("starts", "sizes", "smallest", "largest", "batching")))
