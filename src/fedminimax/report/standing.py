"""How an experiment under way stands: read from its folder, again and again, while another process writes it."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedminimax import folders
from fedminimax.errors import InputError
from fedminimax.folders import FINISHED, RUNNING, Record
from fedminimax.report.evidence import Evidence
from fedminimax.report.material import EXPERIMENT, SWEEPS
from fedminimax.report.payload import curves
from fedminimax.report.words import number

WAITING, SEARCHING, FAILED = "waiting", "searching hyper-parameters", "failed"
LOCK = "lock"
"""The file in which a run's process leaves its number."""
QUIET = 60.0
"""After so many seconds without news of a run, or ten times what an evaluation takes, it is said; and runs that no experiment
has planned are taken to be all."""


@dataclass(frozen=True)
class Stand:
    """One run under way.

    Attributes:
        label: the method.
        seed: the seed.
        status: as in :class:`~fedminimax.folders.Record`, or "waiting", "searching hyper-parameters" or "failed".
        rounds: how many rounds have been run.
        wanted: how many were asked for.
        left: about how many seconds are left; None: nothing is known.
        newest: the last values of its metrics.
        quiet: for how many seconds nothing was heard of a run that should be running; None where that is no wonder.
        gone: whether the process that should be running it is not there.
    """

    label: str
    seed: int
    status: str
    rounds: int
    wanted: int
    left: float | None
    newest: dict[str, float]
    quiet: float | None = None
    gone: bool = False

    @property
    def words(self) -> str:
        """How it stands, in words."""
        if self.status != RUNNING:
            return self.status
        if self.gone:
            return "its process is gone; it can be resumed"
        silent = "" if self.quiet is None else f", no news for {duration(self.quiet)}: is it still running?"
        return f"running{'' if self.left is None else f', about {duration(self.left)} left'}{silent}"


@dataclass(frozen=True)
class Standing:
    """An experiment under way.

    Attributes:
        name: its name.
        runs: its runs, those that have not begun included.
        records: those that have begun, as their folders have them.
        ended: whether nothing goes on any more.
    """

    name: str
    runs: list[Stand]
    records: list[Record]
    ended: bool

    @property
    def share(self) -> float:
        """How much of the rounds has been run, from 0 to 1."""
        done = [1.0 if run.status == FINISHED else run.rounds / run.wanted if run.wanted else 0.0 for run in self.runs]
        return sum(done) / len(done) if done else 0.0

    @property
    def left(self) -> float | None:
        """About how many seconds are left if runs go one after another; None: nothing is known."""
        going = [run for run in self.runs if run.status == RUNNING]
        whole = [r.seconds / r.rounds * r.wanted for r in self.records if r.rounds and r.seconds]
        waiting = sum(run.status == WAITING for run in self.runs)
        if (
            any(run.left is None for run in going)
            or any(run.status == SEARCHING for run in self.runs)
            or (waiting and not whole)
        ):
            return None
        return sum(run.left or 0.0 for run in going) + (waiting * sum(whole) / len(whole) if waiting else 0.0)

    @property
    def words(self) -> str:
        """How it stands, in a sentence."""
        if not self.runs:
            return "No run has begun yet."
        finished = sum(run.status == FINISHED for run in self.runs)
        told = f"{finished} of {len(self.runs)} runs finished"
        if self.ended:
            return f"{told}; nothing is running any more."
        if not any(run.status in (RUNNING, SEARCHING, WAITING) for run in self.runs):
            return f"{told}; none is running just now."
        return f"{told}, {self.share:.0%} of the rounds{'' if self.left is None else f', about {duration(self.left)} left'}."

    def payload(self) -> dict[str, Any]:
        """Return what the live page draws."""
        # Those that are finished are one band a method; one that is running is a line of its own, as far as it came.
        going = lambda r: (
            replace(r, status=FINISHED, label=f"{r.label}, seed {r.seed} ({r.status})") if r.status != FINISHED else r
        )
        evidence = Evidence.of(going(record) for record in self.records)
        return {
            "name": self.name,
            "words": self.words,
            "share": self.share,
            "ended": self.ended,
            "metrics": evidence.metrics,
            "titles": {name: evidence.called(name) for name in evidence.metrics},
            "runs": [
                {
                    "label": run.label,
                    "seed": run.seed,
                    "words": run.words,
                    "status": run.status,
                    "rounds": run.rounds,
                    "wanted": run.wanted,
                    "newest": {name: number(value, 4) for name, value in run.newest.items()},
                }
                for run in self.runs
            ],
            **curves(evidence),
        }


def look(folder: Path) -> Standing:
    """Read how an experiment, or a run, stands."""
    records = []
    for place in folders.runs_in(folder):
        with suppress(InputError):  # one that is written for the first time just now is there at the next look
            records.append(Record.read(place))
    experiment: dict[str, Any] = {}
    with suppress(InputError):
        experiment = folders.read_json(folder / EXPERIMENT)
    runs = [_stand(record) for record in records]
    failed = set(experiment.get("failed") or {})
    begun = {(run.label, run.seed) for run in runs}
    wanted = max((run.wanted for run in runs), default=0)
    for label in experiment.get("labels") or []:
        searching = (folder / SWEEPS / str(label)).is_dir()  # its runs come when the search is over
        for seed in experiment.get("seeds") or []:
            if (label, seed) not in begun:
                lost = {f"{label}/seed-{seed}", f"{label}/sweep"} & failed
                how = FAILED if lost else SEARCHING if searching else WAITING
                runs.append(Stand(str(label), int(seed), how, 0, wanted, None, {}))
    status = experiment.get("status")
    if status is not None:
        ended = status != RUNNING
    else:  # a script may begin another run in a moment; only a single run is known to be all
        going = not runs or any(run.status == RUNNING for run in runs)
        ended = not going and ((folder / folders.RUN).exists() or min(map(_age, records)) > QUIET)
    return Standing(str(experiment.get("name") or folder.resolve().name), runs, records, ended)


def _stand(record: Record) -> Stand:
    newest = {name: float(record.history[name][-1]) for name in record.metrics if len(record.history[name])}
    left = quiet = None
    gone = record.status == RUNNING and _is_gone(record)
    if record.status == RUNNING and not gone:
        if record.rounds and record.seconds:
            left = record.seconds / record.rounds * max(0, record.wanted - record.rounds)
        usual = record.seconds / max(1, len(record.history["round"]) - 1)
        quiet = age if (age := _age(record)) > max(QUIET, 10 * usual) else None
    return Stand(record.label, record.seed, record.status, record.rounds, record.wanted, left, newest, quiet, gone)


def _age(record: Record) -> float:
    """Return how many seconds ago a run's folder was written."""
    assert record.folder is not None
    return time.time() - (record.folder / folders.RUN).stat().st_mtime


def _is_gone(record: Record) -> bool:
    """Tell whether the process that writes a run's folder, as its lock names it, has ended without a word."""
    assert record.folder is not None
    with suppress(OSError):
        whose = re.fullmatch(r"process (\d+) on (.+)", (record.folder / LOCK).read_text().strip())
        if whose and whose[2] == socket.gethostname():
            try:
                os.kill(int(whose[1]), 0)
            except ProcessLookupError:
                return True
    return False


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
