"""The simulator: whole rounds compiled, many rounds a call, clients side by side, one after another, or in chunks of both.

No Python runs per step, client or round. Memory is that of the data, the model, and as many models as there are clients
side by side.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedminimax import devices as host
from fedminimax import players
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.evaluation import Judge
from fedminimax.engines.execution import Execution, Progress, Snapshot
from fedminimax.engines.store import DEVICE, HOST, JOURNAL, ClientStore, RowFormat
from fedminimax.errors import InputError
from fedminimax.federation import accounting
from fedminimax.federation.accounting import Message
from fedminimax.federation.client import Client, LocalProblem, Reply
from fedminimax.federation.cohort import ClientFunction, Clients, Cohort, Conditions, Executed, Round
from fedminimax.federation.guard import Guard, finite
from fedminimax.federation.trace import Asked, Trace
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context
from fedminimax.network import Network
from fedminimax.players import Array, Count, Tree
from fedminimax.problems.base import CHUNK
from fedminimax.problems.robust import Problem
from fedminimax.random import keys
from fedminimax.random.keys import Key
from fedminimax.schedules import at_round

Strategy = str | int
AUTO, VMAP, MAP = "auto", "vmap", "map"

_SMALL_MODEL = 50_000
"""Parameters below which clients are faster side by side than one after another (measured: benchmarks/README.md)."""
_SIDE_BY_SIDE = 2**24
"""How many parameters of all clients side by side are allowed at once."""
_WORTH_SPLITTING = 20_000
"""Parameters of a whole cohort above which cores are worth their meeting points (measured: benchmarks/README.md)."""
_ON_DEVICE = 2**28
"""Bytes of clients' states that are kept on the device unless told otherwise."""
ROOM = 256
"""Rounds for which a call has room: one number, so that runs of any length share a program."""
_AXIS = "clients"


class Placed(NamedTuple):
    """What every round reads: the clients' data and the weights p."""

    clients: ClientSource
    weights: Array


class Carry(NamedTuple):
    """What goes from round to round: the algorithm's state and the clients' own.

    Those are arrays [N, ...]; or, where they live on the host, a token that orders what is read and written there; or None.
    """

    state: Tree
    client_states: Tree


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


@dataclass
class Script:
    """What a round consists of, known when it is traced: its exchanges in order, and all that a trace could tell it."""

    messages: list[Message] = field(default_factory=list)
    asked: Asked = field(default_factory=Asked)


class Program:
    """The rounds of one kind of run, compiled: what runs alike share. It holds nothing of any of them."""

    def __init__(self, problem: Problem, conditions: Conditions, layout: Layout):
        self.problem, self.conditions, self.layout = problem, conditions, layout
        self._scripts: dict[Hashable, Script] = {}
        self._advance = jax.jit(self._rounds, static_argnames="length")

    @classmethod
    def of(cls, problem: Problem, algorithm: Algorithm, conditions: Conditions, layout: Layout) -> Program:
        """Return the program for this kind of run: the one that was made before, if there was."""
        return _stored(problem, jax.tree.structure(algorithm), conditions, layout)

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

    def place(self, clients: ClientSource) -> Placed:
        """Put the data, and the weights p, where the rounds will run, once."""
        # Aligned host arrays (as ClientData makes them) are used in place by every host device, not copied.
        weights = np.asarray(self.problem.client_weights(clients), jnp.zeros(()).dtype)
        return self.everywhere(Placed(clients, weights))

    def everywhere(self, tree: Tree) -> Tree:
        """Put a tree on every device. What stays on one would be sent to the others, and compiled for, at each call."""
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
        """Run ``rounds`` rounds from round ``first`` on. Calls with the same ``length`` (room for rounds) are one program."""
        length = rounds if length is None else length
        return self._advance(algorithm, data.clients, data.weights, key, carry, first, rounds, trace, length=length)

    def script(self, algorithm: Algorithm, data: Placed, carry: Carry, trace: Trace | None) -> Script:
        """Return what a round of such a run consists of, which is known since it was compiled."""
        return self._scripts[_signature((algorithm, data.clients, carry, trace))]

    def rehearse(self, algorithm: Algorithm, clients: ClientSource) -> Script:
        """Return what a round consists of, on whatever engine: one is traced, and nothing is compiled or run."""
        signature = _signature(("rehearsal", algorithm, clients))
        if signature not in self._scripts:
            script, weights = Script(), jnp.asarray(self.problem.client_weights(clients), float)

            def one(clients: ClientSource, key: Key, t: Count) -> tuple[Carry, Progress]:
                carry = self.spread(self.first(algorithm), clients.count)
                return self.one_round(algorithm, clients, weights, key, carry, t, None, script)

            jax.eval_shape(one, clients, keys.root(0), 0)
            self._scripts[signature] = script
        return self._scripts[signature]

    def one_round(
        self,
        algorithm: Algorithm,
        clients: ClientSource,
        weights: jax.Array,
        key: Key,
        carry: Carry,
        t: Count,
        trace: Trace | None,
        script: Script | None = None,
    ) -> tuple[Carry, Progress]:
        """Carry out one round: the function that everything here compiles. What it consists of is put into ``script``."""
        current = at_round(algorithm, t)
        round_ = SimulatedRound(self, current, clients, weights, key, carry.client_states, t, trace)
        state = current.round(self.problem, carry.state, Clients(round_))
        state = jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), state, carry.state)
        if script is not None:
            script.messages, script.asked = round_.messages, round_.asked
        attendance = round_.attendance() if self.conditions.record else ()
        return Carry(state, round_.client_states), Progress(round_.stacked_traffic(), attendance)

    def _rounds(
        self,
        algorithm: Algorithm,
        clients: ClientSource,
        weights: jax.Array,
        key: Key,
        carry: Carry,
        first: Count,
        rounds: Count,
        trace: Trace | None,
        *,
        length: int,
    ) -> tuple[Carry, Progress]:
        script = Script()

        def program(
            algorithm: Algorithm,
            clients: ClientSource,
            weights: jax.Array,
            key: Key,
            carry: Carry,
            first: Count,
            rounds: Count,
            trace: Trace | None,
        ) -> tuple[Carry, Progress]:
            one = lambda carry, t: self.one_round(algorithm, clients, weights, key, carry, t, trace, script)
            shapes = jax.eval_shape(one, carry, first)[1]
            room = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)

            def body(k: jax.Array, loop: tuple[Carry, Progress]) -> tuple[Carry, Progress]:
                carry, done = loop
                carry, new = one(carry, first + k)
                return carry, jax.tree.map(lambda all_, row: all_.at[k].set(row), done, new)

            return jax.lax.fori_loop(0, rounds, body, (carry, room))

        self._scripts[_signature((algorithm, clients, carry, trace))] = script
        args = (algorithm, clients, weights, key, carry, first, rounds, trace)
        if self.layout.devices == 1:
            return program(*args)
        # One program on every device, each with its share of every cohort; they meet where replies are added up.
        everywhere = PartitionSpec()
        return jax.shard_map(program, mesh=self._mesh(), in_specs=everywhere, out_specs=everywhere, check_vma=False)(*args)


def _room(rounds: int) -> int:
    """Return for how many rounds a call has room: ROOM, doubled until it is enough, so that few programs serve all lengths."""
    return ROOM << ((max(rounds, 1) - 1) // ROOM).bit_length()


def _signature(tree: Tree) -> Hashable:
    """Return what a program is compiled for: the structure, shapes and dtypes of its arguments."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(leaf if isinstance(leaf, str) else (jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


class Simulation(Execution):
    """A run under way in the simulator."""

    def __init__(
        self,
        program: Program,
        clients: ClientSource,
        algorithm: Algorithm,
        seed: int,
        trace: Trace | None,
        start: Snapshot | None,
        store: ClientStore | None,
    ):
        self._program, self._algorithm, self._trace, self._store = program, algorithm, trace, store
        self._data, self._key, self._count = program.place(clients), keys.root(seed), clients.count
        self._judge: Judge | None = None
        self._cohort = getattr(algorithm, "cohort_size", None) or clients.count
        self.round, self.messages = 0, []
        if start is None:
            self._begin(None)
        else:
            self.restore(start)

    def _begin(self, state: Tree | None) -> None:
        program = self._program
        carry = program.spread(program.first(self._algorithm, state), self._count)
        if self._store is not None:  # the token says whose states the program reads and writes
            carry = carry._replace(client_states=np.asarray(self._store.number, np.int32))
        self._carry = program.everywhere(carry)

    @property
    def state(self) -> Tree:
        """The algorithm's state after the last round."""
        return self._carry.state

    @property
    def most_rounds(self) -> int | None:
        """How many rounds may be run before what clients remember must be made lasting; None: any number."""
        return None if self._store is None else max(1, JOURNAL // max(1, self._cohort * self._store.row_bytes))

    def advance(self, rounds: int) -> Progress:
        """Run so many rounds more, in one call of a compiled program."""
        args = self._algorithm, self._data, self._key, self._carry, self.round, rounds, self._trace
        carry, progress = self._program.advance(*args, length=_room(rounds))
        if self._store is not None:
            try:
                carry = jax.block_until_ready(carry)
            except KeyboardInterrupt:
                jax.block_until_ready(carry)  # the rounds go on without us, and would write behind our back
                self._store.rollback()
                raise
            self._store.commit()
        progress = jax.tree.map(lambda a: np.asarray(a)[:rounds], progress)
        if not self.messages:
            self.messages = self._program.script(self._algorithm, self._data, self._carry, self._trace).messages
        self._carry, self.round = carry, self.round + rounds
        if self._store is not None:
            self._store.rounds = self.round
        return progress

    def snapshot(self) -> Snapshot:
        """Return all that the run goes on from, on the host."""
        own = self._carry.client_states if self._store is None else None
        kept = jax.tree.map(np.asarray, own) if self._store is None else self._store
        return Snapshot(jax.tree.map(np.asarray, self._carry.state), kept, self.round)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from there."""
        self._begin(snapshot.state)
        self.round = snapshot.round
        if snapshot.client_states is None:
            return
        if self._store is not None:
            self._store.take(snapshot.client_states)
            self._store.rounds = snapshot.round
            return
        own = snapshot.client_states
        own = own.dense() if isinstance(own, ClientStore) else own
        own = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), own, self._carry.client_states)
        self._carry = self._carry._replace(client_states=self._program.everywhere(own))

    def evaluate(self, metrics: Mapping[str, Metric], costs: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return every number of every metric at the state, each taken on all data at once."""
        if self._judge is None:
            self._judge = Judge(self._program.problem, self._data.clients)
        return self._judge(metrics, self._carry.state, Context.at(self.round, costs))


@dataclass(frozen=True)
class Simulator:
    """The engine that compiles whole rounds, many of them a call. The default.

    Args:
        strategy: how clients are run: "vmap" (side by side), "map" (one after another), a number (that many side by side), or
            "auto" (by the size of the model).
        devices: how many cores or accelerators to split cohorts over; None: all where it pays.
        client_store: where clients' own states (control variates) live: "device", "host" (its memory), or a folder for
            memory-mapped files; None: on the device while they are small. On the host, cohorts run on one device.
    """

    strategy: Strategy = AUTO
    devices: int | None = None
    client_store: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        Layout(self.strategy)  # says what is wrong with it
        where = self.client_store
        if where is None:
            return
        if not isinstance(where, (str, os.PathLike)) or not str(where):
            raise InputError(f"client_store must be 'device', 'host' or a folder, not {where!r}.")
        if isinstance(where, str) and where not in (DEVICE, HOST) and where.lower() in (DEVICE, HOST):
            raise InputError(f"client_store is {where!r}: did you mean {where.lower()!r}?")

    def apart(self, name: str) -> Simulator:
        """Return the engine for one of several runs: one that keeps clients' states in files gets a folder of its own."""
        if self.client_store in (None, DEVICE, HOST):
            return self
        return replace(self, client_store=Path(self.client_store) / name)

    def open(
        self,
        problem: Problem,
        clients: ClientSource,
        algorithm: Algorithm,
        conditions: Conditions,
        *,
        seed: int = 0,
        trace: Trace | None = None,
        start: Snapshot | None = None,
    ) -> Simulation:
        """Begin a run (see :class:`~fedminimax.engines.execution.Engine`)."""
        store = self._store(problem, clients, algorithm, start)
        layout = self._layout(problem, clients, algorithm, store is not None)
        program = Program.of(problem, algorithm, conditions, layout)
        return Simulation(program, clients, algorithm, seed, trace, start, store)

    def _store(
        self, problem: Problem, clients: ClientSource, algorithm: Algorithm, start: Snapshot | None
    ) -> ClientStore | None:
        """Return where the clients' states are to live on the host; None: on the device, or there are none."""
        where = self.client_store
        own = jax.eval_shape(lambda: algorithm.init_client(problem))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(own)) * clients.count
        if own is None or where == DEVICE or (where is None and size <= _ON_DEVICE):
            return None
        initial = algorithm.init_client(problem)
        if where is None or where == HOST:
            return ClientStore(clients.count, initial)
        folder = Path(where)
        kept = None if start is None else start.client_states
        if isinstance(kept, ClientStore) and kept.folder is not None and kept.folder.resolve() == folder.resolve():
            if start is not None and kept.rounds != start.round:
                raise InputError(
                    f"The states in {folder} are those after {kept.rounds} rounds, but the run goes on from round "
                    f"{start.round}: continue the later result, or give another folder from the start."
                )
            return kept
        return ClientStore(clients.count, initial, folder)

    def _layout(self, problem: Problem, clients: ClientSource, algorithm: Algorithm, host_state: bool) -> Layout:
        cohort = getattr(algorithm, "cohort_size", None) or clients.count
        parameters = players.size(problem.x0) + players.size(problem.y0)
        worthwhile = cohort > 1 and cohort * parameters >= _WORTH_SPLITTING
        # One device reads and writes the host: several would wait for each other where replies are added up, and for the
        # host, and may hold each other up for ever.
        usable = host.usable(self.devices, worthwhile)
        return Layout(self.strategy, 1 if host_state else usable, host_state)


def rehearse(problem: Problem, algorithm: Algorithm, clients: ClientSource, conditions: Conditions | None = None) -> Script:
    """Return what a round of the algorithm consists of, on whatever engine, without running one."""
    return Program.of(problem, algorithm, conditions or Conditions(), Layout(VMAP)).rehearse(algorithm, clients)


class SimulatedRound(Round):
    """A round whose clients are rows of arrays."""

    def __init__(
        self,
        program: Program,
        algorithm: Algorithm,
        data: ClientSource,
        weights: jax.Array,
        key: Key,
        client_states: Tree,
        t: Count,
        trace: Trace | None,
    ):
        super().__init__(
            count=data.count,
            sizes=data.sizes,
            weights=weights,
            t=t,
            key=key,
            conditions=program.conditions,
            trace=trace,
        )
        self.program, self.algorithm, self.data, self.client_states = program, algorithm, data, client_states

    @property
    def has_client_state(self) -> bool:
        """Whether clients remember something from round to round."""
        return self.client_states is not None

    def execute(
        self,
        fn: ClientFunction[Tree],
        cohort: Cohort,
        present: jax.Array | None,
        key: Key,
        broadcast: tuple[Tree, ...],
        per_client: tuple[Tree, ...],
        weights: jax.Array | None,
        guard: Guard,
    ) -> Executed:
        """Run ``fn`` for the whole cohort: ``width`` clients side by side, in ``turns``, on each device."""
        problem = self.program.problem
        devices, turns, width = self._places(cohort.size)
        stack = weights is None or guard.stacks

        def one(row: _Row) -> tuple[Tree, ...]:
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

        def turn(rows: _Row) -> tuple[_Sums, Tree]:
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

            def add(total: _Sums, rows: _Row) -> tuple[_Sums, Tree]:
                more, stacked = turn(rows)
                return jax.tree.map(jnp.add, total, more), stacked

            sums, stacked = jax.lax.scan(add, zero, rows)
        stacked = jax.tree.map(lambda a: a.reshape(turns * width, *a.shape[2:]), stacked)
        if self.program.layout.devices > 1:
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
        return RowFormat(jax.eval_shape(lambda: self.algorithm.init_client(self.program.problem)))

    def _states_of(self, ids: jax.Array) -> Tree:
        if self.program.layout.host_state:
            return self._format.read(ids, self.client_states)
        return jax.tree.map(lambda a: a[ids], self.client_states)

    def _remember(self, ids: jax.Array, here: jax.Array, states: Tree) -> None:
        if self.program.layout.host_state:
            self.client_states = self._format.write(ids, here, states, self.client_states)
            return
        where = jnp.where(here, ids, self.count)
        put = lambda all_, new: all_.at[where].set(new, mode="drop")
        self.client_states = jax.tree.map(put, self.client_states, states)

    def _places(self, size: int) -> tuple[int, int, int]:
        problem, layout = self.program.problem, self.program.layout
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

    id: jax.Array
    steps_word: jax.Array
    present: jax.Array
    weight: jax.Array
    own: tuple[Tree, ...]
    state: Tree
    note: Tree


class _Sums(NamedTuple):
    """What is added up over clients as they finish."""

    weight: jax.Array
    refused: jax.Array
    work: jax.Array
    value: Tree


@functools.lru_cache(maxsize=32)
def _stored(problem: Problem, structure: Hashable, conditions: Conditions, layout: Layout) -> Program:
    return Program(problem, conditions, layout)
