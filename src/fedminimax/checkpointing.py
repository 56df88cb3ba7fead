"""The observer that saves a run while it goes."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from fedminimax import checkpoint, checks
from fedminimax.engines.mesh.watch import Lost
from fedminimax.engines.rows import OwnStates, Part
from fedminimax.engines.store import ClientStore
from fedminimax.errors import InputError
from fedminimax.folders import log
from fedminimax.interrupts import uninterrupted
from fedminimax.observers import Observer, Watched
from fedminimax.result import Result

_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
DEFAULT = "1min"


def interval(every: int | str | None) -> tuple[int | None, float | None]:
    """Return how many rounds, or how many seconds, are between two checkpoints.

    Args:
        every: rounds, or a time such as "30s", "5min" or "1.5h"; None: a minute.
    """
    every = DEFAULT if every is None else every
    if not isinstance(every, str):
        return checks.integer("checkpoint_every", every), None
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*(\w+)\s*", every)
    if found is None or found[2] not in _UNITS or float(found[1]) <= 0:
        raise InputError(f"checkpoint_every must be rounds, or a time such as '30s', '5min' or '1h', not {every!r}.")
    return None, float(found[1]) * _UNITS[found[2]]


def _give_way() -> None:
    """Let this thread, and those that it starts, work when the rounds leave a core idle: they are what one waits for."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class Checkpoints(Observer):
    """Saves all that a run goes on from, every so often and at its end; ``run(..., folder=)`` has one of these.

    What is saved is taken at once and written in a thread of its own while the rounds go on. A checkpoint that cannot be
    written (the disk is full) is a warning: the run goes on, those before it stay, and the next one is tried again.

    Args:
        folder: the run's folder; checkpoints go into its sub-folder "checkpoints".
        every: how many rounds, or how much time ("30s", "5min"), may be lost; by default a minute.
        keep: how many checkpoints are kept, the newest ones.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int | str | None = None, keep: int = 3):
        self.folder, self.keep = Path(folder), checks.integer("keep", keep)
        self._rounds, self._seconds = interval(every)
        self._writer: ThreadPoolExecutor | None = None
        self._saving: Future[None] | None = None
        self._what: tuple[int, int] | None = None
        self._last_round, self._last_time = 0, 0.0
        self.at_start = False
        """Whether a run is saved before its first round, too."""
        self.saved: int | None = None
        """After how many rounds the newest checkpoint was taken that is known to be whole; None: there is none yet."""

    def on_start(self, run: Watched) -> None:
        """Begin to count."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writer = ThreadPoolExecutor(1, "fedminimax-checkpoint", _give_way)
        self._writer.submit(checkpoint.warm_up)
        self._last_round, self._last_time = run.round, monotonic()
        self.saved = run.resumed
        self._what = None if run.resumed is None else (run.resumed, len(run.history()["round"]))
        if self.at_start and run.resumed is None:
            self._save(run)

    def wants(self, run: Watched) -> int | None:
        """Return the round after which the next checkpoint is due."""
        if self._rounds is None:
            return None
        return run.first + ((run.round - run.first) // self._rounds + 1) * self._rounds

    def on_rounds(self, run: Watched) -> None:
        """Save, if it is time."""
        self._look()
        if self._rounds is not None:
            due = (run.round - run.first) // self._rounds > (self._last_round - run.first) // self._rounds
        else:
            due = monotonic() - self._last_time >= (self._seconds or 0.0)
        if due and run.round < run.last:  # the end is saved with its evaluation
            self._save(run)

    def on_end(self, run: Watched) -> None:
        """Save the end, unless the newest checkpoint is just that, and wait until it is written."""
        self._save(run)
        self.close()
        if self.saved != run.round:
            known = "nothing" if self.saved is None else f"{self.saved} rounds"
            self._tell(f"{self.folder} has {known} of the {run.round} rounds that were run: the result has them all")

    def close(self) -> None:
        """Wait for what is being written."""
        if self._writer is not None:
            self._look(wait=True)
            self._writer.shutdown()
            self._writer = None

    def _save(self, run: Watched) -> None:
        if self._writer is None:
            return
        self._look(wait=True)
        result = run.result(whole=False)
        what = run.round, len(result.history["round"])
        self._last_round, self._last_time = run.round, monotonic()
        if what == self._what and self.saved == run.round:
            return
        facts = {"first": run.first, "last": run.last, "eval_every": run.eval_every, "layout": run.layout}
        with uninterrupted():
            try:
                name = checkpoint.next_name(self.folder, run.round)
                store, elsewhere = result.client_states, None
                if isinstance(store, OwnStates):
                    elsewhere = run.keep(checkpoint.make(self.folder, name))
                if isinstance(store, ClientStore):
                    if store.folder is not None:
                        store.mark(name)
                    else:  # rows in memory change while they are written
                        result = Result(**{**result.__dict__, "client_states": ClientStore.restore(store.record())})
            except OSError as error:
                self._failed(run.round, error)
                return
            self._what = what
            self._saving = self._writer.submit(self._write, name, result, facts, run.round, elsewhere)

    def _write(
        self, name: str, result: Result, facts: dict[str, Any], rounds: int, elsewhere: Callable[[], list[Part]] | None
    ) -> None:
        checkpoint.write(self.folder, name, result, facts, elsewhere)
        self.saved = rounds
        oldest = checkpoint.prune(self.folder, self.keep)
        if isinstance(result.client_states, ClientStore) and oldest is not None:
            result.client_states.forget(oldest)

    def _look(self, wait: bool = False) -> None:
        """See what became of the checkpoint that is being written."""
        if self._saving is None or not (wait or self._saving.done()):
            return
        saving, self._saving = self._saving, None
        try:
            saving.result()
        except Lost:  # which ends the run, and is said there
            self._what = None
        except Exception as error:  # orbax raises what it likes
            assert self._what is not None
            self._failed(self._what[0], error)

    def _failed(self, rounds: int, error: Exception) -> None:
        self._what = None
        reason = " ".join(str(error).split())[:300]
        self._tell(f"The checkpoint after {rounds} rounds could not be saved in {self.folder} ({reason}): the run goes on")

    def _tell(self, sentence: str) -> None:
        warnings.warn(f"{sentence}.", stacklevel=4)
        with suppress(OSError):
            log(self.folder, sentence)
