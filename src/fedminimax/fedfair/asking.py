"""What the server of a fair study asks of sites beside an engine's exchanges, and what it may be told.

A request is ``{"id", "fair": kind, ...}`` and its reply ``{"id", "told": ...}``. What is wrong with a site's data it tells as
one of the :data:`TROUBLES` and perhaps the name of a column, never with a value; the sentence is the server's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedminimax import wire
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.messages import Refused
from fedminimax.engines.federated.transport import MALFORMED, Answers, Failure, Transport
from fedminimax.errors import InputError

SKETCH, SUMMARY, PREPARE, WORK, PRODUCT, HISTOGRAMS, JUDGE = (
    "sketch", "summary", "prepare", "work", "product", "histograms", "judge",
)  # fmt: skip
"""What is asked: what the columns look like; sums over training rows; rows as inputs; an engine's request for a method; a
product with the Hessian; counts of training rows by score; how good models are."""

TROUBLES = {
    "no label": "has no column {column!r}, which is to be predicted: name the column so there, or leave the site out",
    "no labels": "has no value in the column {column!r}, which is to be predicted: fill it in there, or leave the site out",
    "no group": "has no column {column!r} to group by: add it there, or give another --group",
    "no column": "has no column {column!r} any more: start the site again with the data that it was described by",
    "infinite": "has an infinite number in the column {column!r}: clean that row there, or leave the column out with "
    "--exclude {column}",
    "type": "has a column {column!r} of a type that is neither numbers nor text: change it there, or leave it out with "
    "--exclude {column}",
    "twice": "has two columns {column!r}: rename one there",
    "empty": "has no rows: give it some, or leave the site out",
    "few": "has fewer than two rows with a class that is known to all: leave the site out",
    "unread": "could not read its data: look at the site's console, or run `fedminimax federation check` there",
    "unprepared": "was started anew in the middle of the study and knows nothing of it: run the study again",
}
"""What may be wrong at a site, and the cure."""

_MOST = 2**28
"""The most bytes that a site may tell."""
_RETRIES, _PAUSE = 3, 1.0

T = TypeVar("T")
Floats = npt.NDArray[np.float64]


class Trouble(Exception):
    """What is wrong with a site's data, as a category.

    Args:
        code: one of :data:`TROUBLES`.
        column: the name of the column that it is about.
    """

    def __init__(self, code: str, column: str = ""):
        super().__init__(code)
        self.code, self.column = code, column


class Asking:
    """The server's questions to all sites.

    Args:
        transport: what carries them.
        timeout: seconds for a question.
    """

    def __init__(self, transport: Transport, timeout: float = 300.0):
        self.transport, self.timeout = transport, timeout

    def all(self, kind: str, read: Callable[[str, Any], T], **what: Any) -> dict[str, T]:
        """Ask every site the same, and return what each tells. Those that did not answer are asked again.

        Args:
            kind: what is asked.
            read: makes something of a site's name and what it told, or raises :class:`Refused`.
            what: what else the request holds.
        """
        found: dict[str, T] = {}
        failures: dict[str, Failure] = {}
        id = f"fair/{kind}/{secrets.token_hex(4)}"
        request = wire.encode({"id": id, "fair": kind, **what})
        for nth in range(1 + _RETRIES):
            left = [site for site in self.transport.sites if site not in found]
            if not left:
                break
            if nth:
                time.sleep(_PAUSE * 2 ** (nth - 1))
            answers = self.transport.ask(dict.fromkeys(left, request), self.timeout)
            failures = dict(answers.failures)
            for site, reply in answers.replies.items():
                try:
                    found[site] = read(site, self._told(site, reply, id))
                except Refused as refused:
                    failures[site] = refused.failure
        if failures:
            said = ", ".join(f"{site} ({failure.text or failure.kind})" for site, failure in failures.items())
            raise InputError(f"All sites are needed here, but {said} did not answer: start them, and run the study again.")
        return {site: found[site] for site in self.transport.sites}

    def _told(self, site: str, reply: bytes, id: str) -> Any:
        told = messages.read(reply, id, "told", _MOST)["told"]
        if isinstance(told, dict) and "trouble" in told:
            code, column = told["trouble"], told.get("column", "")
            if not isinstance(code, str) or code not in TROUBLES or not isinstance(column, str):
                raise Refused(Failure(MALFORMED, "a trouble that is none"))
            raise InputError(f"{site} {TROUBLES[code].format(column=column[:100])}.")
        return told


class Some:
    """A transport to some of another's sites, in an order of their own.

    Args:
        transport: the other.
        sites: which of its sites.
    """

    def __init__(self, transport: Transport, sites: tuple[str, ...]):
        self._transport, self._sites = transport, sites

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names."""
        return self._sites

    def ask(self, requests: Mapping[str, bytes], timeout: float) -> Answers:
        """Pass a group call on."""
        return self._transport.ask(requests, timeout)

    def close(self) -> None:
        """Whoever made the other closes it."""


class ForMethod(Some):
    """A transport whose requests tell the sites which method they are for, and with which hyper-parameters.

    Args:
        transport: what carries them.
        method: the method's name, as ``fedminimax fair`` writes it: "FedAvg:size".
        settings: its hyper-parameters.
    """

    def __init__(self, transport: Transport, method: str, settings: Mapping[str, Any]):
        super().__init__(transport, transport.sites)
        self._method, self._settings = method, dict(settings)

    def ask(self, requests: Mapping[str, bytes], timeout: float) -> Answers:
        """Pass a group call on, each request within one that names the method. Replies come as they are."""
        known = {"id": "fair/work", "fair": WORK, "method": self._method, "settings": self._settings}
        wrapped = {site: wire.encode({**known, "request": np.frombuffer(r, np.uint8)}) for site, r in requests.items()}
        return super().ask(wrapped, timeout)


def array(value: Any, shape: tuple[int, ...], kind: str = "f") -> Any:
    """Return an array that a site told, if it has the shape and the kind of numbers that it must have."""
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind != kind:
        raise Refused(Failure(MALFORMED, "numbers of another shape or type than was asked for"))
    return value


def counts(value: Any, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return an array of counts that a site told."""
    found = array(value, shape, "i").astype(np.int64)
    if (found < 0).any():
        raise Refused(Failure(MALFORMED, "counts below zero"))
    return np.asarray(found)


def whole(value: Any) -> int:
    """Return a count that a site told."""
    if type(value) is not int or not 0 <= value < 2**31:
        raise Refused(Failure(MALFORMED, "a count that is none"))
    return value


def number(value: Any) -> float:
    """Return a finite number that a site told."""
    if type(value) not in (int, float) or not np.isfinite(value):
        raise Refused(Failure(MALFORMED, "a number that is none"))
    return float(value)


def text(value: Any) -> str:
    """Return a short text that a site told: a column's name, a category."""
    if not isinstance(value, str) or len(value) > 1000:
        raise Refused(Failure(MALFORMED, "a text that is none"))
    return value


def table(value: Any) -> dict[str, Any]:
    """Return a dict with texts as keys that a site told."""
    if not isinstance(value, dict) or not all(isinstance(key, str) and len(key) <= 1000 for key in value):
        raise Refused(Failure(MALFORMED, "a table that is none"))
    return value
