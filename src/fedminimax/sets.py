"""Constraint sets for the players: X for the min player x, Y for the max player y.

A set knows four things: its Euclidean projection, its diameter, the point of it that maximises a linear function, and
which trees can live in it. Sets are plain values, hashable and comparable, so that a problem that holds them can be a
static part of a compiled program. Their parameters are therefore numbers known before tracing.

>>> import jax.numpy as jnp
>>> from fedminimax.sets import L2Ball, Product, Simplex
>>> Simplex().project(jnp.array([0.5, 2.0, 1.5]))
Array([0.  , 0.75, 0.25], dtype=float32)
>>> Product({"noise": L2Ball(radius=1.5), "shift": L2Ball(radius=2.0)}).diameter()
5.0
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from optax import projections

from fedminimax.errors import InputError
from fedminimax.players import Tree


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
        distance = _norm(jax.tree.map(jnp.subtract, _lift(tree), _lift(self.project(tree))))
        # An overflow on both sides must not read as "inside".
        return jnp.isfinite(distance) & (distance <= tol * jnp.maximum(1.0, _norm(_lift(tree))))

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


def as_set(value: Set | None) -> Set:
    """Return the set itself, or :class:`Everything` for None."""
    if value is None:
        return Everything()
    if not isinstance(value, Set):
        raise InputError(
            f"a constraint is a fedminimax Set or None but {value!r:.40} was given; use for instance Simplex() or L2Ball(1.0)"
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


@dataclasses.dataclass(frozen=True)
class NonNegative(Set):
    """The non-negative orthant: {u : u_i >= 0}."""

    def project(self, tree: Tree) -> Tree:
        """Return max(v, 0), entry by entry."""
        self._require(tree)
        return projections.projection_non_negative(_arrays(tree))

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
        self._require(tree)
        return jax.tree.map(lambda leaf: projections.projection_box(leaf, *self._bounds(leaf)), _arrays(tree))

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
        times = 1 if like is None else _size(like) if width.ndim == 0 else len(jax.tree.leaves(like))
        return math.sqrt(times) * math.hypot(*width.ravel().tolist())

    def linear_max(self, gradient: Tree) -> Tree:
        """Return high where g >= 0, low elsewhere."""
        self._require(gradient)
        if not (np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high))):
            raise self._unbounded()

        def corner(leaf: jax.Array) -> jax.Array:
            low, high = self._bounds(leaf)
            return jnp.where(leaf >= 0, high, low)

        return jax.tree.map(corner, _arrays(gradient))

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
        radius = _number(self.radius, "the radius of an L2Ball")
        center = _number(0.0 if self.center is None else self.center, "the center of an L2Ball")
        if radius < 0:
            raise InputError(f"the radius of an L2Ball is {radius} but must not be negative; give a larger radius")
        object.__setattr__(self, "radius", radius)
        object.__setattr__(self, "center", center)

    def project(self, tree: Tree) -> Tree:
        """Return c + (v - c) min(1, radius / ||v - c||)."""
        self._require(tree)
        center = self.center or 0.0
        offset = jax.tree.map(lambda leaf: leaf - center, _lift(tree))
        inside = _norm(offset) < self.radius
        # optax scales v - c by radius / ||v - c||: the norm overflows in float32 from 1e19 on, and the ratio vanishes.
        # Here the direction is found first, and a point that is inside stays as it is, to the last bit.
        return jax.tree.map(
            lambda leaf, part: jnp.where(inside, leaf, (center + self.radius * part).astype(leaf.dtype)),
            _arrays(tree),
            _direction(offset),
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
            _arrays(gradient),
            _direction(_lift(gradient)),
        )


class _FixedSum(Set):
    """What Simplex and CappedSimplex share: {w : 0 <= w_i <= cap, sum w = total}; from cap = total on, no cap at all."""

    size: int | None
    total: float

    @property
    @abc.abstractmethod
    def _cap(self) -> float: ...

    def __post_init__(self) -> None:
        name = type(self).__name__
        total = _number(self.total, f"the total of a {name}")
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
        vector, restore = _ravel(tree)
        return restore(_project_fixed_sum(vector, self._cap, self.total))

    def diameter(self, like: Tree | None = None) -> float:
        """Return the distance between a vertex and the same vertex with its entries in reverse order.

        All vertices are permutations of one vector a, and by the rearrangement inequality <a, Pa> is least when P sorts
        a the other way. For a Simplex this is sqrt(2) total; one of unknown size is taken to have two entries or more.
        """
        if like is not None:
            self._require(like)
        size = self.size if like is None else _size(like)
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
        vector, restore = _ravel(gradient)
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
        size = _size(tree)
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
        cap = _number(self.cap, "the cap of a CappedSimplex")
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


@dataclasses.dataclass(frozen=True, init=False)
class Product(Set):
    """One set for each top-level entry of a tree: C = C_1 x C_2 x ...

    Args:
        sets: the sets in the order of a tuple or NamedTuple, ``Product(Simplex(), None)``; or one mapping from the keys
            of a dict or the fields of a NamedTuple, ``Product({"w": Simplex(), "b": None})``. None is no constraint.
    """

    sets: tuple[Set, ...]
    names: tuple[Hashable, ...] | None

    def __init__(self, *sets: Set | Mapping[Any, Set | None] | None) -> None:
        names: tuple[Hashable, ...] | None = None
        values: tuple[Any, ...] = sets
        if len(sets) == 1 and isinstance(sets[0], Mapping):
            mapping = sets[0]
            names = tuple(sorted(mapping, key=repr))  # the order in which a dict was written must not matter
            values = tuple(mapping[name] for name in names)
        if not values:
            raise InputError("a Product needs at least one set; use Everything() for no constraint")
        object.__setattr__(self, "sets", tuple(as_set(value) for value in values))
        object.__setattr__(self, "names", names)

    def project(self, tree: Tree) -> Tree:
        """Return (P_1(v_1), P_2(v_2), ...)."""
        self._require(tree)
        return self._map(lambda part, entry: part.project(entry), tree)

    def diameter(self, like: Tree | None = None) -> float:
        """Return sqrt(d_1^2 + d_2^2 + ...)."""
        if like is None:
            return math.hypot(*(part.diameter() for part in self.sets))
        self._require(like)
        return math.hypot(*(part.diameter(entry) for part, _, entry in self._match(like)[0]))

    def linear_max(self, gradient: Tree) -> Tree:
        """Return the maximiser of each set for its own part of g."""
        self._require(gradient)
        return self._map(lambda part, entry: part.linear_max(entry), gradient)

    def _map(self, function: Callable[[Set, Tree], Tree], tree: Tree) -> Tree:
        matches, structure = self._match(tree)
        return jax.tree.unflatten(structure, [function(part, entry) for part, _, entry in matches])

    def _match(
        self, tree: Tree, the_set: str = "the set", the_tree: str = "the tree"
    ) -> tuple[list[tuple[Set, str, Tree]], Any]:
        """Each set with the entry that it constrains and that entry's path, and the structure around the entries."""
        # Stopping below the root makes this right for any container that JAX knows, not only dicts and tuples.
        children, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
        if children and not children[0][0]:
            raise InputError(
                f"{the_set} is {self._described} but {the_tree} is a single array; "
                "use one of these sets alone, or make the player a tuple or dict"
            )
        keys = [_key_of(path[0]) for path, _ in children]
        if self.names is None:
            if any(isinstance(path[0], jax.tree_util.DictKey) for path, _ in children):
                raise InputError(
                    f"{the_set} is a Product by position but {the_tree} is a dict; "
                    "name its entries, as in Product({'w': Simplex()})"
                )
            if len(children) != len(self.sets):
                raise InputError(
                    f"{the_set} is {self._described} but {the_tree} has {len(children)} entries; "
                    "give each entry a set, or None for no constraint"
                )
            parts = list(self.sets)
        else:
            by_name = dict(zip(self.names, self.sets, strict=True))
            if odd := sorted(set(by_name).symmetric_difference(keys), key=repr):
                have, lack = (the_set, the_tree) if odd[0] in by_name else (the_tree, the_set)
                raise InputError(
                    f"{have} has an entry {odd[0]!r} but {lack} has none; "
                    "name the same entries in both, with None for no constraint"
                )
            parts = [by_name[key] for key in keys]
        paths = [jax.tree_util.keystr(path) for path, _ in children]
        return [(p, path, entry) for p, path, (_, entry) in zip(parts, paths, children, strict=True)], structure

    def _require(self, tree: Tree, the_set: str = "the set", the_tree: str = "the tree") -> None:
        for part, path, entry in self._match(tree, the_set, the_tree)[0]:
            part._require(entry, the_set + path, the_tree + path)

    @property
    def _described(self) -> str:
        return f"a Product of {len(self.sets)} set{'s' if len(self.sets) > 1 else ''}"


SETS: dict[str, type[Set]] = {
    "everything": Everything,
    "simplex": Simplex,
    "capped_simplex": CappedSimplex,
    "l2_ball": L2Ball,
    "box": Box,
    "non_negative": NonNegative,
    "product": Product,
}
"""The sets by the names that experiment files use."""


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


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):  # JAX's error for a traced value is a TypeError
        raise InputError(
            f"{what} is a {type(value).__name__} but must be one number known before tracing; pass a Python float"
        ) from None
    if not math.isfinite(number):
        raise InputError(f"{what} is {number} but must be finite; give a finite number or use another set")
    return number + 0.0  # -0.0 and 0.0 are the same bound


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


def _key_of(key: Any) -> Hashable:
    """The name that a step of a path goes by: a dict's key, a NamedTuple's field or a position."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key


def _arrays(tree: Tree) -> Tree:
    return jax.tree.map(jnp.asarray, tree)


def _lift(tree: Tree) -> Tree:
    """The tree in float32 at least: half precision cannot count entries, let alone sum them."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), _arrays(tree))


def _ravel(tree: Tree) -> tuple[jax.Array, Callable[[jax.Array], Tree]]:
    """All entries as one vector, and the way back to the tree's shapes and dtypes."""
    vector, unravel = ravel_pytree(_lift(tree))
    return vector, lambda w: jax.tree.map(lambda part, leaf: part.astype(leaf.dtype), unravel(w), _arrays(tree))


def _size(tree: Tree) -> int:
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


def _norm(tree: Tree) -> jax.Array:
    """||u|| over all leaves."""
    unit, _, squares = _in_units(tree)
    return unit * jnp.sqrt(squares)


def _direction(tree: Tree) -> Tree:
    """u / ||u|| over all leaves, and 0 for u = 0."""
    _, scaled, squares = _in_units(tree)
    length = jnp.sqrt(jnp.where(squares > 0, squares, 1.0))  # inside the root, so that its derivative stays finite
    return jax.tree.map(lambda leaf: leaf / length, scaled)
