"""What a server and a site say to each other, and what is wrong with what they say.

A request is a dict with an ``id`` and one of ``hello`` (who are you), ``letters`` (do this for an exchange of a round) and
``parts`` (measure this); those of a secure sum have ``secure`` (see :mod:`fedminimax.engines.federated.secure`).
A reply has the request's ``id``, and what was asked for or ``failed``: a category and the type of an exception, never its text,
which may hold data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import wire
from fedminimax.engines.execution import START as START
from fedminimax.engines.federated.transport import ERROR, MALFORMED, REFUSED, Failure
from fedminimax.errors import InputError
from fedminimax.players import Tree

LOST = "lost"
"""The category of a site that has not the state, or the notes, that it is asked to go on from."""
NOT_FINITE, OUT_OF_RANGE, IN_THE_OPEN, REFUSES, OTHERWISE, NO_KEYS = "finite", "range", "open", "refuses", "otherwise", "keys"
OPENED, FORGOTTEN, ACCUSES = "opened", "forgotten", "accuses"
_WITHHELD = {
    NOT_FINITE: "it withheld its reply: it is not finite, or the guard refused it",
    OUT_OF_RANGE: "it withheld its reply: a number is beyond Secure.limit, which was agreed on; agree on a higher one, or give "
    "guard=Guard(max_norm=...)",
    IN_THE_OPEN: "it gives vectors to secure sums only, and Secure.open_numbers numbers in the open",
    REFUSES: "it refused a step of a secure sum: there are too few sites, or it was told of others before",
    OTHERWISE: "it refused a step of a secure sum: it has answered it, or another attempt, already",
    NO_KEYS: "it has no keys for this secure sum: it may have been started again",
    OPENED: "it has helped to open this sum before, over other sites or with other weights, and the two would tell what they "
    "differ in; let the same sites take part as then, or begin another run",
    FORGOTTEN: "this sum is too far back for it to know over which sites it was opened; begin another run",
    ACCUSES: "it cannot use the keys or the sealed shares of other sites",
}
"""Why a site withholds a reply, by category, where sums are secure."""
UNTOLD = "untold"
"""The category of a site that does not tell its part of a metric, which is sent without noise."""
_UNTOLD = (
    "it does not tell its part of that metric, or not any more, as no noise protects it: leave the metric out, or have the "
    "site's administrator allow it by `measures`"
)
UNSEALED = "unsealed"
"""The category of a site to which a message came that is not the one which a neighbour sealed for it."""
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,96}")
_RUN = re.compile(r"[0-9a-f]{8,32}")
_SLACK = 2**16
"""Bytes that a reply may have beyond its arrays, and as many for each of them: the description of its structure."""

_T = TypeVar("_T")


class Malformed(Exception):
    """A message is not what it should be; the text is ours, and holds nothing of the message."""


class Withheld(Exception):
    """A site will not give a reply, where sums are secure.

    Args:
        kind: the category.
        whom: the numbers of the sites that it is about.
    """

    def __init__(self, kind: str, whom: Collection[int] = ()):
        super().__init__(_WITHHELD[kind])
        self.kind, self.whom = kind, [*whom]


class Untold(Exception):
    """A site will not tell its part of a metric.

    Args:
        metric: the name of the metric's class.
    """

    def __init__(self, metric: str):
        super().__init__(metric)
        self.metric = metric


class Refused(Exception):
    """A reply that does not count, and why.

    Args:
        failure: why.
        lost: whether the site says that it has not the state which it should go on from.
        withheld: the category of a reply that the site withholds.
        whom: the numbers of the sites that this is about.
    """

    def __init__(self, failure: Failure, lost: bool = False, withheld: str = "", whom: Collection[int] = ()):
        super().__init__(failure.text)
        self.failure, self.lost, self.withheld, self.whom = failure, lost, withheld, frozenset(whom)


@wire.message
class Whose(NamedTuple):
    """Which of the clients a site is.

    Attributes:
        clients: how many there are.
        number: its number among them.
        first: how many examples those before it have.
    """

    clients: int
    number: int
    first: int


class Ask(NamedTuple):
    """A request for an exchange of a round, checked.

    Attributes:
        id: of the request: one that is asked again has the same.
        run: which run it is of.
        whose: which client the site is.
        turn: the round, and the server's session, within which notes are kept.
        state: the name of the state to go on from.
        keep: the names of other states that may be gone back to.
        noted: whether it builds on notes of an exchange before.
        letters: what to do, one for each place that the client has in the cohort.
    """

    id: str
    run: str
    whose: Whose
    turn: str
    state: str
    keep: list[str]
    noted: bool
    letters: list[dict[str, Any]]


def name(value: Any) -> str:
    """Return a name or number that a message carries."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Malformed("a name is none")
    return value


def run_name(value: Any) -> str:
    """Return the name of a run that a message carries."""
    if not isinstance(value, str) or not _RUN.fullmatch(value):
        raise Malformed("the run is none")
    return value


def whose(value: Any) -> Whose:
    """Return which client a site is, as a message tells."""
    right = isinstance(value, Whose) and all(type(n) is int and 0 <= n < 2**31 for n in value)
    if not right or value.number >= value.clients:
        raise Malformed("it does not say whose it is")
    return value


def asked(message: dict[str, Any]) -> Ask:
    """Return the request for an exchange in a message."""
    wanted = {field: message[field] for field in Ask._fields if field in message}
    if len(wanted) < len(Ask._fields):
        raise Malformed("a field is missing")
    ask = Ask(**wanted)
    run_name(ask.run)
    if not isinstance(ask.keep, list) or not isinstance(ask.letters, list) or not isinstance(ask.noted, bool):
        raise Malformed("a field is of the wrong type")
    for label in (ask.id, ask.turn, ask.state, *ask.keep):
        name(label)
    for letter in ask.letters:
        _check_letter(letter)
    return ask._replace(whose=whose(ask.whose))


def _check_letter(letter: Any) -> None:
    kinds: dict[str, Callable[[Any], bool]] = {
        "function": lambda v: isinstance(v, str),
        "round": lambda v: type(v) is int and 0 <= v < 2**31,
        "place": lambda v: isinstance(v, str) and bool(_NAME.fullmatch(v)),
        "key": lambda v: is_array(v, (2,), "uint32"),
        "steps_word": lambda v: is_array(v, (), "uint32"),
        "steps": lambda v: v is None or is_array(v, (), "int32"),
        "arguments": lambda v: isinstance(v, tuple),
    }
    if not isinstance(letter, dict) or not all(field in letter and right(letter[field]) for field, right in kinds.items()):
        raise Malformed("a letter is none")


def is_array(value: Any, shape: tuple[int, ...], dtype: str) -> bool:
    """Tell whether a value is an array of this shape and type."""
    return isinstance(value, np.ndarray) and value.shape == shape and value.dtype.name == dtype


def failed(id: str | None, kind: str, error: str = "", whom: Collection[int] = ()) -> bytes:
    """Return the reply of a site that could not do what it was asked.

    Args:
        id: of the request, where it could be read.
        kind: the category.
        error: the type of the exception.
        whom: the numbers of the sites that it is about.
    """
    about = {"whom": [*whom]} if whom else {}
    return wire.encode({"id": id, "failed": {"kind": kind, "type": error[:64], **about}})


def read(reply: wire.Bytes, id: str, field: str, most: int) -> Any:
    """Return what a reply holds in a field, or raise :class:`Refused`.

    Args:
        reply: as it came.
        id: of the request: the reply to another is old, or another's, and not taken.
        field: what was asked for.
        most: how many bytes it may have.
    """
    if len(reply) > most:
        raise Refused(Failure(MALFORMED, f"a reply of {len(reply)} bytes, where at most {most} are expected"))
    try:
        message: Any = wire.decode(reply)
    except InputError:
        raise Refused(Failure(MALFORMED, "a reply that cannot be read")) from None
    if not isinstance(message, dict):
        raise Refused(Failure(MALFORMED, "a reply that is no message"))
    said = message.get("id")  # which may be anything, also an array
    if "failed" in message and (said is None or (isinstance(said, str) and said == id)):
        raise _refusal(message["failed"])
    if not isinstance(said, str) or said != id:
        raise Refused(Failure(MALFORMED, "a reply to another request, an old one perhaps"))
    if field not in message:
        raise Refused(Failure(MALFORMED, "a reply without what was asked for"))
    return message


def _refusal(said: Any) -> Refused:
    """Return what a site tells of its failure. Its words are not passed on, but for a type's name."""
    kind, error = (said.get("kind"), said.get("type")) if isinstance(said, dict) else (None, None)
    kind = kind if isinstance(kind, str) else ""
    if kind == LOST:
        return Refused(Failure(REFUSED, "it has lost its state of this run"), lost=True)
    if kind == MALFORMED:
        return Refused(Failure(REFUSED, "it could not read the request"))
    if kind in _WITHHELD:
        whom = said.get("whom")
        whole = isinstance(whom, list) and all(type(number) is int for number in whom)
        return Refused(Failure(REFUSED, _WITHHELD[kind]), withheld=kind, whom=whom if whole else ())
    if kind == UNSEALED:
        return Refused(Failure(REFUSED, "a neighbour's message or key came to it altered, old or not sealed for it"))
    shown = f" ({error})" if isinstance(error, str) and error.isidentifier() and len(error) <= 64 else ""
    if kind == UNTOLD:
        return Refused(Failure(REFUSED, f"{_UNTOLD}{shown}"))
    return Refused(Failure(ERROR, f"its program failed{shown}"))


def like(value: Tree, expected: Tree, what: str) -> Tree:
    """Return a tree that a site sent, if it has the structure, shapes and dtypes that it must have."""
    structure: Any = jax.tree.structure(expected)
    if structure != jax.tree.structure(value):
        raise Refused(Failure(MALFORMED, f"{what} of another structure"))
    for leaf, like_ in zip(jax.tree.leaves(value), jax.tree.leaves(expected), strict=True):
        if not isinstance(leaf, np.ndarray) or leaf.shape != like_.shape:
            raise Refused(Failure(MALFORMED, f"{what} of another shape"))
        if leaf.dtype != like_.dtype:
            raise Refused(Failure(MALFORMED, f"{what} of another type"))
    return value


def room(expected: Tree, times: int = 1) -> int:
    """Return how many bytes a reply of such shapes may have."""
    leaves = jax.tree.leaves(expected)
    return _SLACK + times * sum(_SLACK + leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in leaves)
