"""What a metric is, and what metrics are made of: the objective over everybody, its maximiser, and a model's predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.metrics.parts import TOGETHER, Context, Part, Roll, Whose, in_context, metric_class, told
from fedminimax.players import Point, Tree
from fedminimax.problems.base import over_all
from fedminimax.problems.robust import Problem, RobustProblem

Metric = Callable[..., Any]
"""A function of (problem, clients, state), and of ``context`` where it has an argument of that name."""

LOWER, HIGHER = "lower", "higher"
"""Which way a number is better."""
BATCH = 500
"""How many examples go through a model at once."""


def named(metrics: Iterable[Metric] | Mapping[str, Metric] | Metric) -> dict[str, Metric]:
    """Return metrics by name: those given, or each one's own."""
    if isinstance(metrics, Mapping):
        return {name: _checked(metric) for name, metric in metrics.items()}
    if isinstance(metrics, str) or not (callable(metrics) or isinstance(metrics, Iterable)):
        metrics = [metrics]  # which is none, and said so
    found: dict[str, Metric] = {}
    for metric in [metrics] if callable(metrics) else metrics:
        _checked(metric)
        name = getattr(metric, "name", getattr(metric, "__name__", type(metric).__name__))
        if name in found:
            raise InputError(f"Two metrics are called {name!r}: give them as a dict with names of your own.")
        found[name] = metric
    return found


def _checked(metric: Any) -> Metric:
    if isinstance(metric, type):
        raise InputError(f"{metric.__name__} is a class: give a metric that was made from it, such as {metric.__name__}(...).")
    if not callable(metric):
        raise InputError(f"{metric!r} is not a metric: give functions of (problem, clients, state).")
    return metric


def evaluate(
    metrics: Mapping[str, Metric], problem: Problem, clients: ClientData, state: Any, context: Context | None = None
) -> dict[str, Any]:
    """Return every number, or array, of every metric; those of a dict are called "metric/number"."""
    flat: dict[str, Any] = {}
    for name, metric in metrics.items():
        value = in_context(metric, problem, clients, state, context=context)
        flat |= {f"{name}/{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def direction(metrics: Mapping[str, Metric], column: str) -> str | None:
    """Return which way a column of a history is better, "lower" or "higher"; None where nothing says so.

    A metric says it by its attribute ``better``: one word for all its numbers, or a dict with a word for some of them.
    """
    name = next((n for n in (column, column.rpartition("/")[0]) if n in metrics), None)
    if name is None:
        return None
    said = getattr(metrics[name], "better", None)
    said = said.get(column[len(name) + 1 :]) if isinstance(said, Mapping) else said
    if said not in (None, LOWER, HIGHER):
        raise InputError(f"The metric {name!r} has better = {said!r}: it must be 'lower' or 'higher'.")
    return said


# -- the objective over everybody --------------------------------------------------------------------------------------


def point(problem: Problem, clients: ClientData, state: Any) -> Point:
    """Return (x, y) of a state; a method that has no weights on clients counts them by p."""
    y = state.y if state.y is not None else jnp.asarray(problem.client_weights(clients))
    return Point(state.x, y)


def objective(problem: Problem, clients: ClientData, z: Point, weights: Any = None) -> jax.Array:
    """Return F(x, y) = sum_i p_i f_i(x, y); ``weights`` are other p_i than the problem's own."""
    problem, clients = problem.shared(clients)
    return over_all(problem.loss, z, clients, problem.client_weights(clients) if weights is None else weights)


def gradient(problem: Problem, clients: ClientData, z: Point) -> Point:
    """Return (grad_x F, grad_y F)."""
    problem, clients = problem.shared(clients)
    both = lambda total: jax.grad(total, argnums=(0, 1))
    return Point(*over_all(problem.loss, z, clients, problem.client_weights(clients), both))


def own_form(problem: Problem, data: ClientData, whose: Whose) -> tuple[Any, ClientData, jax.Array]:
    """Return the problem with a shared y as one client has it: the problem, its own data, and its weight, [1]."""
    if not isinstance(problem, RobustProblem):
        return *problem.shared(data), jnp.asarray(whose.weight)[None]
    count, data = problem.clients, data.numbered()
    shared, _ = problem.shared(Roll(np.ones(count, np.int32), count))  # type: ignore[arg-type]
    number = jnp.full(data.total, whose.id, jnp.int32)  # among all clients, where the data alone are the first
    return shared, replace(data, fields={**data.fields, ClientData.NUMBER: number}), jnp.full(1, 1.0 / count)


def own_objective(problem: Problem, data: ClientData, z: Point, whose: Whose) -> jax.Array:
    """Return a client's summand of F(x, y): p_i f_i(x, y), or w_i f_i(x) - psi(w) / N."""
    problem, data, weight = own_form(problem, data, whose)
    return over_all(problem.loss, z, data, weight)


def own_gradient(problem: Problem, data: ClientData, z: Point, whose: Whose) -> Point:
    """Return a client's summand of the gradient of F."""
    problem, data, weight = own_form(problem, data, whose)
    return Point(*over_all(problem.loss, z, data, weight, lambda total: jax.grad(total, argnums=(0, 1))))


def maximize_y(
    problem: Problem,
    clients: ClientData,
    x: Tree,
    y: Tree,
    tol: float = 1e-6,
    max_steps: int = 2000,
    weights: Any = None,
) -> Tree:
    """Return argmax_{y in Y} F(x, y): exactly where the problem knows it, else to tolerance from ``y``.

    Projected gradient ascent with Nesterov's extrapolation, restarted when it overshoots, and a step size found by
    backtracking. It stops when ||P_Y(y + s grad) - y|| / s <= tol (1 + its value at the start).
    """
    problem, clients = problem.shared(clients)
    p = problem.client_weights(clients) if weights is None else weights
    if problem.best_response is not None:
        return problem.best_response(x, clients, jnp.asarray(p))
    value = lambda y: over_all(problem.loss, Point(x, y), clients, p)
    return ascend(value, value_and_grad_y(problem, clients, x, p), problem.project_y, y, tol, max_steps)


def value_and_grad_y(problem: Problem, clients: ClientData, x: Tree, weights: Any) -> Callable[[Tree], tuple[jax.Array, Tree]]:
    """Return y -> (F, grad_y F) at x, in one pass over the data."""
    problem, clients = problem.shared(clients)
    along_y = lambda total: jax.value_and_grad(total, argnums=1)
    return lambda y: over_all(problem.loss, Point(x, y), clients, weights, along_y)


def minimize_x(problem: Problem, clients: ClientData, x: Tree, y: Tree, tol: float = 1e-6, max_steps: int = 2000) -> Tree:
    """Return argmin_{x in X} F(x, y) to tolerance from ``x`` (a local one where F is not convex in x)."""
    problem, clients = problem.shared(clients)
    p = problem.client_weights(clients)
    value = lambda x: -over_all(problem.loss, Point(x, y), clients, p)

    def value_and_slope(x: Tree) -> tuple[jax.Array, Tree]:
        return players.scale(over_all(problem.loss, Point(x, y), clients, p, jax.value_and_grad), -1.0)

    return ascend(value, value_and_slope, problem.project_x, x, tol, max_steps)


def ascend(
    value: Callable[[Tree], jax.Array],
    value_and_slope: Callable[[Tree], tuple[jax.Array, Tree]],
    project: Callable[[Tree], Tree],
    start: Tree,
    tol: float,
    max_steps: int,
) -> Tree:
    """Accelerated projected ascent with backtracking and restarts."""

    def trial(u: Tree, g: Tree, s: Any) -> Tree:
        return project(players.add(u, g, s))

    def enough(u: Tree, fu: jax.Array, g: Tree, s: Any) -> Any:
        new = trial(u, g, s)
        d = players.sub(new, u)
        rounding = 4 * jnp.finfo(fu.dtype).eps * jnp.abs(fu)
        return value(new) >= fu + players.dot(g, d) - players.sqnorm(d) / (2 * s) - rounding

    def step(carry: Any) -> Any:
        k, old, u, momentum, s, _ = carry
        fu, g = value_and_slope(u)
        small = lambda s: ~enough(u, fu, g, s) & (s > 1e-12)
        s = jax.lax.while_loop(small, lambda s: s / 2, s)
        new = trial(u, g, s)
        residual = players.norm(players.sub(new, u)) / s
        t = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        ahead = players.dot(players.sub(new, u), players.sub(new, old)) >= 0
        t = jnp.where(ahead, t, 1.0)
        pushed = players.add(new, players.sub(new, old), jnp.where(ahead, (momentum - 1) / t, 0.0))
        return k + 1, new, project(pushed), t, s * 1.2, residual

    start = jax.tree.map(jnp.asarray, start)
    _, g = value_and_slope(start)
    scale = players.norm(players.sub(trial(start, g, 1.0), start))
    one = jnp.ones((), scale.dtype)
    going = lambda c: (c[0] < max_steps) & (c[5] > tol * (1 + scale))
    return jax.lax.while_loop(going, step, (0, start, start, one, one, jnp.full_like(scale, jnp.inf)))[1]


# -- what the model says -----------------------------------------------------------------------------------------------


def predictions(problem: Problem, x: Tree, data: Any) -> jax.Array:
    """Return problem.predict's scores of all of data's "inputs", [examples, ...]."""
    if problem.predict is None:
        raise InputError(f"{problem.name} has no `predict`: give MinimaxProblem one to measure accuracy.")
    predict = problem.predict
    return in_batches(lambda batch: predict(x, batch), data["inputs"])


def correct(problem: Problem, x: Tree, data: Any) -> jax.Array:
    """Return 1.0 for each example of which the label has the highest score, else 0.0."""
    return (jnp.argmax(predictions(problem, x, data), axis=-1) == jnp.asarray(data["labels"])).astype(float)


def in_batches(fn: Callable[[Tree], Tree], rows: Tree) -> Tree:
    """Return fn(rows), where fn maps a batch to one entry for each example, computed :data:`BATCH` examples at a time."""
    rows = jax.tree.map(jnp.asarray, rows)
    total = jax.tree.leaves(rows)[0].shape[0]
    count = max(1, -(-total // BATCH))
    if count == 1:
        return fn(rows)
    size = -(-total // count)
    # The last batch ends with the last example. It repeats some of the one before it, and so nothing is padded.
    firsts = jnp.minimum(jnp.arange(count) * size, total - size)
    part = lambda first: fn(jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, first, size), rows))

    def joined(values: jax.Array) -> jax.Array:
        flat, before = values.reshape(count * size, *values.shape[2:]), (count - 1) * size
        return jnp.concatenate([flat[:before], flat[before + count * size - total :]])

    return jax.tree.map(joined, jax.lax.map(part, firsts))


def examples_of(clients: ClientData, data: Any) -> Any:
    """Return the arrays to measure on: held-out ``data`` (ClientData, or arrays), or the clients' own, with both fields."""
    given = clients if data is None else data
    fields = given if isinstance(given, Mapping) else given.fields
    if not isinstance(fields, Mapping) or not {"inputs", "labels"} <= set(fields):
        raise InputError("The examples to measure on need the fields 'inputs' and 'labels': give ClientData or a dict of both.")
    if isinstance(fields["labels"], (list, tuple)):
        raise InputError("The labels to measure on are a list: give arrays, such as np.asarray(labels).")
    inputs, labels = (np.shape(jax.tree.leaves(fields[name])[0])[:1] for name in ("inputs", "labels"))
    if inputs != labels:
        raise InputError(
            f"There are {inputs[0]} inputs and {labels[0]} labels to measure on: give one of both for each example."
        )
    return fields


@metric_class
class On:
    """Another metric, taken on other clients: held-out ones, or some of those whose data is made on demand.

    Args:
        metric: the metric, a dataclass of this package.
        clients: the :class:`ClientData` to evaluate it on.
    """

    metric: Any
    clients: Any

    @property
    def name(self) -> str:
        """The metric's own name."""
        return str(self.metric.name)

    @property
    def better(self) -> Any:
        """Which way the metric's numbers are better."""
        return getattr(self.metric, "better", None)

    @property
    def needs(self) -> str:
        """What the metric needs."""
        return str(getattr(self.metric, "needs", TOGETHER))

    @property
    def of_own_row(self) -> bool:
        """Whether a node's own row and data are enough."""
        return bool(getattr(self.metric, "of_own_row", False))

    def __call__(self, problem: Problem, clients: ClientData, state: Any, context: Context | None = None) -> Any:
        """Return what the metric returns there."""
        return in_context(self.metric, problem, self.clients, state, context=context)

    def told(self, problem: Problem, clients: Any, state: Any, client: int) -> Tree:
        """Return what the metric tells a client."""
        return told(self.metric, problem, clients, state, client)

    def part(self, problem: Problem, data: ClientData, told: Tree, whose: Whose) -> Part:
        """Return the metric's part, on the client's share of these data."""
        return self.metric.part(problem, self.clients, told, whose)

    def whole(self, problem: Problem, clients: Any, part: Part, state: Any, context: Context | None = None) -> Any:
        """Return what the metric makes of the parts."""
        return in_context(self.metric.whole, problem, clients, part, state, context=context)
