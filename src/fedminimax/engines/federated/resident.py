"""A site's worker in a process of its own, behind a unix socket: a crash in there is a failed reply, and nothing else.

``serve`` is the process: data, compiled programs and state stay in it. ``Resident`` starts it, asks it, and starts it anew when
it has died. ``Processes`` is a transport to several on one machine. As a program::

    python -m fedminimax.engines.federated.resident SOCKET package.module:function [argument ...]

serves the worker that the function returns.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np

from fedminimax.engines.federated.inprocess import Handler
from fedminimax.engines.federated.transport import GONE, MALFORMED, REFUSED, TIMEOUT, Answers, Failure
from fedminimax.errors import InputError
from fedminimax.wire import Bytes

MOST_BYTES = 2**31
"""The longest message."""
_HEAD = 8
_MOST_STARTS = 3
"""How often a process may end before it serves until whoever waits for it is told."""
_STALLED = 30.0
"""Seconds within which a message that has begun must go on."""
_LONGEST_PATH = 100
"""What a unix socket's path may have on every system."""


_FOLDERS = Path("/proc/self/fd")
"""Where Linux names a process's open folders: by such a name a socket in a folder with a long path is reached too."""


class Failed(Exception):
    """A question has no reply; ``failure`` says why."""

    def __init__(self, failure: Failure):
        super().__init__(failure.text)
        self.failure = failure


# -- frames --------------------------------------------------------------------------------------------------------------


def send(connection: socket.socket, message: Bytes) -> None:
    """Send a message with its length before it."""
    connection.sendall(len(message).to_bytes(_HEAD, "little"))
    connection.sendall(message)


def receive(connection: socket.socket, most: int = MOST_BYTES) -> memoryview | None:
    """Return the next message; None: the other side has closed. What is longer than ``most`` is an error."""
    head = _exactly(connection, _HEAD)
    if head is None:
        return None
    length = int.from_bytes(head, "little")
    if length > most:
        raise Failed(Failure(MALFORMED, "a message that is too long"))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> memoryview | None:
    """Return so many bytes, read into their place: the system gives it memory as the bytes come, not as they are told."""
    room = np.empty(length, np.uint8).data
    at = 0
    while at < length:
        count = connection.recv_into(room[at:])
        if not count:
            return None
        at += count
    return room.toreadonly()


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Give a socket's path, or a short name for it where that is longer than a socket's may be."""
    if len(str(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield str(_FOLDERS / str(folder) / path.name)
    finally:
        os.close(folder)


# -- the process ---------------------------------------------------------------------------------------------------------


def serve(socket_path: str | os.PathLike[str], worker: Handler, *, most: int = MOST_BYTES, parent: int | None = None) -> None:
    """Answer requests at a socket, one at a time, until the process ends.

    Args:
        socket_path: where; whatever is there is replaced. Only this user may connect.
        worker: what answers.
        most: the longest request.
        parent: the process that started this one: this ends when that has.
    """
    path = Path(socket_path)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.umask(0o177)
        try:
            with _address(path) as address:
                listening.bind(address)
        finally:
            os.umask(before)
        listening.listen(8)
        listening.settimeout(1.0)
        while parent is None or os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError, Failed):  # whoever asked has gone, or sends nonsense
                    _answer(connection, worker, most)


def _answer(connection: socket.socket, worker: Handler, most: int) -> None:
    connection.settimeout(_STALLED)
    while (request := receive(connection, most)) is not None:
        send(connection, worker.handle(request))


# -- who asks it ---------------------------------------------------------------------------------------------------------


class Resident:
    """A worker's process, started and watched by this one.

    Each question is a connection of its own. A process that has died is started anew, at once the first time and then after
    ever longer pauses; one that answers nothing for long is taken to hang, and killed.

    Args:
        command: starts the process, which must :func:`serve` at the socket.
        socket_path: the socket.
        start_within: seconds that the process may take to serve.
        pause: seconds before a process that dies again is started anew; twice as many each time.
        longest_pause: the most seconds.
        hung_after: seconds without any answer after which the process is killed.
        environment: variables for the process beside those of this one.
    """

    def __init__(
        self,
        command: Sequence[str],
        socket_path: str | os.PathLike[str],
        *,
        start_within: float = 120.0,
        pause: float = 0.5,
        longest_pause: float = 30.0,
        hung_after: float = 600.0,
        environment: Mapping[str, str] | None = None,
    ):
        if len(str(socket_path)) > _LONGEST_PATH and not _FOLDERS.is_dir():
            raise InputError(f"The socket's path {socket_path} is too long for the system: use a shorter folder.")
        self._command, self._path, self._start_within = list(command), Path(socket_path), start_within
        self._first_pause, self._longest_pause, self._hung_after = pause, longest_pause, hung_after
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._pause, self._not_before = 0.0, 0.0
        self._unanswered_since: float | None = None
        self._lost_starts = 0
        self._one_at_a_time = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process's number; None: there is none."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def ask(self, request: Bytes, timeout: float) -> memoryview:
        """Return the reply to a request, or raise :class:`Failed`."""
        until = time.monotonic() + timeout
        if not self._one_at_a_time.acquire(timeout=timeout):
            raise Failed(Failure(TIMEOUT, "it is busy with another request"))
        try:
            reply = self._ask(request, until)
        finally:
            self._one_at_a_time.release()
        self._pause, self._unanswered_since = 0.0, None
        return reply

    def _ask(self, request: Bytes, until: float) -> memoryview:
        connection = self._connected(until)
        try:
            with connection:
                connection.settimeout(max(0.001, until - time.monotonic()))
                send(connection, request)
                connection.settimeout(max(0.001, until - time.monotonic()))
                reply = receive(connection)
        except TimeoutError:
            self._unanswered_since = self._unanswered_since or time.monotonic()
            if time.monotonic() - self._unanswered_since > self._hung_after:
                self.kill()
                self._start_soon()
            raise Failed(Failure(TIMEOUT, "its worker did not answer in time")) from None
        except OSError:
            reply = None
        if reply is None:
            self._start_soon()
            raise Failed(Failure(GONE, "its worker died, and is started anew"))
        return reply

    def _connected(self, until: float) -> socket.socket:
        """Return a connection to the process, which is started if there is none; nobody waits for one that has died."""
        if self._process is not None and self.pid is None:
            self._start_soon()
            raise Failed(Failure(GONE, "its worker died, and is started anew"))
        serving_by = time.monotonic() + self._start_within
        while time.monotonic() < min(until, serving_by):
            if self.pid is None:
                self._lost_starts += self._process is not None
                if self._lost_starts >= _MOST_STARTS:
                    self._lost_starts = 0
                    raise Failed(Failure(GONE, "its worker ends before it is there"))
                self._start(until)
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.settimeout(max(0.001, until - time.monotonic()))
                with _address(self._path) as address:
                    connection.connect(address)
                self._lost_starts = 0
                return connection
            except OSError:
                connection.close()
                time.sleep(0.02)
        raise Failed(Failure(TIMEOUT if self.pid is not None else GONE, "its worker is not there yet"))

    def _start_soon(self) -> None:
        """Start the process, unless it is not yet time to: it is then there again when a later question comes."""
        with contextlib.suppress(Failed):
            self._start(time.monotonic())

    def _start(self, until: float) -> None:
        wait_for = self._not_before - time.monotonic()
        if wait_for > until - time.monotonic():
            raise Failed(Failure(GONE, "its worker died, and is started anew in a while"))
        time.sleep(max(0.0, wait_for))
        self._path.unlink(missing_ok=True)
        try:
            self._process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL)
        except OSError:
            raise Failed(Failure(GONE, "its worker cannot be started")) from None
        self._pause = min(self._longest_pause, 2 * self._pause or self._first_pause)
        self._not_before, self._unanswered_since = time.monotonic() + self._pause, None

    def kill(self) -> None:
        """End the process now. The next question starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End the process for good."""
        self.kill()
        self._process = None
        self._path.unlink(missing_ok=True)


class Processes:
    """A transport to residents on this machine, all asked at once.

    Args:
        residents: by the sites' names.
    """

    def __init__(self, residents: Mapping[str, Resident]):
        self._residents = dict(residents)
        self._pool = ThreadPoolExecutor(max(1, 2 * len(self._residents)), "fedminimax-site")

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names."""
        return tuple(self._residents)

    def ask(self, requests: Mapping[str, bytes], timeout: float) -> Answers:
        """Ask every site at once."""
        known = {site: request for site, request in requests.items() if site in self._residents}
        asked = {site: self._pool.submit(self._residents[site].ask, known[site], timeout) for site in known}
        wait(asked.values(), timeout + 1.0)
        answers = Answers({}, {site: Failure(GONE, "there is no such site") for site in requests if site not in known})
        for site, future in asked.items():
            if not future.done():
                future.cancel()
                answers.failures[site] = Failure(TIMEOUT, "it did not answer in time")
            elif isinstance(error := future.exception(), Failed):
                answers.failures[site] = error.failure
            elif error is not None:
                answers.failures[site] = Failure(REFUSED, f"it could not be asked ({type(error).__name__})")
            else:
                answers.replies[site] = future.result()
        return answers

    def close(self) -> None:
        """End the processes."""
        for resident in self._residents.values():
            resident.close()
        self._pool.shutdown(wait=False)


def main(arguments: Sequence[str]) -> None:
    """Serve the worker that a function returns (see the head of this file)."""
    socket_path, function, *rest = arguments
    module, _, name = function.partition(":")
    serve(socket_path, getattr(importlib.import_module(module), name)(*rest), parent=os.getppid())


if __name__ == "__main__":
    main(sys.argv[1:])
