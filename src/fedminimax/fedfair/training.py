"""Methods trained among sites, and their step sizes searched there: each trial is a run of the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import metrics, players
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.engine import Federation
from fedminimax.engines.federated.group import Event
from fedminimax.errors import InputError
from fedminimax.fairness.contests import Training
from fedminimax.fairness.tuning import Grid, Trials, largest_eigenvalue, make
from fedminimax.fedfair import asking
from fedminimax.fedfair.agreeing import Known
from fedminimax.fedfair.asking import Asking, ForMethod
from fedminimax.metrics import Metric
from fedminimax.players import Tree
from fedminimax.problems.robust import RobustProblem
from fedminimax.result import Result
from fedminimax.run import run
from fedminimax.sweep import Sweep

TEST = "test"
"""What sites call the rows that are measured on only."""
SEARCHES = 2
"""How often at most a method is searched: once, and again where the best of some method lies on an edge."""


@dataclass(frozen=True)
class Trainer:
    """Trains methods among sites.

    Attributes:
        known: the sites.
        how: how all methods are trained.
        timeout: seconds that a site is waited for.
        min_replies: how many sites must answer for a round to count.
        watch: is told what becomes of sites.
    """

    known: Known
    how: Training
    timeout: float
    min_replies: int
    watch: Callable[[Event], None] | None = None

    def engine(self, name: str, settings: Mapping[str, Any], retries: int = 2) -> Federation:
        """Return the engine whose sites work by a method."""
        there = ForMethod(self.known.transport, name, settings)
        few = min(self.min_replies, len(there.sites))
        return Federation(there, timeout=self.timeout, min_replies=few, retries=retries, tell=self.watch)

    def train(self, problem: RobustProblem, name: str, settings: Mapping[str, Any], curve: Metric) -> list[Result]:
        """Return a method's runs, one a seed.

        Args:
            problem: what to solve.
            name: the method.
            settings: its hyper-parameters.
            curve: what is drawn over rounds, on the test rows.
        """
        done: list[Result] = []
        for seed in range(self.how.seeds):
            engine = self.engine(name, settings)
            judges: list[Any] = [
                metrics.On(curve, engine.held_out(TEST)),
                metrics.WorstCase(),
                metrics.ClientWeights(each=True),
            ]
            result = run(
                problem, engine.clients, make(name, settings), seed=seed, rounds=self.how.rounds,
                eval_every=self.how.eval_every, metrics=judges, progress=self.how.progress, engine=engine,
            )  # fmt: skip
            if result.stopped and not result.interrupted:
                raise InputError(f"{name} stopped after {result.rounds} rounds: {result.stopped}")
            done.append(result)
            if result.interrupted:
                break
        return done

    @property
    def trials(self) -> Trials:
        """How step sizes are found out about among the sites."""
        return Trials(self.search, lambda problem, clients: jnp.asarray(self.known.losses), self.smoothness, SEARCHES)

    def search(
        self,
        problem: RobustProblem,
        clients: RemoteClients,
        name: str,
        grid: Grid,
        *,
        rounds: int,
        local_steps: int,
        batch_size: int | None,
        fixed: Mapping[str, float] | None = None,
    ) -> Sweep:
        """Run every combination of a grid, one after another, and measure the training objective at the sites."""
        every = max(d for d in range(1, max(1, rounds // 4) + 1) if rounds % d == 0)
        combined = [dict(zip(grid, map(float, values), strict=True)) for values in itertools.product(*grid.values())]
        at = np.arange(0, rounds + 1, every)
        found, interrupted = np.full((len(combined), 1, len(at)), np.nan), False
        for k, setting in enumerate(combined):
            settings = {"local_steps": local_steps, "batch_size": batch_size, **(fixed or {}), **setting}
            engine = self.engine(name, settings, retries=0)
            result = run(
                problem, engine.clients, make(name, settings), rounds=rounds, eval_every=every, metrics=metrics.WorstCase(),
                progress=False, engine=engine,
            )  # fmt: skip
            values = np.asarray(result.history[metrics.WorstCase.name], float)
            found[k, 0, : len(values)] = values  # where a step diverges the guard refuses all replies, and the run ends early
            interrupted = interrupted or result.interrupted
            if interrupted:
                break
        history = {"round": at, metrics.WorstCase.name: found}
        return Sweep(name, combined, [0], history, {metrics.WorstCase.name: metrics.LOWER}, interrupted=interrupted)

    def smoothness(self, problem: RobustProblem, clients: RemoteClients) -> float:
        """Return the largest eigenvalue of the average loss's Hessian at the start: sites multiply, the server adds up."""
        weights = np.asarray(problem.client_weights(clients), float)
        asked = Asking(self.known.transport, self.timeout)

        def product(v: Tree) -> Tree:
            like = jax.tree.map(np.asarray, v)
            read = lambda _, told: messages.like(told, like, "a product")
            parts = asked.all(asking.PRODUCT, read, v=like)
            total = players.zeros_like(v)
            for weight, part in zip(weights, parts.values(), strict=True):
                total = jax.tree.map(lambda a, b, weight=weight: a + weight * b, total, part)
            return total

        return largest_eigenvalue(problem.x0, product)
