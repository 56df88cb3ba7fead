"""The problem min_x max_{y in Y} sum_i p_i f_i(x, y), and how to evaluate it on a batch, on a client, on everybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks, players
from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.errors import InputError
from fedminimax.players import Count, Point, Tree
from fedminimax.random import keys
from fedminimax.random.keys import Key
from fedminimax.sets import Set, as_set

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What is wanted of a loss as a function of the players: itself, or its gradient."""

CHUNK = 2048
"""How many examples are evaluated at once when a whole client, or everybody, is."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Span:
    """All examples of one client, not yet gathered: ``size`` rows of ``data.fields`` from ``start`` on.

    With a ``key`` their random words are drawn afresh.
    """

    data: ClientData
    start: Count
    size: Count
    key: Key | None = None


D = TypeVar("D", bound=ClientSource)
"""The clients' data, as they come."""


class Form:
    """What the three forms of a problem share: projections on their sets, the weights p, and how to make another from one."""

    if TYPE_CHECKING:  # fields of one form may be properties of another

        @property
        def name(self) -> str:
            """What to call it in tables and figures."""

        @property
        def x0(self) -> Tree:
            """Where the min player starts."""

        @property
        def y0(self) -> Tree:
            """Where the max player starts."""

        @property
        def x_set(self) -> Any:
            """The set X."""

        @property
        def y_set(self) -> Any:
            """The set Y."""

        @property
        def weights(self) -> Any:
            """The p_i, as they were given."""

    def project_x(self, x: Tree) -> Tree:
        """Return the Euclidean projection on X."""
        return self.x_set.project(x)

    def project_y(self, y: Tree) -> Tree:
        """Return the Euclidean projection on Y."""
        return self.y_set.project(y)

    def project(self, z: Point) -> Point:
        """Return the Euclidean projection on X x Y."""
        return Point(self.project_x(z.x), self.project_y(z.y))

    def client_weights(self, clients: ClientSource) -> Any:
        """Return p, normalised to sum to one, [N]."""
        return client_weights(self.weights, clients)

    def bind(self, clients: D) -> tuple[Self, D]:
        """Return the problem as it is on these clients, and the data as its loss wants them: by default, both as they are."""
        return self, clients

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[type-var]


P = TypeVar("P", bound=Form)
"""The form of a problem: that of a task, or that which a method is for."""


@dataclass(frozen=True, eq=False)
class MinimaxProblem(Form):
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
        generate: optional ``generate(x, key, count)`` -> examples made by the min player, for the metrics of generators.
        seeded: whether the loss draws random numbers. Every batch then has a field ``ClientData.SEED``: one random word for
            each example, fresh in every batch.
        coupled: whether the loss depends on its batch as a whole (batch normalisation). It then has no value over single
            examples, and clients must have equally many.
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
    generate: Callable[[Tree, jax.Array, int], jax.Array] | None = None
    seeded: bool = False
    coupled: bool = False
    name: str = "problem"

    def __post_init__(self) -> None:
        for player, start, constraint in (("x", self.x0, self.x_set), ("y", self.y0, self.y_set)):
            object.__setattr__(self, f"{player}0", checked_start(player, start))
            found = as_set(constraint, f"{player}_set")
            found.check(getattr(self, f"{player}0"), player)
            object.__setattr__(self, f"{player}_set", found)
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

    def _on(self, transform: Transform, z: Point, batch: Tree | Span) -> Any:
        return on_batch(self.loss, transform, z, batch)

    # -- everybody -----------------------------------------------------------------------------------------------------

    def check(self, clients: ClientSource) -> None:
        """Raise an :class:`InputError` unless the loss can be evaluated on the clients' data."""
        self.client_weights(clients)
        if self.coupled and not clients.smallest == clients.largest <= CHUNK:
            raise InputError(
                f"The loss of {self.name} depends on its batch as a whole (batch normalisation), so clients need equally many "
                f"examples, at most {CHUNK}, but have {clients.smallest} to {clients.largest}: divide the data equally."
            )
        check_loss(self.name, self.loss, (self.x0, self.y0), clients)

    def bind(self, clients: D) -> tuple[Self, D]:
        """Return the problem as it is on these clients, and the data as its loss wants them."""
        return self, clients.seeded() if self.seeded and not clients.is_seeded else clients

    def shared(self, clients: ClientData) -> tuple[MinimaxProblem, ClientData]:
        """Return the problem as one with a shared y, for the metrics: itself."""
        self._check_separable()
        return self, clients

    def client_loss(self, z: Point) -> Callable[[Tree], jax.Array]:
        """Return the loss at z = (x, y) as a function of a batch."""
        self._check_separable()
        return lambda batch: self.loss(z.x, z.y, batch)

    def _check_separable(self) -> None:
        if self.coupled:
            raise InputError(
                f"The loss of {self.name} depends on its batch as a whole (batch normalisation), so it has no value over all "
                "examples: measure what it generates (metrics.InceptionScore), or use networks without batch normalisation."
            )


def client_weights(weights: Any, clients: ClientSource) -> Any:
    """Return p from what a problem says of it: None, "size" or numbers."""
    if weights is None:
        return np.full(clients.count, 1.0 / clients.count)
    if isinstance(weights, str):  # "size"; inside a compiled program the sizes are traced
        sizes = clients.sizes if isinstance(clients.sizes, jax.core.Tracer) else np.asarray(clients.sizes)
        return sizes.astype(float) / clients.total  # JAX divides 32-bit integers to 32-bit floats
    p = np.asarray(weights, float)
    if p.shape != (clients.count,):
        raise InputError(f"weights have shape {p.shape}, but there are {clients.count} clients: give one number each.")
    if not np.isfinite(p).all() or p.min() < 0 or p.sum() <= 0:
        raise InputError("weights must be finite, not negative, and not all zero.")
    return p / p.sum()


def on_batch(loss: Callable[..., jax.Array], transform: Transform, players_: tuple[Tree, ...], batch: Tree | Span) -> Any:
    """Return a transform of ``loss(*players, batch)`` (itself, or a gradient) on a batch, or on all of a client's examples."""
    if not isinstance(batch, Span):
        return transform(lambda *z: loss(*z, batch))(*players_)
    data, start, size = batch.data, batch.start, batch.size
    fields = jax.tree.map(jnp.asarray, data.fields)
    if data.smallest == data.largest <= CHUNK:
        rows = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, data.largest), fields)
        rows = rows if batch.key is None else reseeded(rows, keys.words_for(batch.key, jnp.arange(data.largest)))
        return transform(lambda *z: loss(*z, rows))(*players_)
    chunk = min(data.largest, CHUNK)

    def part(first: Any) -> Tree:
        offset = first + jnp.arange(chunk)
        weights = jnp.where(offset < size, 1.0, 0.0) / size
        rows = jax.tree.map(lambda a: a[jnp.minimum(start + offset, start + size - 1)], fields)
        rows = rows if batch.key is None else reseeded(rows, keys.words_for(batch.key, offset))
        # The gradient of a weighted sum, not the sum of per-example gradients: memory is the model's.
        return transform(weighted(loss, rows, weights))(*players_)

    if data.largest <= chunk:
        return part(0)
    zero = players.zeros_like(jax.eval_shape(part, 0))
    return jax.lax.fori_loop(0, -(-size // chunk), lambda k, acc: players.add(acc, part(k * chunk)), zero)


def reseeded(rows: Tree, words: jax.Array) -> Tree:
    """Return a batch with the given random words in place of its examples' own."""
    return {**rows, ClientData.SEED: words}


def weighted(fn: Callable[..., Tree], rows: Tree, weights: jax.Array) -> Callable[..., Tree]:
    """Return z -> sum_j weights_j fn(*z, row j): what a mean over examples becomes when they count unequally."""

    def total(*z: Tree) -> Tree:
        values = jax.vmap(lambda row: fn(*z, jax.tree.map(lambda a: a[None], row)))(rows)
        return jax.tree.map(lambda v: jnp.tensordot(weights.astype(v.dtype), v, 1), values)

    return total


def over_all(
    fn: Callable[..., Tree],
    z: tuple[Tree, ...],
    clients: ClientData,
    weights: Any,
    transform: Transform = lambda total: total,
) -> Tree:
    """Return sum_i weights_i mean_j fn(*z, example j of client i), or a gradient of it, in chunks.

    Memory is that of a chunk and of the result, however much data there is.

    Args:
        fn: a mean over its batch, as a loss is.
        z: where to evaluate: (x, y), or (x,) alone.
        clients: everybody's data.
        weights: one number per client.
        transform: what to do with the sum as a function of z, such as ``jax.grad``.
    """
    share = jnp.asarray(weights) / jnp.asarray(clients.sizes)
    per_example = share[clients.owners()]
    total, chunk = clients.total, min(clients.total, CHUNK)

    def part(first: Any) -> Tree:
        offset = first + jnp.arange(chunk)
        inside = jnp.minimum(offset, total - 1)
        scale = jnp.where(offset < total, per_example[inside], 0.0)
        rows = jax.tree.map(lambda a: jnp.asarray(a)[inside], clients.fields)
        return transform(weighted(fn, rows, scale))(*z)

    if total <= chunk:
        return part(0)
    zero = players.zeros_like(jax.eval_shape(part, 0))
    add = lambda acc, k: (players.add(acc, part(k * chunk)), None)
    return jax.lax.scan(add, zero, jnp.arange(-(-total // chunk)))[0]


def per_example(fn: Callable[[Tree], jax.Array], fields: Tree, count: int) -> jax.Array:
    """Return fn of each example alone, [count, ...], in chunks."""
    one = lambda row: fn(jax.tree.map(lambda a: a[None], row))
    return jax.lax.map(one, jax.tree.map(jnp.asarray, fields), batch_size=min(CHUNK, count))


def by_client(values: jax.Array, clients: ClientData) -> jax.Array:
    """Return the mean over each client's examples, [N], of one number an example."""
    return group_mean(values, clients.owners(), clients.count)


def group_mean(values: jax.Array, groups: jax.Array, count: int) -> jax.Array:
    """Return the mean of the values of each of ``count`` groups; 0 for one without any."""
    total = jnp.zeros(count, values.dtype).at[groups].add(values)
    return total / jnp.maximum(jnp.zeros(count, values.dtype).at[groups].add(1.0), 1.0)


def check_loss(name: str, loss: Callable[..., Any], start: tuple[Tree, ...], clients: ClientSource) -> None:
    """Raise an :class:`InputError` unless ``loss(*start, batch)`` is one real number on the clients' data."""
    try:
        out = jax.eval_shape(loss, *start, clients.example)
    except KeyError as error:
        known = {"a batch": clients.example, **dict(zip("xy", start, strict=False))}
        there = "; ".join(f"{where} has {', '.join(map(repr, v))}" for where, v in known.items() if isinstance(v, Mapping))
        raise InputError(
            f"The loss of {name} looks up {error}, which is not there: {there or 'a batch has no names'}."
        ) from error
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(f"The loss of {name} cannot be evaluated on the clients' data ({clients!r}): {error}") from error
    if not isinstance(out, jax.ShapeDtypeStruct):
        kind = "nothing (None)" if out is None else f"a {type(out).__name__}"
        raise InputError(f"The loss of {name} returns {kind}, but must return one real number: the mean over the batch.")
    if jnp.shape(out) != () or not jnp.issubdtype(jnp.result_type(out), jnp.floating):
        raise InputError(
            f"The loss of {name} returns {jnp.result_type(out)} of shape {jnp.shape(out)}, but must return one "
            "real number: the mean over the batch."
        )


def checked_start(player: str, start: Tree) -> Tree:
    """Return a player's start as arrays of floats, or say what is wrong with it."""
    leaves = jax.tree_util.tree_leaves_with_path(start)
    if not leaves:
        raise InputError(f"{player}0 is empty: it must hold at least one array.")
    for path, leaf in leaves:
        where = f"{player}0{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (int, float, list, tuple)):
            raise InputError(f"{where} is a {type(leaf).__name__}, but must be an array.")
        if isinstance(leaf, jax.core.Tracer):
            continue
        checks.numbers(where, leaf)
        if not np.isfinite(np.asarray(leaf, dtype=float)).all():
            raise InputError(f"{where} has a NaN or infinite number: start from finite values.")
    as_float = lambda leaf: jnp.asarray(leaf, dtype=jnp.result_type(leaf, float) if _is_int(leaf) else None)
    return jax.tree.map(as_float, start)


def _is_int(leaf: Any) -> bool:
    return not jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
