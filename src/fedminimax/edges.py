"""Sums along the edges of a graph, some edges at a time: memory never grows like edges times numbers."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedminimax.players import Array

_AT_ONCE = 1 << 18
"""The numbers that a sum along edges holds at once, few enough for a cache: it goes through the edges in such parts."""


class Edges(NamedTuple):
    """Some edges: each one's row that hears, the row that is heard, and a_ij; where that is zero nothing is carried."""

    to: Array
    of: Array
    weight: Array


def along_edges(total: jax.Array, x: jax.Array, y: jax.Array, edges: Edges, back: bool = False) -> jax.Array:
    """Return a total to whose row i is added a_ij (x_i - y_j) for each edge from j to i.

    Args:
        total: [rows, d].
        x: what the rows that hear have, [rows, d].
        y: what is heard, [others, d].
        edges: the edges.
        back: whether edges carry both ways, where y is x.
    """
    part, inside = max(1, _AT_ONCE // max(1, x.shape[1])), "promise_in_bounds"

    def add(total: jax.Array, edges: Edges) -> tuple[jax.Array, None]:
        i, j, a = edges[0], edges[1], edges[2][:, None]
        along = a * (x.at[i].get(mode=inside) - y.at[j].get(mode=inside))
        along = jnp.where(a != 0, along, 0)  # zero times what is not finite is not zero
        total = total.at[i].add(along, mode=inside)
        return (total.at[j].add(-along, mode=inside) if back else total), None

    count = edges.weight.shape[0]
    whole = count // part * part
    if whole == 0:
        return add(total, edges)[0]
    total, _ = jax.lax.scan(add, total, Edges(*(v[:whole].reshape(-1, part) for v in edges)))
    return add(total, Edges(*(v[whole:] for v in edges)))[0]
