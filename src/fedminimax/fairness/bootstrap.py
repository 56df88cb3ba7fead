"""Intervals over test rows: every number again for rows drawn anew, within each site and class.

Of the m rows of a class at a site a draw takes m - 1, with replacement, each counting m / (m - 1) times (Rao and Wu 1988): the
class keeps its weight there, so that what exists for the test rows exists in each draw, and a mean's variance is the unbiased
one, also of few rows. A single row counts by a random number of mean 1, from an exponential distribution: sums over sites vary
as they should; what the site would have had with another row nobody can tell. All models are judged on the same draws, so that
the interval of a difference is a paired one.

The worst fifth of the sites is picked once, on the test rows themselves, and held in the draws. Picking again in each draw
would pick noise again: the draws would lie below the number that they are to surround. What that picking costs is kept apart,
as ``picking``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedminimax.fairness.measures import Measure
from fedminimax.fairness.rows import Rows
from fedminimax.fairness.scores import Floats, Judge, Judged, mean_of, ratio

DRAWS, LEVEL = 1000, 0.95
"""How many draws, and how much of them an interval holds."""
_CHUNK = 2_000_000  # rows times draws at once
_FIFTH = 0.2


class Number(NamedTuple):
    """A number, its interval over test rows, and its standard deviation over seeds; NaN: one seed."""

    value: float
    low: float
    high: float
    spread: float = np.nan


@dataclass(frozen=True)
class Scored:
    """How good a model is: a method's, of one run for each seed, or a baseline's.

    Attributes:
        sites: for each measure every site's number, [runs, N].
        points: for each measure its summaries ("average", "worst20", "worst", "all"), [runs].
        draws: the same summaries, mean over runs, in each draw, [draws].
        intervals: of every site's number of the first measure, mean over runs: low and high, [2, N].
        picking: by how much the worst 20% of the first measure look worse than they are, as picking again in the draws shows.
        thresholds: of each run, the probability from which on a row is called positive; empty: the likeliest class is.
        training: of each run, the first measure of the worst 20% of sites on their training rows.
    """

    sites: dict[str, Floats]
    points: dict[str, dict[str, Floats]]
    draws: dict[str, dict[str, Floats]]
    intervals: Floats
    picking: float
    thresholds: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)

    def number(self, measure: str, part: str) -> Number:
        """Return a summary with its interval, and its spread over seeds."""
        points, draws = self.points[measure][part], self.draws[measure][part]
        spread = float(np.std(points, ddof=1)) if len(points) > 1 else np.nan
        return Number(float(np.mean(points)), *interval(draws), spread)


def interval(draws: Floats) -> tuple[float, float]:
    """Return where the middle 95% of the draws lie; NaN where one does not exist."""
    if not len(draws) or not np.isfinite(draws).any():
        return np.nan, np.nan
    low, high = np.nanquantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def drawn(rows: Rows, draws: int, seed: int = 0) -> Iterator[Floats]:
    """Yield how much each row counts in each draw, [some draws, n], until there were as many as asked for."""
    generator = np.random.default_rng(seed)
    n, sizes = len(rows), rows.cell_sizes
    others = np.ones(n, bool)
    others[rows.cells] = False  # as many places as a cell has rows, but one
    start, size = (np.repeat(v, sizes)[others] for v in (rows.cells, sizes))
    scale = np.repeat(sizes / np.maximum(sizes - 1, 1), sizes)
    single = rows.cells[sizes == 1]
    most = max(1, min(draws, _CHUNK // n))
    for first in range(0, draws, most):
        count = min(most, draws - first)
        taken = start + (generator.random((count, len(start))) * size).astype(np.intp)
        taken += n * np.arange(count)[:, None]
        counts = np.bincount(taken.ravel(), minlength=count * n).reshape(count, n) * scale
        counts[:, single] = generator.exponential(size=(count, len(single)))
        yield counts


@dataclass(frozen=True)
class _Pick:
    """Which sites a run's summaries are over, as weights: average, worst fifth, worst; [N, 3]."""

    weights: Floats

    @classmethod
    def of(cls, values: Floats, measure: Measure, share: Floats) -> _Pick:
        there = np.flatnonzero(np.isfinite(values))
        weights = np.zeros((len(values), 3))
        if there.size:
            worst = there[np.argsort(values[there] if measure.higher_is_better else -values[there], kind="stable")]
            fifth = worst[: max(1, round(_FIFTH * there.size))]
            weights[there, 0], weights[fifth, 1], weights[worst[0], 2] = share[there], 1.0, 1.0
        return cls(weights)

    def __call__(self, values: Floats) -> Floats:
        """Return the three summaries of each row of numbers, [D, 3]."""
        there = np.isfinite(values)
        return ratio(np.where(there, values, 0.0) @ self.weights, there.astype(float) @ self.weights)


def appraise(
    judges: Mapping[str, Sequence[Judge]],
    measures: Sequence[Measure],
    first: Measure,
    *,
    share: Floats,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Scored]:
    """Judge models on the test rows and on draws of them.

    Args:
        judges: for each model one judge a run.
        measures: what to judge by.
        first: the measure of which every site's interval is wanted too.
        share: the sites' weights in the average, [N].
        draws: how many.
        seed: of the draws.
    """
    rows = next(iter(judges.values()))[0].rows
    whole = np.ones((1, len(rows)))
    tables = {n: _Table([judge(whole) for judge in runs], measures, first, share) for n, runs in judges.items()}
    for counts in drawn(rows, draws, seed):
        for name, table in tables.items():
            table.add([judge(counts) for judge in judges[name]])
    return {name: table.scored() for name, table in tables.items()}


def scored(
    once: Sequence[Judged], draws: Sequence[Judged], measures: Sequence[Measure], first: Measure, *, share: Floats
) -> Scored:
    """Return how good a model is, by numbers that are known already.

    Args:
        once: of each run, the numbers on the test rows, [1, N].
        draws: of each run, those of all draws, [draws, N].
        measures: what to judge by.
        first: the measure of which every site's interval is wanted too.
        share: the sites' weights in the average, [N].
    """
    table = _Table(once, measures, first, share)
    table.add(draws)
    return table.scored()


class _Table:
    """One model's numbers, as the draws come."""

    def __init__(self, once: Sequence[Judged], measures: Sequence[Measure], first: Measure, share: Floats) -> None:
        self.once, self.measures, self.first = once, measures, first
        self.picks = [{m.name: _Pick.of(one.sites[m.name][0], m, share) for m in measures} for one in self.once]
        self.draws: list[dict[str, Floats]] = []
        self.each: list[np.ndarray] = []
        self.again: list[Floats] = []

    def add(self, found: Sequence[Judged]) -> None:
        """Take in the runs' numbers on some draws."""
        self.draws.append({m.name: self._summaries(m.name, found).mean(axis=0) for m in self.measures})
        each = np.array([one.sites[self.first.name] for one in found])
        self.each.append(each.mean(axis=0).astype(np.float32))
        self.again.append(np.mean([worst_fifth(values, self.first) for values in each], axis=0))

    def scored(self) -> Scored:
        """Return the numbers."""
        names = [m.name for m in self.measures]
        points = {name: self._summaries(name, self.once)[:, 0] for name in names}
        joined = {name: np.concatenate([part[name] for part in self.draws]) for name in names}
        parts = lambda table: dict(zip(("average", "worst20", "worst", "all"), table.T, strict=True))
        each = np.concatenate(self.each)
        lost = ~np.isfinite(each).all(axis=0)
        ends = np.quantile(np.where(lost, 0.0, each), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return Scored(
            {name: np.array([one.sites[name][0] for one in self.once]) for name in names},
            {name: parts(table) for name, table in points.items()},
            {name: parts(table) for name, table in joined.items()},
            np.where(lost, np.nan, ends),
            float(np.mean(np.concatenate(self.again)) - points[self.first.name][:, 1].mean()),
        )

    def _summaries(self, name: str, found: Sequence[Judged]) -> Floats:
        """Return average, worst fifth, worst and all rows of each run in each draw, [runs, D, 4]."""
        both = zip(found, self.picks, strict=True)
        return np.array([np.column_stack([pick[name](one.sites[name]), one.all[name]]) for one, pick in both])


def worst_fifth(values: Floats, measure: Measure) -> Floats:
    """Return the mean of the worst fifth, picked anew in each row of numbers, [D]."""
    there = values[:, np.isfinite(values).all(axis=0)]
    if not there.shape[1]:
        return np.full(len(values), np.nan)
    count = max(1, round(_FIFTH * there.shape[1]))
    sign = 1.0 if measure.higher_is_better else -1.0
    return sign * mean_of(np.partition(sign * there, count - 1, axis=1)[:, :count])
