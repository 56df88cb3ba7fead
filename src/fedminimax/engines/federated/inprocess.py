"""Sites in this process, for tests and for trying things out: what goes to and fro is bytes all the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from fedminimax import wire
from fedminimax.engines.federated.transport import GONE, TIMEOUT, Answers, Failure


class Handler(Protocol):
    """Whatever answers requests, such as a :class:`~fedminimax.engines.federated.worker.Worker`."""

    def handle(self, request: wire.Bytes) -> bytes:
        """Return the reply to a request."""


class InProcess:
    """A transport to workers in this process, which are asked one after another.

    Args:
        workers: by the sites' names.
    """

    def __init__(self, workers: Mapping[str, Handler]):
        self._workers = dict(workers)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names."""
        return tuple(self._workers)

    def ask(self, requests: Mapping[str, bytes], timeout: float) -> Answers:
        """Ask every site. What took longer than the time given is a time-out, though it was waited for."""
        answers = Answers({}, {})
        for site, request in requests.items():
            if site not in self._workers:
                answers.failures[site] = Failure(GONE, "there is no such site")
                continue
            begun = time.monotonic()
            reply = self._workers[site].handle(bytes(request))
            if time.monotonic() - begun > timeout:
                answers.failures[site] = Failure(TIMEOUT, f"no reply within {timeout:g} s")
            else:
                answers.replies[site] = bytes(reply)
        return answers

    def close(self) -> None:
        """Nothing is held."""
