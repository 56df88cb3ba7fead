"""What a sweep leaves behind: every number of every setting and seed, in memory and on disk."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax import folders
from fedminimax._version import __version__
from fedminimax.errors import InputError
from fedminimax.metrics import HIGHER, LOWER

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SWEEP, ARRAYS = "sweep.json", "sweep.npz"
_PLAIN = (bool, int, float, str, type(None))
_SHOWN = 3


@dataclass(frozen=True, repr=False, eq=False)
class Sweep:
    """The outcome of :func:`fedminimax.sweep`.

    Attributes:
        method: the algorithm's name.
        settings: the hyper-parameters that were varied, one dict a setting.
        seeds: the seeds.
        history: "round" [E], and every metric and cumulative cost as an array [settings, seeds, E]; of a metric that returns an
            array, such as one number for each client, [settings, seeds, E, N]. Metrics of a run that ended early are NaN from
            then on, and its costs stay as they were.
        better: which way each of them is better: "lower" or "higher"; what is not in it is neither.
        costs: which of them are costs.
        rounds_run: up to which evaluation each run went, [settings, seeds]: all rounds, unless halving or Ctrl-C ended it.
        diverged: which runs diverged, [settings, seeds]: their state, or a metric that was finite at the start, became
            non-finite, or the guard refused every reply from one evaluation to the next.
        selected_by: the metric that the winner is chosen by; None: none was named.
        base: the algorithm with all its hyper-parameters, as text.
        interrupted: whether Ctrl-C ended it early.
    """

    method: str
    settings: list[dict[str, Any]]
    seeds: list[int]
    history: dict[str, np.ndarray]
    better: dict[str, str] = field(default_factory=dict)
    costs: tuple[str, ...] = ()
    rounds_run: np.ndarray = None  # type: ignore[assignment]
    diverged: np.ndarray = None  # type: ignore[assignment]
    selected_by: str | None = None
    base: str = ""
    interrupted: bool = False

    def __post_init__(self) -> None:
        runs = (len(self.settings), len(self.seeds))
        if self.rounds_run is None:
            object.__setattr__(self, "rounds_run", np.full(runs, self.history["round"][-1], np.int64))
        if self.diverged is None:
            object.__setattr__(self, "diverged", self.went_astray())

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that are numbers."""
        return [n for n, v in self.history.items() if n != "round" and n not in self.costs and v.ndim == 3]

    @property
    def chosen(self) -> int | None:
        """The number of the winner by the metric that was named for it; None: none was named."""
        return None if self.selected_by is None else self.best(self.selected_by)

    def best(self, metric: str | None = None, better: str | None = None, last: int = 1) -> int:
        """Return the number of the setting whose mean of ``metric`` over seeds, over the last evaluations, is best.

        A setting whose metric was ever non-finite, whose replies the guard refused, or that was not run to the end, is never
        best; where that is all, it is an error.

        Args:
            metric: what to compare settings by; by default what the winner is selected by.
            better: "lower" or "higher"; by default what the metric says of itself.
            last: how many of the last evaluations to average.
        """
        metric = self._named(metric)
        values = self._numbers(metric)
        sound = np.isfinite(values).all(axis=(1, 2)) & ~refused(self.history).any(axis=(1, 2))
        if not sound.any():
            raise InputError(
                f"None of the {len(self.settings)} settings of {self.method} kept {metric!r} finite from the first to the last "
                "evaluation: try smaller steps, or look at the values with frame()."
            )
        sign = 1.0 if self._direction(metric, better) == LOWER else -1.0
        score = np.full(len(values), np.inf)
        score[sound] = sign * values[sound, :, -last:].mean(axis=(1, 2), dtype=float)
        return int(np.argmin(score))

    def went_astray(self) -> np.ndarray:
        """Return which runs diverged as far as their history shows it, [settings, seeds]."""
        astray = refused(self.history).any(axis=-1) & np.ones((len(self.settings), len(self.seeds)), bool)
        run = self.history["round"] <= self.rounds_run[..., None]
        for name in self.metrics:
            finite = np.isfinite(self.history[name])
            astray |= finite[..., 0] & (run & ~finite).any(axis=-1)
        return astray

    def _named(self, metric: str | None) -> str:
        if metric is None and self.selected_by is None:
            raise InputError("Name the metric to compare settings by, or give select=... to the sweep.")
        return metric or str(self.selected_by)

    def _direction(self, metric: str, better: str | None) -> str:
        known = self.better.get(metric) if better is None else better
        if known not in (LOWER, HIGHER):
            cause = f"Nothing says which way {metric!r} is better" if better is None else f"better is {better!r}"
            raise InputError(
                f"{cause}: give better='lower' or better='higher' (a function of your own can have an attribute `better`)."
            )
        return known

    def _numbers(self, metric: str) -> np.ndarray:
        values = self.values(metric)
        if values.ndim > 3:
            raise InputError(f"{metric!r} is an array at every evaluation, not a number: values({metric!r}) has it.")
        return values

    def values(self, metric: str) -> np.ndarray:
        """Return a metric, [settings, seeds, evaluations], or [settings, seeds, evaluations, N] where it is an array."""
        if metric not in self.history:
            raise InputError(f"There is no {metric!r} in this sweep: it has {', '.join(self.history)}.")
        return self.history[metric]

    def frame(self) -> pd.DataFrame:
        """Return every number as a long table: one row a setting, seed and evaluation that was run; arrays are in ``history``.

        The column "diverged" says whether the run did, at whatever evaluation.
        """
        import pandas as pd

        rounds, seeds = self.history["round"], len(self.seeds)
        rows: dict[str, Any] = {}
        for name in self.settings[0] if self.settings else {}:
            each = pd.Series([_plain(setting[name]) for setting in self.settings])  # objects as text
            rows[name] = each.repeat(seeds * len(rounds)).to_numpy()
        rows["seed"] = np.tile(np.repeat(self.seeds, len(rounds)), len(self.settings))
        rows["round"] = np.tile(rounds, len(self.settings) * seeds)
        rows |= {k: v.ravel() for k, v in self.history.items() if v.ndim == 3}
        rows["diverged"] = np.repeat(self.diverged.ravel(), len(rounds))
        run = rows["round"] <= np.repeat(self.rounds_run.ravel(), len(rounds))
        return pd.DataFrame(rows)[run].reset_index(drop=True)

    def plot(
        self,
        metric: str | None = None,
        setting: int | None = None,
        against: str = "round",
        ax: Axes | None = None,
        better: str | None = None,
        **style: Any,
    ) -> Axes:
        """Draw one setting's metric, by default the :meth:`best`'s: the mean over seeds, and a band from least to greatest."""
        import matplotlib.pyplot as plt

        metric = self._named(metric)
        k = self.best(metric, better) if setting is None else setting
        values = self._numbers(metric)[k]
        ax = plt.subplots(figsize=(6, 4), layout="constrained")[1] if ax is None else ax
        across = self.history[against] if against == "round" else self.values(against)[k].mean(axis=0)
        (line,) = ax.plot(across, values.mean(axis=0), **{"label": self.method, **style})
        ax.fill_between(across, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2, linewidth=0)
        ax.set_xlabel(against.replace("_", " "))
        ax.set_ylabel(metric.replace("_", " "))
        ax.legend()
        return ax

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write it into a folder, exactly: ``sweep.json`` and ``sweep.npz``. Hyper-parameters that are objects become text."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        arrays = {**self.history, "rounds_run": self.rounds_run, "diverged": self.diverged}
        folders.write_atomically(place / ARRAYS, packed(arrays))
        folders.write_json(
            place / SWEEP,
            {
                "format": folders.FORMAT,
                "version": __version__,
                "method": self.method,
                "settings": [{name: _plain(value) for name, value in setting.items()} for setting in self.settings],
                "seeds": self.seeds,
                "columns": list(self.history),
                "better": self.better,
                "costs": self.costs,
                "selected_by": self.selected_by,
                "chosen": self._chosen_or_none(),
                "base": self.base,
                "interrupted": self.interrupted,
            },
        )
        return place

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Sweep:
        """Read what :meth:`save` wrote."""
        place = Path(folder)
        kept = folders.read_json(place / SWEEP)
        for name in ("format", "version", "chosen"):
            kept.pop(name, None)
        try:
            arrays = unpacked((place / ARRAYS).read_bytes())
            columns = kept.pop("columns")
            kept |= {name: arrays[name] for name in ("rounds_run", "diverged")} | {"costs": tuple(kept["costs"])}
            return cls(**kept, history={name: arrays[name] for name in columns})
        except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
            raise InputError(f"The sweep in {place} cannot be read ({error}): a file of it is damaged or missing.") from error

    def _chosen_or_none(self) -> int | None:
        try:
            return self.chosen
        except InputError:  # nothing stayed finite: there is no winner
            return None

    def __repr__(self) -> str:
        names = ", ".join(self.settings[0]) if self.settings and self.settings[0] else "nothing"
        last = int(self.history["round"][-1])
        said = [f"{len(self.settings)} settings of {names}, {len(self.seeds)} seeds, {last} rounds"]
        if short := int((self.rounds_run < last).any(axis=1).sum()):
            said.append(f"{short} ended early")
        if lost := int(self.diverged.any(axis=1).sum()):
            said.append(f"{lost} diverged")
        if (k := self._chosen_or_none()) is not None:
            at = ", ".join(f"{name} = {_short(value)}" for name, value in self.settings[k].items())
            said.append(f"the best by {self.selected_by} at {at}")
        elif numbers := self.metrics:
            more = ", ..." if len(numbers) > _SHOWN else ""
            said.append(f"with {', '.join(numbers[:_SHOWN])}{more}")
        return f"Sweep({self.method}: {'; '.join(said)}{'; interrupted' if self.interrupted else ''})"


def refused(history: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return at which evaluations every reply since the one before was refused by the guard, [settings, seeds, evaluations]."""
    if not {"replies", "dropped"} <= set(history):
        return np.zeros((1, 1, 1), bool)
    replies, dropped = (np.diff(history[name], axis=-1, prepend=0) for name in ("replies", "dropped"))
    return (replies > 0) & (dropped == replies)


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """Return arrays by name as the bytes of an ``.npz`` file: the same bytes for the same arrays."""
    file = io.BytesIO()
    np.savez(file, **{name.replace("/", "\\"): values for name, values in arrays.items()})  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(contents: bytes) -> dict[str, np.ndarray]:
    """Return the arrays that :func:`packed` packed."""
    with np.load(io.BytesIO(contents), allow_pickle=False) as kept:
        return {name.replace("\\", "/"): kept[name] for name in kept.files}


def _plain(value: Any) -> Any:
    """Return a value that JSON and tables can hold; an object's text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, _PLAIN) else repr(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(_plain(value))
