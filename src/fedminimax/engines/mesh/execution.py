"""A run under way over many processes: process 0 leads, as if it were alone, and the others follow what it does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from fedminimax import wire
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.shards import ClientShard
from fedminimax.engines.execution import Progress, Snapshot
from fedminimax.engines.mesh import placement
from fedminimax.engines.mesh.channel import Channel
from fedminimax.engines.mesh.evaluation import MeshJudge, Rows
from fedminimax.engines.mesh.rounds import MeshProgram
from fedminimax.engines.simulated_round import Given
from fedminimax.engines.simulator import Simulation
from fedminimax.engines.store import ClientStore
from fedminimax.federation.trace import Trace
from fedminimax.interrupts import uninterrupted
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context
from fedminimax.players import Tree

_ADVANCE, _SNAPSHOT, _STATE, _EVALUATE, _RESULT = "advance", "snapshot", "state", "evaluate", "result"


class MeshExecution(Simulation):
    """A run under way over many processes.

    What process 0 is asked to do (advance, take a snapshot, evaluate) it says to the others, which do the same
    (:meth:`follow`): all that depends on the time, on files or on the user is decided once.
    """

    _program: MeshProgram

    def __init__(
        self,
        program: MeshProgram,
        share: ClientShard | GeneratedClients,
        algorithm: Algorithm,
        seed: int,
        trace: Trace | None,
        start: Snapshot | None,
        channel: Channel,
    ):
        self._channel, self._share = channel, share
        self._dealt, self._in_place = program.dealt(share), program.layout.in_place
        self._judge_parts = MeshJudge(program.problem, share, self._dealt, channel)
        with channel.meeting():
            super().__init__(program, share, algorithm, seed, trace, self._shared(start), None)
        everywhere = program.everywhere
        given = self._given
        self._given = Given(everywhere(algorithm), given.data, everywhere(given.key), everywhere(trace))

    def _shared(self, start: Snapshot | None) -> Snapshot | None:
        """Return where the run goes on, as process 0 knows it: only that has read the folder."""
        packed = None
        if self._channel.leads and start is not None:
            own = start.client_states
            packed = wire.encode((start.state, own.dense() if isinstance(own, ClientStore) else own, start.round))
        told = self._channel.share(packed)
        return Snapshot(*wire.decode(told)) if told else None

    def _begin(self, state: Tree | None) -> None:
        program, algorithm = self._program, self._given.algorithm
        rows = program.first_rows(algorithm, state, self._dealt) if self._in_place else None
        carry = program.spread(program.first(algorithm, state if rows is None else rows), len(self._dealt.numbers()))
        own = placement.apart(carry.client_states, program.mesh)
        there = program.everywhere(carry.state) if rows is None else placement.apart(carry.state, program.mesh)
        self._carry = carry._replace(state=there, client_states=own)

    @property
    def state(self) -> Tree:
        """The algorithm's state after the last round; of nodes, process 0 alone has all rows, and the others nothing."""
        if not self._in_place:
            return self._carry.state
        self._say(_STATE)
        with uninterrupted():
            return self._whole(self._carry.state)

    @property
    def layout(self) -> dict[str, Any]:
        """How clients are dealt out."""
        layout, place = self._program.layout, self._channel.place
        return {"engine": "mesh", "strategy": layout.strategy, "processes": place.processes, "devices_each": layout.each}

    @property
    def packed(self) -> list[int]:
        """Of each exchange of a round, how many bytes are added up over processes, or sent by each; known after a round."""
        return self._program.script(self._given, self._carry).packed

    def advance(self, rounds: int) -> Progress:
        """Run so many rounds more, on all processes. Ctrl-C waits for their end: all must have run the same."""
        self._say(f"{_ADVANCE} {rounds}")
        with uninterrupted(), self._channel.meeting():
            return super().advance(rounds)

    def snapshot(self) -> Snapshot:
        """Return all that the run goes on from, with the clients' states from all processes; process 0 alone has them."""
        self._say(_SNAPSHOT)
        with uninterrupted():
            state = self._carry.state
            state = self._whole(state) if self._in_place else jax.tree.map(np.asarray, state)
            return Snapshot(state, self._whole(self._carry.client_states), self.round)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from there; every process has been told where that is."""
        self._begin(snapshot.state)
        self.round = snapshot.round
        if snapshot.client_states is None:
            return
        own = lambda all_, like: self._dealt.part(all_).astype(like.dtype)
        states = jax.tree.map(own, snapshot.client_states, self._carry.client_states)
        self._carry = self._carry._replace(client_states=placement.apart(states, self._program.mesh))

    def _own(self, tree: Tree) -> Tree:
        """Return this process's rows of what is spread over all."""
        return jax.tree.map(lambda leaf: self._dealt.rows(placement.own_part(leaf)), tree)

    def _whole(self, tree: Tree) -> Tree:
        """Return the rows of all clients, [N, ...], at process 0; None elsewhere, or where there are none."""
        return None if tree is None else self._dealt.gathered(self._own(tree), self._channel)

    def evaluate(self, metrics: Mapping[str, Metric], costs: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return every number of every metric at the state: from the processes' parts, put together at process 0."""
        if not metrics:
            return {}
        self._say(_EVALUATE)
        state = self._carry.state
        held = Rows(self._own(state)) if self._in_place else state
        return self._judge_parts(metrics, held, Context.at(self.round, costs))

    def ended(self, record: Callable[[], dict[str, Any]]) -> None:
        """Tell the others what came of the run, so that each returns it."""
        self._say(_RESULT)
        self._channel.share(wire.encode(record()))

    def follow(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Do what process 0 does until its end; return the record of the result.

        Args:
            metrics: what will be evaluated, as process 0 has it.
        """
        with _undisturbed():
            while self.follow_one(metrics):
                pass
            record: Any = wire.decode(self._channel.share(None))
            return record

    def follow_one(self, metrics: Mapping[str, Metric] | None = None) -> bool:
        """Do the next thing that process 0 does; return False where that was its end."""
        word, _, number = self._channel.hear().partition(" ")
        if word == _ADVANCE:
            self.advance(int(number))
        elif word == _SNAPSHOT:
            self.snapshot()
        elif word == _STATE:
            _ = self.state
        elif word == _EVALUATE:
            self.evaluate(metrics or {})
        return word != _RESULT

    def agreed(self, number: int) -> list[int]:
        """Return the number that each process gives; every process calls it."""
        numbers = np.zeros(self._channel.place.processes, np.int32)
        numbers[self._channel.place.process] = number
        return [int(n) for n in self._channel.total(numbers)]

    def _say(self, what: str) -> None:
        if self._channel.leads:
            self._channel.say(what)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave Ctrl-C, which all processes on a terminal get, to process 0."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
