"""Non-negative entries of a fixed sum: the simplex, and the simplex with capped entries."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.errors import InputError
from fedminimax.players import Tree
from fedminimax.sets.base import Set, number
from fedminimax.sets.trees import ravel, size_of


class _FixedSum(Set):
    """What Simplex and CappedSimplex share: {w : 0 <= w_i <= cap, sum w = total}; from cap = total on, no cap at all."""

    size: int | None
    total: float

    @property
    @abc.abstractmethod
    def _cap(self) -> float: ...

    def __post_init__(self) -> None:
        name = type(self).__name__
        total = number(self.total, f"the total of a {name}")
        if total <= 0:
            raise InputError(f"the total of a {name} is {total} but must be positive; the usual total is 1.0")
        object.__setattr__(self, "total", total)
        if self.size is not None:
            try:
                object.__setattr__(self, "size", operator.index(self.size))
            except TypeError:
                raise InputError(
                    f"the size of a {name} is a {type(self.size).__name__} but must be an integer; "
                    "give the number of entries, or None for any number"
                ) from None
            if self.size < 1:
                raise InputError(
                    f"the size of a {name} is {self.size} but must be at least 1; "
                    "give the number of entries, or None for any number"
                )

    def project(self, tree: Tree) -> Tree:
        """Return clip(v - tau, 0, cap), where tau makes the entries sum to the total."""
        self._require(tree)
        vector, restore = ravel(tree)
        return restore(_project_fixed_sum(vector, self._cap, self.total))

    def diameter(self, like: Tree | None = None) -> float:
        """Return the distance between a vertex and the same vertex with its entries in reverse order.

        All vertices are permutations of one vector a, and by the rearrangement inequality <a, Pa> is least when P sorts
        a the other way. For a Simplex this is sqrt(2) total; one of unknown size is taken to have two entries or more.
        """
        if like is not None:
            self._require(like)
        size = self.size if like is None else size_of(like)
        if size is None:
            if self._cap < self.total:
                raise InputError(
                    f"the diameter of {self._described} depends on how many entries it has; "
                    "give the set a size or pass a tree of the player's shapes as diameter(like=y0)"
                )
            size = 2
        full, rest = self._full_entries(size)
        vertex = np.zeros(size)
        vertex[:full] = self._cap
        vertex[full : full + 1] = rest
        return float(np.linalg.norm(vertex - vertex[::-1]))

    def linear_max(self, gradient: Tree) -> Tree:
        """Return the vertex that gives the cap to the largest entries of g until the total is spent.

        Of equal entries, the first comes first.
        """
        self._require(gradient)
        vector, restore = ravel(gradient)
        full, rest = self._full_entries(vector.size)
        vertex = jnp.zeros_like(vector)
        if full == 1 and rest == 0:
            return restore(vertex.at[jnp.argmax(vector)].set(self._cap))
        order = jnp.argsort(vector, descending=True)
        vertex = vertex.at[order[:full]].set(self._cap)
        return restore(vertex.at[order[full : full + 1]].set(rest))

    def _full_entries(self, size: int) -> tuple[int, float]:
        """How many entries of a vertex are at the cap, and what the one after them gets."""
        full = min(size, math.floor(self.total / self._cap))
        return full, max(0.0, self.total - full * self._cap)

    def _require(self, tree: Tree, the_set: str = "the set", the_tree: str = "the tree") -> None:
        super()._require(tree, the_set, the_tree)
        size = size_of(tree)
        if size == 0:
            raise InputError(f"{the_set} is {self._described} but {the_tree} has no entries; give it at least one")
        if self.size is not None and size != self.size:
            raise InputError(
                f"{the_set} is {self._described} but {the_tree} has {size} entries; "
                f"give {the_tree} {self.size} entries or {the_set} size={size}"
            )
        if _cap_too_low(self._cap, size, self.total):
            raise InputError(
                f"{the_set} is {self._described} but {the_tree} has {size} entries, "
                f"which cannot sum to {self.total:g}; raise the cap to at least {self.total / size:g}"
            )

    @property
    def _described(self) -> str:
        size = "" if self.size is None else f" of {self.size}"
        cap = f" with cap {self._cap:g}" if isinstance(self, CappedSimplex) else ""
        return f"a {type(self).__name__}{size}{cap}"


@dataclasses.dataclass(frozen=True)
class Simplex(_FixedSum):
    """Non-negative weights with a fixed sum, over all leaves together: {w : w >= 0, sum w = total}.

    Args:
        size: the number of entries, checked when given.
        total: the sum.
    """

    size: int | None = None
    total: float = 1.0

    @property
    def _cap(self) -> float:
        return self.total


@dataclasses.dataclass(frozen=True)
class CappedSimplex(_FixedSum):
    """Weights of which none may be too large, over all leaves together: {w : 0 <= w_i <= cap, sum w = total}.

    With cap = 1 / (alpha n) the largest <w, losses> is the mean of the worst alpha n losses, their CVaR.

    Args:
        cap: the largest weight.
        size: the number of entries, checked when given.
        total: the sum.
    """

    cap: float
    size: int | None = None
    total: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        cap = number(self.cap, "the cap of a CappedSimplex")
        if cap <= 0:
            raise InputError(f"the cap of a CappedSimplex is {cap} but must be positive; give a larger cap")
        if self.size is not None and _cap_too_low(cap, self.size, self.total):
            raise InputError(
                f"a CappedSimplex of {self.size} with cap {cap:g} is empty, as its entries cannot sum to "
                f"{self.total:g}; raise the cap to at least {self.total / self.size:g}"
            )
        object.__setattr__(self, "cap", cap)

    @property
    def _cap(self) -> float:
        return self.cap


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
@functools.partial(jax.jit, static_argnums=(1, 2))  # for calls outside a compiled program: its loop compiles once
def _project_fixed_sum(v: jax.Array, cap: float, total: float) -> jax.Array:
    """Return clip(v - tau, 0, cap) with tau such that the entries sum to total.

    The sum is piecewise linear and decreasing in tau, so that tau follows exactly from its sorted breakpoints.
    ``optax.projections.projection_simplex`` finds tau from prefix sums of v itself, and in float32 a weight vector over
    a million clients can then sum to 1.2: an error of one rounding in tau counts once for every client. Shifting by
    max(v) moves the problem to vectors with one large entry. Shifting by tau solves it: entries near the threshold are
    then exact, and what remains of tau is held apart from it, (v - tau) - rest, at full precision.
    """
    # With k the least number of entries that can hold the total, tau lies within cap below the k-th largest entry.
    k = min(v.size, math.ceil(total / cap))
    u = jnp.sort(v, descending=True)
    tau = u[k - 1]
    tau = tau + _threshold(u - tau, k, cap, total)
    return jnp.clip((v - tau) - _threshold(u - tau, k, cap, total), 0.0, cap)


@_project_fixed_sum.defjvp
def _project_fixed_sum_jvp(cap: float, total: float, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Differentiate: entries strictly between the bounds move together with their mean taken off, the others stay."""
    (v,), (v_dot,) = primals, tangents
    w = _project_fixed_sum(v, cap, total)
    free = (w > 0) & (w < cap)
    mean = jnp.sum(jnp.where(free, v_dot, 0.0)) / jnp.maximum(jnp.sum(free), 1).astype(w.dtype)
    return w, jnp.where(free, v_dot - mean, 0.0)


def _threshold(u: jax.Array, k: int, cap: float, total: float) -> jax.Array:
    """Return tau with sum_i clip(u_i - tau, 0, cap) = total, for u sorted from large to small."""
    # Entries beyond this window are at a bound for every possible tau; bringing them in leaves nothing to overflow.
    u = jnp.clip(u, u[k - 1] - cap, u[k - 1] + cap)

    def reached(tau: jax.Array) -> jax.Array:
        # Only non-negative terms: nothing cancels, and the rounded sum is still monotone in tau.
        return jnp.sum(jnp.clip(u - tau, 0.0, cap))

    def passed(points: jax.Array) -> jax.Array:
        """Count the breakpoints at which the sum has not reached the total yet, by bisection on their index."""

        def halve(_: int, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bracket
            middle = (low + high) // 2
            short = (low < high) & (reached(points[middle]) < total)
            return jnp.where(short, middle + 1, low), jnp.where(short, high, middle)

        bracket = (jnp.asarray(0), jnp.asarray(points.size))
        return jax.lax.fori_loop(0, points.size.bit_length(), halve, bracket)[0]

    # As tau falls past u_i, entry i begins to grow; as it falls past u_i - cap, it stops.
    growing = started = passed(u)
    point = u[started - 1]
    if cap < total:
        stopped = passed(u - cap)
        growing = started - stopped
        point = jnp.where(stopped > 0, jnp.minimum(point, u[stopped - 1] - cap), point)
    # Between two breakpoints the sum is linear. Nothing grows only past the last one: a cap that just misses the total.
    return point - jnp.where(growing > 0, (total - reached(point)) / jnp.maximum(growing, 1), 0.0)


def _cap_too_low(cap: float, size: int, total: float) -> bool:
    # 49 * (1 / 49) < 1 in floating point, and a cap may come from float32.
    return cap * size < total * (1 - 1e-7)
