"""What a problem must do so that every method can solve it: the checks of :func:`fedminimax.testing.check_problem`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import metrics, players
from fedminimax.data.clients import ClientData
from fedminimax.metrics.base import ascend, value_and_grad_y
from fedminimax.players import Point
from fedminimax.problems import MinimaxProblem, RobustProblem
from fedminimax.problems.base import over_all


@dataclass(frozen=True)
class Bound:
    """A problem on its clients, and some examples of theirs."""

    problem: Any
    clients: ClientData
    rows: Any
    players: tuple[Any, ...]

    @property
    def count(self) -> int:
        """How many examples there are to look at."""
        return int(jax.tree.leaves(self.rows)[0].shape[0])

    def loss(self, where: Any) -> float:
        """Return the loss at the start on some of the examples."""
        return float(self.problem.loss(*self.players, jax.tree.map(lambda a: a[where], self.rows)))


CHECKS: dict[str, Callable[[Bound], None]] = {}


def check(fn: Callable[[Bound], None]) -> Callable[[Bound], None]:
    """Make a function one of the checks."""
    CHECKS[fn.__name__] = fn
    return fn


def bind(problem: Any, clients: ClientData, most: int = 16) -> Bound:
    """Return a problem as its checks take it, with up to so many examples of the first client."""
    bound, clients = problem.bind(clients)
    bound.check(clients)
    few = min(most, int(np.asarray(clients.sizes)[0]))
    first = int(np.asarray(clients.starts)[0])
    rows = jax.tree.map(lambda a: jnp.asarray(a)[first : first + few], clients.fields)
    start = (bound.x0,) if isinstance(bound, RobustProblem) else (bound.x0, bound.y0)
    return Bound(bound, clients, rows, start)


@check
def the_loss_is_finite_at_the_start(bound: Bound) -> None:
    """The loss, and its gradient with respect to both players, are finite at the start."""
    value, slope = jax.value_and_grad(lambda z: bound.problem.loss(*z, bound.rows))(bound.players)
    assert np.isfinite(value), f"the loss is {value}"
    for path, leaf in jax.tree_util.tree_leaves_with_path(slope):
        assert np.isfinite(np.asarray(leaf)).all(), f"the gradient at {jax.tree_util.keystr(path)} is not finite"


@check
def the_loss_is_a_mean_over_examples(bound: Bound) -> None:
    """The loss of a batch is the mean of the losses of its halves: neither a sum, nor something of the batch as a whole."""
    if bound.count < 2 or getattr(bound.problem, "coupled", False):
        return
    half = bound.count // 2
    parts = [bound.loss(slice(0, half)), bound.loss(slice(half, 2 * half))]
    whole = bound.loss(slice(0, 2 * half))
    np.testing.assert_allclose(whole, np.mean(parts), rtol=1e-4, err_msg="a sum over examples must become a mean")


@check
def the_order_of_examples_does_not_matter(bound: Bound) -> None:
    """The loss of a batch is the same in any order."""
    np.testing.assert_allclose(bound.loss(slice(None)), bound.loss(slice(None, None, -1)), rtol=1e-4)


@check
def gradients_are_those_of_the_loss(bound: Bound) -> None:
    """Gradients by differentiation agree with differences of the loss: no part of it is held back or rounded away."""
    with jax.enable_x64(True):
        doubled = jax.tree.map(lambda a: jnp.asarray(a, float) if jnp.issubdtype(a.dtype, jnp.floating) else a, bound.rows)
        here = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), float), bound.players)
        keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(here)))
        leaves, structure = jax.tree.flatten(here)
        noise = [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)]
        along = jax.tree.unflatten(structure, noise)
        # A little away from the start, which may be a corner (zero weights, say) that losses are not smooth at.
        here = players.add(here, along, 1e-3)
        loss = lambda s: bound.problem.loss(*players.add(here, along, s), doubled)
        step = 1e-5
        by_difference = (loss(step) - loss(-step)) / (2 * step)
        by_derivative = jax.grad(loss)(0.0)
        scale = abs(float(by_derivative)) + 1e-3
        assert abs(float(by_difference - by_derivative)) < 1e-2 * scale, (
            f"along a random direction the loss changes by {float(by_difference):.6g}, its derivative is "
            f"{float(by_derivative):.6g}"
        )


@check
def the_start_is_in_the_sets(bound: Bound) -> None:
    """Projections do not move a point that they have projected."""
    if not hasattr(bound.problem, "start") or not isinstance(bound.problem, (MinimaxProblem, RobustProblem)):
        return
    start = bound.problem.start
    for name in ("x", "y"):
        again = getattr(bound.problem.project(start), name)
        for a, b in zip(jax.tree.leaves(getattr(start, name)), jax.tree.leaves(again), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5, err_msg=f"{name}'s projection is none")


@check
def the_best_response_is_the_best(bound: Bound) -> None:
    """What ``best_response`` returns is not worse than what gradient ascent finds."""
    problem = bound.problem
    if not isinstance(problem, MinimaxProblem) or problem.best_response is None:
        return
    p = jnp.asarray(problem.client_weights(bound.clients))
    value = lambda y: over_all(problem.loss, Point(problem.x0, y), bound.clients, p)
    found = ascend(value, value_and_grad_y(problem, bound.clients, problem.x0, p), problem.project_y, problem.y0, 1e-6, 500)
    said = problem.best_response(problem.x0, bound.clients, p)
    best, claimed = float(value(found)), float(value(said))
    assert claimed >= best - 1e-3 * (1 + abs(best)), f"best_response reaches {claimed:.6g}, ascent {best:.6g}"


@check
def predictions_have_a_row_for_each_example(bound: Bound) -> None:
    """``predict(x, inputs)`` returns one row of scores for each example."""
    if getattr(bound.problem, "predict", None) is None or "inputs" not in bound.rows:
        return
    scores = metrics.predictions(bound.problem, bound.players[0], bound.rows)
    assert scores.shape[0] == bound.count, f"predict returns shape {scores.shape} for {bound.count} examples"
