"""A round over many processes: all draw the same cohort, each works for its own clients, and all meet once an exchange."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedminimax import players
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.shards import ClientShard
from fedminimax.engines.execution import Progress
from fedminimax.engines.layout import AXIS, Layout
from fedminimax.engines.mesh import halo, placement
from fedminimax.engines.mesh.dealt import Dealt
from fedminimax.engines.mesh.packing import packed_bytes, summed
from fedminimax.engines.mesh.placement import APART, EVERYWHERE, Blocks
from fedminimax.engines.program import Carry, Program, Rounds
from fedminimax.engines.simulated_round import Done, Given, Placed, Row, SimulatedRound, Sums
from fedminimax.federation.round import Conditions, Executed, Request
from fedminimax.network import Network
from fedminimax.players import Count, Tree
from fedminimax.problems.robust import Problem

_OF_A_TURN = 8
"""A device's share of a drawn cohort of 4 times so many clients is run in 2 turns, of 9 times so many in 3, and so on."""


@dataclass(frozen=True)
class MeshLayout(Layout):
    """How clients are laid out on each device; ``places`` is how many devices there are in all, ``each`` in a process."""

    places: int = 1
    each: int = 1
    process: int = 0
    in_place: bool = False
    """Whether the state is nodes' rows, each where the node is."""


class MeshRound(SimulatedRound):
    """A round of which every device carries out its own clients' part."""

    data: Blocks  # type: ignore[assignment]  # its fields are on many devices, and nobody asks for them
    layout: MeshLayout

    def execute(self, request: Request) -> Executed:
        """Run the program for this device's clients of the cohort, as many turns as they need, and add up with all others."""
        if self.layout.in_place:
            return self._in_place(request)
        size = request.ids.shape[0]
        rows = self._rows(request)._replace(state=None)
        mine = rows.present & self.data.rows(request.ids)[1]
        turns, width = self._places(size)
        own, back = rows._replace(present=mine), None
        if self.layout.places > 1 and turns > 1:
            order = jnp.argsort(~mine, stable=True)  # its own come first, and the others' turns are never taken
            own = jax.tree.map(lambda a: a[order], own)
            back = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32), unique_indices=True)
        count = jnp.sum(mine) if back is not None else size
        sums, stacked, self.client_states = self._own_turns(request, self._share(own, turns, width), count)
        out = jax.tree.map(lambda a: a.reshape(turns * width, *a.shape[2:])[:size], stacked)
        if back is not None:
            out = jax.tree.map(lambda a: a[back], out)
        value = jax.tree.map(lambda a: jnp.where(mine.reshape(-1, *[1] * (a.ndim - 1)), a, jnp.zeros_like(a)), out.value)
        meeting = (sums, out.accepted & mine, value)
        self.packed.append(packed_bytes(meeting))
        sums, accepted, value = summed(meeting, AXIS)
        # What clients keep until the end of the round stays where they are: only their own device reads it again.
        done = Executed(value, None, rows.present, accepted, out.note, sums.work)
        if request.weights is None:
            return done
        guard = request.guard
        total = players.scale(guard.combine(value, accepted), sums.weight) if guard.stacks else sums.value
        return done._replace(value=total, weight=sums.weight)

    def _in_place(self, request: Request) -> Executed:
        """Run the program for this device's nodes on their own rows, of which nothing leaves it."""
        most, (first, last) = self.data.most, self.data.first_and_last()
        nodes = jnp.minimum(jnp.arange(most), last - first - 1)  # the last one fills up
        own = request._replace(ids=self.data.numbers(nodes), present=jnp.arange(most) < last - first)
        if most * self.layout.places > self.data.count:
            own = own._replace(per_client=jax.tree.map(lambda a: a[nodes], request.per_client))
        width = self._width(most)
        turns = -(-most // width)
        rows = self._share(self._rows(own)._replace(state=None), turns, width)
        sums, stacked, self.client_states = self._own_turns(own, rows, last - first)
        out = jax.tree.map(lambda a: a.reshape(turns * width, *a.shape[2:])[:most], stacked)
        self.packed.append(0)
        everybody = jnp.ones(request.ids.shape[0], bool)
        return Executed(out.value, None, everybody, everybody, out.note, sums.work)

    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Count]:
        """Return this device's rows of W times the rows of all; what others need of its own goes to them."""
        if self.data.halo is None:
            return super().mix(network, rows)
        first, last = self.data.first_and_last()
        drop = self.conditions.guard.drop_nonfinite
        out, ignored, sent = halo.mixed(self.data.halo, network, rows, last - first, drop)
        self.packed.append(sent)
        return out, ignored

    def _turn(self, request: Request, rows: Row) -> tuple[Sums, Done]:
        # Looked up a turn at a time: a cohort of all would have everybody's states on every device.
        return super()._turn(request, rows._replace(state=self._states_of(rows.id)))

    def _own_turns(self, request: Request, rows: Row, count: Count) -> tuple[Sums, Done, Tree]:
        """Run as many turns as ``count`` clients need, and add up what is added up; places of other turns stay zeros.

        The block's states, with those that its clients have now, come third.
        """
        turns, width = rows.id.shape[:2]
        if turns == 1:
            sums, done = self._in_turns(request, rows)
            kept = self._kept(self.client_states, rows.id[0], *jax.tree.map(lambda a: a[0], (done.here, done.state)))
            return sums, done._replace(state=None), kept
        turn = jax.jit(lambda rows: self._turn(request, rows), inline=True)  # traced once, for its shapes and for the loop
        shapes = jax.eval_shape(turn, jax.tree.map(lambda a: a[0], rows))
        zeros = lambda lead, tree: jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), tree)

        def one(k: jax.Array, loop: tuple[Sums, Done, Tree]) -> tuple[Sums, Done, Tree]:
            total, room, kept = loop
            more, done = turn(jax.tree.map(lambda a: a[k], rows))
            kept = self._kept(kept, rows.id[k], done.here, done.state)
            put = lambda all_, new: all_.at[k].set(new)
            return jax.tree.map(jnp.add, total, more), jax.tree.map(put, room, done._replace(state=None)), kept

        room = zeros((turns,), shapes[1]._replace(state=None))
        return jax.lax.fori_loop(0, -(-count // width), one, (zeros((), shapes[0]), room, self.client_states))

    def _places(self, size: int) -> tuple[int, int]:
        """Return how many turns there are for a whole cohort, with how many clients side by side."""
        # A cohort of all has as many in a block as there are; of one that is drawn, more or fewer.
        width = self._width(self.data.most if size == self.data.count else side_by_side(size, self.layout.places))
        return -(-size // width), width

    def _states_of(self, ids: jax.Array) -> Tree:
        rows = self.data.rows(ids)[0]
        return jax.tree.map(lambda a: a[rows], self.client_states)

    def _kept(self, kept: Tree, ids: jax.Array, here: jax.Array, states: Tree) -> Tree:
        """Return the block's states with new ones of some of its clients."""
        rows, own = self.data.rows(ids)
        where = jnp.where(here & own, rows, self.data.most)
        return jax.tree.map(lambda all_, new: all_.at[where].set(new, mode="drop"), kept, states)


def side_by_side(size: int, places: int) -> int:
    """Return how many of a place's clients in a drawn cohort should run side by side: its share in as few turns as will do.

    A turn that is not full costs as much as one that is, and each costs something whatever its width. So the turns are
    just wide enough for what the fullest place has of most cohorts, and a large share, of which little is left over in
    the last turn, has more of them. One place alone has all of every cohort.
    """
    mean = size / places
    fullest = min(size, math.ceil(mean + math.sqrt(2 * mean * (1 - 1 / places) * math.log(places))))
    turns = max(1, math.isqrt(fullest // _OF_A_TURN)) if places > 1 else 1
    return -(-fullest // turns)


class MeshProgram(Program):
    """The rounds of one kind of run over many processes: the same program on every device, each with its own clients."""

    kind = MeshRound
    layout: MeshLayout

    @classmethod
    def of(cls, problem: Problem, algorithm: Algorithm, conditions: Conditions, layout: Layout) -> MeshProgram:
        """Return the program for this kind of run: the one that was made before, if there was."""
        assert isinstance(layout, MeshLayout)
        return _stored(problem, jax.tree.structure(algorithm), conditions, layout)

    @property
    def mesh(self) -> Mesh:
        """All devices, in the order of the blocks of clients."""
        return placement.device_mesh(self.layout.each)

    def place(self, clients: ClientSource) -> Placed:
        """Put this process's clients on its devices, and the weights p on all, once."""
        assert isinstance(clients, (ClientShard, GeneratedClients))
        weights = np.asarray(self.problem.client_weights(clients), jnp.zeros(()).dtype)
        network = self.problem.network if self.layout.in_place else None  # type: ignore[union-attr]
        blocks = placement.placed(clients, self.dealt(clients), self.mesh, network)
        return Placed(blocks, self.everywhere(weights))  # type: ignore[arg-type]

    def dealt(self, clients: ClientShard | GeneratedClients) -> Dealt:
        """Return which of some clients are where."""
        layout = self.layout
        return Dealt.of(clients, self.problem, layout.process, layout.places // layout.each, layout.each)

    def first_rows(self, algorithm: Algorithm, state: Tree | None, dealt: Dealt) -> Tree:
        """Return the rows of this process's nodes that the first round starts from: those of a state, or the method's own."""
        if state is not None:
            return jax.tree.map(dealt.part, state)
        # Compiled as one, so that rows that are all alike are never made for all nodes.
        own = jax.jit(lambda numbers: jax.tree.map(lambda a: jnp.asarray(a)[numbers], algorithm.init(self.problem)))
        return jax.tree.map(np.asarray, own(dealt.numbers()))

    def everywhere(self, tree: Tree) -> Tree:
        """Put a tree on every device."""
        return placement.everywhere(tree, self.mesh)

    def spread(self, first: Carry, count: int) -> Carry:
        """Give every client the state that it starts from; this returns one device's, of ``count`` clients."""
        spread = lambda leaf: np.broadcast_to(np.asarray(leaf, jnp.result_type(leaf)), (count, *jnp.shape(leaf)))
        return first._replace(client_states=jax.tree.map(spread, first.client_states))

    def spread_out(self, program: Rounds, *args: *tuple[Given, Carry, Count, Count]) -> tuple[Carry, Progress]:
        """Carry out a program on all devices of all processes; they meet where replies are added up."""
        given, blocks = args[0], args[0].data.clients
        assert isinstance(blocks, Blocks)
        stays = Given(EVERYWHERE, Placed(placement.specs(blocks), EVERYWHERE), EVERYWHERE, EVERYWHERE)  # type: ignore[arg-type]
        goes = Carry(APART if self.layout.in_place else EVERYWHERE, APART)
        both = jax.shard_map(
            self._counted(program) if self.layout.in_place else program,
            mesh=self.mesh,
            in_specs=(stays, goes, EVERYWHERE, EVERYWHERE),
            out_specs=(goes, EVERYWHERE),
            check_vma=False,
        )
        return both(given, *args[1:])

    @staticmethod
    def _counted(program: Rounds) -> Rounds:
        """Return a program that adds up what the devices have counted, of all rounds at once."""

        def counted(*args: *tuple[Given, Carry, Count, Count]) -> tuple[Carry, Progress]:
            carry, done = program(*args)
            dropped, work = summed((done.traffic.dropped, done.traffic.work), AXIS)
            return carry, done._replace(traffic=done.traffic._replace(dropped=dropped, work=work))

        return counted


@functools.lru_cache(maxsize=32)
def _stored(problem: Problem, structure: Hashable, conditions: Conditions, layout: MeshLayout) -> MeshProgram:
    return MeshProgram(problem, conditions, layout)
