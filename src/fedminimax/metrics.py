"""What to measure: optimality (stationarity, gaps, distances) and quality (loss and accuracy over all clients and classes).

A metric is any function ``metric(problem, clients, state)`` that returns a number or a dict of numbers, in JAX. Those here are
small dataclasses, so that the data they carry is passed to the compiled program and not built into it. All are taken over
*all* clients, never over a sampled cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.players import Point, Tree
from fedminimax.problems.base import by_client, group_mean, over_all, per_example
from fedminimax.problems.robust import Problem, RobustProblem

_T = TypeVar("_T")
Metric = Callable[[Any, ClientData, Any], Any]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _metric(cls: type[_T]) -> type[_T]:
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


def named(metrics: Iterable[Metric] | Mapping[str, Metric] | Metric) -> dict[str, Metric]:
    """Return metrics by name: those given, or each one's own."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    found: dict[str, Metric] = {}
    for metric in [metrics] if callable(metrics) else metrics:
        if not callable(metric):
            raise InputError(f"{metric!r} is not a metric: give functions of (problem, clients, state).")
        name = getattr(metric, "name", getattr(metric, "__name__", type(metric).__name__))
        if name in found:
            raise InputError(f"Two metrics are called {name!r}: give them as a dict with names of your own.")
        found[name] = metric
    return found


def evaluate(metrics: Mapping[str, Metric], problem: Problem, clients: ClientData, state: Any) -> dict[str, Any]:
    """Return every number of every metric; those of a dict are called "metric/number"."""
    flat: dict[str, Any] = {}
    for name, metric in metrics.items():
        value = metric(problem, clients, state)
        flat |= {f"{name}/{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


# -- the objective over everybody --------------------------------------------------------------------------------------


def point(problem: Problem, clients: ClientData, state: Any) -> Point:
    """Return (x, y) of a state; a method that has no weights on clients counts them by p."""
    y = state.y if state.y is not None else jnp.asarray(problem.client_weights(clients))
    return Point(state.x, y)


def objective(problem: Problem, clients: ClientData, z: Point) -> jax.Array:
    """Return F(x, y) = sum_i p_i f_i(x, y)."""
    problem, clients = problem.shared(clients)
    return over_all(problem.loss, z, clients, problem.client_weights(clients))


def gradient(problem: Problem, clients: ClientData, z: Point) -> Point:
    """Return (grad_x F, grad_y F)."""
    problem, clients = problem.shared(clients)
    both = lambda total: jax.grad(total, argnums=(0, 1))
    return Point(*over_all(problem.loss, z, clients, problem.client_weights(clients), both))


def maximize_y(problem: Problem, clients: ClientData, x: Tree, y: Tree, tol: float = 1e-6, max_steps: int = 2000) -> Tree:
    """Return argmax_{y in Y} F(x, y): exactly where the problem knows it, else to tolerance from ``y``.

    Projected gradient ascent with Nesterov's extrapolation, restarted when it overshoots, and a step size found by
    backtracking. It stops when ||P_Y(y + s grad) - y|| / s <= tol (1 + its value at the start).
    """
    problem, clients = problem.shared(clients)
    if problem.best_response is not None:
        return problem.best_response(x, clients, jnp.asarray(problem.client_weights(clients)))
    value = lambda y: objective(problem, clients, Point(x, y))
    slope = lambda y: gradient(problem, clients, Point(x, y)).y
    return _ascend(value, slope, problem.project_y, y, tol, max_steps)


def minimize_x(problem: Problem, clients: ClientData, x: Tree, y: Tree, tol: float = 1e-6, max_steps: int = 2000) -> Tree:
    """Return argmin_{x in X} F(x, y) to tolerance from ``x`` (a local one where F is not convex in x)."""
    problem, clients = problem.shared(clients)
    value = lambda x: -objective(problem, clients, Point(x, y))
    slope = lambda x: players.scale(gradient(problem, clients, Point(x, y)).x, -1.0)
    return _ascend(value, slope, problem.project_x, x, tol, max_steps)


# -- optimality --------------------------------------------------------------------------------------------------------


@_metric
class Value:
    """The objective F(x, y)."""

    name = "value"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return F(x, y)."""
        return objective(problem, clients, point(problem, clients, state))


@_metric
class GradientNorms:
    """||grad_x F|| and ||grad_y F||."""

    name = "grad"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return both norms."""
        g = gradient(problem, clients, point(problem, clients, state))
        return {"x": players.norm(g.x), "y": players.norm(g.y)}


@_metric
class Stationarity:
    """The stationarity of f (fess-gda.txt, Definition 2.1): ||grad_x f|| and l ||P_Y(y + grad_y f / l) - y||.

    Args:
        smoothness: l.
    """

    smoothness: Any = 1.0
    name = "stationarity"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return both measures."""
        z, step = point(problem, clients, state), 1.0 / self.smoothness
        g = gradient(problem, clients, z)
        moved = problem.project(Point(players.add(z.x, g.x, -step), players.add(z.y, g.y, step)))
        # Without a constraint on x the first is ||grad_x f||, as the definition has it.
        return {
            "x": self.smoothness * players.norm(players.sub(moved.x, z.x)),
            "y": self.smoothness * players.norm(players.sub(moved.y, z.y)),
        }


@_metric
class Phi:
    """Phi(x) = max_{y in Y} F(x, y) and ||grad Phi(x)|| = ||grad_x F(x, y*(x))||.

    The maximiser is exact where the problem knows it, else numerical (see :func:`maximize_y`).
    """

    tol: float = field(default=1e-6, metadata={"static": True})
    max_steps: int = field(default=2000, metadata={"static": True})
    name = "phi"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the value and the gradient's norm."""
        z = Point(state.x, maximize_y(problem, clients, *point(problem, clients, state), self.tol, self.max_steps))
        return {"value": objective(problem, clients, z), "grad": players.norm(gradient(problem, clients, z).x)}


@_metric
class WorstCase:
    """The objective of a :class:`RobustProblem` as a function of the model alone: max_{w in W} sum_i w_i f_i(x) - psi(w).

    The same as ``phi/value``, in one pass over the data.
    """

    name = "worst_case"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the value at the exact maximiser."""
        if not isinstance(problem, RobustProblem):
            raise InputError(f"WorstCase is for a RobustProblem: use Phi for {problem.name}.")
        losses = problem.losses(state.x, clients)
        w = problem.penalty.maximize(losses)
        return losses @ w - problem.penalty.value(w)


@_metric
class MoreauGradient:
    """||grad Phi_{1/2l}(x)|| = 2l ||x - x+||, x+ = argmin_u Phi(u) + l ||u - x||^2 (fess-gda.txt, Definition 2.4).

    x+ is found by descent on u with the inner maximum taken anew at each step, which converges for l at least the smoothness
    of f (the envelope is then strongly convex).

    Args:
        smoothness: l.
        tol: when to stop.
        max_steps: the most outer steps.
    """

    smoothness: Any = 1.0
    tol: float = field(default=1e-6, metadata={"static": True})
    max_steps: int = field(default=1000, metadata={"static": True})
    name = "moreau"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the norm of the envelope's gradient."""
        center, pull = state.x, self.smoothness
        begin = point(problem, clients, state).y

        def best(u: Tree) -> Tree:
            return maximize_y(problem, clients, u, begin, self.tol, self.max_steps)

        def value(u: Tree) -> jax.Array:
            phi = objective(problem, clients, Point(u, best(u)))
            return -(phi + pull * players.sqnorm(players.sub(u, center)))

        def slope(u: Tree) -> Tree:
            g = gradient(problem, clients, Point(u, best(u))).x
            return players.scale(players.add(g, players.sub(u, center), 2.0 * pull), -1.0)

        near = _ascend(value, slope, problem.project_x, center, self.tol, self.max_steps)
        return 2.0 * pull * players.norm(players.sub(center, near))


@_metric
class DualityGap:
    """max_{y'} F(x, y') - min_{x'} F(x', y), the inner problems solved to tolerance."""

    tol: float = field(default=1e-6, metadata={"static": True})
    max_steps: int = field(default=2000, metadata={"static": True})
    name = "gap"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the gap."""
        here = point(problem, clients, state)
        up = Point(here.x, maximize_y(problem, clients, *here, self.tol, self.max_steps))
        down = Point(minimize_x(problem, clients, *here, self.tol, self.max_steps), here.y)
        return objective(problem, clients, up) - objective(problem, clients, down)


@_metric
class Distance:
    """The distance to a known solution: ||x - x*||, ||y - y*|| and both together.

    Args:
        solution: the Point (x*, y*).
    """

    solution: Any
    name = "distance"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the distances."""
        x = players.norm(players.sub(state.x, self.solution.x))
        if state.y is None:  # a method without a max player
            return {"x": x}
        y = players.norm(players.sub(state.y, self.solution.y))
        return {"x": x, "y": y, "total": jnp.hypot(x, y)}


# -- quality -----------------------------------------------------------------------------------------------------------


@_metric
class ClientLoss:
    """Every client's own loss f_i(x, y): the mean, the worst, the variance, and the mean of the worst and best 20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
    """

    clients: Any = None
    name = "client_loss"

    def each(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return f_1, ..., f_N."""
        data = clients if self.clients is None else self.clients
        return by_client(per_example(problem.client_loss(state), data.fields, data.total), data)

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        return summary(self.each(problem, clients, state), higher_is_better=False)


@_metric
class ClientAccuracy:
    """Every client's accuracy: mean, worst, variance, worst-20%, best-20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
    """

    clients: Any = None
    name = "client_accuracy"

    def each(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the accuracy of each client, [N]."""
        data = clients if self.clients is None else self.clients
        return by_client(_correct(problem, state.x, data.fields, data.total), data)

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        return summary(self.each(problem, clients, state))


@_metric
class ClientError:
    """Every client's root mean squared error, for a regression: mean, worst, variance, worst-20%, best-20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
        scale: multiplies the errors, to give them in the label's own units.
    """

    clients: Any = None
    scale: Any = 1.0
    name = "client_error"

    def each(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the error of each client, [N]."""
        data, predict = clients if self.clients is None else self.clients, _predict(problem)
        one = lambda batch: jnp.mean((predict(state.x, batch["inputs"]).reshape(-1) - batch["labels"]) ** 2)
        fields = {"inputs": data.fields["inputs"], "labels": data.fields["labels"]}
        return self.scale * jnp.sqrt(by_client(per_example(one, fields, data.total), data))

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        return summary(self.each(problem, clients, state), higher_is_better=False)


@_metric
class ClientWeights:
    """The weights w that the max player has put on the clients: their entropy, the largest, and with ``each`` all of them.

    The entropy is that of w / sum w over its greatest value, log N: 1 for equal weights, 0 for all on one client.

    Args:
        each: also return every weight, as "w/0", "w/1", ...: the history of w.
    """

    each: bool = field(default=False, metadata={"static": True})
    name = "w"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the numbers."""
        w = point(problem, clients, state).y
        share = w / jnp.sum(w)
        spread = -jnp.sum(jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1.0)), 0.0))
        numbers = {"entropy": spread / jnp.log(max(2, clients.count)), "largest": jnp.max(w)}
        return numbers | ({str(i): w[i] for i in range(clients.count)} if self.each else {})


@_metric
class ClassAccuracy:
    """The accuracy on each class: mean over classes, worst, worst-20%, best-20%; and over all examples.

    Args:
        data: held-out arrays {"inputs", "labels"}; by default the clients' training data.
        classes: how many classes (all must occur in the data).
    """

    data: Any = None
    classes: int = field(default=0, metadata={"static": True})
    name = "accuracy"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        data = clients.fields if self.data is None else self.data
        labels = _labels(data, self.classes)
        right = _correct(problem, state.x, data, labels.shape[0])
        return {"all": jnp.mean(right), **summary(group_mean(right, labels, self.classes))}


@_metric
class ClassLoss:
    """The cross-entropy of the model's predictions on each class: mean, worst, worst-20%, best-20%.

    Args:
        data: held-out arrays {"inputs", "labels"}; by default the clients' training data.
        classes: how many classes (all must occur in the data).
    """

    data: Any = None
    classes: int = field(default=0, metadata={"static": True})
    name = "class_loss"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        data = clients.fields if self.data is None else self.data
        labels = _labels(data, self.classes)

        def one(batch: Tree) -> jax.Array:
            scores = jax.nn.log_softmax(_predict(problem)(state.x, batch["inputs"]))
            return -jnp.mean(jnp.take_along_axis(scores, batch["labels"][:, None], axis=1))

        losses = per_example(one, {"inputs": data["inputs"], "labels": labels}, labels.shape[0])
        return summary(group_mean(losses, labels, self.classes), higher_is_better=False)


def summary(values: jax.Array, higher_is_better: bool = True) -> dict[str, jax.Array]:
    """Return mean, worst, variance, and the means of the worst and best 20% (at least one) of some groups' values."""
    ordered = jnp.sort(values if higher_is_better else -values)
    fifth = max(1, round(0.2 * values.shape[0]))
    sign = 1.0 if higher_is_better else -1.0
    return {
        "mean": jnp.mean(values),
        "worst": sign * ordered[0],
        "worst20": sign * jnp.mean(ordered[:fifth]),
        "best20": sign * jnp.mean(ordered[-fifth:]),
        "variance": jnp.var(values),
    }


# -- helpers -----------------------------------------------------------------------------------------------------------


def _labels(data: Any, classes: int) -> jax.Array:
    if classes < 1:
        raise InputError("Say how many classes there are: ClassAccuracy(test, classes=10).")
    return jnp.asarray(data["labels"])


def _predict(problem: Problem) -> Callable[[Tree, Tree], jax.Array]:
    if problem.predict is None:
        raise InputError(f"{problem.name} has no `predict`: give MinimaxProblem one to measure accuracy.")
    return problem.predict


def _correct(problem: Problem, x: Tree, data: Any, count: int) -> jax.Array:
    predict = _predict(problem)
    one = lambda batch: jnp.mean(jnp.argmax(predict(x, batch["inputs"]), axis=-1) == batch["labels"], dtype=float)
    return per_example(one, {"inputs": data["inputs"], "labels": data["labels"]}, count)


def _ascend(
    value: Callable[[Tree], jax.Array],
    slope: Callable[[Tree], Tree],
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
        fu, g = value(u), slope(u)
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
    g = slope(start)
    scale = players.norm(players.sub(trial(start, g, 1.0), start))
    one = jnp.ones((), scale.dtype)
    going = lambda c: (c[0] < max_steps) & (c[5] > tol * (1 + scale))
    return jax.lax.while_loop(going, step, (0, start, start, one, one, jnp.full_like(scale, jnp.inf)))[1]
