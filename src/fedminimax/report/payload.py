"""What the page's script draws, as one JSON: numbers in single precision, packed, each of them once."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax.errors import InputError
from fedminimax.report.curves import axes, lines
from fedminimax.report.evidence import Evidence
from fedminimax.report.material import Material, winner

if TYPE_CHECKING:
    from fedminimax.sweep import Sweep

ROOM = 80_000
"""About how many numbers the curves may have: half a megabyte or so."""
MOST_POINTS, FEWEST_POINTS = 400, 40
MOST_CLIENTS, MOST_ROWS, MOST_COLUMNS = 400, 60, 120
"""Of more clients than these, bars show quantiles, and weights the heaviest; of more evaluations, some."""
WEIGHTS = "w"
"""The metric whose arrays are weights on clients."""


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
    """Return every client's number at the end, the mean over seeds, for each metric that has one for each client."""
    found = []
    for metric, values in client_values(evidence).items():
        count = len(next(iter(values.values())))
        if many := count > MOST_CLIENTS:  # each method's own quantiles
            values = {label: np.quantile(value, np.linspace(0, 1, MOST_CLIENTS)) for label, value in values.items()}
        found.append(
            {
                "metric": metric,
                "better": evidence.better.get(metric, ""),
                "count": count,
                "quantiles": many,
                "values": {label: packed(value) for label, value in values.items()},
            }
        )
    return found


def client_values(evidence: Evidence) -> dict[str, dict[str, np.ndarray]]:
    """Return every client's number at the end by metric and method, where all methods have the same clients."""
    found = {}
    for metric in _arrays(evidence, weights=False):
        values = {label: value for label in evidence.labels if (value := _at_end(evidence, label, metric)) is not None}
        if len({len(value) for value in values.values()}) == 1:
            found[metric] = values
    return found


def weights(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the weights on clients over rounds, the mean over seeds, of each method that has any."""
    found = []
    for metric in _arrays(evidence, weights=True):
        for label in evidence.labels:
            runs = [r for r in evidence.counted[label] if metric in r.arrays]
            if not runs or len({r.arrays[metric].shape[1:] for r in runs}) != 1:
                continue
            length = min(len(r.history["round"]) for r in runs)
            w = np.mean([r.arrays[metric][:length] for r in runs], axis=0)  # [evaluations, N]
            heavy = np.sort(np.argsort(-w[-1], kind="stable")[:MOST_ROWS])
            when = np.unique(np.linspace(0, length - 1, min(length, MOST_COLUMNS)).astype(int))
            found.append(
                {
                    "label": label,
                    "metric": metric,
                    "seeds": len(runs),
                    "count": w.shape[1],
                    "clients": heavy.tolist(),
                    "rounds": runs[0].history["round"][when].tolist(),
                    "values": packed(w[np.ix_(when, heavy)].T),
                }
            )
    return found


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
    names = dict.fromkeys(
        name for runs in evidence.counted.values() for run in runs for name, v in run.arrays.items() if v.ndim == 2
    )
    return [name for name in names if (name.split("/")[0] == WEIGHTS) == weights]


def _at_end(evidence: Evidence, label: str, metric: str) -> np.ndarray | None:
    runs = [run.arrays[metric][evidence.at(run)] for run in evidence.counted[label] if metric in run.arrays]
    return np.mean(runs, axis=0) if runs and len({len(run) for run in runs}) == 1 else None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, (int, float, str)) or value is None else str(value)
