"""The numbers of all runs of a sweep, as they come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedminimax.federation import accounting
from fedminimax.metrics import direction
from fedminimax.plan import Plan
from fedminimax.sweeps.rounds import FINITE
from fedminimax.sweeps.selection import Selection
from fedminimax.sweeps.space import Setting
from fedminimax.sweeps.table import Sweep, refused

COSTS = frozenset(accounting.names(gossip=True))


class Numbers:
    """What all runs have given so far, [settings, seeds, evaluations, ...].

    Args:
        seeds: how many seeds.
        rounds: how many rounds.
        every: how many rounds lie between evaluations.
    """

    def __init__(self, seeds: int, rounds: int, every: int):
        self._seeds, self._every, self.evaluations = seeds, every, np.arange(0, rounds + 1, every)
        self._columns: dict[str, np.ndarray] = {}
        self._dtypes: dict[str, np.dtype] = {}
        self._reached = np.zeros((0, seeds), np.int64)

    def grow(self, settings: int) -> int:
        """Make room for so many settings more, and return the number of the first of them."""
        first = len(self._reached)
        self._reached = np.concatenate([self._reached, np.full((settings, self._seeds), -1, np.int64)])
        for name, values in self._columns.items():
            self._columns[name] = np.concatenate([values, self._room(name, settings, values.shape[3:])])
        return first

    def put(self, settings: Sequence[int], seeds: slice, last: int, rows: dict[str, np.ndarray]) -> None:
        """Put in what was evaluated up to round ``last``, by name: [settings, seeds, evaluations, ...]."""
        here, end = np.asarray(settings), last // self._every + 1
        for name, values in rows.items():
            if name not in self._columns:
                self._dtypes[name] = values.dtype
                self._columns[name] = self._room(name, len(self._reached), values.shape[3:])
            self._columns[name][here, seeds, end - values.shape[2] : end] = values
        self._reached[here, seeds] = (end - 1) * self._every

    def scores(self, metric: str, settings: Sequence[int], last: int) -> np.ndarray:
        """Return the mean over seeds of a metric at round ``last``; infinite where a run diverged before."""
        rows = (np.asarray(settings), slice(None), slice(last // self._every + 1))
        values, bad = self._columns[metric][rows], refused({name: self._columns[name][rows] for name in ("replies", "dropped")})
        sound = (np.isfinite(values) & (self._columns[FINITE][rows] == 1) & ~bad).all(axis=(1, 2))
        return np.where(sound, np.where(sound[:, None], values[..., -1], 0.0).mean(axis=1, dtype=float), np.inf)

    @property
    def rounds_run(self) -> np.ndarray:
        """Up to which evaluation each run went, [settings, seeds]."""
        return np.maximum(self._reached, 0)

    @property
    def lost(self) -> np.ndarray:
        """Which runs' states became non-finite, [settings, seeds]."""
        run = self.evaluations <= self._reached[..., None]
        return (run & (self._columns[FINITE] == 0)).any(axis=-1) if self._columns else np.zeros(self._reached.shape, bool)

    def history(self) -> dict[str, np.ndarray]:
        """Return everything by name. Metrics of runs that ended early are NaN from then on, costs stay as they were."""
        whole = bool((self._reached == self.evaluations[-1]).all())
        upto = np.minimum(np.arange(len(self.evaluations)), self.rounds_run[..., None] // self._every)
        found = {"round": self.evaluations}
        for name, values in self._columns.items():
            if name in COSTS:
                found[name] = np.take_along_axis(values, upto, axis=2)
            elif name != FINITE:
                found[name] = values.astype(self._dtypes[name]) if whole else values
        return found

    def outcome(
        self, plan: Plan, settings: list[Setting], seeds: list[int], by: Selection, base: str, interrupted: bool
    ) -> Sweep:
        """Return what has come of it all."""
        history = self.history()
        found = Sweep(
            method=plan.method,
            settings=settings,
            seeds=seeds,
            history=history,
            better={name: way for name in history if (way := direction(plan.metrics, name)) is not None} | by.known,
            costs=tuple(name for name in self._columns if name in COSTS),
            rounds_run=self.rounds_run,
            selected_by=by.metric,
            base=base,
            interrupted=interrupted,
        )
        return replace(found, diverged=found.diverged | self.lost)

    def _room(self, name: str, settings: int, tail: tuple[int, ...]) -> np.ndarray:
        shape, kind = (settings, self._seeds, len(self.evaluations), *tail), self._dtypes[name]
        if name in COSTS:
            return np.zeros(shape, kind)
        return np.full(shape, np.nan, kind if np.issubdtype(kind, np.floating) else float)
