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
from fedminimax.engines.federated.transport import GONE, MALFORMED, Answers, Failure, Transport
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
_MOST_ROWS, _LARGEST = 2**31, 1e140
"""Beyond every number of rows, and every number that is no mistake."""
_RETRIES, _PAUSE = 3, 1.0
_MOMENT = 2.0
"""Seconds that a site which was slow has to say that it has an answer now."""

T = TypeVar("T")
Floats = npt.NDArray[np.float64]


class Trouble(Exception):
    """What is wrong with a site's data, as a category.

    Args:
        code: one of :data:`TROUBLES`.
        column: the name of the column that it is about.
    """

    def __init__(self, code: str, column: str = ""):
        super().__init__(TROUBLES[code].format(column=column[:100]))
        self.code, self.column = code, column


class Asking:
    """The server's questions to sites. Nobody is waited for longer than ``timeout`` seconds for an answer.

    Whoever did not answer is asked again a few times, after pauses. A site that was slow has its answer by then, or is busy
    still; it is given a moment to say so.

    Args:
        transport: what carries them.
        timeout: seconds for a question.
        before: what the sites told in an earlier run of the study, by question and site: it stands in for a site that does not
            answer now, which is then asked nothing more.
    """

    def __init__(self, transport: Transport, timeout: float = 60.0, before: Mapping[str, Mapping[str, Any]] | None = None):
        self.transport, self.timeout, self._before = transport, timeout, before or {}
        self.told: dict[str, dict[str, Any]] = {}
        """What the sites told, by question and site, as it came."""
        self._absent: set[str] = set()

    def among(self, transport: Transport) -> Asking:
        """Return the same questions to some of the sites."""
        some = Asking(transport, self.timeout, self._before)
        some.told, some._absent = self.told, self._absent
        return some

    def all(self, kind: str, read: Callable[[str, Any], T], **what: Any) -> dict[str, T]:
        """Ask every site the same, and return what each tells; an :class:`InputError` names those that tell nothing.

        Args:
            kind: what is asked.
            read: makes something of a site's name and what it told, or raises :class:`Refused`.
            what: what else the request holds.
        """
        told, failures = self._ask(kind, read, what)
        for site, why in failures.items():
            if isinstance(why, Trouble):
                raise InputError(f"{site} {why}.")
        before = self._before.get(kind, {})
        self._absent |= {site for site in failures if site in before}
        self.told[kind] = {site: told[site][0] if site in told else before.get(site) for site in self.transport.sites}
        if missing := [site for site in failures if site not in before]:
            said = ", ".join(f"{site} ({reason(failures[site])})" for site in missing)
            raise InputError(f"All sites are needed here, but {said} did not answer: start them, and run the study again.")
        return {site: told[site][1] if site in told else read(site, before[site]) for site in self.transport.sites}

    def some(self, kind: str, read: Callable[[str, Any], T], **what: Any) -> tuple[dict[str, T], dict[str, str]]:
        """Ask every site the same, and return what those tell that answer, and why the others do not."""
        told, failures = self._ask(kind, read, what)
        found = {site: told[site][1] for site in self.transport.sites if site in told}
        return found, {site: reason(why) for site, why in failures.items()}

    def _ask(
        self, kind: str, read: Callable[[str, Any], T], what: Mapping[str, Any]
    ) -> tuple[dict[str, tuple[Any, T]], dict[str, Failure | Trouble]]:
        found: dict[str, tuple[Any, T]] = {}
        failures: dict[str, Failure | Trouble] = {site: Failure(GONE) for site in self.transport.sites if site in self._absent}
        id = f"fair/{kind}/{secrets.token_hex(4)}"
        request = wire.encode({"id": id, "fair": kind, **what})
        until = time.monotonic() + self.timeout
        for nth in range(1 + _RETRIES):
            settled = {*found, *self._absent, *(site for site, why in failures.items() if isinstance(why, Trouble))}
            left = [site for site in self.transport.sites if site not in settled]
            if not left:
                break
            if nth:
                time.sleep(_PAUSE * 2 ** (nth - 1))
            seconds = max(until - time.monotonic(), min(_MOMENT, self.timeout))
            answers = self.transport.ask(dict.fromkeys(left, request), seconds)
            failures |= answers.failures
            for site, reply in answers.replies.items():
                try:
                    told = _told(reply, id)
                    found[site] = told, read(site, told)
                    failures.pop(site, None)
                except Refused as refused:
                    failures[site] = refused.failure
                except Trouble as trouble:
                    failures[site] = trouble
        return found, failures


def reason(why: Failure | Trouble) -> str:
    """Return why a site told nothing."""
    return str(why) if isinstance(why, Trouble) else why.text or why.kind


def _told(reply: wire.Bytes, id: str) -> Any:
    told = messages.read(reply, id, "told", _MOST)["told"]
    if isinstance(told, dict) and "trouble" in told:
        code, column = told["trouble"], told.get("column", "")
        if not isinstance(code, str) or code not in TROUBLES or not isinstance(column, str):
            raise Refused(Failure(MALFORMED, "a trouble that is none"))
        raise Trouble(code, column)
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
    if (found < 0).any() or (found >= _MOST_ROWS).any():
        raise Refused(Failure(MALFORMED, "counts that are none"))
    return np.asarray(found)


def whole(value: Any) -> int:
    """Return a count that a site told."""
    if type(value) is not int or not 0 <= value < _MOST_ROWS:
        raise Refused(Failure(MALFORMED, "a count that is none"))
    return value


def number(value: Any, most: float = _LARGEST) -> float:
    """Return a number that a site told, and with whose square one can reckon."""
    if type(value) not in (int, float) or not abs(value) <= most:
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


def texts(value: Any) -> list[str]:
    """Return a list of short texts that a site told."""
    if not isinstance(value, list):
        raise Refused(Failure(MALFORMED, "a list that is none"))
    return [text(one) for one in value]
