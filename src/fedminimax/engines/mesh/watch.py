"""Failure is said, not hung: every process shows that it lives, and when one does not, all others end with a sentence.

A process that waits for another in a collective waits for ever. So each writes a sign of life every second, through JAX's
coordination service; process 0 looks at all of them and, when one stays silent, writes the verdict that everybody waits for.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from fedminimax import distributed
from fedminimax.errors import InputError

_ROOM = "fedminimax"
_LEFT = "left"
_BEAT = 1.0
_GRACE = 5.0
"""Seconds that a process has to end by itself after a verdict: to close its files, and to say why."""
_HURT = 4.0
"""After a broken connection, whoever has been silent for so many seconds is the one that was lost."""

_GONE = "Process 0, through which all others know of each other, was lost"
_BROKEN = ("Gloo", "UNAVAILABLE", "Connection", "NCCL", "Socket")
"""What an error says when a connection to another process broke."""


class Lost(InputError):
    """Another process is gone, and the run with it; what was saved goes on with the next start."""


class Watch:
    """Signs of life of all processes, looked at by two threads of each."""

    def __init__(self, place: distributed.Place):
        self.place, self._service = place, distributed.service()
        self.verdict: str | None = None
        self.stuck = False
        """Whether this process left the others waiting in a collective."""
        self._known, self._over, self._failed = threading.Event(), threading.Event(), False
        self._running = 0
        self._meetings, self._inside, self._since, self._reminds = 0, 0, 0.0, place.patience
        self._seen: dict[int, tuple[str, float]] = {}
        self._answered = time.monotonic()
        self._set(f"who/{place.process}", f"pid {os.getpid()} on {socket.gethostname()}")
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._listen)]
        for thread in self._threads:
            thread.start()
        atexit.register(self._leave)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Say that a run is under way: a process that ends meanwhile is missed."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Wait for others in here: a connection that breaks becomes a sentence about who was lost."""
        import jax

        self.check()
        self._enter()
        try:
            yield
        except Lost:
            raise
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # which of them depends on when it is noticed
            if any(word in str(error) for word in _BROKEN):
                self._hurt(error)
            self.stuck = True
            raise
        except BaseException:
            self.stuck = True
            raise
        finally:
            self._inside -= 1

    def _enter(self) -> None:
        if not self._inside:
            self._since, self._reminds = time.monotonic(), self.place.patience
        self._meetings += 1
        self._inside += 1

    def check(self) -> None:
        """Raise an error if a process is known to be lost."""
        if self.verdict is not None:
            raise Lost(self.verdict)

    def listens(self) -> None:
        """Raise an error if there is nothing to wait for: a process is lost, or process 0 has ended without a word."""
        self.check()
        beat = ""
        with suppress(Exception):  # none was written yet
            beat = self._service.key_value_try_get(f"{_ROOM}/beat/0")
        if beat == _LEFT:
            raise Lost("Process 0 ended before the run was over.")

    def failed(self, error: BaseException) -> None:
        """Tell the others that this process cannot go on."""
        self._failed = True
        with suppress(Exception):
            says = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            self._set(f"failed/{self.place.process}", says)
        self._known.wait(self.place.patience)

    def _hurt(self, error: Exception) -> NoReturn:
        with suppress(Exception):
            self._set(f"hurt/{self.place.process}", "yes")
        self._known.wait(self.place.patience + _HURT)
        raise Lost(self.verdict or f"The connection to another process broke: {' '.join(str(error).split())[:300]}") from error

    def _set(self, key: str, value: str) -> None:
        self._service.key_value_set(f"{_ROOM}/{key}", value, allow_overwrite=True)

    def _all(self, key: str) -> dict[int, str]:
        found = self._service.key_value_dir_get(f"{_ROOM}/{key}/")
        return {int(name.rpartition("/")[2]): value for name, value in found}

    def _beat(self) -> None:
        """Write a sign of life every second; process 0 also looks at those of the others."""
        count, pause = 0, min(_BEAT, self.place.patience / 5)
        while not self._over.wait(pause if count else 0):
            count += 1
            try:
                self._set(f"beat/{self.place.process}", f"{count} {self._meetings}")
                self._answered = time.monotonic()
                if self.place.leads:
                    if (found := self._missing()) is not None:
                        self._set("verdict", found)
                        return
                    if (found := self._late()) is not None:
                        _tell(found)
            except Exception:  # the service is gone: whoever listens says so
                return

    def _missing(self) -> str | None:
        """Return a sentence about a process that is lost, or has failed; None: all are well."""
        for process, why in self._all("failed").items():
            return _sentence(f"Process {process} failed ({why})")
        now, beats, hurt = time.monotonic(), self._all("beat"), bool(self._all("hurt"))
        for process in range(self.place.processes):
            beat = beats.get(process, "")
            known = self._seen.get(process)
            if known is None or known[0] != beat:
                self._seen[process] = beat, now
            elif beat == _LEFT:
                if self._running:
                    return _sentence(f"{self._who(process)} ended before the run was over")
            elif now - known[1] > (min(_HURT, self.place.patience) if hurt else self.place.patience):
                return _sentence(f"{self._who(process)} was lost: it has not been heard of for {now - known[1]:.0f} seconds")
        return None

    def _late(self) -> str | None:
        """Return a sentence about those for whom this process has waited for long, now and then; None: there is none.

        They live: they may work, or hang, which nobody can tell from here.
        """
        waited, own = time.monotonic() - self._since, self._meetings
        if not self._inside or waited < self._reminds:
            return None
        self._reminds *= 4
        late = [p for p, (beat, _) in sorted(self._seen.items()) if beat not in ("", _LEFT) and int(beat.split()[1]) < own]
        if not late:
            return None
        names = " and ".join(self._who(process) for process in late)
        return f"{names} did not come for {waited:.0f} seconds to where process 0 waits: busy, or hung."

    def _who(self, process: int) -> str:
        return f"Process {process} ({self._all('who').get(process, 'which never began')})"

    def _listen(self) -> None:
        """Wait for the verdict; then let this process end by itself, or end it."""
        while self.verdict is None and not self._over.is_set():
            try:
                self.verdict = self._service.blocking_key_value_get(f"{_ROOM}/verdict", 500)
            except Exception as error:
                if "DEADLINE" in str(error):
                    self.verdict = self._unanswered()
                    continue
                if self._over.is_set():
                    return
                self.verdict = _sentence(_GONE)
                self._end()  # at once: the runtime ends this process as soon as it notices
        if self.verdict is None:
            return
        self._known.set()
        if not self._over.wait(self.place.patience + _GRACE):
            self._end()
            os._exit(1)

    def _unanswered(self) -> str | None:
        """Return a sentence about a process 0 that takes no signs of life: stopped, or cut off; None: it does."""
        silent = time.monotonic() - self._answered
        if self.place.leads or silent <= self.place.patience + 2 * _BEAT:
            return None
        return _sentence(f"{_GONE}: it has not answered for {silent:.0f} seconds")

    def _end(self) -> None:
        _tell(f"Error: {distributed.described()}: {self.verdict}")

    def _leave(self) -> None:
        """Be gone without waiting for those who are lost: the runtime would wait for minutes."""
        if self.verdict is not None or self._failed:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(1)
        self._over.set()
        for thread in self._threads:  # one that waits for the service when Python ends would take the process down
            thread.join(2 * _BEAT)
        with suppress(Exception):
            self._set(f"beat/{self.place.process}", _LEFT)


def _say_before_abort() -> Callable[[], None]:
    """Have this process say why it ends when its runtime aborts it, and end with 1; return what takes that back.

    Process 0 has JAX's coordination service. When that is gone, the runtime of every other process calls abort() at once, in
    the thread that would have told Python of it; and there is no setting for that. A handler of Python's own is only called
    after the abort, so this one is given to the C library.
    """

    def say(number: int) -> None:
        what = f"{_GONE}, or so it seems: JAX's runtime aborted this process, with the words above"
        _tell(f"Error: {distributed.described()}: {_sentence(what)}")
        os._exit(1)

    try:
        library = ctypes.CDLL(None)
        library.signal.argtypes, library.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    except (OSError, TypeError, AttributeError):  # there is no such C library: the runtime's own words must do
        return lambda: None
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(say)
    before = library.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    if before:  # somebody else's stays
        library.signal(signal.SIGABRT, before)

    def back(handler: Any = handler) -> None:  # which is kept for as long as it may be called
        library.signal(signal.SIGABRT, before)

    return back


def _tell(sentence: str) -> None:
    os.write(2, f"{sentence}\n".encode())


def _sentence(what: str) -> str:
    return (
        f"{what}. The run ends; start it again with the same folder, on as many processes or on fewer, and it goes on from its "
        "last checkpoint."
    )


_WATCH: list[Watch] = []


def watch() -> Watch | None:
    """Return what watches over the processes; None: this one is alone."""
    place = distributed.place()
    if place.processes == 1:
        return None
    if not _WATCH:
        _WATCH.append(Watch(place))
        if not place.leads:
            atexit.register(_say_before_abort())
    return _WATCH[0]


def hear(service: Any, key: str, check: Any) -> str:
    """Wait for something that process 0 says, as long as it takes, and look after the others meanwhile."""
    import jax

    while True:
        check()
        try:
            return str(service.blocking_key_value_get(key, 1000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE" not in str(error):
                time.sleep(_BEAT)
                check()
                raise
