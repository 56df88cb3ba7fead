"""Processes that share work through a folder: each does its share, shows that it lives, and reads what the others leave.

They are not connected, so that the end of one is not that of the others. Every process keeps a file of its own in
``processes/``, which it writes anew every few seconds: a sign of life, and what the others must know. Process 0 leads: it alone
prints, and writes what belongs to all.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from fedminimax import distributed, folders
from fedminimax._version import __version__
from fedminimax.errors import InputError
from fedminimax.interrupts import uninterrupted

PROCESSES = "processes"
"""The folder of the processes' own files, in that of what they share."""
_BEATS = 10
"""Signs of life in the time that somebody may be silent."""
_LONGEST_PAUSE = 0.5
_T = TypeVar("_T")


class Missing(InputError):
    """Another process is gone, and its share was not done; whoever starts the same again does it then."""


class Ended(Missing):
    """Another process ended before its share was done, and has said why."""


class Failed(InputError):
    """Another process could not do its share of something."""


class Crew:
    """The processes that share something, as one of them sees them; a process alone writes and waits for nothing.

    Args:
        place: where this process is among all.
        folder: of what they share, on a disk that all of them have.
    """

    def __init__(self, place: distributed.Place, folder: Path):
        self.place, self._folder, self._host = place, folder / PROCESSES, socket.gethostname()
        self._own: dict[str, Any] = {"format": folders.FORMAT, "version": __version__, "token": secrets.token_hex(8)}
        self._own |= {"pid": os.getpid(), "host": self._host, "beat": 0}
        self._leader: str | None = None
        self._seen: dict[int, tuple[Any, float]] = {}
        self._writing, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    @property
    def leads(self) -> bool:
        """Whether this is process 0."""
        return self.place.leads

    @property
    def others(self) -> list[int]:
        """The numbers of the other processes."""
        return [k for k in range(self.place.processes) if k != self.place.process]

    @property
    def beside(self) -> int:
        """How many of the processes are on this machine, this one too; those not heard of are counted in."""
        return 1 + sum(self.facts(k).get("host", self._host) == self._host for k in self.others)

    def owner(self, share: int) -> int:
        """Return the number of the process that does a share."""
        return share % self.place.processes

    def mine(self, share: int) -> bool:
        """Tell whether this process does a share."""
        return self.owner(share) == self.place.process

    def __enter__(self) -> Crew:
        if self.others:
            folders.make_folder(self._folder)
            if self.leads:  # those who are there already write theirs again
                for old in self._folder.glob("*.json"):
                    old.unlink(missing_ok=True)
            self.say()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.others:
            self._over.set()
            self._thread.join()
            with suppress(OSError):
                self.say(**{"ended": "" if error is None else _why(error), **self._own})

    def begin(self) -> None:
        """Process 0: let the others begin. They wait for that, since process 0 may refuse the folder."""
        if self.leads:
            self.say(began=True)
        else:
            self.wait(lambda: self.facts(0).get("began"), 0)

    def say(self, **facts: Any) -> None:
        """Let the others know something."""
        if not self.others:
            return
        with uninterrupted(), self._writing:
            self._own |= facts | {"beat": self._own["beat"] + 1}
            folders.write_json(self._folder / f"{self.place.process}.json", self._own)

    def facts(self, process: int) -> dict[str, Any]:
        """Return what another process has said; nothing, as long as it has not been heard of."""
        found: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            found = json.loads((self._folder / f"{process}.json").read_text())
        if process == 0:  # what an earlier process 0 left does not count: the one of today knows of this process
            if self._leader is None and found.get("knows", {}).get(str(self.place.process)) == self._own["token"]:
                self._leader = found["token"]
            if found.get("token") != self._leader:
                found = {}
        if process not in self._seen or self._seen[process][0] != found.get("beat"):
            self._seen[process] = found.get("beat"), time.monotonic()
        return found

    def wait(self, there: Callable[[], _T | None], process: int, room: str | None = None) -> _T:
        """Return what another process leaves, as soon as it is there; that it will not be is an error.

        Args:
            there: returns it; None: not yet.
            process: whose it is.
            room: the sweep that it belongs to, if any.
        """
        pause = 0.02
        while True:
            facts = self.facts(process)  # before looking: what somebody leaves is there before it says that it has ended
            if (found := there()) is not None:
                return found
            if room is not None and room in facts.get("left", {}):
                raise self._told(process, facts["left"][room])
            silence = time.monotonic() - self._seen[process][1]
            if "ended" in facts:
                why = f" ({facts['ended']})" if facts["ended"] else ""
                raise Ended(_sentence(f"{self.who(process)} ended before its share was done{why}"))
            if silence > self.place.patience:
                raise Missing(_sentence(f"{self.who(process)} was lost: it has not been heard of for {silence:.0f} seconds"))
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    @contextmanager
    def room(self, name: str) -> Iterator[None]:
        """Work on something together: whoever cannot go on with it lets the others know, who need not wait then."""
        try:
            yield
        except BaseException as error:
            self.leave(name, error)
            raise

    def leave(self, room: str, error: BaseException) -> None:
        """Let the others know that this process does not go on with something, and why."""
        lost = isinstance(error, (Missing, KeyboardInterrupt))
        self.say(left={**self._own.get("left", {}), room: {"lost": lost, "why": _why(error)}})

    def who(self, process: int) -> str:
        """Return how sentences call a process."""
        facts = self.facts(process)
        known = f"pid {facts['pid']} on {facts['host']}" if facts else f"of which there is no sign in {self._folder}"
        return f"Process {process} ({known})"

    def _told(self, process: int, left: dict[str, Any]) -> InputError:
        if not left["lost"]:
            return Failed(f"{self.who(process)} failed: {left['why']}")
        told = left["why"]
        return Missing(told if told.startswith("Process ") else _sentence(f"{self.who(process)} left it ({told})"))

    def _beat(self) -> None:
        """Show every few seconds that this process lives; process 0 also shows of whom it knows."""
        while not self._over.wait(min(1.0, self.place.patience / _BEATS)):
            with suppress(OSError):
                if self.leads:
                    tokens = {str(k): self.facts(k).get("token") for k in self.others}
                    self.say(knows=tokens)
                elif self._leader is None or self.facts(0):  # after another process 0 has begun, this one is of the past
                    self.say()


_CREWS: list[Crew] = []


@contextmanager
def gathered(folder: str | os.PathLike[str] | None) -> Iterator[Crew]:
    """Meet the other processes in a folder. What is part of something that they share already, is shared by the same crew.

    Args:
        folder: where they meet; a process alone needs none.
    """
    if _CREWS:
        yield _CREWS[0]
        return
    place = distributed.dealt()
    if folder is None and place.processes > 1:
        raise InputError(
            "Runs are dealt out over processes through a folder: give folder=..., on a disk that all of them share."
        )
    with Crew(place, Path() if folder is None else Path(folder)) as crew:
        _CREWS.append(crew)
        try:
            yield crew
        finally:
            _CREWS.pop()


def _why(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def _sentence(what: str) -> str:
    return f"{what}. Its share is not done: start the same again, on as many processes as you like, and it goes on."
