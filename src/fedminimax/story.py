"""What a run leaves behind, put together while it goes: evaluations, costs, and who took part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.execution import Progress
from fedminimax.federation import accounting
from fedminimax.federation.accounting import Message
from fedminimax.federation.round import everybodys_steps
from fedminimax.federation.trace import Trace
from fedminimax.random import keys
from fedminimax.result import Result
from fedminimax.steps import UniformSteps

_WORTH_KEEPING = 2**26
"""Numbers of local steps, of all clients and rounds, above which they are not recorded: the seed draws them again."""
_UNKNOWN = -2
"""Stands in a recorded cohort for a client of a round before the run's first."""


class Story:
    """The record of a run under way, after that of the run that it continues.

    Args:
        before: the result that is continued; None: none.
        first: the round from which on it is told here.
        began: the round at which the run began: an earlier one where it was stopped and goes on.
    """

    def __init__(self, before: Result | None, first: int, began: int | None = None):
        self._before, self._first, self._began = before, first, first if began is None else began
        self._evaluations: list[tuple[int, dict[str, Any]]] = []
        self._costs: list[dict[str, np.ndarray]] = []
        self._attendance: list[tuple[Any, ...]] = []
        self.total: dict[str, float] = {}
        """What all rounds have cost so far."""
        if before is not None:
            self.total = {name: _added(0, values) for name, values in before.costs.items()}

    def went_on(self, messages: list[Message], progress: Progress) -> None:
        """Take down some rounds."""
        costs = accounting.history(messages, progress.traffic)
        self._costs.append(costs)
        self._attendance.append(progress.attendance)
        self.total = {name: _added(self.total.get(name, 0), values) for name, values in costs.items()}

    def evaluated(self, now: int, values: dict[str, Any]) -> None:
        """Take down an evaluation."""
        self._evaluations.append((now, values))

    @property
    def last_evaluation(self) -> int:
        """After how many rounds the metrics were taken last; -1: never."""
        if self._evaluations:
            return self._evaluations[-1][0]
        return -1 if self._before is None else int(self._before.history["round"][-1])

    def costs(self) -> dict[str, np.ndarray]:
        """Return the costs of every round, from round 0 on."""
        so_far = {} if self._before is None else self._before.costs
        if not self._costs:
            return so_far
        costs = {name: np.concatenate([part[name] for part in self._costs]) for name in self._costs[0]}
        # What was not counted then, or in rounds before the first, is none.
        before = lambda name, values: so_far.get(name, np.zeros(self._first, values.dtype))
        return {name: np.concatenate([before(name, values), values]) for name, values in costs.items()}

    def history(self) -> dict[str, np.ndarray]:
        """Return the metrics, and the costs up to then, at every evaluation."""
        costs, evaluations, before = self.costs(), self._evaluations, self._before
        if before is not None:
            evaluations = [told for told in evaluations[:1] if told[0] not in before.history["round"][-1:]] + evaluations[1:]
            if not evaluations:
                return dict(before.history)
        rounds = np.array([t for t, _ in evaluations], np.int64)
        names = evaluations[0][1] if evaluations else {}
        history = {name: np.array([values[name] for _, values in evaluations]) for name in names}
        history = {"round": rounds, **history}
        if before is not None:
            earlier, later = len(before.history["round"]), len(rounds)
            # What one of the two runs did not measure is not a number; of an array, all of it.
            missing = lambda count, other: np.full((count, *other.shape[1:]), np.nan)
            both = {n: (before.history.get(n), history.get(n)) for n in dict.fromkeys([*before.history, *history])}
            history = {
                n: np.concatenate([missing(earlier, new) if old is None else old, missing(later, old) if new is None else new])
                for n, (old, new) in both.items()
                if n not in costs
            }
        for name, values in costs.items():
            history[name] = np.concatenate([[0], np.cumsum(values)])[history["round"]]
        return history

    def trace(self, steps: np.ndarray | None) -> Trace:
        """Return who took part, from round 0 on, with the local steps of the rounds since the run began, [rounds, N]."""
        before = Trace() if self._before is None or self._before.trace is None else self._before.trace
        if not self._attendance:
            return before if steps is None or before.steps is not None else replace(before, steps=steps)
        parts, first, began = list(self._attendance), self._first, self._began
        if jax.tree.leaves(before):
            parts.insert(0, (before.cohorts, before.invited, before.answers, before.draws, before.waited))
        elif first > 0:  # rounds that were run elsewhere: no number of a client, so that nobody replays them
            cohorts, *others = jax.tree.map(lambda a: np.zeros((first, *a.shape[1:]), a.dtype), parts[0])
            parts.insert(0, (tuple(np.full_like(ids, _UNKNOWN) for ids in cohorts), *others))
        cohorts, invited, answers, draws, waited = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
        if steps is not None and began > 0:
            known = before.steps is not None or not jax.tree.leaves(before)  # of rounds recorded without them nothing is known
            earlier = np.zeros((began, *steps.shape[1:]), steps.dtype) if before.steps is None else before.steps[:began]
            steps = np.concatenate([earlier, steps]) if known else None
        return Trace(tuple(cohorts), steps, draws, tuple(invited), tuple(answers), tuple(waited))


def _added(total: float, values: np.ndarray) -> float:
    """Return a sum with more added to it, one number after another: the same however the numbers come in parts."""
    return np.cumsum(np.concatenate([[total], values]))[-1].item()


def steps_taken(
    algorithm: Algorithm,
    clients: ClientSource,
    seed: int,
    trace: Trace | None,
    before: Result | None,
    first: int,
    last: int,
) -> np.ndarray | None:
    """Return how many local steps clients took, or would have, in each round, [rounds, N]; None: what the method says."""
    if trace is not None and trace.steps is not None:
        return trace.steps[first:last]
    spec: Any = getattr(algorithm, "local_steps", None)
    told = before is not None and before.trace is not None and before.trace.steps is not None  # then these must go on
    random = isinstance(spec, UniformSteps) and clients.count * (last - first) <= _WORTH_KEEPING
    if last == first or not (told or random):
        return None
    sizes, batch_size, key = jnp.asarray(clients.sizes), getattr(algorithm, "batch_size", None), keys.root(seed)
    drawn = jax.vmap(lambda t: everybodys_steps(spec, key, t, sizes, batch_size))(jnp.arange(first, last))
    return np.asarray(drawn)
