"""Trees of numbers as integers modulo 2^64, and back: what masks can be added to, and cancel in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.engines.federated.messages import NOT_FINITE, OUT_OF_RANGE, Withheld
from fedminimax.engines.federated.secure.settings import Secure
from fedminimax.players import Tree

WORD = np.dtype("<u8")
"""An integer modulo 2^64."""


def pack(tree: Tree, secure: Secure) -> np.ndarray:
    """Return a tree as one vector of integers modulo 2^64, or raise :class:`Withheld`.

    A float v becomes round(2^bits v); integers stay as they are.
    """
    return np.concatenate([np.zeros(0, WORD), *(_packed(np.asarray(leaf), secure) for leaf in jax.tree.leaves(tree))])


def _packed(leaf: np.ndarray, secure: Secure) -> np.ndarray:
    if not _is_float(leaf):
        return leaf.astype(np.int64).reshape(-1).view(WORD)
    values = leaf.astype(np.float64).reshape(-1)
    if not np.isfinite(values).all():
        raise Withheld(NOT_FINITE)
    if (np.abs(values) > secure.limit).any():
        raise Withheld(OUT_OF_RANGE)
    return np.rint(values * 2.0**secure.bits).astype(np.int64).view(WORD)


def unpack(total: np.ndarray, like: Tree, secure: Secure) -> Tree:
    """Return the tree of such shapes and dtypes that a vector of integers modulo 2^64 stands for."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = np.split(total.view(np.int64), ends[:-1])
    return jax.tree.unflatten(structure, [_unpacked(part, leaf, secure) for part, leaf in zip(parts, leaves, strict=True)])


def _unpacked(part: np.ndarray, like: Any, secure: Secure) -> np.ndarray:
    values = part / 2.0**secure.bits if _is_float(like) else part
    return values.astype(like.dtype).reshape(like.shape)


def length(like: Tree) -> int:
    """Return how many integers stand for a tree of such shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(like))


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))
