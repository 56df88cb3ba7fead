"""How the sites of a federation stand, written where a person or a program can see it while the run goes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedminimax.engines.federated.transport import GONE, TIMEOUT, Answers, Transport
from fedminimax.folders import write_atomically

ANSWERED, SLOW = "answered", "slow"
_WORDS = {TIMEOUT: SLOW, GONE: GONE}
_SECONDS = 0.5
"""How long a change of the counts may go unwritten; a change of how a site stands is written at once."""


class Watched:
    """A transport that keeps a file of how its sites stand: answered, slow, gone, or what else went wrong.

    Args:
        transport: what carries the messages.
        path: the file: by site, ``stands``, ``why``, and how often it ``answered`` and ``failed``.
    """

    def __init__(self, transport: Transport, path: Path):
        self._transport, self._path, self._written = transport, path, 0.0
        self.standing: dict[str, dict[str, Any]] = {
            site: {"stands": "", "why": "", "answered": 0, "failed": 0} for site in transport.sites
        }

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names, in the order of the clients' numbers."""
        return self._transport.sites

    def ask(self, requests: Mapping[str, bytes], timeout: float) -> Answers:
        """Pass a group call on, and note who answered."""
        answers = self._transport.ask(requests, timeout)
        before = [known["stands"] for known in self.standing.values()]
        for site in answers.replies:
            known = self.standing[site]
            known.update(stands=ANSWERED, why="", answered=known["answered"] + 1)
        for site, failure in answers.failures.items():
            known = self.standing[site]
            known.update(stands=_WORDS.get(failure.kind, failure.kind), why=failure.text, failed=known["failed"] + 1)
        if before != [known["stands"] for known in self.standing.values()] or time.monotonic() - self._written > _SECONDS:
            self.write()
        return answers

    def write(self) -> None:
        """Write how the sites stand now."""
        self._written = time.monotonic()
        write_atomically(self._path, json.dumps(self.standing, indent=1).encode())

    def close(self) -> None:
        """Write the last of it, and let go of the carrier."""
        self.write()
        self._transport.close()
