"""Curves over the seeds of each method: mean, least and greatest, and an interval of the mean; thinned, with their extremes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from fedminimax.folders import Record
from fedminimax.report.evidence import Evidence

ROUND = "round"
AXES = {ROUND: "rounds", "floats_up": "floats up", "grad_evals": "gradient evaluations", "waited": "simulated seconds"}
"""What curves are drawn against, where it is known and not zero throughout, and what it is called."""


@dataclass(frozen=True)
class Band:
    """A metric of one method over its seeds.

    Attributes:
        places: which evaluations these are, among those of :attr:`Lines.across`.
        mean: the mean over seeds.
        low: the least.
        high: the greatest.
        half: half the width of a 95% t-interval of the mean; zeros of a single seed.
    """

    places: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    half: np.ndarray


@dataclass(frozen=True)
class Lines:
    """All curves of one method.

    Attributes:
        label: the method.
        seeds: how many runs they are made of.
        note: what is particular about it: unfinished, diverged; empty where nothing is.
        across: what they are drawn against: the mean over seeds, by name.
        bands: a band for each metric.
    """

    label: str
    seeds: int
    note: str
    across: dict[str, np.ndarray]
    bands: dict[str, Band]


def lines(evidence: Evidence, most: int | None = None) -> list[Lines]:
    """Return the curves of every method that has any.

    Runs that are compared are drawn to the end of the shortest with that label. Of a method that has none, those that are not
    finished or that diverged are drawn as far as they came, and it is said.

    Args:
        evidence: the runs.
        most: draw each curve with at most about so many points; None: with all.
    """
    found = []
    for label in evidence.labels:
        runs, note = evidence.counted[label], ""
        for other, said in ((evidence.unfinished, "unfinished"), (evidence.lost, "diverged")):
            if not runs and (some := [r for r in other[label] if len(r.history[ROUND])]):
                runs, note = some, said
        if runs:
            found.append(_lines(label, runs, note, evidence.metrics, most))
    return found


def axes(drawn: list[Lines]) -> dict[str, str]:
    """Return what all curves can be drawn against, with its name."""
    there = lambda name: drawn and all(name in one.across for one in drawn)
    told = lambda name: name == ROUND or any(one.across[name].any() for one in drawn)
    return {name: title for name, title in AXES.items() if there(name) and told(name)}


def _lines(label: str, runs: list[Record], note: str, metrics: list[str], most: int | None) -> Lines:
    rounds = runs[0].history[ROUND]
    for run in runs[1:]:
        rounds = np.intersect1d(rounds, run.history[ROUND])
    at = [np.searchsorted(run.history[ROUND], rounds) for run in runs]
    mean = lambda name: np.mean([np.asarray(r.history[name], float)[k] for r, k in zip(runs, at, strict=True)], axis=0)
    across = {name: mean(name) for name in AXES if all(name in run.history for run in runs)}
    bands = {}
    for metric in metrics:
        own = [(run, k) for run, k in zip(runs, at, strict=True) if metric in run.metrics]
        if own:
            bands[metric] = _band(np.array([np.asarray(run.history[metric], float)[k] for run, k in own]), most)
    kept = np.unique(np.concatenate([band.places for band in bands.values()])) if bands else np.arange(0)
    packed = {m: Band(np.searchsorted(kept, b.places), b.mean, b.low, b.high, b.half) for m, b in bands.items()}
    return Lines(label, len(runs), note, {name: values[kept] for name, values in across.items()}, packed)


def _band(values: np.ndarray, most: int | None) -> Band:
    """Return the band of values [seeds, evaluations]; where a seed is not finite, the others are drawn."""
    values = np.where(np.isfinite(values), values, np.nan)
    sound = np.isfinite(values)
    count = sound.sum(axis=0)
    places = np.flatnonzero(count)
    values, sound, count = values[:, places], sound[:, places], count[places]
    mean = np.nanmean(values, axis=0) if places.size else np.zeros(0)
    spread = np.sqrt(np.nansum((values - mean) ** 2, axis=0) / np.maximum(1, count - 1))
    low, high = (f(values, axis=0) if places.size else mean for f in (np.nanmin, np.nanmax))
    chosen = thin(mean, most)
    half = _quantile(count[chosen]) * spread[chosen] / np.sqrt(count[chosen])
    return Band(places[chosen], mean[chosen], low[chosen], high[chosen], half)


def _quantile(count: np.ndarray) -> np.ndarray:
    from scipy.special import stdtrit

    kinds, where = np.unique(count, return_inverse=True)
    return np.array([stdtrit(n - 1, 0.975) if n > 1 else 0.0 for n in kinds])[where]


def thin(values: np.ndarray, most: int | None) -> np.ndarray:
    """Return which of a curve's points to draw: the first, the last, and the least and greatest of every stretch."""
    count = len(values)
    if most is None or count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, max(1, (most - 2) // 2) + 1).astype(int)
    ends = [
        k for low, high in itertools.pairwise(edges) for k in (low + values[low:high].argmin(), low + values[low:high].argmax())
    ]
    return np.unique([0, *ends, count - 1])
