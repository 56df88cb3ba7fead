"""Secure sums as the engine sees them: what is wanted, and what comes of it.

Both sides of one are imported when there is one: an installation without ``cryptography`` has everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedminimax.engines.federated.group import Group
from fedminimax.engines.federated.messages import Refused, Whose
from fedminimax.engines.federated.secure.settings import Secure, check_installed
from fedminimax.engines.federated.transport import Failure

if TYPE_CHECKING:
    from fedminimax.engines.federated.secure.collector import Collector
    from fedminimax.engines.federated.secure.desk import Desk

Hello = Callable[[Collection[str], float], Mapping[str, Failure]]
"""Asks sites whether they are there, within so many seconds, and returns who is not."""


LEAST_SHARE = 0.01
"""A site counts as one of the :attr:`Secure.least` of a sum if its weight is at least this share of the largest."""


def counting(weights: Mapping[str, float]) -> set[str]:
    """Return the sites whose weights in a sum are enough to hide others: far smaller ones are as if not there.

    Args:
        weights: by site, without their signs.
    """
    most = max(weights.values(), default=0.0)
    return {site for site, weight in weights.items() if weight > 0 and weight >= LEAST_SHARE * most}


class Wanted(NamedTuple):
    """A secure sum that is wanted.

    Attributes:
        exchange: its name; each attempt at it has a name of its own.
        sites: whom to ask.
        work: what a site is asked to do for it: the request, without what the sum adds to its ``secure``.
        read: reads what a reply holds beside the vector, or raises :class:`Refused`.
        refused: is told of a reply that does not count.
        words: how many integers the vector has.
        room: how many bytes a reply may have.
        fewest: over how many sites the sum must be, whatever was agreed on.
        counting: those whose weights are enough to hide others: at least :attr:`Secure.least` of them must be in the sum.
        whole: the sum is of use over all sites only, and is not opened over fewer.
    """

    exchange: str
    sites: tuple[str, ...]
    work: Callable[[str], dict[str, Any]]
    read: Callable[[str, dict[str, Any]], Any]
    refused: Callable[[str, Refused], None]
    words: int
    room: int
    fewest: int
    counting: Collection[str]
    whole: bool = False


class Summed(NamedTuple):
    """What a secure sum brought: the integers (None: it was not opened), and what else those said whose vectors came."""

    total: np.ndarray | None
    said: dict[str, Any]


def collector_of(secure: Secure, group: Group, hello: Hello, whose: Mapping[str, Whose]) -> Collector:
    """Return the server's side of secure sums."""
    check_installed()
    from fedminimax.engines.federated.secure.collector import Collector

    return Collector(secure, group, hello, whose)


def desk_of(secure: Secure, folder: Path | None) -> Desk:
    """Return a site's side of secure sums."""
    check_installed()
    from fedminimax.engines.federated.secure.desk import Desk

    return Desk(secure, folder)
