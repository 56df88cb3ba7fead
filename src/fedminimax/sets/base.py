"""What a set is, and the one without a constraint."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax.errors import InputError
from fedminimax.players import Tree
from fedminimax.sets.trees import lift, norm


class Set(abc.ABC):
    """A closed convex set of trees, C.

    A subclass is a frozen dataclass with hashable fields. It defines :meth:`project`, :meth:`diameter` and
    :meth:`linear_max`, and extends ``_require`` when not every tree of floats can live in it.
    """

    @abc.abstractmethod
    def project(self, tree: Tree) -> Tree:
        """Return the nearest point of the set, P(v) = argmin_{u in C} ||u - v||, in the tree's own dtypes."""

    @abc.abstractmethod
    def diameter(self, like: Tree | None = None) -> float:
        """Return sup ||u - v|| over u, v in C; infinite when C is unbounded.

        Args:
            like: a tree of the shapes that live in the set, where the set's own parameters do not tell its dimension.
        """

    @abc.abstractmethod
    def linear_max(self, gradient: Tree) -> Tree:
        """Return a maximiser of a linear function, argmax_{u in C} <g, u>; an error when C is unbounded."""

    def contains(self, tree: Tree, tol: float = 1e-5) -> jax.Array:
        """Return whether a point u is in the set to rounding: ||u - P(u)|| <= tol max(1, ||u||)."""
        # P(u) is rounded to the tree's dtypes before the difference is taken; lifted, that difference is exact enough.
        distance = norm(jax.tree.map(jnp.subtract, lift(tree), lift(self.project(tree))))
        # An overflow on both sides must not read as "inside".
        return jnp.isfinite(distance) & (distance <= tol * jnp.maximum(1.0, norm(lift(tree))))

    def check(self, tree: Tree, name: str = "y") -> None:
        """Raise an InputError when the tree cannot live in the set.

        Shapes and dtypes are checked, values are not: a starting point outside the set is legal.

        Args:
            tree: the player's starting point, or anything of its shapes and dtypes.
            name: the player, ``"x"`` or ``"y"``: the message speaks of ``y_set`` and ``y0``.
        """
        self._require(tree, f"{name}_set", f"{name}0")

    def _require(self, tree: Tree, the_set: str = "the set", the_tree: str = "the tree") -> None:
        """Raise an InputError, in the words given for the set and the tree, when the tree cannot live in the set."""
        for leaf in jax.tree.leaves(tree):
            try:
                dtype = jnp.result_type(leaf)
            except TypeError:
                raise InputError(
                    f"{the_set} is {self._described} but {the_tree} has an entry of type {type(leaf).__name__}; "
                    "make it a tree of float arrays"
                ) from None
            if not jnp.issubdtype(dtype, jnp.floating):
                raise InputError(
                    f"{the_set} is {self._described} but {the_tree} has entries of type {dtype}; convert them to floats"
                )

    @property
    def _described(self) -> str:
        """The set in an error message, after "is"."""
        name = type(self).__name__
        return f"an {name}" if name == "L2Ball" else f"a {name}"

    def _unbounded(self) -> InputError:
        """The answer of an unbounded set to a linear function."""
        return InputError(
            f"a linear function has no maximiser over {self._described}, which is unbounded; "
            "use a bounded set such as Simplex, L2Ball or a Box with finite bounds"
        )


def as_set(value: Set | None, name: str = "a constraint") -> Set:
    """Return the set itself, or :class:`Everything` for None; ``name`` is what an error calls it."""
    if value is None:
        return Everything()
    if not isinstance(value, Set):
        raise InputError(
            f"{name} is a fedminimax Set or None but {value!r:.40} was given; use for instance Simplex() or L2Ball(1.0)"
        )
    return value


@dataclasses.dataclass(frozen=True)
class Everything(Set):
    """No constraint: every tree is in the set."""

    def project(self, tree: Tree) -> Tree:
        """Return the tree itself."""
        return tree

    def diameter(self, like: Tree | None = None) -> float:
        """Return infinity."""
        return math.inf

    def linear_max(self, gradient: Tree) -> Tree:
        """Raise: a linear function is unbounded here."""
        raise self._unbounded()

    def contains(self, tree: Tree, tol: float = 1e-5) -> jax.Array:
        """Return True."""
        return jnp.asarray(True)

    def _require(self, tree: Tree, the_set: str = "the set", the_tree: str = "the tree") -> None:
        pass

    @property
    def _described(self) -> str:
        return "Everything"


def number(value: Any, what: str) -> float:
    """A set's parameter as one finite Python float, or an error that names it."""
    try:
        number = float(value)
    except (TypeError, ValueError):  # JAX's error for a traced value is a TypeError
        raise InputError(
            f"{what} is a {type(value).__name__} but must be one number known before tracing; pass a Python float"
        ) from None
    if not math.isfinite(number):
        raise InputError(f"{what} is {number} but must be finite; give a finite number or use another set")
    return number + 0.0  # -0.0 and 0.0 are the same bound
