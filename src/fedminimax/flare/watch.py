"""How a run among sites goes, written where a person or a program can see it, and how it is asked to stop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedminimax import observers
from fedminimax.engines.federated.group import ANSWERED, BACK, Event
from fedminimax.engines.federated.transport import GONE, TIMEOUT, Answers, Transport
from fedminimax.flare.job import PROGRESS, STOP
from fedminimax.folders import write_atomically

_WORDS = {TIMEOUT: "slow", GONE: GONE}
_SECONDS = 0.5
"""How long a change of numbers may go unwritten; a change of how a site stands is written at once."""


def unknown(sites: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what is known of sites before anybody has asked them."""
    return {site: {"stands": "", "why": "", "answered": 0, "failed": 0, "timeouts": 0} for site in sites}


class Standing:
    """Keeps a file of how the sites stand: answered, slow, gone, or what else went wrong.

    Args:
        sites: their names.
        path: the file: by site, ``stands``, ``why``, and how often it ``answered`` and ``failed``, and how many of its failures
            were ``timeouts``: the others cost no waiting.
    """

    def __init__(self, sites: Iterable[str], path: Path):
        self._path, self._written = path, 0.0
        self.known = unknown(sites)

    def __call__(self, event: Event) -> None:
        """Take in what became of a site: an engine tells it."""
        known = self.known[event.site]
        before = known["stands"]
        if event.what in (ANSWERED, BACK):
            known.update(stands=ANSWERED, why="", answered=known["answered"] + (event.what == ANSWERED))
        else:
            known.update(stands=_WORDS.get(event.what, event.what), why=event.text, failed=known["failed"] + 1)
            known["timeouts"] += event.what == TIMEOUT
        if before != known["stands"] or time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Write how the sites stand now."""
        self._written = time.monotonic()
        write_atomically(self._path, json.dumps(self.known, indent=1).encode())


class Watched:
    """A transport that tells how its sites stand, for those who run more than one engine over it.

    Args:
        transport: what carries the messages.
        standing: is told of every site that was asked.
    """

    def __init__(self, transport: Transport, standing: Standing):
        self._transport, self._standing = transport, standing

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names, in the order of the clients' numbers."""
        return self._transport.sites

    def ask(self, requests: Mapping[str, bytes], timeout: float) -> Answers:
        """Pass a group call on, and note who answered."""
        answers = self._transport.ask(requests, timeout)
        for site in answers.replies:
            self._standing(Event(site, ANSWERED))
        for site, failure in answers.failures.items():
            self._standing(Event(site, *failure))
        return answers

    def close(self) -> None:
        """Write the last of it, and let go of the carrier."""
        self._standing.write()
        self._transport.close()


class Progress(observers.Observer):
    """An observer that keeps a file of how far the run is, and ends the run when it is asked to.

    Args:
        folder: of the run: ``progress.json`` has ``round``, ``rounds`` and the newest ``numbers``; a file ``stop`` ends the run
            after the round that is under way, with a checkpoint.
        aborted: tells whether the carrier wants the run to end.
    """

    def __init__(self, folder: Path, aborted: Callable[[], bool]):
        self._folder, self._aborted, self._written = folder, aborted, 0.0
        (folder / STOP).unlink(missing_ok=True)

    def on_rounds(self, run: observers.Watched) -> None:
        """Write how far it is, now and then, and stop if that is wanted."""
        if time.monotonic() - self._written > _SECONDS:
            self._write(run)
        if (self._folder / STOP).exists():
            run.stop("it was asked to stop")
        elif self._aborted():
            run.stop("its job was aborted")

    def on_evaluation(self, run: observers.Watched) -> None:
        """Write how far it is, with the new numbers."""
        self._write(run)

    def _write(self, run: observers.Watched) -> None:
        self._written = time.monotonic()
        told = {"round": run.round, "rounds": run.last, "numbers": {name: float(v) for name, v in run.numbers.items()}}
        write_atomically(self._folder / PROGRESS, json.dumps(told).encode())
