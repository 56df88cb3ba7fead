"""The simulator: whole rounds compiled, many rounds a call, clients side by side, one after another, or in chunks of both.

No Python runs per step, client or round. Memory is that of the data, the model, and as many models as there are clients
side by side.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import devices as host
from fedminimax import players
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.evaluation import Judge
from fedminimax.engines.execution import Execution, Progress, Snapshot
from fedminimax.engines.layout import AUTO, Layout, Strategy
from fedminimax.engines.program import Program
from fedminimax.engines.simulated_round import Given
from fedminimax.engines.store import DEVICE, HOST, JOURNAL, ClientStore
from fedminimax.errors import InputError
from fedminimax.federation.round import Conditions
from fedminimax.federation.trace import Trace
from fedminimax.interrupts import uninterrupted
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context
from fedminimax.players import Tree
from fedminimax.problems.robust import Problem
from fedminimax.random import keys

_WORTH_SPLITTING = 20_000
"""Parameters of a whole cohort above which cores are worth their meeting points (measured: benchmarks/README.md)."""
_ON_DEVICE = 2**28
"""Bytes of clients' states that are kept on the device unless told otherwise."""
ROOM = 256
"""Rounds for which a call has room: one number, so that runs of any length share a program."""


def _room(rounds: int) -> int:
    """Return for how many rounds a call has room: ROOM, doubled until it is enough, so that few programs serve all lengths."""
    return ROOM << ((max(rounds, 1) - 1) // ROOM).bit_length()


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
        self._program, self._store, self._count = program, store, clients.count
        self._given = Given(algorithm, program.place(clients), keys.root(seed), trace)
        self._judge: Judge | None = None
        self._cohort = getattr(algorithm, "cohort_size", None) or clients.count
        self.round, self.messages = 0, []
        if start is None:
            self._begin(None)
        else:
            self.restore(start)

    def _begin(self, state: Tree | None) -> None:
        program = self._program
        carry = program.spread(program.first(self._given.algorithm, state), self._count)
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

    @property
    def layout(self) -> dict[str, Any]:
        """How cohorts are split and laid out."""
        layout = self._program.layout
        return {"engine": "simulator", "strategy": layout.strategy, "devices": layout.devices, "host_state": layout.host_state}

    def advance(self, rounds: int) -> Progress:
        """Run so many rounds more, in one call of a compiled program."""
        carry, progress = self._program.advance(self._given, self._carry, self.round, rounds, length=_room(rounds))
        try:
            progress = jax.tree.map(lambda a: np.asarray(a)[:rounds], progress)
            if self._store is not None:
                carry = jax.block_until_ready(carry)
        except KeyboardInterrupt:
            if self._store is not None:
                jax.block_until_ready(carry)  # the rounds go on without us, and would write behind our back
                self._store.rollback()
            raise
        if not self.messages:
            self.messages = self._program.script(self._given, self._carry).messages
        with uninterrupted():  # or states and rounds would not be of one time
            if self._store is not None:
                self._store.commit()
                self._store.rounds = self.round + rounds
            self._carry, self.round = carry, self.round + rounds
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
            self._judge = Judge(self._program.problem, self._given.data.clients)
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

    def beside(self, folder: Path, problem: Problem, clients: ClientSource, algorithm: Algorithm) -> Simulator:
        """Return the engine for a run with a folder: clients' states that are too large for the device go to files there."""
        large = self.client_store is None and (_bytes_of_states(problem, clients, algorithm) or 0) > _ON_DEVICE
        return replace(self, client_store=folder) if large else self

    def like(self, layout: Mapping[str, Any]) -> Simulator:
        """Return the engine that lays clients out as a run before did, where this one leaves it open and there is as much."""
        wanted = layout.get("devices")
        fits = isinstance(wanted, int) and 1 <= wanted <= len(jax.local_devices())
        return replace(self, devices=wanted) if self.devices is None and fits else self

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
        size = _bytes_of_states(problem, clients, algorithm)
        if size is None or where == DEVICE or (where is None and size <= _ON_DEVICE):
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
        on_host = getattr(getattr(problem, "loss", None), "on_host", False)  # a loss that is no program of JAX
        return Layout(self.strategy, 1 if host_state or on_host else usable, host_state)


def _bytes_of_states(problem: Problem, clients: ClientSource, algorithm: Algorithm) -> int | None:
    """Return how large the clients' own states are together; None: they have none."""
    own = jax.eval_shape(lambda: algorithm.init_client(problem))
    return None if own is None else sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(own)) * clients.count
