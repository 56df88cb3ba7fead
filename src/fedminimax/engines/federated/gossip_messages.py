"""What a coordinator and the sites of a network say to each other.

A coordinator asks for ``keys`` (the site's public key of a run), for a ``gossip`` (go on with a round, with what the neighbours
have sent, which the coordinator cannot read), for ``measures`` (parts of metrics at the site's own players), and to ``settle``
(the run is over: keep the model). No reply to any of these has a player in it that is not sealed for a neighbour.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedminimax import wire
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.messages import Malformed, Whose

KEYS, GOSSIP, MEASURES, SETTLE = "keys", "gossip", "measures", "settle"
_MOST_EXCHANGES = 2**16
KEY = 32
"""Bytes of a public key."""


class Unsealed(Exception):
    """A neighbour's message, or its key, is not what that neighbour sent to this site for this place."""


@wire.message
class PublicKey(NamedTuple):
    """A site's key for a run, as its neighbours are told it.

    Attributes:
        number: the site's.
        key: the public key, [32] bytes.
        certificate: of the site, where it has one, else empty; bytes.
        signature: under the certificate, of run, number and key; bytes.
    """

    number: int
    key: Any
    certificate: Any
    signature: Any


def is_key(value: Any) -> bool:
    """Tell whether a value is a site's key, with a number and bytes where they belong."""
    bytes_ = lambda part: isinstance(part, np.ndarray) and part.dtype == np.uint8 and part.ndim == 1
    return isinstance(value, PublicKey) and type(value.number) is int and all(map(bytes_, value[1:])) and value.key.size == KEY


class Errand(NamedTuple):
    """A request of a run, checked.

    Attributes:
        id: of the request: one that is asked again has the same.
        run: which run it is of.
        whose: which node the site is.
        state: the name of the state that is meant.
    """

    id: str
    run: str
    whose: Whose
    state: str


class Turn(NamedTuple):
    """A request to go on with a round, checked.

    Attributes:
        turn: the round, and the coordinator's session.
        keep: the names of other states that may be gone back to.
        round: t.
        key: of the run's randomness.
        drop: whether messages that are not finite are ignored.
        mix: how many exchanges of the round have been, that of this request among them.
        keys: the neighbours' public keys, by number.
        heard: what the neighbours sent in that exchange, sealed, by number.
    """

    turn: str
    keep: list[str]
    round: int
    key: np.ndarray
    drop: bool
    mix: int
    keys: dict[int, Any]
    heard: dict[int, np.ndarray]


def errand(message: dict[str, Any]) -> Errand:
    """Return what run, node and state a request is about."""
    run = message.get("run")
    return Errand(
        messages.name(message.get("id")),
        messages.run_name(run),
        messages.whose(message.get("whose")),
        messages.name(message.get("state")),
    )


def turn(said: Any) -> Turn:
    """Return the request to go on with a round in a message."""
    if not isinstance(said, dict) or set(said) != set(Turn._fields):
        raise Malformed("a field is missing")
    ask = Turn(**said)
    whole = lambda value, most: type(value) is int and 0 <= value < most
    if not whole(ask.round, 2**31) or not whole(ask.mix, _MOST_EXCHANGES) or type(ask.drop) is not bool:
        raise Malformed("a number is none")
    if not messages.is_array(ask.key, (2,), "uint32") or not isinstance(ask.keep, list):
        raise Malformed("a field is of the wrong type")
    for label in (ask.turn, *ask.keep):
        messages.name(label)
    heard = _numbered(ask.heard)
    if not all(isinstance(box, np.ndarray) and box.dtype == np.uint8 and box.ndim == 1 for box in heard.values()):
        raise Malformed("a sealed message is none")
    return ask._replace(keys=_numbered(ask.keys), heard=heard)


def numbered(by_number: dict[int, Any]) -> dict[str, Any]:
    """Return what is known by number as a message can hold it."""
    return {str(number): value for number, value in by_number.items()}


def _numbered(said: Any) -> dict[int, Any]:
    if not isinstance(said, dict) or not all(k.isascii() and k.isdigit() and len(k) < 10 for k in said):
        raise Malformed("what should be numbered is not")
    return {int(k): value for k, value in said.items()}
