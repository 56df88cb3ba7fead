"""The Euclidean ball."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fedminimax.errors import InputError
from fedminimax.players import Tree
from fedminimax.sets.base import Set, number
from fedminimax.sets.trees import arrays, direction, lift, norm


@dataclasses.dataclass(frozen=True)
class L2Ball(Set):
    """A Euclidean ball over all leaves together: {u : ||u - center|| <= radius}.

    Args:
        radius: the radius; zero leaves the center alone.
        center: the value of every entry of the center; None is zero.
    """

    radius: float = 1.0
    center: float | None = None

    def __post_init__(self) -> None:
        radius = number(self.radius, "the radius of an L2Ball")
        center = number(0.0 if self.center is None else self.center, "the center of an L2Ball")
        if radius < 0:
            raise InputError(f"the radius of an L2Ball is {radius} but must not be negative; give a larger radius")
        object.__setattr__(self, "radius", radius)
        object.__setattr__(self, "center", center)

    def project(self, tree: Tree) -> Tree:
        """Return c + (v - c) min(1, radius / ||v - c||)."""
        self._require(tree)
        center = self.center or 0.0
        offset = jax.tree.map(lambda leaf: leaf - center, lift(tree))
        inside = norm(offset) < self.radius
        # optax scales v - c by radius / ||v - c||: the norm overflows in float32 from 1e19 on, and the ratio vanishes.
        # Here the direction is found first, and a point that is inside stays as it is, to the last bit.
        return jax.tree.map(
            lambda leaf, part: jnp.where(inside, leaf, (center + self.radius * part).astype(leaf.dtype)),
            arrays(tree),
            direction(offset),
        )

    def diameter(self, like: Tree | None = None) -> float:
        """Return 2 radius."""
        return 2.0 * self.radius

    def linear_max(self, gradient: Tree) -> Tree:
        """Return c + radius g / ||g||, and the center when g = 0."""
        self._require(gradient)
        center = self.center or 0.0
        return jax.tree.map(
            lambda leaf, part: (center + self.radius * part).astype(leaf.dtype),
            arrays(gradient),
            direction(lift(gradient)),
        )
