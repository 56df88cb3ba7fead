"""What a site tells of how good models are on its own rows: numbers about many rows, never a row's score.

For each model, of each class the share of its rows that are called so, the log loss, the Brier score and the AUC; of a quantity
the mean squared and absolute errors. Of these numbers the site also tells what other rows might have given, by draws of its own
that it keeps to itself: some quantiles, and the correlations between models, by which the server compares them in pairs. The
draws themselves do not leave: many sums over rows, of which somebody knows the weights, would give the rows away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedminimax.data.clients import ClientData
from fedminimax.data.federation import Federation
from fedminimax.fairness.bootstrap import drawn
from fedminimax.fairness.outputs import Outputs, labels_of
from fedminimax.fairness.rows import Rows
from fedminimax.fairness.scores import Floats, Judge, judge, ratio
from fedminimax.fairness.threshold import histogram

LEVELS = (0.005, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.995)
"""The quantiles that are told."""
BINS = 200
"""Bins of predicted log-odds in which rows are counted."""
RARE = "(rare)"
"""The group of all values that few test rows of a site have."""


def names_of(classes: int, positive: int | None) -> list[str]:
    """Return the names of what is told of a model, given how many classes there are; none: a quantity."""
    if not classes:
        return ["mse", "mae"]
    return [*(f"class {c}" for c in range(classes)), "log_loss", "brier", *(["auc"] if positive is not None else [])]


def numbers(judge: Judge, counts: Floats) -> dict[str, Floats]:
    """Return what is told of a model, for D weightings of the rows of one site, [D] each; NaN where there is none."""
    rows = judge.rows
    if not rows.classes:
        found = judge(counts).sites
        return {"mse": found["rmse"][:, 0] ** 2, "mae": found["mae"][:, 0]}
    told = {name: np.full(len(counts), np.nan) for name in names_of(rows.classes, rows.positive)}
    right = np.add.reduceat(counts * judge.values["accuracy"], rows.cells, axis=1)
    shares = ratio(right, np.add.reduceat(counts, rows.cells, axis=1))
    for k, label in enumerate(rows.labels[rows.cells]):
        told[f"class {int(label)}"] = shares[:, k]
    found = judge(counts).sites
    for name in told:
        if name in found:
            told[name] = found[name][:, 0]
    return told


def points(judges: Sequence[Judge]) -> dict[str, Floats]:
    """Return what is told of each model on the rows themselves, [M] each."""
    once = [numbers(one, np.ones((1, len(one.rows)))) for one in judges]
    return {name: np.array([found[name][0] for found in once]) for name in once[0]}


def spreads(judges: Sequence[Judge], draws: int, seed: int) -> dict[str, dict[str, Floats]]:
    """Return of each number its quantiles over draws of the rows, [M, levels], and the correlations of models, [M, M]."""
    parts = [[numbers(one, counts) for one in judges] for counts in drawn(judges[0].rows, draws, seed)]
    names = parts[0][0]
    found = {}
    for name in names:
        values = np.array([np.concatenate([part[m][name] for part in parts]) for m in range(len(judges))])
        found[name] = {"quantiles": np.quantile(values, LEVELS, axis=1).T, "correlations": _correlations(values)}
    return found


def _correlations(values: Floats) -> Floats:
    """Return the correlations of rows of numbers; those of a number that does not vary, or does not exist, are 0."""
    centred = values - values.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1))
    there = np.isfinite(length) & (length > 0)
    unit = np.where(there[:, None], centred, 0.0) / np.where(there, length, 1.0)[:, None]
    made = unit @ unit.T
    np.fill_diagonal(made, 1.0)
    return np.asarray(made)


def own_seed(data: ClientData) -> int:
    """Return a seed that follows from a site's rows, so that nobody else knows it and it is the same again."""
    digest = hashlib.sha256()
    for field in ("inputs", "labels"):
        digest.update(np.ascontiguousarray(data.fields[field]).tobytes())
    return int.from_bytes(digest.digest()[:8], "little")


def judges_of(data: ClientData, site: Federation, found: Sequence[Outputs], thresholds: Sequence[float | None]) -> list[Judge]:
    """Return the judges of models' predictions for a site's rows."""
    rows = Rows.of(data, site)
    return [judge(rows, one, edge) for one, edge in zip(found, thresholds, strict=True)]


def histograms(data: ClientData, site: Federation, found: Sequence[Outputs]) -> npt.NDArray[np.int64]:
    """Return of each model the counts of negative and positive rows by predicted log-odds, [M, 2, BINS]."""
    assert site.positive is not None
    positive = labels_of(data, site) == site.positive
    return np.array([histogram(one.probabilities[:, site.positive], positive, BINS) for one in found])


def by_group(judges: Sequence[Judge], groups: npt.NDArray[Any], least: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return for each group and model how many rows are [positive, negative], and of these how many are called, [M, 2, 2]."""
    rows = judges[0].rows
    own = np.array([str(group) for group in groups])[rows.order]
    names, sizes = np.unique(own, return_counts=True)
    own = np.where(np.isin(own, names[sizes >= least]), own, RARE)
    told = {}
    for name in np.unique(own):
        inside = own == name
        tables = []
        for one in judges:
            assert one.called is not None
            masks = (inside & (rows.is_positive == 1), inside & (rows.is_positive == 0))
            tables.append([[int(mask.sum()), int(one.called[mask].sum())] for mask in masks])
        told[str(name)] = np.array(tables, np.int64)
    return told
