"""What a site puts into a secure sum, and what it tells in the open."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.engines.federated.messages import IN_THE_OPEN, NOT_FINITE, Malformed, Withheld
from fedminimax.engines.federated.secure.opened import Given
from fedminimax.engines.federated.secure.settings import Secure
from fedminimax.errors import InputError
from fedminimax.federation.guard import Guard
from fedminimax.players import Tree


class Contribution(NamedTuple):
    """What a site has for a secure sum.

    Attributes:
        told: what it tells in the open beside it.
        vector: its integers modulo 2^64.
        given: the exchange that it is of; None: it is of metrics.
    """

    told: dict[str, Any]
    vector: np.ndarray
    given: Given | None


def weighted(replies: list[dict[str, Tree]], asked: dict[str, Any]) -> Tree:
    """Return the weighted sum of a site's replies, in double precision, and of the work that they took.

    Each is first made safe as the guard says, whose bounds the server tells; one that it refuses is withheld, and all with it.

    Args:
        replies: one for each place that the client has in the cohort.
        asked: the request's ``secure``.
    """
    weights, guard = _weights(asked.get("weights"), len(replies)), _guard(asked)
    values = []
    for reply, weight in zip(replies, weights, strict=True):
        value, accepted = guard.inspect(jax.tree.map(jnp.asarray, reply["value"]))
        if not accepted:
            raise Withheld(NOT_FINITE)
        values.append(jax.tree.map(lambda leaf, weight=weight: weight * np.asarray(leaf, np.float64), value))
    add = lambda *rows: np.sum(rows, axis=0)
    return {"value": jax.tree.map(add, *values), "work": add(*(np.asarray(reply["work"], np.int64) for reply in replies))}


def _weights(value: Any, count: int) -> np.ndarray:
    right = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == (count,) and count > 0
    if not right or not np.isfinite(value).all():
        raise Malformed("the weights are none")
    return value


def _guard(asked: dict[str, Any]) -> Guard:
    bounds = asked.get("max_norm"), asked.get("max_loss")
    if not all(bound is None or isinstance(bound, (int, float)) for bound in bounds):
        raise Malformed("the guard is none")
    try:
        return Guard(*bounds)
    except InputError:
        raise Malformed("the guard is none") from None


def check_open(told: Tree, secure: Secure | None) -> None:
    """Raise :class:`Withheld` where sums are secure and this is more than a site tells in the open."""
    if secure is not None and numbers(told) > secure.open_numbers:
        raise Withheld(IN_THE_OPEN)


def numbers(tree: Tree) -> int:
    """Return how many numbers a tree has."""
    return sum(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(tree))
