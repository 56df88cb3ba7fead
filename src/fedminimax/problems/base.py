"""The problem min_x max_{y in Y} sum_i p_i f_i(x, y), and how to evaluate it on a batch, on a client, on everybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.players import Point, Tree
from fedminimax.sets import Everything, Set

CHUNK = 2048
"""How many examples are evaluated at once when a whole client, or everybody, is."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Span:
    """All examples of one client, not yet gathered: ``size`` rows of ``data.fields`` from ``start`` on."""

    data: ClientData
    start: Any
    size: Any


@dataclass(frozen=True, eq=False)
class MinimaxProblem:
    r"""min_{x in X} max_{y in Y} F(x, y) = sum_i p_i f_i(x, y), where f_i is the mean loss over client i's examples.

    Args:
        loss: a JAX function ``loss(x, y, batch)``, the mean over the batch's examples. ``batch`` has the fields of the
            clients' data, each with a leading axis over examples.
        x0: where the min player starts; any pytree of floating-point arrays.
        y0: where the max player starts.
        x_set: the set X of the min player (see :mod:`fedminimax.sets`); None: unconstrained.
        y_set: the set Y of the max player; None: unconstrained.
        weights: the p_i. None: equal; "size": in proportion to the clients' examples; or one number per client, which
            are normalised to sum to one.
        best_response: optional exact argmax over y: ``best_response(x, clients, weights)``, used by the metrics in place
            of a numerical one.
        predict: optional ``predict(x, inputs) -> scores`` [examples, classes], used by the accuracy metrics.
        name: what to call it in tables and figures.
    """

    loss: Callable[[Tree, Tree, Tree], jax.Array]
    x0: Tree
    y0: Tree
    x_set: Set | None = None
    y_set: Set | None = None
    weights: Any = None
    best_response: Callable[[Tree, ClientData, jax.Array], Tree] | None = None
    predict: Callable[[Tree, Tree], jax.Array] | None = None
    name: str = "problem"

    def __post_init__(self) -> None:
        for player, start, constraint in (("x", self.x0, self.x_set), ("y", self.y0, self.y_set)):
            object.__setattr__(self, f"{player}0", _checked_start(player, start))
            if constraint is not None:
                constraint.check(getattr(self, f"{player}0"), player)
            object.__setattr__(self, f"{player}_set", Everything() if constraint is None else constraint)
        if isinstance(self.weights, str) and self.weights != "size":
            raise InputError(f"weights must be None, 'size' or one number per client, not {self.weights!r}.")

    @property
    def start(self) -> Point:
        """The point (x0, y0) projected on X x Y."""
        return self.project(Point(self.x0, self.y0))

    # -- the loss and its gradients ------------------------------------------------------------------------------------

    def value(self, x: Tree, y: Tree, batch: Tree | Span) -> jax.Array:
        """Return f(x, y) on a batch, or on all of a client's examples."""
        return self._on(lambda loss: loss, Point(x, y), batch)

    def grad(self, x: Tree, y: Tree, batch: Tree | Span) -> Point:
        """Return (grad_x f, grad_y f) on a batch, or on all of a client's examples."""
        return Point(*self._on(lambda loss: jax.grad(loss, argnums=(0, 1)), Point(x, y), batch))

    def grad_x(self, x: Tree, y: Tree, batch: Tree | Span) -> Tree:
        """Return grad_x f alone."""
        return self._on(lambda loss: jax.grad(loss), Point(x, y), batch)

    def grad_y(self, x: Tree, y: Tree, batch: Tree | Span) -> Tree:
        """Return grad_y f alone."""
        return self._on(lambda loss: jax.grad(loss, argnums=1), Point(x, y), batch)

    def _on(self, transform: Callable[[Any], Any], z: Point, batch: Tree | Span) -> Any:
        """Evaluate a transform of the loss (itself, or a gradient) on a batch or a span."""
        if not isinstance(batch, Span):
            return transform(lambda x, y: self.loss(x, y, batch))(z.x, z.y)
        data, start, size = batch.data, batch.start, batch.size
        fields = jax.tree.map(jnp.asarray, data.fields)
        if data.smallest == data.largest <= CHUNK:
            rows = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, data.largest), fields)
            return transform(lambda x, y: self.loss(x, y, rows))(z.x, z.y)
        chunk = min(data.largest, CHUNK)

        def part(first: Any) -> Tree:
            offset = first + jnp.arange(chunk)
            weights = jnp.where(offset < size, 1.0, 0.0) / size
            rows = jax.tree.map(lambda a: a[jnp.minimum(start + offset, start + size - 1)], fields)
            # The gradient of a weighted sum, not the sum of per-example gradients: memory is the model's.
            return transform(weighted(self.loss, rows, weights))(z.x, z.y)

        if data.largest <= chunk:
            return part(0)
        zero = players.zeros_like(jax.eval_shape(part, 0))
        return jax.lax.fori_loop(0, -(-size // chunk), lambda k, acc: players.add(acc, part(k * chunk)), zero)

    # -- the sets ------------------------------------------------------------------------------------------------------

    def project_x(self, x: Tree) -> Tree:
        """Return the Euclidean projection on X."""
        return self.x_set.project(x)  # type: ignore[union-attr]

    def project_y(self, y: Tree) -> Tree:
        """Return the Euclidean projection on Y."""
        return self.y_set.project(y)  # type: ignore[union-attr]

    def project(self, z: Point) -> Point:
        """Return the Euclidean projection on X x Y."""
        return Point(self.project_x(z.x), self.project_y(z.y))

    # -- everybody -----------------------------------------------------------------------------------------------------

    def client_weights(self, clients: ClientData) -> Any:
        """Return p, normalised to sum to one, [N]."""
        return client_weights(self.weights, clients)

    def check(self, clients: ClientData) -> None:
        """Raise an :class:`InputError` unless the loss can be evaluated on the clients' data."""
        self.client_weights(clients)
        row = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *np.shape(a)[1:]), jnp.result_type(a)), clients.fields)
        try:
            out = jax.eval_shape(self.loss, self.x0, self.y0, row)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise InputError(
                f"The loss of {self.name} cannot be evaluated on the clients' data ({clients!r}): {error}"
            ) from error
        if jnp.shape(out) != () or not jnp.issubdtype(jnp.result_type(out), jnp.floating):
            raise InputError(
                f"The loss of {self.name} returns {jnp.result_type(out)} of shape {jnp.shape(out)}, but must return one "
                "real number: the mean over the batch."
            )

    def replace(self, **changes: Any) -> MinimaxProblem:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def client_weights(weights: Any, clients: ClientData) -> Any:
    """Return p from what a problem says of it: None, "size" or numbers."""
    if weights is None:
        return np.full(clients.count, 1.0 / clients.count)
    if isinstance(weights, str):  # "size"; inside a compiled program the sizes are traced
        sizes = clients.sizes if isinstance(clients.sizes, jax.core.Tracer) else np.asarray(clients.sizes)
        return sizes / clients.total
    p = np.asarray(weights, float)
    if p.shape != (clients.count,):
        raise InputError(f"weights have shape {p.shape}, but there are {clients.count} clients: give one number each.")
    if not np.isfinite(p).all() or p.min() < 0 or p.sum() <= 0:
        raise InputError("weights must be finite, not negative, and not all zero.")
    return p / p.sum()


def weighted(fn: Callable[..., Tree], rows: Tree, weights: jax.Array) -> Callable[[Tree, Tree], Tree]:
    """Return (x, y) -> sum_j weights_j fn(x, y, row j): what a mean over examples becomes when they count unequally."""

    def total(x: Tree, y: Tree) -> Tree:
        values = jax.vmap(lambda row: fn(x, y, jax.tree.map(lambda a: a[None], row)))(rows)
        return jax.tree.map(lambda v: jnp.tensordot(weights.astype(v.dtype), v, 1), values)

    return total


def over_all(
    fn: Callable[..., Tree],
    z: Point,
    clients: ClientData,
    weights: Any,
    transform: Callable[[Any], Any] = lambda total: total,
) -> Tree:
    """Return sum_i weights_i mean_j fn(x, y, example j of client i), or a gradient of it, in chunks.

    Memory is that of a chunk and of the result, however much data there is.

    Args:
        fn: a mean over its batch, as a loss is.
        z: where to evaluate.
        clients: everybody's data.
        weights: one number per client.
        transform: what to do with the sum as a function of (x, y), such as ``jax.grad``.
    """
    share = jnp.asarray(weights) / jnp.asarray(clients.sizes)
    per_example = share[clients.owners()]
    total, chunk = clients.total, min(clients.total, CHUNK)

    def part(first: Any) -> Tree:
        offset = first + jnp.arange(chunk)
        inside = jnp.minimum(offset, total - 1)
        scale = jnp.where(offset < total, per_example[inside], 0.0)
        rows = jax.tree.map(lambda a: jnp.asarray(a)[inside], clients.fields)
        return transform(weighted(fn, rows, scale))(z.x, z.y)

    if total <= chunk:
        return part(0)
    zero = players.zeros_like(jax.eval_shape(part, 0))
    add = lambda acc, k: (players.add(acc, part(k * chunk)), None)
    return jax.lax.scan(add, zero, jnp.arange(-(-total // chunk)))[0]


def _checked_start(player: str, start: Tree) -> Tree:
    leaves = jax.tree_util.tree_leaves_with_path(start)
    if not leaves:
        raise InputError(f"{player}0 is empty: it must hold at least one array.")
    for path, leaf in leaves:
        where = f"{player}0{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (int, float, list, tuple)):
            raise InputError(f"{where} is a {type(leaf).__name__}, but must be an array.")
        if isinstance(leaf, jax.core.Tracer):
            continue
        if not np.isfinite(np.asarray(leaf, dtype=float)).all():
            raise InputError(f"{where} has a NaN or infinite number: start from finite values.")
    as_float = lambda leaf: jnp.asarray(leaf, dtype=jnp.result_type(leaf, float) if _is_int(leaf) else None)
    return jax.tree.map(as_float, start)


def _is_int(leaf: Any) -> bool:
    return not jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
