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
from fedminimax.folders import FINISHED, INTERRUPTED, RUNNING, Record
from fedminimax.report.evidence import Evidence
from fedminimax.report.material import EXPERIMENT, SWEEP, SWEEPS
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
        seed: the seed; None: all seeds of a search.
        status: as in :class:`~fedminimax.folders.Record`, or "waiting", "searching hyper-parameters" or "failed".
        rounds: how many rounds have been run.
        wanted: how many were asked for.
        left: about how many seconds are left; None: nothing is known.
        newest: the last values of its metrics.
        quiet: for how many seconds nothing was heard of a run that should be running; None where that is no wonder.
        gone: whether the process that should be running it is not there.
        search: how a search stands, in words; empty of a run.
        stands_for: how many runs it is; of a search those that its winner will have.
    """

    label: str
    seed: int | None
    status: str
    rounds: int
    wanted: int
    left: float | None
    newest: dict[str, float]
    quiet: float | None = None
    gone: bool = False
    search: str = ""
    stands_for: int = 1

    @property
    def words(self) -> str:
        """How it stands, in words."""
        if self.status not in (RUNNING, SEARCHING):
            return self.status
        if self.gone:
            return "its process is gone; it can be resumed"
        if self.status == SEARCHING:
            left = "" if self.left is None else f", about {duration(self.left)} left"
            return f"{SEARCHING}{': ' * bool(self.search)}{self.search}{left}"
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
        gone: whether the process of an experiment that should be running is not there.
    """

    name: str
    runs: list[Stand]
    records: list[Record]
    ended: bool
    gone: bool = False

    @property
    def share(self) -> float:
        """How much of the rounds has been run, from 0 to 1."""
        wanted = sum(run.wanted for run in self.runs)
        return sum(run.wanted if run.status == FINISHED else run.rounds for run in self.runs) / wanted if wanted else 0.0

    @property
    def left(self) -> float | None:
        """About how many seconds are left if runs go one after another; None: nothing is known."""
        going = [run for run in self.runs if run.status in (RUNNING, SEARCHING)]
        whole = [r.seconds / r.rounds * r.wanted for r in self.records if r.rounds and r.seconds]
        waiting = sum(run.status == WAITING for run in self.runs)
        if any(run.left is None for run in going) or (waiting and not whole):
            return None
        return sum(run.left or 0.0 for run in going) + (waiting * sum(whole) / len(whole) if waiting else 0.0)

    @property
    def words(self) -> str:
        """How it stands, in a sentence."""
        if not self.runs:
            return "No run has begun yet."
        finished = sum(run.stands_for for run in self.runs if run.status == FINISHED)
        told = f"{finished} of {sum(run.stands_for for run in self.runs)} runs finished"
        if self.ended:
            return f"{told}; nothing is running any more."
        if self.gone:
            return f"{told}, {self.share:.0%} of the rounds; its process is gone: fedminimax resume goes on with it."
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
                    "seed": "all" if run.seed is None else run.seed,
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
    searched = _searches(folder, experiment, {run.label for run in runs})
    wanted = max([run.wanted for run in runs] + [int(known.get("length", 0)) for _, known in searched.values()], default=0)
    runs += [_searching(label, place, known, experiment) for label, (place, known) in searched.items()]
    failed = set(experiment.get("failed") or {})
    begun = {(run.label, run.seed) for run in runs}
    for label in experiment.get("labels") or []:
        for seed in experiment.get("seeds") or []:
            if label not in searched and (label, seed) not in begun:
                lost = {f"{label}/seed-{seed}", f"{label}/sweep"} & failed
                runs.append(Stand(str(label), int(seed), FAILED if lost else WAITING, 0, wanted, None, {}))
    order = {str(label): k for k, label in enumerate(experiment.get("labels") or [])}
    runs.sort(key=lambda run: order.get(run.label, len(order)))
    name = str(experiment.get("name") or folder.resolve().name)
    if (status := experiment.get("status")) is not None:
        return Standing(name, runs, records, status != RUNNING, status == RUNNING and _is_gone(folder))
    # A script may begin another run in a moment; only a single run, or a search, is known to be all.
    going = not runs or any(run.status in (RUNNING, SEARCHING) for run in runs)
    alone = (folder / folders.RUN).exists() or (folder / folders.PLAN).exists()
    still = min(map(_age, records), default=2 * QUIET) > QUIET
    return Standing(name, runs, records, not going and (alone or still))


def _searches(folder: Path, experiment: dict[str, Any], begun: set[str]) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Find the searches under a folder: for each label where it is, and how far it says it is.

    Those of an experiment are over when their winners' runs are there.
    """
    if experiment:
        places = {str(label): folder / SWEEPS / str(label) for label in experiment.get("labels") or []}
        failed = set(experiment.get("failed") or {})
        places = {k: p for k, p in places.items() if p.is_dir() and k not in begun and f"{k}/sweep" not in failed}
    else:
        places = {found.parent.name: found.parent for found in sorted(folder.rglob(folders.PLAN))}
    known: dict[str, tuple[Path, dict[str, Any]]] = {}
    for label, place in places.items():
        known[label] = place, {}
        with suppress(InputError):  # it is not there before the first rounds, nor after the last
            known[label] = place, folders.read_json(place / folders.PROGRESS)
    return known


def _searching(label: str, place: Path, known: dict[str, Any], experiment: dict[str, Any]) -> Stand:
    """Return how a search stands."""
    runs = len(experiment.get("seeds") or []) or int(known.get("seeds", 1))
    done, total, gone, status = int(known.get("rounds", 0)), int(known.get("total", 0)), _is_gone(place), SEARCHING
    with suppress(InputError):  # there is an outcome, but one that was interrupted may be gone on with just now
        whole = not folders.read_json(place / SWEEP).get("interrupted")
        status = FINISHED if whole else SEARCHING if _holder(place) else INTERRUPTED
    left = known["seconds"] / known["timed"] * max(0, total - done) if known.get("timed") and not gone else None
    told = ""
    if known:
        early = f", {known['early']} ended early" if known.get("early") else ""
        many = f"{known['settings']} settings with {known['seeds']} seed{'s' * (known['seeds'] > 1)} each"
        told = f"{known.get('finished', 0)} of {many} done{early}"
    return Stand(label, None, status, done, total, left, {}, gone=gone, search=told, stands_for=runs)


def _stand(record: Record) -> Stand:
    newest = {name: float(record.history[name][-1]) for name in record.metrics if len(record.history[name])}
    left = quiet = None
    assert record.folder is not None
    gone = record.status == RUNNING and _is_gone(record.folder)
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


def _holder(folder: Path) -> str:
    """Return which process says that it writes a folder; empty: none does."""
    with suppress(OSError):
        return (folder / LOCK).read_text().strip()
    return ""


def _is_gone(folder: Path) -> bool:
    """Tell whether the process that writes a folder, as its lock names it, has ended without a word."""
    whose = re.fullmatch(r"process (\d+) on (.+)", _holder(folder))
    if whose and whose[2] == socket.gethostname():
        with suppress(PermissionError):  # somebody else's process is one
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
