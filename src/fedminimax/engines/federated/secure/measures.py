"""Metrics whose parts are added up in secret: of what is summed over sites the server learns the sum alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedminimax.engines.execution import Halted
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.secure import fixed_point
from fedminimax.engines.federated.secure.contribution import numbers
from fedminimax.engines.federated.secure.settings import Secure
from fedminimax.engines.federated.secure.wanted import Wanted
from fedminimax.errors import InputError
from fedminimax.metrics.parts import Part
from fedminimax.players import Tree

if TYPE_CHECKING:
    from fedminimax.engines.federated.secure.collector import Collector


def are_open(expected: Mapping[str, Part], secure: Secure) -> bool:
    """Tell whether sites tell their parts of these metrics in the open; say so where they tell them not at all.

    Args:
        expected: the shapes of a site's parts, by metric.
        secure: what was agreed on.
    """
    for name, part in expected.items():
        if numbers(part.each) > secure.open_numbers:
            raise InputError(
                f"The metric {name} needs {numbers(part.each)} numbers of each site apart, and with secure sums a site tells "
                f"{secure.open_numbers} in the open: leave out the metric, or agree on Secure(open_numbers=...)."
            )
    return all(numbers(part) <= secure.open_numbers for part in expected.values())


def own(parts: Mapping[str, Part]) -> tuple[Tree, Tree]:
    """Return what a site's parts put into the sum, and what is told of the site apart."""
    return {name: part.sum for name, part in parts.items()}, {name: part.each for name, part in parts.items()}


def summed_parts(
    collector: Collector, id: str, requests: Mapping[str, Any], expected: Mapping[str, Mapping[str, Part]]
) -> list[dict[str, Part]]:
    """Return every site's parts, in order; what is summed is with the first of them, and NaN when a site's is missing.

    Args:
        collector: asks for secure sums.
        id: the name of the exchange.
        requests: of the metrics, by site.
        expected: the shapes of each site's parts.
    """
    shapes = next(iter(expected.values()))
    sums, apart = own(shapes)
    words = fixed_point.length(sums)
    wanted = Wanted(
        exchange=id,
        sites=tuple(requests),
        work=lambda site: {"parts": requests[site], "secure": {}},
        read=lambda site, message: messages.like(message.get("each"), own(expected[site])[1], "a part of a metric"),
        refused=lambda site, refused: None,
        words=words,
        room=messages.room(apart) + messages.room(sums) + 8 * words,
        fewest=0,
        counting=tuple(requests),
        whole=True,  # and at one state there is then one sum, however often it is measured
    )
    missing = lambda like: jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan), like)
    try:
        total, said = collector.sum(wanted)
    except Halted:
        return [{name: Part(*map(missing, part)) for name, part in shapes.items()} for _ in requests]
    whole = missing(sums) if total is None else fixed_point.unpack(total, sums, collector.secure)
    nothing = jax.tree.map(np.zeros_like, whole)
    return [
        {name: Part(at[name], said[site][name] if site in said else missing(apart[name])) for name in shapes}
        for site, at in zip(requests, [whole, *[nothing] * (len(requests) - 1)], strict=True)
    ]
