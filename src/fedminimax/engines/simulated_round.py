"""A round in the simulator: its clients are rows of arrays, and a cohort works in turns of so many side by side."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.layout import AXIS, Layout
from fedminimax.engines.store import RowFormat
from fedminimax.federation import accounting
from fedminimax.federation.client import Client, LocalProblem, Reply
from fedminimax.federation.guard import finite
from fedminimax.federation.round import Conditions, Executed, Request, Round
from fedminimax.federation.trace import Trace
from fedminimax.network import Network
from fedminimax.players import Array, Count, Tree
from fedminimax.problems.base import CHUNK
from fedminimax.problems.robust import Problem
from fedminimax.random import keys
from fedminimax.random.keys import Key


class Placed(NamedTuple):
    """What every round reads: the clients' data and the weights p."""

    clients: ClientSource
    weights: Array


class Given(NamedTuple):
    """What stays the same from round to round of a run."""

    algorithm: Algorithm
    data: Placed
    key: Key
    trace: Trace | None = None


class SimulatedRound(Round):
    """A round whose clients are rows of arrays."""

    def __init__(self, problem: Problem, conditions: Conditions, layout: Layout, given: Given, client_states: Tree, t: Count):
        clients, weights = given.data
        super().__init__(
            count=clients.count,
            sizes=clients.sizes,
            weights=jnp.asarray(weights),
            t=t,
            key=given.key,
            conditions=conditions,
            trace=given.trace,
        )
        self.problem, self.algorithm, self.layout = problem, given.algorithm, layout
        self.data, self.client_states = clients, client_states
        self.packed: list[int] = []
        """Of each exchange, how many bytes processes add up together, or each sends at most, where there are several."""

    @property
    def has_client_state(self) -> bool:
        """Whether clients remember something from round to round."""
        return self.client_states is not None

    def execute(self, request: Request) -> Executed:
        """Run the program for the whole cohort: ``width`` clients side by side, in ``turns``, on each device."""
        size = request.ids.shape[0]
        turns, width = self._places(size)
        sums, stacked = self._in_turns(request, self._share(self._rows(request), turns, width))
        stacked = jax.tree.map(lambda a: a.reshape(turns * width, *a.shape[2:]), stacked)
        if self.layout.devices > 1:
            sums = jax.lax.psum(sums, AXIS)
            stacked = jax.tree.map(lambda a: jax.lax.all_gather(a, AXIS, tiled=True), stacked)
        out = jax.tree.map(lambda a: a[:size], stacked)
        if self.client_states is not None:
            self._remember(request.ids, out.here, out.state)
        # Nothing is lost on the way: whoever is present replies.
        done = Executed(out.value, None, out.here, out.accepted, out.note, sums.work)
        if request.weights is None:
            return done
        guard = request.guard
        total = players.scale(guard.combine(out.value, out.accepted), sums.weight) if guard.stacks else sums.value
        return done._replace(value=total, weight=sums.weight)

    def _rows(self, request: Request) -> _Row:
        ones = jnp.ones(request.ids.shape[0])
        return _Row(
            id=request.ids,
            steps_word=self.steps_words(request.ids),
            present=ones.astype(bool) if request.present is None else request.present,
            weight=ones if request.weights is None else jnp.asarray(request.weights),
            own=request.per_client,
            state=self._states_of(request.ids),
            note=request.note,
        )

    def _in_turns(self, request: Request, rows: _Row) -> tuple[_Sums, _Done]:
        """Run all turns one after another, and add up what is added up: [turns, width, ...]."""
        first = jax.tree.map(lambda a: a[0], rows)
        if rows.id.shape[0] == 1:
            sums, stacked = self._turn(request, first)
            return sums, jax.tree.map(lambda a: a[None], stacked)
        turn = jax.jit(lambda rows: self._turn(request, rows), inline=True)  # traced once, for its shapes and for the loop
        shapes = jax.eval_shape(turn, first)[0]
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def add(total: _Sums, rows: _Row) -> tuple[_Sums, _Done]:
            more, stacked = turn(rows)
            return jax.tree.map(jnp.add, total, more), stacked

        return jax.lax.scan(add, zero, rows)

    def _turn(self, request: Request, rows: _Row) -> tuple[_Sums, _Done]:
        """Run the clients of one turn side by side. What is not needed afterwards is not kept: the work, and summed replies."""
        one = lambda row: self._one(request, row)
        if rows.id.shape[0] == 1:
            done = jax.tree.map(lambda a: a[None], one(jax.tree.map(lambda a: a[0], rows)))
        else:
            done = jax.vmap(one)(rows)
        kept = jnp.where(done.accepted, rows.weight, 0.0)
        stack = request.weights is None or request.guard.stacks
        sums = _Sums(
            weight=jnp.sum(kept),
            work=jnp.sum(done.work, axis=0),
            value=None if stack else jax.tree.map(lambda v: jnp.tensordot(kept.astype(v.dtype), v, 1), done.value),
        )
        return sums, done._replace(value=done.value if stack else None, work=None)

    def _one(self, request: Request, row: _Row) -> _Done:
        key = keys.derive(request.key, row.id)
        client = Client(
            id=row.id,
            row=row.id,
            data=self.data,
            round=self.t,
            key=key,
            steps_word=row.steps_word,
            state=row.state,
            note=row.note,
            fixed_steps=self.fixed_steps(row.id),
        )
        out = request.fn(LocalProblem(self.problem, client), client, *request.broadcast, *row.own)
        self.asked.steps |= client.asked_steps
        reply = out if isinstance(out, Reply) else Reply(out)
        sent = reply.value if request.privacy is None else request.privacy.protect(reply.value, key)
        value, passed = request.guard.inspect(jax.tree.map(jnp.asarray, sent))
        # The client keeps what it learnt whenever its work came to a finite end: it cannot know what the server refuses.
        keep = row.present & finite(reply.value)
        return _Done(
            value=value,
            accepted=row.present & passed,
            here=row.present,
            state=row.state if reply.state is None else players.select(keep, reply.state, row.state),
            note=row.note if reply.note is None else reply.note,
            work=accounting.split(client.work) * row.present,
        )

    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Count]:
        """Return W times the rows, for all nodes at once."""
        if not self.conditions.guard.drop_nonfinite:
            return network.product(rows), jnp.zeros((), jnp.int32)
        sound = jax.vmap(finite)(rows)
        ignored = jnp.sum(jnp.where(sound, 0, jnp.asarray(network.degrees)), dtype=jnp.int32)
        # A message counts between two sound nodes; one that is not sound hears its neighbours to no avail.
        return network.product(rows, sound), ignored

    @property
    def _format(self) -> RowFormat:
        return RowFormat(jax.eval_shape(lambda: self.algorithm.init_client(self.problem)))

    def _states_of(self, ids: jax.Array) -> Tree:
        if self.layout.host_state:
            return self._format.read(ids, self.client_states)
        return jax.tree.map(lambda a: a[ids], self.client_states)

    def _remember(self, ids: jax.Array, here: jax.Array, states: Tree) -> None:
        if self.layout.host_state:
            self.client_states = self._format.write(ids, here, states, self.client_states)
            return
        where = jnp.where(here, ids, self.count)
        put = lambda all_, new: all_.at[where].set(new, mode="drop")
        self.client_states = jax.tree.map(put, self.client_states, states)

    def _places(self, size: int) -> tuple[int, int]:
        """Return how many turns each device takes, with how many clients side by side."""
        share = -(-size // self.layout.devices)
        width = self._width(share)
        return -(-share // width), width

    def _width(self, share: int) -> int:
        """Return how many of a device's clients to run side by side."""
        problem = self.problem
        ragged = self.data.largest > CHUNK and self.data.largest * self.data.count > 2 * self.data.total
        # Kernels with four axes are convolutions, whose matrix products side by side are many small ones.
        convolves = any(jnp.ndim(leaf) >= 4 for leaf in jax.tree.leaves((problem.x0, problem.y0)))
        return self.layout.width(share, players.size(problem.x0) + players.size(problem.y0), ragged or convolves)

    def _share(self, rows: _Row, turns: int, width: int) -> _Row:
        """Return this device's rows, [turns, width, ...]. Places left over repeat the first client and count for nothing."""
        devices = self.layout.devices
        size, places = rows.id.shape[0], devices * turns * width
        if places > size:
            fill = lambda a: jnp.concatenate([a, jnp.broadcast_to(a[:1], (places - size, *a.shape[1:]))])
            rows = jax.tree.map(fill, rows)
            rows = rows._replace(present=rows.present & (jnp.arange(places) < size))
        me = 0 if devices == 1 else jax.lax.axis_index(AXIS)
        return jax.tree.map(lambda a: a.reshape(devices, turns, width, *a.shape[1:])[me], rows)


class _Row(NamedTuple):
    """What one client of a cohort is given; stacked for many."""

    id: jax.Array
    steps_word: jax.Array
    present: jax.Array
    weight: jax.Array
    own: tuple[Tree, ...]
    state: Tree
    note: Tree


class _Done(NamedTuple):
    """What came of one client; stacked for many."""

    value: Tree
    accepted: jax.Array
    here: jax.Array
    state: Tree
    note: Tree
    work: jax.Array | None


class _Sums(NamedTuple):
    """What is added up over clients as they finish."""

    weight: jax.Array
    work: jax.Array
    value: Tree


# What rounds of other kinds, that work in turns as this one, are made of.
Row = _Row
Done = _Done
Sums = _Sums
