"""The isolated engine: every client a worker that holds only its own data and state, every exchange bytes.

Slow and simple on purpose. It proves that no method shares what it should not, and it can be stepped through with a debugger
(under ``jax.disable_jit()``). A real federation (:mod:`fedminimax.engines.federated`) asks its sites the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players, wire
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.engines.evaluation import Gatherer, own_parts
from fedminimax.engines.exchange import Heard, MessageExecution, MessageRound, carry_out, host
from fedminimax.engines.execution import Snapshot
from fedminimax.engines.store import ClientStore
from fedminimax.federation.client import Reply
from fedminimax.federation.guard import finite
from fedminimax.federation.privacy import Privacy
from fedminimax.federation.round import Conditions, Request
from fedminimax.federation.trace import Trace
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context, Roll
from fedminimax.network import Network
from fedminimax.players import Count, Tree
from fedminimax.problems.robust import Problem


class Worker:
    """One client on its own: its number, its data, its state, and the programs that the algorithm defines."""

    def __init__(self, id: int, data: ClientData, problem: Problem, algorithm: Algorithm, state: Tree, privacy: Privacy | None):
        self.id, self.data, self.state, self._privacy = id, data, state, privacy
        self._problem, self._algorithm = problem, algorithm
        self._notes: dict[str, Tree] = {}
        self._round = -1
        self._learnt: tuple[str, Tree] | None = None
        self.held_out: dict[int | str, ClientData] = {}

    def handle(self, request: bytes) -> bytes:
        """Run the program that the request names, or take a part in metrics, and return the reply."""
        ask = wire.decode(request)
        if "parts" in ask:
            return wire.encode(own_parts(self._problem, self.id, self.data, self.held_out, ask["parts"]))
        self.settle(ask["counted"])
        if ask["round"] != self._round:
            self._notes, self._round = {}, ask["round"]
        note = self._notes.get(ask["place"])
        out, work = carry_out(self._problem, self._algorithm, self.data, self.id, ask, self.state, note, self._privacy)
        if out.state is not None and finite(out.value):
            self._learnt = ask["exchange"], out.state
        self._notes[ask["place"]] = out.note
        return wire.encode(host(Heard(out.value, work)._asdict()))

    def settle(self, counted: str | None) -> None:
        """Remember what was learnt in the last exchange, if its reply arrived; else forget it.

        Args:
            counted: the last exchange from which the server has this client's reply, as the next request tells.
        """
        if self._learnt is not None and self._learnt[0] == counted:
            self.state = self._learnt[1]
        self._learnt = None


class IsolatedExecution(MessageExecution):
    """A run under way among workers."""

    def __init__(
        self,
        problem: Problem,
        clients: ClientSource,
        algorithm: Algorithm,
        conditions: Conditions,
        seed: int,
        trace: Trace | None,
        start: Snapshot | None,
        data_on_server: bool = True,
    ):
        super().__init__(problem, clients, algorithm, conditions, seed, trace)
        own = algorithm.init_client(problem)
        worker = lambda i: Worker(i, clients.only(i), problem, algorithm, own, conditions.privacy)
        self.workers = [worker(i) for i in range(clients.count)]
        self._gatherer = Gatherer(problem, clients if data_on_server else Roll.of(clients), self._ask_all, self._give)
        self.counted: dict[int, str] = {}  # by client: the last exchange from which its reply arrived
        if start is None:
            self._state = algorithm.init(problem)
        else:
            self.restore(start)

    @property
    def layout(self) -> dict[str, Any]:
        """Every client a worker: nothing to choose."""
        return {"engine": "isolated"}

    def next_round(self) -> IsolatedRound:
        """Return the round that comes next."""
        return IsolatedRound(self)

    def snapshot(self) -> Snapshot:
        """Return all that the run goes on from; only this, of all that is here, looks over the workers' walls."""
        for worker in self.workers:
            worker.settle(self.counted.get(worker.id))
        own = jax.tree.map(lambda *rows: np.stack([np.asarray(r) for r in rows]), *(w.state for w in self.workers))
        return Snapshot(jax.tree.map(np.asarray, self._state), own, self.round)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from there."""
        self._state, self.round, self.counted = jax.tree.map(jnp.asarray, snapshot.state), snapshot.round, {}
        own = snapshot.client_states
        if own is None:
            return
        own = own.dense() if isinstance(own, ClientStore) else own
        for i, worker in enumerate(self.workers):
            worker.settle(None)
            worker.state = jax.tree.map(lambda a, like, i=i: np.asarray(a, jnp.result_type(like))[i], own, worker.state)

    def evaluate(self, metrics: Mapping[str, Metric], costs: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return every number of every metric at the state: from the workers' parts, or on all data where there are none."""
        return self._gatherer(metrics, self._state, Context.at(self.round, costs))

    def send(self, client: int, request: bytes) -> bytes | None:
        """Send a client a request of a round, and return its reply; None: none arrived. Here none is ever lost."""
        return self._ask(client, request)

    def _ask(self, client: int, request: bytes) -> bytes:
        return self.workers[client].handle(request)

    def _ask_all(self, requests: Sequence[Tree]) -> list[Tree]:
        return [wire.decode(self._ask(i, wire.encode({"parts": request}))) for i, request in enumerate(requests)]

    def _give(self, client: int, number: int, share: ClientData) -> None:
        self.workers[client].held_out[number] = share


@dataclass(frozen=True)
class Isolated:
    """The engine in which every client is a worker that has its own data only, and every exchange is bytes.

    Metrics are exchanges too, where they have parts: a worker is sent a metric's name and settings, and replies with its part.

    Args:
        data_on_server: whether metrics that need all clients' data in one place (``needs = "together"``) have it: this is one
            process, and they can. False: they are refused, as they must be where the server has no data.
    """

    data_on_server: bool = True

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
    ) -> IsolatedExecution:
        """Begin a run (see :class:`~fedminimax.engines.execution.Engine`)."""
        return IsolatedExecution(problem, clients, algorithm, conditions, seed, trace, start, self.data_on_server)


class IsolatedRound(MessageRound):
    """A round whose clients are workers."""

    def __init__(self, engine: IsolatedExecution):
        super().__init__(engine)
        self.engine = engine

    @property
    def has_client_state(self) -> bool:
        """Whether clients remember something from round to round."""
        return self.engine.workers[0].state is not None

    @property
    def one_client(self) -> tuple[Tree, Tree]:
        """One client's data, and what it remembers."""
        return self.engine.workers[0].data, self.engine.workers[0].state

    def exchange(self, function: str, request: Request, places: Sequence[int], expected: Reply[Tree]) -> dict[int, Heard]:
        """Send every client its letter, one after another."""
        heard, counted, exchange = {}, self.engine.counted, f"{self.t}/{len(self.answers)}"
        for k in places:
            id = int(request.ids[k])
            letter = {**self.letter(function, request, k), "exchange": exchange, "counted": counted.get(id)}
            sent = self.engine.send(id, wire.encode(letter))
            if sent is not None:
                counted[id], heard[k] = exchange, Heard(**wire.decode(sent))
        return heard

    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Count]:
        """Send every node's row to its neighbours as bytes; each adds up what it is sent."""
        row = lambda k: jax.tree.map(lambda a: np.asarray(a[k]), rows)
        letters = [wire.encode(row(k)) for k in range(self.count)]
        results, ignored, check = [], 0, self.conditions.guard.drop_nonfinite
        for k in range(self.count):
            own = row(k)
            total = jax.tree.map(np.zeros_like, own)
            for neighbour, weight in network.neighbours(k):
                heard = wire.decode(letters[neighbour])
                if check and not finite(heard):
                    ignored += 1
                elif not check or finite(own):
                    total = jax.tree.map(lambda t, x, y, a=weight: t + np.asarray(a, t.dtype) * (x - y), total, own, heard)
            results.append(total)
        return jax.tree.map(lambda *parts: jnp.stack(parts), *results), jnp.asarray(ignored, jnp.int32)

    def mix_if(self, network: Network, rows: Tree, takes_place: jax.Array | bool) -> tuple[Tree, Count]:
        """Return what :meth:`mix` does, or zeros where there is no exchange."""
        if takes_place:
            return self.mix(network, rows)
        return players.zeros_like(rows), jnp.zeros((), jnp.int32)
