"""The compiled rounds of the simulator, which runs alike share, and what a round is known to consist of once it is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.devices import compiler_options
from fedminimax.engines.execution import Progress
from fedminimax.engines.layout import AXIS, VMAP, Layout
from fedminimax.engines.simulated_round import Given, Placed, SimulatedRound
from fedminimax.federation.accounting import Message
from fedminimax.federation.cohort import Clients
from fedminimax.federation.round import Conditions
from fedminimax.federation.trace import Asked
from fedminimax.players import Count, Tree
from fedminimax.problems.robust import Problem
from fedminimax.random import keys
from fedminimax.random.keys import Key
from fedminimax.schedules import at_round


class Carry(NamedTuple):
    """What goes from round to round: the algorithm's state and the clients' own.

    Those are arrays [N, ...]; or, where they live on the host, a token that orders what is read and written there; or None.
    """

    state: Tree
    client_states: Tree


@dataclass
class Script:
    """What a round consists of, known when it is traced: its exchanges in order, and all that a trace could tell it."""

    messages: list[Message] = field(default_factory=list)
    asked: Asked = field(default_factory=Asked)
    packed: list[int] = field(default_factory=list)
    """Of each exchange, how many bytes processes add up together, or each sends at most, where there are several."""


Rounds = Callable[[Given, Carry, Count, Count], tuple[Carry, Progress]]
"""Runs some rounds: (what stays the same, where they begin, the first, how many)."""


class Program:
    """The rounds of one kind of run, compiled: what runs alike share. It holds nothing of any of them."""

    kind: type[SimulatedRound] = SimulatedRound

    def __init__(self, problem: Problem, conditions: Conditions, layout: Layout):
        self.problem, self.conditions, self.layout = problem, conditions, layout
        self._scripts: dict[Hashable, Script] = {}
        self._advance = jax.jit(self._rounds, static_argnames="length", compiler_options=compiler_options())

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
        where = jax.local_devices()[0] if self.layout.devices == 1 else NamedSharding(self._mesh(), PartitionSpec())
        return jax.device_put(tree, where)

    def _mesh(self) -> Mesh:
        return Mesh(np.asarray(jax.local_devices()[: self.layout.devices]), (AXIS,))

    def advance(self, given: Given, carry: Carry, first: int, rounds: int, length: int | None = None) -> tuple[Carry, Progress]:
        """Run ``rounds`` rounds from round ``first`` on. Calls with the same ``length`` (room for rounds) are one program."""
        return self._advance(given, carry, first, rounds, length=rounds if length is None else length)

    def script(self, given: Given, carry: Carry) -> Script:
        """Return what a round of such a run consists of, which is known since it was compiled."""
        return self._scripts[_signature((given, carry))]

    def rehearse(self, algorithm: Algorithm, clients: ClientSource) -> Script:
        """Return what a round consists of, on whatever engine: one is traced, and nothing is compiled or run."""
        signature = _signature(("rehearsal", algorithm, clients))
        if signature not in self._scripts:
            script, weights = Script(), jnp.asarray(self.problem.client_weights(clients), float)

            def one(clients: ClientSource, key: Key, t: Count) -> tuple[Carry, Progress]:
                carry = self.spread(self.first(algorithm), clients.count)
                return self.one_round(Given(algorithm, Placed(clients, weights), key), carry, t, script)

            jax.eval_shape(one, clients, keys.root(0), 0)
            self._scripts[signature] = script
        return self._scripts[signature]

    def one_round(self, given: Given, carry: Carry, t: Count, script: Script | None = None) -> tuple[Carry, Progress]:
        """Carry out one round: the function that everything here compiles. What it consists of is put into ``script``."""
        algorithm = at_round(given.algorithm, t)
        now = given._replace(algorithm=algorithm)
        round_ = self.kind(self.problem, self.conditions, self.layout, now, carry.client_states, t)
        state = algorithm.round(self.problem, carry.state, Clients(round_))
        state = jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), state, carry.state)
        if script is not None:
            script.messages, script.asked, script.packed = round_.messages, round_.asked, round_.packed
        attendance = round_.attendance() if self.conditions.record else ()
        return Carry(state, round_.client_states), Progress(round_.stacked_traffic(), attendance, tuple(round_.sent))

    def _rounds(self, given: Given, carry: Carry, first: Count, rounds: Count, *, length: int) -> tuple[Carry, Progress]:
        script = Script()

        def program(given: Given, carry: Carry, first: Count, rounds: Count) -> tuple[Carry, Progress]:
            # Traced once, for its shapes and for the loop: tracing is a quarter of what a program takes to be made.
            one = jax.jit(lambda given, carry, t: self.one_round(given, carry, t, script), inline=True)
            first = jnp.asarray(first, jnp.int32)
            shapes = jax.eval_shape(one, given, carry, first)[1]
            room = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)

            def body(k: jax.Array, loop: tuple[Carry, Progress]) -> tuple[Carry, Progress]:
                carry, done = loop
                carry, new = one(given, carry, first + k)
                return carry, jax.tree.map(lambda all_, row: all_.at[k].set(row), done, new)

            return jax.lax.fori_loop(0, rounds, body, (carry, room))

        self._scripts[_signature((given, carry))] = script
        return self.spread_out(program, given, carry, first, rounds)

    def spread_out(self, program: Rounds, *args: *tuple[Given, Carry, Count, Count]) -> tuple[Carry, Progress]:
        """Carry out a program on all devices, inside of the compiled one."""
        if self.layout.devices == 1:
            return program(*args)
        # One program on every device, each with its share of every cohort; they meet where replies are added up.
        everywhere = PartitionSpec()
        return jax.shard_map(program, mesh=self._mesh(), in_specs=everywhere, out_specs=everywhere, check_vma=False)(*args)


def rehearse(problem: Problem, algorithm: Algorithm, clients: ClientSource, conditions: Conditions | None = None) -> Script:
    """Return what a round of the algorithm consists of, on whatever engine, without running one."""
    return Program.of(problem, algorithm, conditions or Conditions(), Layout(VMAP)).rehearse(algorithm, clients)


def _signature(tree: Tree) -> Hashable:
    """Return what a program is compiled for: the structure, shapes and dtypes of its arguments."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(leaf if isinstance(leaf, str) else (jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


@functools.lru_cache(maxsize=32)
def _stored(problem: Problem, structure: Hashable, conditions: Conditions, layout: Layout) -> Program:
    return Program(problem, conditions, layout)
