"""The two players, and arithmetic on them.

A :class:`Point` holds the min player x and the max player y. Gradients, updates and control variates are Points too, so
that "which part of a message belongs to which player" can be read off its field names (the accounting does).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any
"""Any JAX pytree of arrays."""
Array = jax.Array | np.ndarray
"""Numbers inside of a compiled program or outside."""
Count = int | jax.Array
"""A whole number: known when programs are compiled, or not before they run."""
Number = float | jax.Array
"""A real number, likewise."""

_T = TypeVar("_T")


class Point(NamedTuple):
    """One value for each player: z = (x, y)."""

    x: Tree
    y: Tree


def add(a: _T, b: Tree, scale: Number = 1.0) -> _T:
    """Return a + scale * b, leaf by leaf, in a's dtypes."""
    return jax.tree.map(lambda p, q: (p + scale * q).astype(p.dtype), _arrays(a), b)


def sub(a: _T, b: Tree) -> _T:
    """Return a - b, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(tree: _T, factor: Number) -> _T:
    """Return factor * tree, leaf by leaf, in the tree's dtypes."""
    return jax.tree.map(lambda p: (factor * p).astype(p.dtype), _arrays(tree))


def zeros_like(tree: _T) -> _T:
    """Return zeros of the same structure."""
    return jax.tree.map(jnp.zeros_like, tree)


def dot(a: Tree, b: Tree) -> jax.Array:
    """Return the inner product over all leaves."""
    return jnp.asarray(sum(jnp.vdot(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)))


def sqnorm(tree: Tree) -> jax.Array:
    """Return the squared Euclidean norm over all leaves."""
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def norm(tree: Tree) -> jax.Array:
    """Return the Euclidean norm over all leaves."""
    return jnp.sqrt(sqnorm(tree))


def size(tree: Tree) -> int:
    """Return the number of scalars in all leaves."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(tree))


def select(condition: jax.Array | bool, a: _T, b: _T) -> _T:
    """Return a where the scalar condition holds, else b."""
    return jax.tree.map(lambda p, q: jnp.where(condition, p, q), a, b)


def _arrays(tree: Tree) -> Tree:
    return jax.tree.map(jnp.asarray, tree)
