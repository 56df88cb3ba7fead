"""Metrics over many processes: each computes the parts of its own clients, and process 0 puts them together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import wire
from fedminimax.data.clients import ClientData
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.shards import ClientShard
from fedminimax.engines.evaluation import Judge, on_first_device
from fedminimax.engines.mesh.channel import Channel
from fedminimax.engines.mesh.dealt import Dealt
from fedminimax.errors import InputError
from fedminimax.metrics import parts
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import PARTS, TOGETHER, Assembled, Context, Described, Part, Roll, Whose
from fedminimax.players import Tree
from fedminimax.problems.robust import Problem

_EXAMPLES = 4096
"""So many examples of small clients are looked at side by side."""


class _Source(NamedTuple):
    """Where parts are taken on: this process's own examples, or held-out ones of all clients."""

    fields: Tree
    starts: np.ndarray
    sizes: np.ndarray
    batching: str


class Rows(NamedTuple):
    """A state that is nodes' rows, each where the node is: this process's own, in order."""

    own: Tree


class MeshJudge:
    """Evaluates metrics from the parts of each process's own clients.

    Args:
        problem: the problem.
        share: this process's clients.
        dealt: which clients are where.
        channel: to the other processes.
    """

    def __init__(self, problem: Problem, share: ClientShard | GeneratedClients, dealt: Dealt, channel: Channel):
        self._problem, self._share, self._dealt, self._channel = problem, share, dealt, channel
        self._roll = Roll(np.asarray(share.sizes), share.total)
        self._judge = Judge(problem, self._roll)

    def check(self, metrics: Mapping[str, Metric]) -> None:
        """Raise an error, on every process alike, for a metric that needs all examples in one place."""
        needed = {name: metric for name, metric in metrics.items() if not self._alone(metric)}
        parts.refuse_together(needed, self._roll.count)
        if isinstance(self._share, GeneratedClients):
            asked = [name for name, m in needed.items() if self._needs(m) == PARTS and not parts.held_out(m)]
            if asked:
                raise InputError(
                    f"The metric {asked[0]!r} is taken on all clients, whose examples are made on demand: evaluate on some of "
                    "them, as in metrics.On(metric, clients.take(range(1000)))."
                )

    def __call__(self, metrics: Mapping[str, Metric], state: Tree | Rows, context: Context) -> dict[str, Any]:
        """Return every number or array of every metric at a state, at process 0; nothing elsewhere.

        Of nodes' rows those are gathered that a metric needs beside a node's own: at process 0, or, for parts, everywhere.
        """
        own = {name: metric for name, metric in metrics.items() if self._needs(metric) == PARTS}
        rows = None
        if isinstance(state, Rows):
            rows, apart = state, [name for name, metric in own.items() if parts.of_own_row(metric)]
            everybody = len(apart) < len(own)
            state = self._dealt.gathered(rows.own, self._channel, everybody) if len(apart) < len(metrics) else None
        with self._channel.meeting():
            found = self._parts(own, on_first_device(state), rows)
        if not self._channel.leads:
            return {}
        ready = {
            name: metric if self._needs(metric) == TOGETHER else Assembled(parts.without_data(metric), found.get(name))
            for name, metric in metrics.items()
        }
        return self._judge.once(ready, state, context)

    def _needs(self, metric: Metric) -> str:
        return parts.needs(metric, self._roll.count)

    def _alone(self, metric: Metric) -> bool:
        """Tell whether a metric that needs all its data in one place has them with it."""
        held = parts.held_out(metric)
        return self._needs(metric) == TOGETHER and bool(held) and all(isinstance(data, ClientData) for data in held)

    def _parts(self, metrics: Mapping[str, Metric], state: Tree, rows: Rows | None) -> dict[str, Part]:
        """Return everybody's parts as one, the clients in their order, at process 0."""
        if not metrics:
            return {}
        own = {
            name: self._own(metric, rows if rows is not None and parts.of_own_row(metric) else state)
            for name, metric in metrics.items()
        }
        found: list[Any] = [wire.decode(sent) for sent in self._channel.collect(wire.encode(own))]
        if not found:
            return {}
        out = {}
        for name in metrics:
            sums, each = zip(*(part[name] for part in found), strict=True)
            added = jax.tree.map(lambda *values: sum(values[1:], values[0]), *sums)
            out[name] = Part(added, jax.tree.map(lambda *rows: self._dealt.joined(rows), *each))
        return out

    def _own(self, metric: Metric, state: Tree | Rows) -> Part:
        """Return this process's part of a metric: what is added up, and its clients' rows as they are dealt."""
        state, apart = (state.own, True) if isinstance(state, Rows) else (state, False)
        held: list[ClientData] = []

        def number(data: ClientData) -> int:
            held.append(data)
            return len(held) - 1

        described = parts.describe(metric, number)
        sources = [self._source(data) for data in [None, *held]]
        weights = np.asarray(self._problem.client_weights(parts.measured_on(metric, self._roll)))  # type: ignore[arg-type]
        kinds, arrays = _split(described)
        own, groups = self._dealt.own, dict[tuple[int, ...], list[int]]()
        for place, client in enumerate(own):
            groups.setdefault(tuple(int(s.sizes[client]) for s in sources), []).append(place)
        total: Tree = None
        rows: dict[int, Tree] = {}
        for sizes, places in groups.items():
            compute = _of_group(self._problem, kinds, sizes, tuple(s.batching for s in sources))
            ids = np.asarray(own[places], np.int32)
            starts = tuple(np.asarray(s.starts[ids], np.int32) for s in sources)
            fields = tuple(s.fields for s in sources)
            at = np.asarray(places, np.int32) if apart else ids
            part = compute(arrays, fields, self._roll, state, ids, at, starts, weights[ids])
            part = jax.tree.map(np.asarray, part)
            total = part.sum if total is None else jax.tree.map(np.add, total, part.sum)
            rows |= {place: jax.tree.map(lambda a, k=k: a[k], part.each) for k, place in enumerate(places)}
        return Part(total, jax.tree.map(lambda *each: np.stack(each), *(rows[place] for place in sorted(rows))))

    def _source(self, data: ClientData | None) -> _Source:
        if data is not None:
            return _Source(data.fields, np.asarray(data.starts), np.asarray(data.sizes), data.batching)
        share = self._share
        if isinstance(share, GeneratedClients):  # nothing is there, and nothing is asked of it
            return _Source({}, np.zeros(share.count, np.int32), np.zeros(share.count, np.int32), share.batching)
        starts = np.zeros(share.count, np.int64)
        starts[share.own] = share.places()
        return _Source(self._fields, starts, np.asarray(share.sizes), share.batching)

    @functools.cached_property
    def _fields(self) -> Tree:
        assert isinstance(self._share, ClientShard)
        return jax.device_put(self._share.fields, jax.local_devices()[0])


class _Kinds(NamedTuple):
    """A described metric without its arrays, which are arguments of compiled programs."""

    structure: Any
    leaves: tuple[Any, ...]


def _split(described: Described) -> tuple[_Kinds, list[Any]]:
    leaves, structure = jax.tree.flatten(described)
    array = lambda leaf: isinstance(leaf, (np.ndarray, jax.Array))
    return _Kinds(structure, tuple(None if array(a) else a for a in leaves)), [a if array(a) else None for a in leaves]


@functools.lru_cache(maxsize=256)
def _of_group(problem: Problem, kinds: _Kinds, sizes: tuple[int, ...], batching: tuple[str, ...]) -> Callable[..., Part]:
    """Return the compiled program of the parts of clients that have equally many examples: their sum, and each one's row."""

    def data(k: int, fields: Sequence[Tree], starts: Sequence[Any]) -> ClientData:
        own = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(jnp.asarray(a), starts[k], sizes[k]), fields[k])
        return ClientData(own, np.zeros(1, np.int32), np.full(1, sizes[k], np.int32), sizes[k], sizes[k], batching[k])

    def compute(
        arrays: list[Any],
        fields: Sequence[Tree],
        roll: Roll,
        state: Any,
        ids: Any,
        rows: Any,
        starts: Sequence[Any],
        weights: Any,
    ) -> Part:
        leaves = [k if a is None else a for a, k in zip(arrays, kinds.leaves, strict=True)]
        described = jax.tree.unflatten(kinds.structure, leaves)

        def one(given: tuple[Any, Any, tuple[Any, ...], Any]) -> Part:
            client, row, at, weight = given
            metric = parts.rebuild(described, {k: data(k + 1, fields, at) for k in range(len(sizes) - 1)})
            told = parts.told(metric, problem, roll, state, row)
            return metric.part(problem, data(0, fields, at), told, Whose(client, weight))

        side_by_side = max(1, min(len(ids), _EXAMPLES // max(1, *sizes)))
        found = jax.lax.map(one, (ids, rows, tuple(starts), weights), batch_size=side_by_side)
        return Part(jax.tree.map(lambda a: jnp.sum(a, axis=0), found.sum), found.each)

    return jax.jit(compute)
