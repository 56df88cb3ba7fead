"""Metrics, compiled, for engines that have every client's data in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.metrics.base import Metric, evaluate
from fedminimax.players import Tree
from fedminimax.problems.robust import Problem


class Judge:
    """Evaluates metrics on one run's data, which is put on the device once."""

    def __init__(self, problem: Problem, clients: ClientSource):
        self._problem, self._clients = problem, on_first_device(clients)
        self._placed: dict[int, tuple[Mapping[str, Metric], Any]] = {}

    def __call__(self, metrics: Mapping[str, Metric], state: Tree) -> dict[str, float]:
        """Return every number of every metric at a state."""
        if not metrics:
            return {}
        known = self._placed.get(id(metrics))
        if known is None:
            known = self._placed[id(metrics)] = (metrics, self._place(metrics))  # kept, so that its id stays its own
        arrays, (names, compute) = known[1]
        values = compute(arrays, self._clients, on_first_device(state))
        return {name: float(value) for name, value in zip(names, values, strict=True)}

    def _place(self, metrics: Mapping[str, Metric]) -> tuple[Any, tuple[list[str], Callable[..., Any]]]:
        leaves, structure = jax.tree.flatten(tuple(metrics.values()))
        # Plain functions cannot be arguments of a compiled program; they become part of it.
        functions = tuple(leaf if callable(leaf) else None for leaf in leaves)
        arrays = jax.device_put([None if callable(leaf) else leaf for leaf in leaves], jax.devices()[0])
        return arrays, _evaluator(self._problem, tuple(metrics), structure, functions)


@functools.lru_cache(maxsize=64)
def _evaluator(
    problem: Problem, names: tuple[str, ...], structure: Any, functions: Any
) -> tuple[list[str], Callable[..., Any]]:
    """Return the compiled metrics, and the list that will hold the names of their numbers, in order, once it has run."""
    order: list[str] = []

    @jax.jit
    def compute(arrays: list[Tree], clients: ClientData, state: Tree) -> list[jax.Array]:
        leaves = [a if f is None else f for a, f in zip(arrays, functions, strict=True)]
        metrics = dict(zip(names, jax.tree.unflatten(structure, leaves), strict=True))
        values = evaluate(metrics, problem, clients, state)
        order[:] = values
        return list(values.values())

    return order, compute


def on_first_device(tree: Tree) -> Tree:
    """Return a view on one device of what is the same on all."""
    return jax.tree.map(lambda a: a.addressable_data(0) if isinstance(a, jax.Array) else a, tree)
