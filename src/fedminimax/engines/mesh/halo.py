"""One exchange between neighbours whose rows are on many devices: only rows on edges that are cut go from one to another.

The rows that a device p needs of the device p - s are sent by one permutation for each shift s: for a ring, two of them. What
came is added up along its edges before the next comes: a device never holds more than its own rows, and those of one other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.edges import Edges, along_edges
from fedminimax.engines.layout import AXIS
from fedminimax.engines.mesh.dealt import Dealt
from fedminimax.engines.mesh.packing import packed_bytes, summed
from fedminimax.federation.guard import finite
from fedminimax.network import Network
from fedminimax.players import Count, Tree

Form = Edges | Any
"""How rows that are heard become sums: along edges, or by a matrix, [rows, heard]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Link:
    """What one permutation carries.

    Attributes:
        sends: which of its own rows a device sends, [R].
        form: what leads from the rows that came to its own.
        pairs: who sends to whom.
    """

    sends: Any
    form: Form
    pairs: tuple[tuple[int, int], ...] = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Halo:
    """What a device needs for its part of an exchange. Outside of compiled programs: what the devices of a process do.

    Attributes:
        here: the edges between its own rows; None: there is an edge between any two nodes, and a mean is enough.
        links: what comes from others.
        degrees: how many neighbours each of its nodes has, [rows].
    """

    here: Form | None
    links: tuple[Link, ...]
    degrees: Any


def cut(network: Network, dealt: Dealt) -> Halo:
    """Return what the devices of a process need of a network whose nodes are dealt out."""
    cuts, most = np.asarray(dealt.cuts, np.int64), dealt.most
    places, mine = len(cuts) - 1, range(dealt.process * dealt.each, (dealt.process + 1) * dealt.each)
    at = np.arange(network.count) if dealt.order is None else np.argsort(dealt.order)
    owner = np.searchsorted(cuts, at, side="right") - 1
    row = at - cuts[owner]
    degrees = _scattered(owner, row, network.degrees, mine, most)
    if network.ends is None:
        return Halo(None, (), degrees)
    (i, j), a = network.edges.T, np.asarray(network.weights, jnp.zeros(()).dtype)
    apart = owner[i] != owner[j]
    form = _matrix if network.dense else _edges
    i_, j_, a_ = i[~apart], j[~apart], a[~apart]
    if network.dense:  # a matrix has both ways
        i_, j_, a_ = np.concatenate([i_, j_]), np.concatenate([j_, i_]), np.tile(a_, 2)
    here = form(owner[i_], row[i_], row[j_], a_, mine, most, most)
    to, of = np.concatenate([i[apart], j[apart]]), np.concatenate([j[apart], i[apart]])
    weight, shift = np.tile(a[apart], 2), (owner[to] - owner[of]) % places
    links = []
    for s in np.unique(shift).tolist():
        t, f, w = to[shift == s], of[shift == s], weight[shift == s]
        sent, slot = np.unique(owner[f] * most + row[f], return_inverse=True)  # each row goes once, whoever hears it
        sender, firsts = sent // most, np.searchsorted(sent, np.arange(places) * most)
        place = np.arange(len(sent)) - firsts[sender]
        room = int(place.max()) + 1
        sends = _scattered(sender, place, sent % most, mine, room)
        heard = form(owner[t], row[t], place[slot], w, mine, most, room)
        links.append(Link(sends, heard, tuple((int(p), int(p + s) % places) for p in np.unique(sender))))
    return Halo(here, tuple(links), degrees)


def _scattered(owner: np.ndarray, place: np.ndarray, values: np.ndarray, mine: range, room: int) -> np.ndarray:
    """Return the values that are this process's, each at its place, [each * room]; zeros fill up."""
    out = np.zeros((len(mine), room), np.int32)
    own = (owner >= mine.start) & (owner < mine.stop)
    out[owner[own] - mine.start, place[own]] = values[own]
    return out.reshape(-1)


def _edges(owner: np.ndarray, to: np.ndarray, of: np.ndarray, weight: np.ndarray, mine: range, *_: int) -> Edges:
    """Return the edges of each of this process's devices, as many as the most have; those that fill up carry nothing."""
    room = max(1, int(np.bincount(owner, minlength=1).max()))
    ends, out = np.zeros((2, len(mine), room), np.int32), np.zeros((len(mine), room), weight.dtype)
    for k, place in enumerate(mine):
        chosen = np.flatnonzero(owner == place)
        ends[:, k, : len(chosen)] = to[chosen], of[chosen]
        out[k, : len(chosen)] = weight[chosen]
    return Edges(ends[0].reshape(-1), ends[1].reshape(-1), out.reshape(-1))


def _matrix(
    owner: np.ndarray, to: np.ndarray, of: np.ndarray, weight: np.ndarray, mine: range, most: int, room: int
) -> np.ndarray:
    """Return the edges of each of this process's devices as a matrix, [each * most, room]."""
    out = np.zeros((len(mine), most, room), weight.dtype)
    own = (owner >= mine.start) & (owner < mine.stop)
    out[owner[own] - mine.start, to[own], of[own]] = weight[own]
    return out.reshape(-1, room)


# -- on a device, inside of a compiled round ----------------------------------------------------------------------------


def mixed(halo: Halo, network: Network, rows: Tree, count: Count, drop: bool) -> tuple[Tree, jax.Array, int]:
    """Return this device's rows of W X, how many messages of its nodes were ignored, and how many bytes it sends at most.

    Args:
        halo: what leads to whom.
        network: the network.
        rows: this device's rows of X, any pytree of arrays [rows, ...].
        count: how many of them are nodes'; the others fill up.
        drop: whether rows that are not finite count for nothing.
    """
    leaves, structure = jax.tree.flatten(rows)
    shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
    wide = jnp.result_type(jnp.float32, *(dtype for _, dtype in shapes))
    real = jnp.arange(shapes[0][0][0]) < count
    sound = real & jax.vmap(finite)(rows) if drop else real
    x = jnp.concatenate([leaf.reshape(len(real), -1).astype(wide) for leaf in leaves], axis=1)
    x = jnp.where(sound[:, None], x, 0)
    form = _by_mean if halo.here is None else _by_edges if isinstance(halo.here, Edges) else _by_matrix
    out, sent = form(halo, network, x, sound)
    ends = np.cumsum([int(np.prod(shape[1:])) for shape, _ in shapes])[:-1]
    parts = [part.reshape(s).astype(d) for part, (s, d) in zip(jnp.split(out, ends, axis=1), shapes, strict=True)]
    ignored = jnp.sum(jnp.where(sound, 0, halo.degrees), dtype=jnp.int32)
    return jax.tree.unflatten(structure, parts), ignored, sent


def _by_mean(halo: Halo, network: Network, x: jax.Array, sound: jax.Array) -> tuple[jax.Array, int]:
    away, heard, sent = _from_mean(x, sound)
    factor = (network.lambda_max * (heard / network.count)).astype(x.dtype)
    return jnp.where(sound[:, None], factor * away, 0), sent


def _by_edges(halo: Halo, network: Network, x: jax.Array, sound: jax.Array) -> tuple[jax.Array, int]:
    carried = lambda edges, of: edges._replace(
        weight=jnp.where(sound[edges.to] & of[edges.of], edges.weight, 0).astype(x.dtype)
    )
    total = along_edges(jnp.zeros_like(x), x, x, carried(halo.here, sound), back=True)
    packed, sent = jnp.concatenate([x, sound[:, None].astype(x.dtype)], axis=1), 0
    for link in halo.links:
        came, packed, total = _sent(link, packed, total)
        sent += came.size * came.dtype.itemsize
        total = along_edges(total, x, came[:, :-1], carried(link.form, came[:, -1] > 0))
    return total, sent


def _by_matrix(halo: Halo, network: Network, x: jax.Array, sound: jax.Array) -> tuple[jax.Array, int]:
    # W is zero on constants: without the mean, rows that nearly agree do not cancel.
    away, _, sent = _from_mean(x, sound)
    away = jnp.where(sound[:, None], away, 0)
    packed = jnp.concatenate([away, sound[:, None].astype(x.dtype)], axis=1)
    times = lambda matrix, rows: jnp.matmul(matrix.astype(x.dtype), rows, precision="highest")
    total = times(halo.here, packed)
    for link in halo.links:
        came, packed, total = _sent(link, packed, total)
        sent += came.size * came.dtype.itemsize
        total = total + times(link.form, came)
    return jnp.where(sound[:, None], total[:, -1:] * away - total[:, :-1], 0), sent


def _from_mean(x: jax.Array, sound: jax.Array) -> tuple[jax.Array, jax.Array, int]:
    """Return the rows without the mean over all nodes that count, how many these are, and how many bytes that takes."""
    own = (x.sum(axis=0), jnp.sum(sound, dtype=jnp.int32))
    total, heard = summed(own, AXIS)
    return x - total / jnp.maximum(heard, 1), heard, packed_bytes(own)


def _sent(link: Link, packed: jax.Array, total: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the rows that come by a link, and what was given: nothing is sent before what came earlier is dealt with."""
    packed, total = jax.lax.optimization_barrier((packed, total))
    return jax.lax.ppermute(packed[link.sends], AXIS, link.pairs), packed, total
