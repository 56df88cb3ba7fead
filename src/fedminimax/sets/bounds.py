"""Sets with a bound for each entry."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.errors import InputError
from fedminimax.players import Tree
from fedminimax.sets.base import Set
from fedminimax.sets.trees import arrays, size_of


@dataclasses.dataclass(frozen=True)
class NonNegative(Set):
    """The non-negative orthant: {u : u_i >= 0}."""

    def project(self, tree: Tree) -> Tree:
        """Return max(v, 0), entry by entry."""
        from optax import projections

        self._require(tree)
        return projections.projection_non_negative(arrays(tree))

    def diameter(self, like: Tree | None = None) -> float:
        """Return infinity."""
        return math.inf

    def linear_max(self, gradient: Tree) -> Tree:
        """Raise: a linear function is unbounded here."""
        raise self._unbounded()


@dataclasses.dataclass(frozen=True, eq=False)
class Box(Set):
    """Bounds on every entry: {u : low_i <= u_i <= high_i}.

    Args:
        low: a number for all entries, or an array of the shape of the leaf that it bounds. May be -inf.
        high: likewise. May be inf. For leaves of several shapes, take a :class:`Product` of one Box each.
    """

    low: float | np.ndarray
    high: float | np.ndarray

    def __post_init__(self) -> None:
        low, high = _bound(self.low, "low"), _bound(self.high, "high")
        if np.ndim(low) and np.ndim(high) and np.shape(low) != np.shape(high):
            raise InputError(
                f"the low of a Box has shape {np.shape(low)} but its high has shape {np.shape(high)}; "
                "give both the shape of the player's array"
            )
        empty = (low > high) | (low == math.inf) | (high == -math.inf)
        if np.any(empty):
            raise InputError(
                f"a Box is empty when a low exceeds its high, or a low is inf or a high is -inf, as in "
                f"{int(np.sum(empty))} of {np.size(empty)} entries here; swap or widen these bounds"
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def project(self, tree: Tree) -> Tree:
        """Return min(max(v, low), high), entry by entry."""
        from optax import projections

        self._require(tree)
        return jax.tree.map(lambda leaf: projections.projection_box(leaf, *self._bounds(leaf)), arrays(tree))

    def diameter(self, like: Tree | None = None) -> float:
        """Return ||high - low||."""
        with np.errstate(over="ignore"):
            width = np.asarray(self.high) - np.asarray(self.low)
        if like is not None:
            self._require(like)
        elif width.ndim == 0 and 0 < width < math.inf:
            raise InputError(
                "the diameter of a Box with one bound for all entries depends on how many there are; "
                "pass a tree of the player's shapes as diameter(like=y0)"
            )
        # How often the bounds apply: a number to every entry, an array to every leaf.
        times = 1 if like is None else size_of(like) if width.ndim == 0 else len(jax.tree.leaves(like))
        return math.sqrt(times) * math.hypot(*width.ravel().tolist())

    def linear_max(self, gradient: Tree) -> Tree:
        """Return high where g >= 0, low elsewhere."""
        self._require(gradient)
        if not (np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high))):
            raise self._unbounded()

        def corner(leaf: jax.Array) -> jax.Array:
            low, high = self._bounds(leaf)
            return jnp.where(leaf >= 0, high, low)

        return jax.tree.map(corner, arrays(gradient))

    def _bounds(self, leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The bounds in the leaf's dtype, so that they never promote it."""
        return jnp.asarray(self.low, leaf.dtype), jnp.asarray(self.high, leaf.dtype)

    def _require(self, tree: Tree, the_set: str = "the set", the_tree: str = "the tree") -> None:
        super()._require(tree, the_set, the_tree)
        shape = np.broadcast_shapes(np.shape(self.low), np.shape(self.high))
        for leaf in jax.tree.leaves(tree):
            if shape and np.shape(leaf) != shape:
                raise InputError(
                    f"{the_set} is a Box with bounds of shape {shape} but {the_tree} has an array of shape "
                    f"{np.shape(leaf)}; give the bounds this shape, or use numbers, or a Product of one Box per array"
                )

    def _key(self) -> tuple[Hashable, ...]:
        return tuple((np.shape(bound), np.asarray(bound).tobytes()) for bound in (self.low, self.high))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def _bound(value: Any, what: str) -> float | np.ndarray:
    """A number, or an array of its own that can no longer be written to."""
    try:
        array = np.array(value, dtype=np.float64) + 0.0
    except (TypeError, ValueError):
        raise InputError(
            f"the {what} of a Box is a {type(value).__name__} but must be numbers known before tracing; "
            "pass a Python float or a NumPy array"
        ) from None
    if np.any(np.isnan(array)):
        raise InputError(f"the {what} of a Box contains nan; use -inf or inf for an entry without a bound")
    if array.ndim == 0:
        return float(array)
    array.setflags(write=False)
    return array
