"""Rates by a sensitive column: of those who are positive, how many are called (TPR); of those who are not, how many (FPR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedminimax.fairness.bootstrap import DRAWS, Number, drawn, interval
from fedminimax.fairness.scores import Floats, Judge, ratio

FEW = 20
"""A rate of fewer rows is left out of the gap, and said."""


@dataclass(frozen=True)
class Rates:
    """A model's rates in each group.

    Attributes:
        names: the groups.
        counts: how many test rows are positive, and how many are not, [groups, 2].
        tpr: of each group, with its interval.
        fpr: likewise.
        gaps: the largest difference of either rate between groups that have enough rows; NaN: fewer than two have.
    """

    names: list[str]
    counts: npt.NDArray[np.intp]
    tpr: list[Number]
    fpr: list[Number]
    gaps: dict[str, Number]

    @property
    def few(self) -> dict[str, list[str]]:
        """The groups that have too few rows for either rate."""
        return {
            rate: [name for name, n in zip(self.names, self.counts[:, column], strict=True) if n < FEW]
            for rate, column in (("TPR", 0), ("FPR", 1))
        }


def group_rates(judge: Judge, groups: npt.NDArray[Any], draws: int = DRAWS, seed: int = 0) -> Rates:
    """Return the rates by group, over all test rows.

    Args:
        judge: of one model, with a positive class.
        groups: each row's group, in the flat order of the data.
        draws: how many, for the intervals.
        seed: of the draws.
    """
    rows, called = judge.rows, judge.called
    assert called is not None
    names, number = np.unique(np.array([str(g) for g in groups])[rows.order], return_inverse=True)
    member = np.eye(len(names))[number]
    cells = np.hstack([member * rows.is_positive[:, None], member * (1 - rows.is_positive)[:, None]])
    rates = lambda counts: ratio(counts @ (cells * called[:, None]), counts @ cells)
    once = rates(np.ones((1, len(rows))))[0]
    drawn_rates = np.concatenate([rates(counts) for counts in drawn(rows, draws, seed)])
    counts = cells.sum(axis=0).astype(np.intp).reshape(2, -1).T
    return rates_of([str(n) for n in names], counts, once, drawn_rates)


def rates_of(names: list[str], counts: npt.NDArray[np.intp], once: Floats, drawn_rates: Floats) -> Rates:
    """Return the rates by group with their intervals and gaps.

    Args:
        names: the groups.
        counts: how many test rows are positive, and how many are not, [groups, 2].
        once: the groups' TPR, and after them their FPR, [2 groups].
        drawn_rates: the same in each draw, [draws, 2 groups].
    """
    found = [Number(float(once[k]), *interval(drawn_rates[:, k])) for k in range(len(once))]
    gaps = {
        rate: _gap(once[part], drawn_rates[:, part], counts[:, column] >= FEW)
        for column, (rate, part) in enumerate({"TPR": slice(0, len(names)), "FPR": slice(len(names), None)}.items())
    }
    return Rates(names, counts, found[: len(names)], found[len(names) :], gaps)


def _gap(once: Floats, draws: Floats, enough: npt.NDArray[np.bool_]) -> Number:
    """Return the largest rate less the smallest; the two groups are picked on the test rows, and held in the draws."""
    places = np.flatnonzero(enough)
    if places.size < 2:
        return Number(np.nan, np.nan, np.nan)
    high, low = places[np.argmax(once[places])], places[np.argmin(once[places])]
    return Number(float(once[high] - once[low]), *interval(draws[:, high] - draws[:, low]))
