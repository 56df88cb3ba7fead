"""What a site says to the four requests of a secure sum: it checks them, and answers each once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedminimax import wire
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.messages import NO_KEYS, OTHERWISE, REFUSES, Malformed, Withheld
from fedminimax.engines.federated.secure.contribution import Contribution
from fedminimax.engines.federated.secure.opened import Given, Opened
from fedminimax.engines.federated.secure.party import SEALED, Announced, Party
from fedminimax.engines.federated.secure.primitives import KEY
from fedminimax.engines.federated.secure.settings import Secure

KEYS, SHARES, INPUT, UNMASK = "keys", "shares", "input", "unmask"
"""The four steps of a secure sum."""
BEFORE = "opened"
"""Where a site that gives its vector says over which sites it has helped to open this very sum before."""

Work = Callable[[dict[str, Any], str], Contribution]
"""Does what a request asks for an exchange."""


class Desk:
    """A site's side of secure sums: one at a time.

    A request that comes again, because its reply was lost, has the same reply; one that asks the same step otherwise has none.
    Once a site has told its shares for an exchange, no other attempt at this exchange gets anything from it, and no later
    one over other sites its shares (see :mod:`~fedminimax.engines.federated.secure.opened`). Metrics are opened over all sites.

    Args:
        secure: what was agreed on.
        folder: where it is kept which sums were opened; None: in memory.
    """

    def __init__(self, secure: Secure, folder: Path | None = None):
        self._secure, self._opened = secure, Opened(folder)
        self._party: Party | None = None
        self._said: dict[str, tuple[bytes, bytes]] = {}
        self._given: Given | None = None
        self._last = ""  # the exchange whose sum was opened last

    def answer(self, message: dict[str, Any], request: wire.Bytes, work: Work) -> bytes:
        """Return the reply to a request of a secure sum.

        Args:
            message: the request.
            request: its bytes.
            work: does what the request asks for beside the sum.
        """
        asked, id, whose = message["secure"], messages.name(message.get("id")), messages.whose(message.get("whose"))
        attempt, _, step = id.rpartition("/")
        if not isinstance(asked, dict) or not attempt:
            raise Malformed("the secure sum is none")
        party = self._party_of(attempt, step, whose.number)
        digest = hashlib.sha256(request).digest()
        if step in self._said:
            before, reply = self._said[step]
            if before != digest:
                raise Withheld(OTHERWISE)
            return reply
        reply = wire.encode({"id": id, **self._step(step, party, asked, message, work)})
        self._said[step] = (digest, reply)
        return reply

    def _party_of(self, attempt: str, step: str, number: int) -> Party:
        party, exchange = self._party, attempt.rpartition("/")[0]
        if step == KEYS and (party is None or party.exchange != attempt):
            if exchange == self._last:
                raise Withheld(OTHERWISE)
            party = self._party = Party(attempt, number, self._secure)
            self._said, self._given = {}, None
        if party is None or party.exchange != attempt or party.number != number:
            raise Withheld(NO_KEYS)
        return party

    def _step(self, step: str, party: Party, asked: dict[str, Any], message: dict[str, Any], work: Work) -> dict[str, Any]:
        if step == KEYS:
            return {KEYS: as_array(b"".join(party.announce()))}
        if step == SHARES:
            known = {site: announced(text) for site, text in by_site(asked.get(KEYS), 3 * KEY).items()}
            return {SHARES: as_arrays(party.share(known))}
        if step == INPUT:
            party.receive(by_site(asked.get(SHARES), SEALED))
            own = work(message, party.exchange.rpartition("/")[0])
            self._given = own.given
            before = None if own.given is None else self._opened.over(own.given)
            return {**own.told, BEFORE: None if before is None else [*before], INPUT: party.mask(own.vector)}
        if step == UNMASK:
            survivors = numbers(asked.get("survivors"))
            if self._given is not None:
                self._opened.check(self._given, survivors)
            elif len(survivors) < messages.whose(message["whose"]).clients:
                raise Withheld(REFUSES)
            told = party.tell(survivors)
            if self._given is not None:
                self._opened.keep(self._given, survivors)
            self._last = party.exchange.rpartition("/")[0]
            return {UNMASK: {"seeds": as_arrays(told.seeds), "keys": as_arrays(told.keys)}}
        raise Malformed("there is no such step")


def announced(text: bytes) -> Announced:
    """Return what a site announced, from its bytes."""
    return Announced(text[:KEY], text[KEY : 2 * KEY], text[2 * KEY :])


def as_array(text: bytes) -> np.ndarray:
    """Return bytes as messages carry them."""
    return np.frombuffer(text, np.uint8)


def as_arrays(texts: Mapping[int, bytes]) -> dict[str, np.ndarray]:
    """Return bytes by site's number as messages carry them."""
    return {str(site): as_array(text) for site, text in texts.items()}


def by_site(value: Any, size: int) -> dict[int, bytes]:
    """Return bytes by site's number as a message tells, each of such a size, or raise :class:`Malformed`."""
    if not isinstance(value, dict):
        raise Malformed("what it holds by site is none")
    for site, text in value.items():
        known = isinstance(site, str) and len(site) < 10 and site.isascii() and site.isdigit() and str(int(site)) == site
        if not known or not isinstance(text, np.ndarray) or text.dtype != np.uint8 or text.shape != (size,):
            raise Malformed("what it holds of a site is none")
    return {int(site): text.tobytes() for site, text in value.items()}


def numbers(value: Any) -> Collection[int]:
    """Return numbers of sites as a message tells them, or raise :class:`Malformed`."""
    if not isinstance(value, list) or not all(type(number) is int for number in value) or len(set(value)) < len(value):
        raise Malformed("the sites in the sum are none")
    return value
