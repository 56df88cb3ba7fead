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
from fedminimax.data.clients import ClientData
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.federated import hello, messages
from fedminimax.engines.federated.engine import Federation
from fedminimax.engines.federated.group import Event
from fedminimax.engines.federated.hello import Hello, Share
from fedminimax.engines.federated.messages import Refused
from fedminimax.engines.federated.transport import GONE, MALFORMED, TIMEOUT, Failure
from fedminimax.engines.federated.worker import agreement, versions
from fedminimax.errors import InputError
from fedminimax.fairness.contests import Training
from fedminimax.fairness.tuning import Grid, Trials, largest_eigenvalue, make
from fedminimax.fedfair import asking
from fedminimax.fedfair.agreeing import Known
from fedminimax.fedfair.asking import Asking, ForMethod
from fedminimax.fedfair.keeping import HELLO, Kept
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

_CHECKPOINTS = "10s"
_LARGEST = 1e15  # of a product with the Hessian of a loss of standardised inputs


@dataclass(frozen=True)
class Trainer:
    """Trains methods among sites.

    Attributes:
        known: the sites.
        kept: where what is trained is kept.
        how: how all methods are trained.
        timeout: seconds that a site is waited for.
        min_replies: how many sites must answer for a round to count.
        watch: is told what becomes of sites.
    """

    known: Known
    kept: Kept
    how: Training
    timeout: float
    min_replies: int
    watch: Callable[[Event], None] | None = None

    @property
    def enough(self) -> int:
        """How many of the sites that take part must answer."""
        return min(self.min_replies, len(self.known.transport.sites))

    def engine(self, problem: RobustProblem, name: str, settings: Mapping[str, Any], retries: int = 2) -> Federation:
        """Return the engine whose sites work by a method. It begins without those that are away, as enough are there."""
        there, path = ForMethod(self.known.transport, name, settings), self.kept.folder / HELLO
        hello.save(path, self._expected(agreement(problem, make(name, settings))))
        return Federation(there, timeout=self.timeout, min_replies=self.enough, retries=retries, known=path, tell=self.watch)

    def _expected(self, agrees: dict[str, str]) -> dict[str, Hello]:
        """Return what the sites will say of themselves, as it follows from what they have told."""
        parts = self.known.federation.train, self.known.federation.test
        shares = [[Share(int(size), _empty(part), part.batching) for size in part.sizes] for part in parts]
        sites = zip(self.known.transport.sites, *shares, strict=True)
        return {site: Hello(train, {TEST: test}, agrees, versions()) for site, train, test in sites}

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
            result = self.kept.result(name, seed)
            if result is None:
                result = self._run(problem, name, settings, curve, seed)
            done.append(result)
            if result.interrupted:
                break
        return done

    def _run(self, problem: RobustProblem, name: str, settings: Mapping[str, Any], curve: Metric, seed: int) -> Result:
        """Return one run, from its start or from its newest checkpoint, and keep it where it is over."""
        engine = self.engine(problem, name, settings)
        judges: list[Any] = [metrics.On(curve, engine.held_out(TEST)), metrics.WorstCase(), metrics.ClientWeights(each=True)]
        result = run(
            problem, engine.clients, make(name, settings), seed=seed, rounds=self.how.rounds,
            eval_every=self.how.eval_every, metrics=judges, progress=self.how.progress, engine=engine,
            folder=self.kept.run(name, seed), checkpoint_every=_CHECKPOINTS,
        )  # fmt: skip
        if result.interrupted:
            return result
        if result.stopped:
            raise InputError(f"{name} stopped after {result.rounds} rounds: {result.stopped}")
        self.kept.keep_result(name, result)
        return result

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
            engine = self.engine(problem, name, settings, retries=0)
            result = run(
                problem, engine.clients, make(name, settings), rounds=rounds, eval_every=every, metrics=metrics.WorstCase(),
                progress=False, engine=engine,
            )  # fmt: skip
            self._check_there(engine, name, result)
            values = np.asarray(result.history[metrics.WorstCase.name], float)
            found[k, 0, : len(values)] = values  # where a step diverges the guard refuses all replies, and the run ends early
            interrupted = interrupted or result.interrupted
            if interrupted:
                break
        history = {"round": at, metrics.WorstCase.name: found}
        return Sweep(name, combined, [0], history, {metrics.WorstCase.name: metrics.LOWER}, interrupted=interrupted)

    def _check_there(self, engine: Federation, name: str, result: Result) -> None:
        """Say so where a trial ended because sites were away, and not because its steps were too large."""
        away = {event.site for event in engine.events if event.what in (TIMEOUT, GONE)}
        if result.stopped and len(self.known.transport.sites) - len(away) < self.enough:
            raise InputError(f"The search for {name}'s step sizes stopped: {result.stopped}.")

    def smoothness(self, problem: RobustProblem, clients: RemoteClients) -> float:
        """Return the largest eigenvalue of the average loss's Hessian at the start: sites multiply, the server adds up."""
        weights = np.asarray(problem.client_weights(clients), float)
        asked = Asking(self.known.transport, self.timeout)

        def product(v: Tree) -> Tree:
            like = jax.tree.map(np.asarray, v)
            read = lambda _, told: _finite(messages.like(told, like, "a product"))
            parts = asked.all(asking.PRODUCT, read, v=like)
            total = players.zeros_like(v)
            for weight, part in zip(weights, parts.values(), strict=True):
                total = jax.tree.map(lambda a, b, weight=weight: a + weight * b, total, part)
            return total

        return largest_eigenvalue(problem.x0, product)


def _empty(data: ClientData) -> Tree:
    """Return the shapes of some data: arrays without any example."""
    return jax.tree.map(lambda a: np.zeros((0, *a.shape[1:]), a.dtype), data.fields)


def _finite(product: Tree) -> Tree:
    if not all(np.abs(leaf).max(initial=0.0) <= _LARGEST for leaf in jax.tree.leaves(product)):
        raise Refused(Failure(MALFORMED, "a product that is none"))
    return product
