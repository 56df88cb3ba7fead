"""A run under way over many processes: process 0 leads, as if it were alone, and the others follow what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
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
from fedminimax.engines.rows import OwnStates, Part, SavedStates
from fedminimax.engines.simulated_round import Given
from fedminimax.engines.simulator import Simulation
from fedminimax.engines.store import ClientStore
from fedminimax.errors import InputError
from fedminimax.federation.trace import Trace
from fedminimax.interrupts import held, unheard
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context
from fedminimax.players import Tree

_OPEN, _ADVANCE, _STATE, _KEEP, _EVALUATE, _RESULT = "open", "advance", "state", "keep", "evaluate", "result"
_DEALT, _OWN = "dealt", "own"
"""Where the clients' states come from that a run goes on with: from process 0, or each process has its own."""


class MeshExecution(Simulation):
    """A run under way over many processes.

    What process 0 is asked to do (advance, evaluate, keep a checkpoint) it says to the others, which do the same
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
        self._program, self._channel, self._share = program, channel, share
        self._dealt, self._in_place = program.dealt(share), program.layout.in_place
        self._pressed: list[Any] = []
        self._saving = channel.saving
        self._judge_parts = MeshJudge(program.problem, share, self._dealt, channel)
        # Where process 0 cannot open its folder, nobody waits for it in a collective.
        if channel.leads:
            channel.say(_OPEN)
        else:
            channel.hear()
        with channel.meeting():
            super().__init__(program, share, algorithm, seed, trace, self._shared(start, algorithm), None)
        if self._dealt.order is not None and self._carry.client_states is not None:
            raise InputError("Nodes of a network that remember something beside their row cannot be spread over processes.")
        everywhere = program.everywhere
        given = self._given
        self._given = Given(everywhere(algorithm), given.data, everywhere(given.key), everywhere(trace))

    def _shared(self, start: Snapshot | None, algorithm: Algorithm) -> Snapshot | None:
        """Return where the run goes on, as process 0 knows it (only that has read the folder), with its own clients' states."""
        packed = None
        if self._channel.leads and start is not None:
            given = start.client_states
            whence = _OWN if isinstance(given, OwnStates) else _DEALT
            packed = wire.encode((start.state, given if isinstance(given, SavedStates | None) else whence, start.round))
        told = self._channel.share(packed)
        if not told:
            return None
        found: Any = wire.decode(told)
        state, whence, round_ = found
        (first, last), count = self._range(self._channel.place.process), int(self._dealt.cuts[-1])
        if isinstance(whence, SavedStates):
            rows = whence.read(algorithm.init_client(self._program.problem), first, last)
            return Snapshot(state, OwnStates(first, count, rows), round_)
        return Snapshot(state, self._given_states(whence, None if start is None else start.client_states), round_)

    def _given_states(self, whence: str | None, given: Tree) -> OwnStates | None:
        """Return the states that this process's clients go on with, of those that were given; None: fresh ones."""
        (first, last), count = self._range(self._channel.place.process), int(self._dealt.cuts[-1])
        if whence is None:
            return None
        if whence == _DEALT:
            all_ = given.dense() if isinstance(given, ClientStore) else given
            part = lambda process: jax.tree.map(lambda a: np.asarray(a)[slice(*self._range(process))], all_)
            return OwnStates(first, count, wire.decode(self._channel.deal(lambda process: wire.encode(part(process)))))
        if not isinstance(given, OwnStates) or (given.first, given.last) != (first, last):
            raise InputError(
                f"This process has clients {first} to {last - 1}, but the result to continue has other clients' states: go on "
                "with as many processes, each with its own result, or from the run's folder."
            )
        return given

    def _range(self, process: int) -> tuple[int, int]:
        """Return a process's first client, and the one after its last."""
        each = self._program.layout.each
        return int(self._dealt.cuts[process * each]), int(self._dealt.cuts[(process + 1) * each])

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
        with self._saying(_STATE):
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
        """Run so many rounds more, on all processes."""
        with self._saying(f"{_ADVANCE} {rounds}"), self._channel.meeting():
            return super().advance(rounds)

    def snapshot(self) -> Snapshot:
        """Return all that the run goes on from; of the clients' states, where there are several processes, its own.

        Of nodes, whose rows are the state, process 0 alone has all of them.
        """
        own = self._own_states()
        alone = own is None or self._channel.place.processes == 1
        state = self.state if self._in_place else jax.tree.map(np.asarray, self._carry.state)
        return Snapshot(state, own.rows if own and alone else own, self.round)

    def keep(self, folder: Path) -> Callable[[], list[Part]] | None:
        """Have each process write its own clients' states into a checkpoint's folder; process 0 waits for all."""
        own, number = self._own_states(), self._channel.words
        if own is None or self._saving is None:
            return None
        with self._saying(f"{_KEEP} {number} {folder}"):
            return self._saving.together(own, folder, number)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from there; every process has been told where that is."""
        self._begin(snapshot.state)
        self.round = snapshot.round
        given = snapshot.client_states
        if given is None:
            return
        start, rows = (given.first, given.rows) if isinstance(given, OwnStates) else (0, given)
        own = lambda all_, like: np.asarray(all_)[self._dealt.numbers() - start].astype(like.dtype)
        states = jax.tree.map(own, rows, self._carry.client_states)
        self._carry = self._carry._replace(client_states=placement.apart(states, self._program.mesh))

    def _own(self, tree: Tree) -> Tree:
        """Return this process's rows of what is spread over all."""
        return jax.tree.map(lambda leaf: self._dealt.rows(placement.own_part(leaf)), tree)

    def _whole(self, tree: Tree) -> Tree:
        """Return the rows of all clients, [N, ...], at process 0; None elsewhere, or where there are none."""
        return None if tree is None else self._dealt.gathered(self._own(tree), self._channel)

    def _own_states(self) -> OwnStates | None:
        """Return the states of this process's clients; None: they have none."""
        if self._carry.client_states is None:
            return None
        first, _ = self._range(self._channel.place.process)
        return OwnStates(first, int(self._dealt.cuts[-1]), self._own(self._carry.client_states))

    def evaluate(self, metrics: Mapping[str, Metric], costs: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return every number of every metric at the state: from the processes' parts, put together at process 0."""
        if not metrics:
            return {}
        with self._saying(_EVALUATE):
            state = self._carry.state
            held = Rows(self._own(state)) if self._in_place else state
            return self._judge_parts(metrics, held, Context.at(self.round, costs))

    def ended(self, record: Callable[[], dict[str, Any]]) -> None:
        """Tell the others what came of the run, so that each returns it, with its own clients' states."""
        with self._saying(_RESULT):
            self._channel.share(wire.encode({**record(), "client_states": None}))

    def follow(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Do what process 0 does until its end; return the record of the result.

        Args:
            metrics: what will be evaluated, as process 0 has it.
        """
        with unheard():
            while self.follow_one(metrics):
                pass
            record: Any = wire.decode(self._channel.share(None))
            return {**record, "client_states": self._own_states()}

    def follow_one(self, metrics: Mapping[str, Metric] | None = None) -> bool:
        """Do the next thing that process 0 does; return False where that was its end."""
        word, _, number = self._channel.hear().partition(" ")
        if word == _ADVANCE:
            self.advance(int(number))
        elif word == _STATE:
            _ = self.state
        elif word == _KEEP:
            self._write_own(*number.split(" ", 1))
        elif word == _EVALUATE:
            self.evaluate(metrics or {})
        return word != _RESULT

    def _write_own(self, number: str, folder: str) -> None:
        own = self._own_states()
        assert own is not None
        assert self._saving is not None
        self._saving.write(own, Path(folder), int(number))

    def close(self) -> None:
        """Let go of what the run holds, once what is being written is."""
        if self._saving is not None:
            self._saving.close()

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
