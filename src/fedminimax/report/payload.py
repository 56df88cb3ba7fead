"""What the page's script draws, as one JSON: numbers in single precision, packed, each of them once."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax.errors import InputError
from fedminimax.folders import Record
from fedminimax.report.curves import axes, lines
from fedminimax.report.evidence import Evidence
from fedminimax.report.material import Material, winner
from fedminimax.report.populations import populations

if TYPE_CHECKING:
    from fedminimax.sweep import Sweep

ROOM = 80_000
"""About how many numbers the curves may have: half a megabyte or so."""
MOST_POINTS, FEWEST_POINTS = 400, 40
MOST_CLIENTS, MOST_ROWS, MOST_COLUMNS = 400, 60, 120
"""Of more clients than these, bars show quantiles, and weights the heaviest; of more evaluations, some."""
MOST_BARS = 24
"""So many sets of bars, or of weights, can be chosen from."""
WEIGHTS, BESIDE = "w", ("entropy", "largest")
"""The metric whose arrays are weights on clients; under another label it is known by the numbers that it has beside them."""


def packed(values: np.ndarray) -> str:
    """Return numbers as base64 of float32, little-endian; those that are no numbers stay none."""
    with np.errstate(over="ignore"):
        return base64.b64encode(np.asarray(values).astype("<f4").tobytes()).decode()


def curves(evidence: Evidence) -> dict[str, Any]:
    """Return the curves of all metrics and methods, and what they can be drawn against."""
    sizes = len(evidence.labels) * max(1, 4.5 * len(evidence.metrics))
    drawn = lines(evidence, int(np.clip(ROOM / sizes, FEWEST_POINTS, MOST_POINTS)))
    across = axes(drawn)
    return {
        "axes": across,
        "lines": [
            {
                "label": one.label,
                "seeds": one.seeds,
                "note": one.note,
                "style": evidence.labels.index(one.label),
                "across": {name: packed(one.across[name]) for name in across},
                "bands": {
                    metric: {
                        "places": packed(band.places),
                        **{part: packed(getattr(band, part)) for part in ("mean", "low", "high", "half")},
                    }
                    for metric, band in one.bands.items()
                },
            }
            for one in drawn
        ],
    }


def clients(evidence: Evidence) -> list[dict[str, Any]]:
    """Return every client's number at the end for each metric that has one for each client, as :func:`bars` has them."""
    found = []
    for one in bars(evidence)[:MOST_BARS]:
        values, count = one.values, one.count
        if many := count > MOST_CLIENTS:  # each method's own quantiles
            values = {label: np.quantile(value, np.linspace(0, 1, MOST_CLIENTS)) for label, value in values.items()}
        found.append(
            {
                "metric": one.metric,
                "title": one.title,
                "over": one.over,
                "better": evidence.better.get(one.metric, ""),
                "count": count,
                "quantiles": many,
                "values": {label: packed(value) for label, value in values.items()},
            }
        )
    return found


@dataclass(frozen=True)
class Bars:
    """Every client's number at the end.

    Attributes:
        metric: the metric.
        title: the metric, and of which runs where not all had the same clients.
        over: what the numbers are the means of.
        values: by method, [N].
    """

    metric: str
    title: str
    over: str
    values: dict[str, np.ndarray]

    @property
    def count(self) -> int:
        """How many clients there are."""
        return len(next(iter(self.values.values())))


def bars(evidence: Evidence) -> list[Bars]:
    """Return every client's number at the end: the mean over the seeds that had the same clients, and no others."""
    found = []
    for metric in _arrays(evidence, weights=False):
        for group in populations(evidence.counted):
            ends = {
                label: [run.arrays[metric][evidence.at(run)] for run in runs if metric in run.arrays]
                for label, runs in group.runs.items()
            }
            values = {label: np.mean(own, axis=0) for label, own in ends.items() if own and len({len(v) for v in own}) == 1}
            if len({len(value) for value in values.values()}) == 1:
                over = group.over(max(len(ends[label]) for label in values))
                found.append(Bars(metric, f"{metric}, {group.name}" if group.name else metric, over, values))
    return found


def weights(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the weights on clients over rounds of each method that has any, the mean over seeds with the same clients."""
    found = []
    for metric in _arrays(evidence, weights=True):
        for group in populations(evidence.counted):
            for label, all_runs in group.runs.items():
                runs = [r for r in all_runs if metric in r.arrays]
                if runs and len({r.arrays[metric].shape[1:] for r in runs}) == 1:
                    name = f"{label}, {group.name}" if group.name and group.name != label else label
                    found.append({"label": name, "metric": metric, "over": group.over(len(runs)), **_weights(runs, metric)})
    return found[:MOST_BARS]


def _weights(runs: list[Record], metric: str) -> dict[str, Any]:
    """Return the mean of some runs' weights: of the heaviest clients, at some of the evaluations."""
    length = min(len(r.history["round"]) for r in runs)
    w = np.mean([r.arrays[metric][:length] for r in runs], axis=0)  # [evaluations, N]
    heavy = np.sort(np.argsort(-w[-1], kind="stable")[:MOST_ROWS])
    when = np.unique(np.linspace(0, length - 1, min(length, MOST_COLUMNS)).astype(int))
    return {
        "count": w.shape[1],
        "clients": heavy.tolist(),
        "rounds": runs[0].history["round"][when].tolist(),
        "values": packed(w[np.ix_(when, heavy)].T),
    }


def sweeps(material: Material) -> list[dict[str, Any]]:
    """Return every search: its settings, and the mean over seeds of each metric at the end; diverged ones have none.

    Settings that were ended early have their value at that time, and are marked.
    """
    return [_sweep(label, sweep) for label, sweep in material.sweeps.items() if len(sweep.settings) > 1 and sweep.settings[0]]


def _sweep(label: str, sweep: Sweep) -> dict[str, Any]:
    names = list(sweep.settings[0])
    metrics = [name for name in sweep.metrics if name in sweep.better]
    rounds = sweep.history["round"]
    last = np.searchsorted(rounds, sweep.rounds_run, side="right") - 1  # [settings, seeds]
    values, best = {}, {}
    for name in metrics:
        ends = np.take_along_axis(np.asarray(sweep.history[name], float), last[..., None], axis=2)[..., 0]
        sound = np.isfinite(ends).all(axis=1) & ~sweep.diverged.any(axis=1)
        values[name] = [float(f"{row.mean():.6g}") if fine else None for row, fine in zip(ends, sound, strict=True)]
        with suppress(InputError):
            best[name] = sweep.best(name)
    return {
        "label": label,
        "names": names,
        "settings": [[_plain(setting[name]) for name in names] for setting in sweep.settings],
        "seeds": len(sweep.seeds),
        "better": {name: sweep.better[name] for name in metrics},
        "values": values,
        "early": (sweep.rounds_run < rounds[-1]).any(axis=1).tolist(),
        "best": best,
        "chosen": winner(sweep),
        "selectedBy": sweep.selected_by or "",
    }


def _arrays(evidence: Evidence, weights: bool) -> list[str]:
    """Return the names of the metrics that have a number for each client: those of weights, or the others."""
    names: dict[str, bool] = {}
    for run in (run for runs in evidence.counted.values() for run in runs):
        for name, values in run.arrays.items():
            label = name.rpartition("/")[0]
            ours = name.split("/")[0] == WEIGHTS or all(f"{label}/{number}" in run.history for number in BESIDE)
            if values.ndim == 2:
                names.setdefault(name, ours)
    return [name for name, ours in names.items() if ours == weights]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, (int, float, str)) or value is None else str(value)
