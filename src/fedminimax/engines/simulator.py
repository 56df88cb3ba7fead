"""The simulator: whole rounds compiled, many rounds a call, clients side by side, one after another, or in chunks of both.

No Python runs per step, client or round. Memory is that of the data, the model, and as many models as there are clients
side by side.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedminimax import players
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.engines import accounting, keys
from fedminimax.engines.accounting import Message, Traffic
from fedminimax.engines.client import Client, LocalProblem, Reply
from fedminimax.engines.cohort import ClientFunction, Clients, Cohort, Conditions, Executed, Round
from fedminimax.engines.guard import Guard, finite
from fedminimax.engines.keys import Key
from fedminimax.engines.store import JOURNAL, ClientStore
from fedminimax.engines.trace import Asked, Trace
from fedminimax.errors import InputError
from fedminimax.network import Network
from fedminimax.players import Tree
from fedminimax.problems.base import CHUNK
from fedminimax.problems.robust import Problem
from fedminimax.schedules import at_round

Strategy = str | int
AUTO, VMAP, MAP = "auto", "vmap", "map"

_SMALL_MODEL = 50_000
"""Parameters below which clients are faster side by side than one after another (measured: benchmarks/README.md)."""
_SIDE_BY_SIDE = 2**24
"""How many parameters of all clients side by side are allowed at once."""
_AXIS = "clients"


class Placed(NamedTuple):
    """What every round reads: the clients' data and the weights p."""

    clients: ClientData
    weights: Any


class Carry(NamedTuple):
    """What goes from round to round: the algorithm's state and the clients' own.

    Those are arrays [N, ...]; or, where they live on the host, a token that orders what is read and written there; or None.
    """

    state: Tree
    client_states: Tree


class Progress(NamedTuple):
    """What came out of some rounds: counts and, when recorded, who was there (arrays over rounds)."""

    traffic: Traffic
    attendance: tuple[Any, ...]


@dataclass(frozen=True)
class Layout:
    """How clients are laid out: ``width`` side by side on each of the ``devices``; their own states there or on the host."""

    strategy: Strategy = AUTO
    devices: int = 1
    host_state: bool = False

    def __post_init__(self) -> None:
        known = (isinstance(self.strategy, int) and self.strategy >= 1) or self.strategy in (AUTO, VMAP, MAP)
        if isinstance(self.strategy, bool) or not known:
            raise InputError(
                f"strategy must be 'auto', 'vmap', 'map' or how many clients to run side by side, not {self.strategy!r}."
            )

    def width(self, clients: int, parameters: int, apart: bool = False) -> int:
        """Return how many clients to run side by side.

        Args:
            clients: how many there are on a device.
            parameters: of the model.
            apart: whether they had better run one after another: some have so much more data than others that all would
                wait for them, or the model convolves.
        """
        if self.strategy == VMAP:
            return clients
        if self.strategy == MAP:
            return 1
        if isinstance(self.strategy, int):
            return min(self.strategy, clients)
        small = parameters <= _SMALL_MODEL and not apart
        return min(clients, max(1, _SIDE_BY_SIDE // parameters)) if small else 1


class Simulator:
    """Runs rounds of one algorithm on one problem. Programs are compiled once and kept for later runs."""

    def __init__(self, problem: Problem, conditions: Conditions, layout: Layout):
        self.problem, self.conditions, self.layout = problem, conditions, layout
        self.messages: list[Message] = []
        self.asked = Asked()
        self.rehearsed: dict[Any, Asked] = {}
        self.store: ClientStore | None = None
        self._advance = jax.jit(self._rounds, static_argnames="length")

    @classmethod
    def build(cls, problem: Problem, algorithm: Algorithm, conditions: Conditions, layout: Layout) -> Simulator:
        """Return the simulator for this kind of run, from the store if there was one like it."""
        return _stored(problem, jax.tree.structure(algorithm), conditions, layout)

    def start(
        self, algorithm: Algorithm, clients: ClientData, state: Tree | None = None, store: ClientStore | None = None
    ) -> Carry:
        """Return what the first round starts from.

        Args:
            algorithm: the method.
            clients: the clients' data.
            state: the algorithm's state; by default its first.
            store: where the clients' states are, if they live on the host (``layout.host_state``).
        """
        self.store = store
        return self._everywhere(self.spread(self.first(algorithm, state), clients.count))

    def first(self, algorithm: Algorithm, state: Tree | None = None) -> Carry:
        """Return what the first round starts from, with one client's own state in place of everybody's."""
        fresh = algorithm.init(self.problem) if state is None else state
        own = np.zeros((), np.int32) if self.layout.host_state else algorithm.init_client(self.problem)
        # With its weak types taken off: a state of Python's numbers would compile the first round apart from all others.
        strong = lambda leaf: jax.lax.convert_element_type(leaf, jnp.result_type(leaf))
        return Carry(jax.tree.map(strong, fresh), own)

    def spread(self, first: Carry, count: int) -> Carry:
        """Give every one of ``count`` clients the state that it starts from."""
        everybody = () if self.layout.host_state else (count,)
        spread = lambda leaf: jnp.zeros((*everybody, *jnp.shape(leaf)), jnp.result_type(leaf)) + leaf
        return first._replace(client_states=jax.tree.map(spread, first.client_states))

    def place(self, clients: ClientData) -> Placed:
        """Put the data, and the weights p, where the rounds will run, once."""
        # Aligned host arrays (as ClientData makes them) are used in place by every host device, not copied.
        weights = np.asarray(self.problem.client_weights(clients), jnp.zeros(()).dtype)
        return self._everywhere(Placed(clients, weights))

    def remember(self, carry: Carry, client_states: Tree) -> Carry:
        """Give the clients the states of an earlier run."""
        if self.store is not None:
            self.store.take(client_states)
            return carry
        dense = client_states.dense() if isinstance(client_states, ClientStore) else client_states
        return carry._replace(client_states=self._everywhere(dense))

    def client_states(self, carry: Carry) -> Tree:
        """Return the clients' own states: arrays [N, ...], or the store."""
        return jax.tree.map(np.asarray, carry.client_states) if self.store is None else self.store

    def most_rounds(self, cohort: int) -> int | None:
        """Return how many rounds a call may run before what clients remember must be made lasting; None: any number."""
        return None if self.store is None else max(1, JOURNAL // max(1, cohort * self.store.row_bytes))

    def _everywhere(self, tree: Tree) -> Tree:
        """Put a tree on every device. What stays on one would be sent to the others, and compiled for, at each call."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
            return tree
        where = jax.devices()[0] if self.layout.devices == 1 else NamedSharding(self._mesh(), PartitionSpec())
        return jax.device_put(tree, where)

    def _mesh(self) -> Mesh:
        return Mesh(np.asarray(jax.devices()[: self.layout.devices]), (_AXIS,))

    def advance(
        self,
        algorithm: Algorithm,
        data: Placed,
        key: Key,
        carry: Carry,
        first: int,
        rounds: int,
        trace: Trace | None = None,
        length: int | None = None,
    ) -> tuple[Carry, Progress]:
        """Run ``rounds`` rounds from round ``first`` on. Calls with the same ``length`` (room for rounds) share a program."""
        length = rounds if length is None else length
        carry, progress = self._advance(algorithm, data.clients, data.weights, key, carry, first, rounds, trace, length=length)
        if self.store is None:
            return carry, jax.tree.map(lambda a: np.asarray(a)[:rounds], progress)
        try:
            carry = jax.block_until_ready(carry)
        except KeyboardInterrupt:
            jax.block_until_ready(carry)  # the rounds go on without us, and would write behind our back
            self.store.rollback()
            raise
        self.store.commit()
        return carry, jax.tree.map(lambda a: np.asarray(a)[:rounds], progress)

    def read_states(self, ids: Any, token: Any) -> Tree:
        """Return the cohort's states from the host, inside a compiled program."""
        assert self.store is not None
        shape = jax.ShapeDtypeStruct((ids.shape[0], self.store.row_bytes), jnp.uint8)
        # The store of the run under way, which need not be that of the run for which the program was compiled.
        return self.store.unpack(io_callback(lambda ids, _: self.store.read_rows(ids), shape, ids, token))  # type: ignore[union-attr]

    def write_states(self, ids: Any, here: Any, states: Tree, token: Any) -> Any:
        """Take the cohort's states down on the host; return the token that whoever reads next must wait for."""
        assert self.store is not None

        def write(ids: Any, here: Any, rows: Any, token: Any) -> Any:
            self.store.write_rows(ids, np.asarray(here), rows)  # type: ignore[union-attr]
            return np.asarray(token)

        return io_callback(write, jax.ShapeDtypeStruct((), jnp.int32), ids, here, self.store.pack(states), token)

    def one_round(
        self, algorithm: Algorithm, clients: ClientData, weights: Any, key: Key, carry: Carry, t: Any, trace: Any
    ) -> tuple[Carry, Progress]:
        """Carry out one round: the function that everything here compiles."""
        current = at_round(algorithm, t)
        round_ = SimulatedRound(self, current, clients, weights, key, carry.client_states, t, trace)
        state = current.round(self.problem, carry.state, Clients(round_))
        state = jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), state, carry.state)
        self.messages, self.asked = round_.messages, round_.asked
        attendance = round_.attendance() if self.conditions.record else ()
        return Carry(state, round_.client_states), Progress(round_.stacked_traffic(), attendance)

    def _rounds(
        self,
        algorithm: Algorithm,
        clients: ClientData,
        weights: Any,
        key: Key,
        carry: Carry,
        first: Any,
        rounds: Any,
        trace: Trace | None,
        *,
        length: int,
    ) -> tuple[Carry, Progress]:
        def program(
            algorithm: Any, clients: Any, weights: Any, key: Any, carry: Any, first: Any, rounds: Any, trace: Any
        ) -> Any:
            one = lambda carry, t: self.one_round(algorithm, clients, weights, key, carry, t, trace)
            shapes = jax.eval_shape(one, carry, first)[1]
            room = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)

            def body(k: Any, loop: tuple[Carry, Progress]) -> tuple[Carry, Progress]:
                carry, done = loop
                carry, new = one(carry, first + k)
                return carry, jax.tree.map(lambda all_, row: all_.at[k].set(row), done, new)

            return jax.lax.fori_loop(0, rounds, body, (carry, room))

        args = (algorithm, clients, weights, key, carry, first, rounds, trace)
        if self.layout.devices == 1:
            return program(*args)
        # One program on every device, each with its share of every cohort; they meet where replies are added up.
        everywhere = PartitionSpec()
        return jax.shard_map(program, mesh=self._mesh(), in_specs=everywhere, out_specs=everywhere, check_vma=False)(*args)


def rehearse(problem: Problem, algorithm: Algorithm, clients: ClientData, conditions: Conditions) -> Asked:
    """Return what a round of the algorithm asks for, on whatever engine: one is traced, and nothing is compiled or run."""
    simulator = Simulator.build(problem, algorithm, conditions, Layout(VMAP))
    kind = (clients.count, jnp.zeros(()).dtype)
    if kind in simulator.rehearsed:
        return simulator.rehearsed[kind]
    weights = simulator.place(clients).weights

    def one(clients: ClientData, key: Key, t: Any) -> Any:
        return simulator.one_round(algorithm, clients, weights, key, simulator.start(algorithm, clients), t, None)

    jax.eval_shape(one, clients, keys.root(0), 0)
    return simulator.rehearsed.setdefault(kind, simulator.asked)


class SimulatedRound(Round):
    """A round whose clients are rows of arrays."""

    def __init__(
        self,
        simulator: Simulator,
        algorithm: Algorithm,
        data: ClientData,
        weights: Any,
        key: Key,
        client_states: Tree,
        t: Any,
        trace: Trace | None,
    ):
        super().__init__(
            count=data.count,
            sizes=data.sizes,
            weights=weights,
            t=t,
            key=key,
            conditions=simulator.conditions,
            trace=trace,
        )
        self.simulator, self.algorithm, self.data, self.client_states = simulator, algorithm, data, client_states

    @property
    def has_client_state(self) -> bool:
        """Whether clients remember something from round to round."""
        return self.client_states is not None

    def execute(
        self,
        fn: ClientFunction,
        cohort: Cohort,
        present: Any,
        key: Key,
        broadcast: tuple[Tree, ...],
        per_client: tuple[Tree, ...],
        weights: Any,
        guard: Guard,
    ) -> Executed:
        """Run ``fn`` for the whole cohort: ``width`` clients side by side, in ``turns``, on each device."""
        problem = self.simulator.problem
        devices, turns, width = self._places(cohort.size)
        stack = weights is None or guard.stacks

        def one(row: _Row) -> tuple[Any, ...]:
            client = Client(
                id=row.id,
                row=row.id,
                data=self.data,
                round=self.t,
                key=keys.derive(key, row.id),
                steps_word=row.steps_word,
                state=row.state,
                note=row.note,
                fixed_steps=self.fixed_steps(row.id),
            )
            out = fn(LocalProblem(problem, client), client, *broadcast, *row.own)
            self.asked.steps |= client.asked_steps
            reply = out if isinstance(out, Reply) else Reply(out)
            value, passed = guard.inspect(jax.tree.map(jnp.asarray, reply.value))
            accepted = row.present & passed
            # The client keeps what it learnt whenever its work came to a finite end: it cannot know what the server refuses.
            keep = row.present & finite(reply.value)
            state = row.state if reply.state is None else players.select(keep, reply.state, row.state)
            work = accounting.split(client.work) * row.present
            note = row.note if reply.note is None else reply.note
            return value, accepted, (row.present, state), note, work

        def turn(rows: _Row) -> tuple[Any, Any]:
            if width == 1:
                out = jax.tree.map(lambda a: a[None], one(jax.tree.map(lambda a: a[0], rows)))
            else:
                out = jax.vmap(one)(rows)
            value, accepted, state, note, work = out
            kept = jnp.where(accepted, rows.weight, 0.0)
            sums = _Sums(
                weight=jnp.sum(kept),
                refused=jnp.sum(rows.present & ~accepted, dtype=jnp.int32),
                work=jnp.sum(work, axis=0),
                value=None if stack else jax.tree.map(lambda v: jnp.tensordot(kept.astype(v.dtype), v, 1), value),
            )
            return sums, (value if stack else None, accepted, state, note)

        ones = jnp.ones(cohort.size)
        rows = _Row(
            id=cohort.ids,
            steps_word=self.steps_words(cohort.ids),
            present=ones.astype(bool) if present is None else present,
            weight=ones if weights is None else jnp.asarray(weights),
            own=per_client,
            state=self._states_of(cohort.ids),
            note=cohort.note,
        )
        rows = self._share(rows, devices, turns, width)
        if turns == 1:
            sums, stacked = turn(jax.tree.map(lambda a: a[0], rows))
            stacked = jax.tree.map(lambda a: a[None], stacked)
        else:
            shapes = jax.eval_shape(turn, jax.tree.map(lambda a: a[0], rows))[0]
            zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

            def add(total: _Sums, rows: _Row) -> tuple[_Sums, Any]:
                more, stacked = turn(rows)
                return jax.tree.map(jnp.add, total, more), stacked

            sums, stacked = jax.lax.scan(add, zero, rows)
        stacked = jax.tree.map(lambda a: a.reshape(turns * width, *a.shape[2:]), stacked)
        if self.simulator.layout.devices > 1:
            sums = jax.lax.psum(sums, _AXIS)
            stacked = jax.tree.map(lambda a: jax.lax.all_gather(a, _AXIS, tiled=True), stacked)
        value, accepted, state, note = jax.tree.map(lambda a: a[: cohort.size], stacked)

        if self.client_states is not None:
            here, state = state
            self._remember(cohort.ids, here, state)
        if weights is None:
            return Executed(value, accepted, note, sums.refused, sums.work)
        total = players.scale(guard.combine(value, accepted), sums.weight) if stack else sums.value
        return Executed(total, sums.weight, note, sums.refused, sums.work)

    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Any]:
        """Return W times the rows, for all nodes at once."""
        if not self.conditions.guard.drop_nonfinite:
            return network.product(rows), jnp.zeros((), jnp.int32)
        sound = jax.vmap(finite)(rows)
        ignored = jnp.sum(jnp.where(sound, 0, jnp.asarray(network.degrees)), dtype=jnp.int32)
        # A message counts between two sound nodes; one that is not sound hears its neighbours to no avail.
        return network.product(rows, sound), ignored

    def _states_of(self, ids: jax.Array) -> Tree:
        if self.simulator.layout.host_state:
            return self.simulator.read_states(ids, self.client_states)
        return jax.tree.map(lambda a: a[ids], self.client_states)

    def _remember(self, ids: jax.Array, here: jax.Array, states: Tree) -> None:
        if self.simulator.layout.host_state:
            self.client_states = self.simulator.write_states(ids, here, states, self.client_states)
            return
        where = jnp.where(here, ids, self.count)
        put = lambda all_, new: all_.at[where].set(new, mode="drop")
        self.client_states = jax.tree.map(put, self.client_states, states)

    def _places(self, size: int) -> tuple[int, int, int]:
        problem, layout = self.simulator.problem, self.simulator.layout
        share = -(-size // layout.devices)
        ragged = self.data.largest > CHUNK and self.data.largest * self.data.count > 2 * self.data.total
        # Kernels with four axes are convolutions, whose matrix products side by side are many small ones.
        convolves = any(jnp.ndim(leaf) >= 4 for leaf in jax.tree.leaves((problem.x0, problem.y0)))
        width = layout.width(share, players.size(problem.x0) + players.size(problem.y0), ragged or convolves)
        return layout.devices, -(-share // width), width

    def _share(self, rows: _Row, devices: int, turns: int, width: int) -> _Row:
        """Return this device's rows, [turns, width, ...]. Places left over repeat the first client and count for nothing."""
        size, places = rows.id.shape[0], devices * turns * width
        if places > size:
            fill = lambda a: jnp.concatenate([a, jnp.broadcast_to(a[:1], (places - size, *a.shape[1:]))])
            rows = jax.tree.map(fill, rows)
            rows = rows._replace(present=rows.present & (jnp.arange(places) < size))
        me = 0 if devices == 1 else jax.lax.axis_index(_AXIS)
        return jax.tree.map(lambda a: a.reshape(devices, turns, width, *a.shape[1:])[me], rows)


class _Row(NamedTuple):
    """What one client of a cohort is given; stacked for many."""

    id: Any
    steps_word: Any
    present: Any
    weight: Any
    own: Any
    state: Any
    note: Any


class _Sums(NamedTuple):
    """What is added up over clients as they finish."""

    weight: Any
    refused: Any
    work: Any
    value: Any


@functools.lru_cache(maxsize=32)
def _stored(problem: Problem, structure: Any, conditions: Conditions, layout: Layout) -> Simulator:
    return Simulator(problem, conditions, layout)
