"""Arithmetic on trees that neither overflows nor loses what half precision cannot hold."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedminimax.players import Tree


def arrays(tree: Tree) -> Tree:
    """The tree with an array at every leaf."""
    return jax.tree.map(jnp.asarray, tree)


def lift(tree: Tree) -> Tree:
    """The tree in float32 at least: half precision cannot count entries, let alone sum them."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), arrays(tree))


def ravel(tree: Tree) -> tuple[jax.Array, Callable[[jax.Array], Tree]]:
    """All entries as one vector, and the way back to the tree's shapes and dtypes."""
    vector, unravel = ravel_pytree(lift(tree))
    return vector, lambda w: jax.tree.map(lambda part, leaf: part.astype(leaf.dtype), unravel(w), arrays(tree))


def size_of(tree: Tree) -> int:
    """How many numbers the tree holds."""
    return sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(tree))


def _in_units(tree: Tree) -> tuple[jax.Array, Tree, jax.Array]:
    """A unit, the tree in this unit, and the sum of its squares, which can then neither overflow nor vanish."""
    leaves = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in jax.tree.leaves(tree)]
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, leaves or [jnp.zeros(())]))
    # XLA may multiply by 1 / unit, and flushes it to zero where it is subnormal: keep away from the ends of the range.
    limits = jnp.finfo(largest.dtype)
    unit = jnp.clip(largest, float(limits.tiny) ** 0.75, float(limits.max) ** 0.75)
    scaled = jax.tree.map(lambda leaf: leaf / unit, tree)
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(scaled)]
    return unit, scaled, functools.reduce(jnp.add, squares or [jnp.zeros(())])


def norm(tree: Tree) -> jax.Array:
    """||u|| over all leaves."""
    unit, _, squares = _in_units(tree)
    return unit * jnp.sqrt(squares)


def direction(tree: Tree) -> Tree:
    """u / ||u|| over all leaves, and 0 for u = 0."""
    _, scaled, squares = _in_units(tree)
    length = jnp.sqrt(jnp.where(squares > 0, squares, 1.0))  # inside the root, so that its derivative stays finite
    return jax.tree.map(lambda leaf: leaf / length, scaled)
