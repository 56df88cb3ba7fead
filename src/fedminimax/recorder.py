"""A run's record in its folder, kept current while the run goes, so that it can be watched and survives its process."""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedminimax.folders import FINISHED, INTERRUPTED, PRIVACY, RUNNING, STOPPED, Record, log
from fedminimax.identity import hyper_parameters
from fedminimax.metrics import direction
from fedminimax.observers import Observer, Watched
from fedminimax.plan import Plan

_SECONDS = 1.0
"""How far the record may be behind, at least; more where writing it would take over a hundredth of the time."""


class Label(NamedTuple):
    """What a record says that its run does not know: how to call it, what data metrics are on, and what else to keep."""

    label: str
    on: dict[str, str]
    notes: dict[str, Any]


def say(path: Path, sentence: str) -> None:
    """Warn of something about a folder, and put it into its log."""
    warnings.warn(f"{path}: {sentence}.", stacklevel=2)
    with suppress(OSError):
        log(path, sentence)


class Recorder(Observer):
    """Keeps the folder's record current: about once a second, and at the end.

    Args:
        path: the folder.
        plan: the run.
        label: what to call it.
        layout: how a run that goes on was carried out; None: it begins.
    """

    def __init__(self, path: Path, plan: Plan, label: Label, layout: dict[str, Any] | None):
        self._path, self._plan, self._label, self._layout = path, plan, label, layout
        self._writer = ThreadPoolExecutor(1, "fedminimax-record")
        self._writing: Future[float] | None = None
        self._next, self._failed = 0.0, False
        self._newest: Record | None = None

    def on_start(self, run: Watched) -> None:
        """Write what is known, and say so where the run goes on in another way than it went."""
        if self._layout not in (None, run.layout):
            shown = lambda layout: ", ".join(f"{name} {value}" for name, value in layout.items())
            say(
                self._path,
                f"The run was carried out with {shown(self._layout)}, and goes on with {shown(run.layout)}: it equals the run "
                "that was never stopped to rounding",
            )
        self._put(run, RUNNING, wait=True)

    def on_rounds(self, run: Watched) -> None:
        """Write the record, unless it was just written."""
        self._look()
        if time.monotonic() >= self._next and self._writing is None:
            self._put(run, RUNNING)

    def on_evaluation(self, run: Watched) -> None:
        """Write the record, unless it was just written."""
        self.on_rounds(run)

    def on_end(self, run: Watched) -> None:
        """Write how it ended."""
        status = STOPPED if run.stopped else INTERRUPTED if run.round < run.last else FINISHED
        self._put(run, status, wait=True)
        because = f": {run.stopped}" if run.stopped else ""
        with suppress(OSError):
            log(self._path, f"{status.capitalize()} after {run.round} of {run.last} rounds{because}")

    def failed(self, error: BaseException) -> None:
        """Write down that the run has failed; its last checkpoint can be gone on from."""
        with suppress(OSError):
            log(self._path, f"The run failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            if self._newest is not None:
                replace(self._newest, status=INTERRUPTED).write(self._path)

    def close(self) -> None:
        """Wait for what is being written."""
        self._look(wait=True)
        self._writer.shutdown()

    def _put(self, run: Watched, status: str, wait: bool = False) -> None:
        self._look(wait=True)
        self._newest = self._record(run, status)
        self._writing = self._writer.submit(_timed_write, self._newest, self._path)
        self._next = time.monotonic() + _SECONDS
        if wait:
            self._look(wait=True)

    def _look(self, wait: bool = False) -> None:
        if self._writing is None or not (wait or self._writing.done()):
            return
        writing, self._writing = self._writing, None
        try:
            self._next = max(self._next, time.monotonic() + 100 * writing.result())
        except OSError as error:
            if not self._failed:
                self._failed = True
                warnings.warn(f"The record in {self._path} could not be written ({error}): the run goes on.", stacklevel=5)

    def _record(self, run: Watched, status: str) -> Record:
        history = run.history()
        better = {name: direction(self._plan.metrics, name) for name in history}
        notes = {**self._label.notes, "layout": run.layout, "first": run.first, "eval_every": run.eval_every}
        if (privacy := self._plan.conditions.privacy) is not None:
            notes[PRIVACY] = asdict(privacy)
        return Record(
            label=self._label.label,
            method=run.method,
            settings=run.settings,
            seed=run.seed,
            rounds=run.round,
            wanted=run.last,
            status=status,
            history=history,
            costs=tuple(name for name in run.costs if name in history),
            better={name: way for name, way in better.items() if way is not None},
            on=self._label.on,
            hyper=hyper_parameters(self._plan.algorithm),
            seconds=run.seconds,
            notes=notes,
        )


def _timed_write(record: Record, path: Path) -> float:
    before = time.monotonic()
    record.write(path)
    return time.monotonic() - before
