"""A tree of numbers, added up over all places in one go.

Every collective costs its latency, whatever its size: a reduction for each leaf of a reply makes a round of a small model many
times as long. So all leaves go into one flat buffer of floats, and come back out of it. Whole numbers go as pieces that floats
add up exactly.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.players import Tree

_BITS = {4: 11, 8: 32}
"""By the bytes of a float: how many bits of a whole number a piece has. Sums over 2^13 places stay exact."""


def summed(tree: Tree, axis: str) -> Tree:
    """Return the sum of a tree over all places of a mesh's axis, by one reduction; a bool tells whether any was true."""
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    wide = _widest(leaves)
    parts = [_floats(leaf, wide) for leaf in leaves]
    total = added(jnp.concatenate([part.reshape(-1) for part in parts]), axis)
    out, first = [], 0
    for leaf, part in zip(leaves, parts, strict=True):
        out.append(_back(total[first : first + part.size].reshape(part.shape), leaf))
        first += part.size
    return jax.tree.unflatten(structure, out)


def added(flat: jax.Array, axis: str) -> jax.Array:
    """Return the sum of a flat array over all places, with the bytes of a ring's reduction, in as few meetings as they allow.

    On CPUs, 2^k places meet in pairs, 2 k - 1 times: each sends its partner half of what it has and adds up the other half,
    with a partner half as far away each time, until the last two swap what is left; then the halves go back. A ring has
    2 (2^k - 1) meetings, in pieces. Every other number of places takes JAX's own reduction, and so do accelerators.
    """
    places = jax.lax.axis_size(axis)
    if places == 1 or places & (places - 1) or jax.default_backend() != "cpu":
        return jax.lax.psum(flat, axis)
    room = -(-flat.size // (places // 2)) * (places // 2)
    return _halved(jnp.pad(flat, (0, room - flat.size)), axis, places, places // 2)[: flat.size]


def _halved(part: jax.Array, axis: str, places: int, away: int) -> jax.Array:
    swapped = lambda own: jax.lax.ppermute(own, axis, [(place, place ^ away) for place in range(places)])
    if away == 1:
        return part + swapped(part)
    low, high = jnp.split(part, 2)
    upper = jax.lax.axis_index(axis) & away > 0
    own = jnp.where(upper, high, low) + swapped(jnp.where(upper, low, high))
    own = _halved(own, axis, places, away // 2)
    other = swapped(own)
    return jnp.concatenate([jnp.where(upper, other, own), jnp.where(upper, own, other)])


def packed_bytes(tree: Tree) -> int:
    """Return how long the buffer of a tree of arrays, or of shapes, is."""
    leaves = jax.tree.leaves(tree)
    wide = _widest(leaves)
    pieces = lambda leaf: 1 if _is_float(leaf) or leaf.dtype == bool else len(_shifts(leaf.dtype, wide))
    return sum(int(np.prod(leaf.shape)) * pieces(leaf) for leaf in leaves) * wide.itemsize


def _widest(leaves: list[jax.Array]) -> np.dtype:
    return np.dtype(jnp.result_type(jnp.float32, *(leaf.dtype for leaf in leaves if _is_float(leaf))))


def _is_float(leaf: jax.Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _shifts(dtype: np.dtype, wide: np.dtype) -> range:
    return range(0, 8 * dtype.itemsize, _BITS[wide.itemsize])


def _floats(leaf: jax.Array, wide: np.dtype) -> jax.Array:
    if _is_float(leaf) or leaf.dtype == bool:
        return leaf.astype(wide)
    shifts, bits = _shifts(leaf.dtype, wide), _BITS[wide.itemsize]
    if len(shifts) == 1:
        return leaf.astype(wide)[..., None]
    mask = jnp.asarray((1 << bits) - 1, leaf.dtype)
    *low, last = ((leaf >> shift) for shift in shifts)  # the last piece has the sign
    return jnp.stack([*(piece & mask for piece in low), last], axis=-1).astype(wide)


def _back(total: jax.Array, leaf: jax.Array) -> jax.Array:
    if leaf.dtype == bool:
        return total > 0
    if _is_float(leaf):
        return total.astype(leaf.dtype)
    shifts = _shifts(leaf.dtype, np.dtype(total.dtype))
    # By way of wide signed pieces: a sum of pieces carries into the next one, and all wrap around as whole numbers do.
    pieces = total.astype(jnp.int64 if total.dtype == jnp.float64 else jnp.int32)
    return sum((pieces[..., k].astype(leaf.dtype) << shift for k, shift in enumerate(shifts)), jnp.zeros_like(leaf))
