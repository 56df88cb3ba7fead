"""Metrics, compiled: on all clients' data where it is in this process, or from parts that the clients are asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.metrics import parts
from fedminimax.metrics.base import Metric, evaluate
from fedminimax.metrics.parts import PARTS, TOGETHER, Assembled, Context, Part, Roll, Whose
from fedminimax.players import Tree
from fedminimax.problems.robust import Problem


class _Placed(NamedTuple):
    """Some metrics, ready: their data, the names of their numbers and the program, and whether it looks at the context."""

    arrays: Any
    compiled: tuple[list[str], Callable[..., Any]]
    in_context: bool


class Judge:
    """Evaluates metrics on one run's data, which is put on the device once; or on what is known of it elsewhere."""

    def __init__(self, problem: Problem, clients: ClientSource | Roll):
        self._problem, self._clients = problem, on_first_device(clients)
        self._placed: dict[int, tuple[Mapping[str, Metric], _Placed]] = {}

    def __call__(self, metrics: Mapping[str, Metric], state: Tree, context: Context) -> dict[str, Any]:
        """Return every number or array of every metric at a state."""
        if not metrics:
            return {}
        known = self._placed.get(id(metrics))
        if known is None:
            known = self._placed[id(metrics)] = (metrics, self._place(metrics))  # kept, so that its id stays its own
        return self._values(known[1], state, context)

    def once(self, metrics: Mapping[str, Metric], state: Any, context: Context) -> dict[str, Any]:
        """Return the same of metrics that are other ones at the next evaluation."""
        return self._values(self._place(metrics), state, context) if metrics else {}

    def _values(self, placed: _Placed, state: Any, context: Context) -> dict[str, Any]:
        names, compute = placed.compiled
        values = compute(placed.arrays, self._clients, on_first_device(state), context if placed.in_context else None)
        return {name: float(v) if np.ndim(v) == 0 else np.asarray(v) for name, v in zip(names, values, strict=True)}

    def _place(self, metrics: Mapping[str, Metric]) -> _Placed:
        kinds, arrays = Kinds.of(metrics)
        in_context = any(parts.wants_context(metric) for metric in metrics.values())
        return _Placed(jax.device_put(arrays, jax.local_devices()[0]), _evaluator(self._problem, kinds), in_context)


class Kinds(NamedTuple):
    """Some metrics without their data, which is an argument of compiled programs. Plain functions cannot be; they are here."""

    names: tuple[str, ...]
    structure: Any
    functions: tuple[Any, ...]

    @classmethod
    def of(cls, metrics: Mapping[str, Metric]) -> tuple[Kinds, list[Tree]]:
        """Return the kinds of some metrics, and their data."""
        leaves, structure = jax.tree.flatten(tuple(metrics.values()))
        functions = tuple(leaf if callable(leaf) else None for leaf in leaves)
        return cls(tuple(metrics), structure, functions), [None if callable(leaf) else leaf for leaf in leaves]

    def values(
        self, arrays: list[Tree], problem: Problem, clients: ClientData, state: Tree, context: Context | None
    ) -> dict[str, Any]:
        """Return every number or array of the metrics with these data at a state."""
        leaves = [a if f is None else f for a, f in zip(arrays, self.functions, strict=True)]
        metrics = dict(zip(self.names, jax.tree.unflatten(self.structure, leaves), strict=True))
        return evaluate(metrics, problem, clients, state, context)


@functools.lru_cache(maxsize=64)
def _evaluator(problem: Problem, kinds: Kinds) -> tuple[list[str], Callable[..., Any]]:
    """Return the compiled metrics, and the list that will hold the names of their numbers, in order, once it has run."""
    order: list[str] = []

    @jax.jit
    def compute(arrays: list[Tree], clients: ClientData, state: Tree, context: Context | None) -> list[jax.Array]:
        values = kinds.values(arrays, problem, clients, state, context)
        order[:] = values
        return list(values.values())

    return order, compute


class Gatherer:
    """Evaluates metrics from the parts that clients are asked for.

    Every client gets one request for all metrics: of each its name, its settings, what the client is told (the players) and its
    weight, as bytes; and replies with its parts, as bytes. What the server makes of them it makes without any client's data.

    Args:
        problem: the problem.
        clients: all data, for metrics that need it together; or what is known of the clients, and such metrics are refused.
        ask: sends every client its request, all at once, and returns their replies in order.
        give: gives a client its share of held-out data, under a number, before it is asked for a part on it. (In a federation
            the share is with the client from the beginning.)
    """

    def __init__(
        self,
        problem: Problem,
        clients: ClientSource | Roll,
        ask: Callable[[Sequence[Tree]], Sequence[Tree]],
        give: Callable[[int, int, ClientData], None],
    ):
        self._problem, self._ask, self._give = problem, ask, give
        self._roll, self._judge = Roll.of(clients), Judge(problem, clients)
        self._refuses, self._held = isinstance(clients, Roll), list[ClientData]()

    def __call__(self, metrics: Mapping[str, Metric], state: Any, context: Context) -> dict[str, Any]:
        """Return every number or array of every metric at a state."""
        if self._refuses:
            parts.refuse_together(metrics, self._roll.count)
        kinds = {name: parts.needs(metric, self._roll.count) for name, metric in metrics.items()}
        found = self._parts({name: metric for name, metric in metrics.items() if kinds[name] == PARTS}, state)
        ready = {
            name: metric if kinds[name] == TOGETHER else Assembled(parts.without_data(metric), found.get(name))
            for name, metric in metrics.items()
        }
        return self._judge.once(ready, state, context)

    def _parts(self, metrics: Mapping[str, Metric], state: Any) -> dict[str, Part]:
        if not metrics:
            return {}
        described = {name: parts.describe(metric, self._number) for name, metric in metrics.items()}
        measured = {name: parts.measured_on(metric, self._roll) for name, metric in metrics.items()}
        weights = {name: self._problem.client_weights(roll) for name, roll in measured.items()}  # type: ignore[arg-type]
        requests = [
            {
                name: {
                    "metric": described[name],
                    "told": jax.tree.map(np.asarray, parts.told(metric, self._problem, self._roll, state, client)),
                    "weight": float(weights[name][client]),
                }
                for name, metric in metrics.items()
            }
            for client in range(self._roll.count)
        ]
        replies = self._ask(requests)
        return {name: parts.added_up([reply[name] for reply in replies]) for name in metrics}

    def _number(self, data: ClientData) -> int:
        """Return the number of some held-out data; when it is new, each client is given its share."""
        known = next((k for k, other in enumerate(self._held) if other is data), None)
        if known is not None:
            return known
        self._held.append(data)
        for client in range(data.count):
            self._give(client, len(self._held) - 1, data.only(client))
        return len(self._held) - 1


def own_parts(problem: Problem, client: int, data: ClientData, shares: Mapping[int | str, ClientData], request: Any) -> Any:
    """Return a client's parts of the metrics of a request, from its own data and its shares of held-out data."""
    return jax.tree.map(np.asarray, _own_parts(problem)(*_asked(client, data, shares, request)))


def shapes_of_parts(
    problem: Problem, client: int, data: ClientData, shares: Mapping[int | str, ClientData], request: Any
) -> dict[str, Part]:
    """Return the shapes of what :func:`own_parts` returns, for which the shapes of the data are enough."""
    return jax.eval_shape(_own_parts(problem), *_asked(client, data, shares, request))


def _asked(client: int, data: ClientData, shares: Mapping[int | str, ClientData], request: Any) -> tuple[Any, ...]:
    metrics = {name: parts.rebuild(asked["metric"], shares) for name, asked in request.items()}
    told = {name: asked["told"] for name, asked in request.items()}
    whose = {name: Whose(client, asked["weight"]) for name, asked in request.items()}
    return metrics, data, told, whose


@functools.lru_cache(maxsize=64)
def _own_parts(problem: Problem) -> Callable[..., dict[str, Part]]:
    """Return the program of a client's parts. It holds no data."""

    def compute(metrics: dict[str, Any], data: ClientData, told: dict[str, Tree], whose: dict[str, Whose]) -> dict[str, Part]:
        return {name: metric.part(problem, data, told[name], whose[name]) for name, metric in metrics.items()}

    return jax.jit(compute)


def on_first_device(tree: Tree) -> Tree:
    """Return a view on one device of what is the same on all."""
    return jax.tree.map(lambda a: a.addressable_data(0) if isinstance(a, jax.Array) else a, tree)
