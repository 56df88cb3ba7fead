"""A run under way over many processes: process 0 leads, as if it were alone, and the others follow what it does."""

from __future__ import annotations

import itertools
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
from fedminimax.data.shards import ClientShard, deal
from fedminimax.engines.execution import Progress, Snapshot
from fedminimax.engines.mesh import placement
from fedminimax.engines.mesh.channel import Channel
from fedminimax.engines.mesh.evaluation import MeshJudge
from fedminimax.engines.mesh.rounds import MeshProgram
from fedminimax.engines.simulated_round import Given
from fedminimax.engines.simulator import Simulation
from fedminimax.engines.store import ClientStore
from fedminimax.federation.trace import Trace
from fedminimax.interrupts import held
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context
from fedminimax.players import Tree

_OPEN, _ADVANCE, _SNAPSHOT, _EVALUATE, _RESULT = "open", "advance", "snapshot", "evaluate", "result"


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
        self._pressed: list[Any] = []
        self._judge_parts = MeshJudge(program.problem, share, channel)
        self._cuts = deal(share.sizes, program.mesh.size) if isinstance(share, GeneratedClients) else np.asarray(share.cuts)
        # Where process 0 cannot open its folder, nobody waits for it in a collective.
        if channel.leads:
            channel.say(_OPEN)
        else:
            channel.hear()
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
        program, most = self._program, int(np.diff(self._cuts).max())
        carry = program.spread(program.first(self._given.algorithm, state), program.layout.each * most)
        own = placement.apart(carry.client_states, program.mesh)
        self._carry = carry._replace(state=program.everywhere(carry.state), client_states=own)

    @property
    def layout(self) -> dict[str, Any]:
        """How clients are dealt out."""
        layout, place = self._program.layout, self._channel.place
        return {"engine": "mesh", "strategy": layout.strategy, "processes": place.processes, "devices_each": layout.each}

    @property
    def packed(self) -> list[int]:
        """Of each exchange of a round, how many bytes are added up over the processes; known once there was a round."""
        return self._program.script(self._given, self._carry).packed

    def advance(self, rounds: int) -> Progress:
        """Run so many rounds more, on all processes."""
        with self._saying(f"{_ADVANCE} {rounds}"), self._channel.meeting():
            return super().advance(rounds)

    def snapshot(self) -> Snapshot:
        """Return all that the run goes on from, with the clients' states from all processes; process 0 alone has them."""
        with self._saying(_SNAPSHOT):
            state = jax.tree.map(np.asarray, self._carry.state)
            return Snapshot(state, self._all_states(), self.round)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from there; every process has been told where that is."""
        self._begin(snapshot.state)
        self.round = snapshot.round
        if snapshot.client_states is None:
            return
        most = int(np.diff(self._cuts).max())
        blocks = self._blocks()

        def own(all_: Tree, like: jax.Array) -> np.ndarray:
            out = np.zeros((len(blocks) * most, *np.shape(all_)[1:]), like.dtype)
            for k, (first, last) in enumerate(blocks):
                out[k * most : k * most + last - first] = np.asarray(all_)[first:last]
            return out

        states = jax.tree.map(own, snapshot.client_states, self._carry.client_states)
        self._carry = self._carry._replace(client_states=placement.apart(states, self._program.mesh))

    def _blocks(self) -> list[tuple[int, int]]:
        each, process = self._program.layout.each, self._channel.place.process
        cuts = self._cuts[process * each : (process + 1) * each + 1]
        return [(int(a), int(b)) for a, b in itertools.pairwise(cuts)]

    def _all_states(self) -> Tree:
        """Return the states of all clients, [N, ...], at process 0; None elsewhere, or where there are none."""
        if self._carry.client_states is None:
            return None
        most, blocks = int(np.diff(self._cuts).max()), self._blocks()
        leaves, structure = jax.tree.flatten(self._carry.client_states)
        own = [placement.own_part(leaf) for leaf in leaves]
        rows = [np.concatenate([part[k * most : k * most + b - a] for k, (a, b) in enumerate(blocks)]) for part in own]
        found = self._channel.collect(wire.encode(rows))
        if not found:
            return None
        parts: list[Any] = [wire.decode(part) for part in found]
        return jax.tree.unflatten(structure, [np.concatenate(rows) for rows in zip(*parts, strict=True)])

    def evaluate(self, metrics: Mapping[str, Metric], costs: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return every number of every metric at the state: from the processes' parts, put together at process 0."""
        if not metrics:
            return {}
        with self._saying(_EVALUATE):
            return self._judge_parts(metrics, self._carry.state, Context.at(self.round, costs))

    def ended(self, record: Callable[[], dict[str, Any]]) -> None:
        """Tell the others what came of the run, so that each returns it."""
        with self._saying(_RESULT):
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
        elif word == _EVALUATE:
            self.evaluate(metrics or {})
        return word != _RESULT

    def agreed(self, number: int) -> list[int]:
        """Return the number that each process gives; every process calls it."""
        numbers = np.zeros(self._channel.place.processes, np.int32)
        numbers[self._channel.place.process] = number
        return [int(n) for n in self._channel.total(numbers)]

    @contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        """Say what comes next, and do it. Ctrl-C interrupts when the next thing is asked for, before that is said."""
        # Not sooner: all processes must come to the end of it, and what came of it must not be lost on its way to the loop.
        if self._pressed:
            self._pressed = []
            raise KeyboardInterrupt
        with held() as self._pressed:
            if self._channel.leads:
                self._channel.say(what)
            yield


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
