r"""The numbers that predictions are judged by, of each site and of all rows, for rows that count more or less than once.

With weights :math:`c_j` of the rows (1, or how often a bootstrap draw has them), p the predicted probabilities and y the class:

.. math::
    \mathrm{AUC} = \frac{\sum_{j \in P, k \in Q} c_j c_k (1[s_j > s_k] + \tfrac12 1[s_j = s_k])}{\sum_P c_j \sum_Q c_k},\quad
    \text{balanced accuracy} = \mathrm{mean}_{\text{classes } c} \Pr(\hat y = c \mid y = c)

.. math::
    \text{log loss} = -\,\mathrm{mean} \log \max(p_y, 10^{-6}),\quad
    \text{Brier} = \mathrm{mean}\,(p_1 - 1[y = 1])^2 \text{ or } \mathrm{mean} \sum_c (p_c - 1[y = c])^2

(the second with more than two classes), recall TP / (TP + FN) and precision TP / (TP + FP) of the positive class; of a
quantity RMSE and MAE. A number that does not exist (the AUC of one class, the precision of nobody called) is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedminimax.fairness.outputs import Outputs
from fedminimax.fairness.rows import Ints, Rows, beginnings

Floats = npt.NDArray[np.float64]
LEAST = 1e-6
"""Smaller probabilities count as this in the log loss: one row cannot make it infinite."""


class Judged(NamedTuple):
    """Numbers for D weightings of the rows: of every site [D, N], and of all rows [D]."""

    sites: dict[str, Floats]
    all: dict[str, Floats]


@dataclass(frozen=True)
class Ranking:
    """Rows sorted by site and score, once: the AUC of any weighting is then a few sums."""

    order: Ints
    ties: Ints  # where a new score, or site, begins
    sites: Ints  # where among these a new site begins

    @classmethod
    def of(cls, scores: Floats, site: Ints) -> Ranking:
        """Sort."""
        order = np.lexsort((scores, site))
        ties = beginnings(site[order], scores[order])
        return cls(order, ties, beginnings(site[order][ties]))

    def auc(self, positive: Floats, counts: Floats) -> Floats:
        """Return the AUC of each site for each weighting, [D, N], given who is positive [n] and the weights [D, n]."""
        up = np.add.reduceat(counts[:, self.order] * positive[self.order], self.ties, axis=1)
        down = np.add.reduceat(counts[:, self.order] * (1 - positive[self.order]), self.ties, axis=1)
        before = down.cumsum(axis=1) - down
        lengths = np.diff([*self.sites, len(self.ties)])
        before -= np.repeat(before[:, self.sites], lengths, axis=1)
        won = np.add.reduceat(up * (before + down / 2), self.sites, axis=1)
        pairs = np.add.reduceat(up, self.sites, axis=1) * np.add.reduceat(down, self.sites, axis=1)
        return ratio(won, pairs)


@dataclass(frozen=True)
class Judge:
    """What is needed of one model's predictions to judge it under any weighting of the rows.

    Attributes:
        rows: the rows.
        values: for each row what is averaged: "correct", "log_loss", "brier", or "rmse" (squares) and "mae"; [n].
        called: 1.0 where the row is called positive; None: there is no positive class.
        rankings: of the rows by site, and of all; None likewise.
    """

    rows: Rows
    values: dict[str, Floats]
    called: Floats | None = None
    rankings: tuple[Ranking, Ranking] | None = None

    def __call__(self, counts: Floats) -> Judged:
        """Return all numbers for weights of the rows, [D, n]."""
        return self._quantity(counts) if not self.rows.classes else self._classes(counts)

    def _quantity(self, counts: Floats) -> Judged:
        weight = self._sums(counts)
        each = {name: self._sums(counts * values) for name, values in self.values.items()}
        sites = {name: total / weight for name, total in each.items()}
        whole = {name: total.sum(axis=1) / weight.sum(axis=1) for name, total in each.items()}
        root = lambda found: found | {"rmse": np.sqrt(found["rmse"])}
        return Judged(root(sites), root(whole))

    def _classes(self, counts: Floats) -> Judged:
        weight = self._sums(counts)
        sites, whole = self._balanced(counts)
        for name in ("accuracy", "log_loss", "brier"):
            total = self._sums(counts * self.values[name])
            sites[name], whole[name] = total / weight, total.sum(axis=1) / weight.sum(axis=1)
        if self.called is not None and self.rankings is not None:
            positive = self.rows.is_positive
            found, missed = self._sums(counts * positive * self.called), self._sums(counts * positive * (1 - self.called))
            wrongly = self._sums(counts * (1 - positive) * self.called)
            for name, other in (("recall", missed), ("precision", wrongly)):
                sites[name] = ratio(found, found + other)
                whole[name] = ratio(found.sum(axis=1), (found + other).sum(axis=1))
            by_site, together = self.rankings
            sites["auc"] = by_site.auc(positive, counts)
            whole["auc"] = together.auc(positive, counts)[:, 0]
        return Judged(sites, whole)

    def _balanced(self, counts: Floats) -> tuple[dict[str, Floats], dict[str, Floats]]:
        rows, name = self.rows, "balanced_accuracy"
        right = np.add.reduceat(counts * self.values["accuracy"], rows.cells, axis=1)
        weight = np.add.reduceat(counts, rows.cells, axis=1)
        recall = ratio(right, weight)
        classes = np.diff([*rows.cells_by_site, len(rows.cells)])
        sites = np.add.reduceat(recall, rows.cells_by_site, axis=1) / classes
        sites[:, classes < 2] = np.nan  # one class: anybody who calls it is always right
        member = np.eye(rows.classes)[np.asarray(rows.labels[rows.cells], np.intp)]
        by_class = ratio(right @ member, weight @ member)
        return {name: sites}, {name: mean_of(by_class)}

    def _sums(self, values: Floats) -> Floats:
        return np.add.reduceat(values, self.rows.by_site, axis=1)


def judge(rows: Rows, found: Outputs, threshold: float | None = None) -> Judge:
    """Return the judge of a model's predictions, which are in the flat order of the data.

    Args:
        rows: the rows that they are for.
        found: the predictions.
        threshold: the probability of the positive class from which on a row is called positive; None: the likeliest class is.
    """
    p = found.probabilities[rows.order]
    if not rows.classes:
        error = p[:, 0] - rows.labels
        return Judge(rows, {"rmse": error**2, "mae": np.abs(error)})
    labels = np.asarray(rows.labels, np.intp)
    own = p[np.arange(len(p)), labels]
    values = {"log_loss": -np.log(np.maximum(own, LEAST))}
    if rows.positive is None:
        values["accuracy"] = (p.argmax(axis=1) == labels).astype(float)
        values["brier"] = ((p - np.eye(rows.classes)[labels]) ** 2).sum(axis=1)
        return Judge(rows, values)
    likely = p[:, rows.positive]
    called = (likely >= (0.5 if threshold is None else threshold)).astype(float)
    values["accuracy"] = (called == rows.is_positive).astype(float)
    values["brier"] = (likely - rows.is_positive) ** 2
    ranked = likely if found.margin is None else found.margin[rows.order]
    rankings = Ranking.of(ranked, rows.site), Ranking.of(ranked, np.zeros_like(rows.site))
    return Judge(rows, values, called, rankings)


def ratio(above: Floats, below: Floats) -> Floats:
    """Return above / below, NaN where there is nothing below."""
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)


def mean_of(values: Floats, weights: Floats | None = None) -> Floats:
    """Return the mean over the last axis of the numbers that exist, by weights if they are given; NaN where none exists."""
    there = np.isfinite(values)
    share = there * (1.0 if weights is None else weights)
    total = np.where(there, values, 0.0) * share
    return ratio(total.sum(axis=-1), share.sum(axis=-1))
