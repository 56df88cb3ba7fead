"""The isolated engine: every client a worker that holds only its own data and state, every exchange bytes.

Slow and simple on purpose. It proves that no method shares what it should not, it can be stepped through with a debugger
(under ``jax.disable_jit()``), and its :class:`Worker` is the seam where a real transport plugs in: ``handle`` takes the
bytes of a request and returns the bytes of a reply.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players, wire
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.engines.evaluation import Gatherer, own_parts
from fedminimax.engines.execution import Execution, Progress, Snapshot
from fedminimax.engines.store import ClientStore
from fedminimax.errors import InputError
from fedminimax.federation import accounting
from fedminimax.federation.accounting import NO_WORK
from fedminimax.federation.client import Client, LocalProblem, Reply
from fedminimax.federation.cohort import Clients
from fedminimax.federation.guard import finite
from fedminimax.federation.round import ClientFunction, Conditions, Executed, Request, Round
from fedminimax.federation.trace import Trace
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context, Roll
from fedminimax.network import Network
from fedminimax.players import Count, Tree
from fedminimax.problems.robust import Problem
from fedminimax.random import keys
from fedminimax.random.keys import Key
from fedminimax.schedules import at_round


class Worker:
    """One client on its own: its number, its data, its state, and the programs that the algorithm defines."""

    def __init__(self, id: int, data: ClientData, problem: Problem, algorithm: Algorithm, state: Tree):
        self.id, self.data, self.state = id, data, state
        self._problem, self._algorithm = problem, algorithm
        self._notes: dict[str, Tree] = {}
        self._round = -1
        self._learnt: tuple[str, Tree] | None = None
        self.held_out: dict[int, ClientData] = {}

    def handle(self, request: bytes) -> bytes:
        """Run the program that the request names, or take a part in metrics, and return the reply."""
        ask = wire.decode(request)
        if "parts" in ask:
            return wire.encode(own_parts(self._problem, self.id, self.data, self.held_out, ask["parts"]))
        self.settle(ask["counted"])
        if ask["round"] != self._round:
            self._notes, self._round = {}, ask["round"]
        run = _program(self._problem, ask["function"])
        out, work = run(
            self._algorithm,
            self.data,
            self.id,
            ask["round"],
            ask["key"],
            ask["steps_word"],
            self.state,
            self._notes.get(ask["place"]),
            ask["steps"],
            tuple(ask["arguments"]),
        )
        if out.state is not None and finite(out.value):
            self._learnt = ask["exchange"], out.state
        self._notes[ask["place"]] = out.note
        return wire.encode({"value": _host(out.value), "work": _host(work)})

    def settle(self, counted: str | None) -> None:
        """Remember what was learnt in the last exchange, if its reply arrived; else forget it.

        Args:
            counted: the last exchange from which the server has this client's reply, as the next request tells.
        """
        if self._learnt is not None and self._learnt[0] == counted:
            self.state = self._learnt[1]
        self._learnt = None


class IsolatedExecution(Execution):
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
        self.problem, self.conditions, self.trace = problem, conditions, trace
        self._algorithm, self._clients, self._key = algorithm, clients, keys.root(seed)
        self._weights = jnp.asarray(problem.client_weights(clients), float)
        own = algorithm.init_client(problem)
        self.workers = [Worker(i, clients.only(i), problem, algorithm, own) for i in range(clients.count)]
        self._gatherer = Gatherer(problem, clients if data_on_server else Roll.of(clients), self._ask, self._give)
        self.round, self.messages = 0, []
        self.counted: dict[int, str] = {}  # by client: the last exchange from which its reply arrived
        self._state: Tree = None
        if start is None:
            self._state = algorithm.init(problem)
        else:
            self.restore(start)

    @property
    def state(self) -> Tree:
        """The algorithm's state after the last round."""
        return self._state

    @property
    def layout(self) -> dict[str, Any]:
        """Every client a worker: nothing to choose."""
        return {"engine": "isolated"}

    def advance(self, rounds: int) -> Progress:
        """Run so many rounds more, one after another."""
        done, before = [], self.snapshot()
        try:
            for _ in range(rounds):
                done.append(self._one_round())
        except KeyboardInterrupt:
            self.restore(before)
            raise
        return jax.tree.map(lambda *rows: np.stack([np.asarray(row) for row in rows]), *done)

    def _one_round(self) -> Progress:
        round_ = IsolatedRound(self, self._clients, self._weights, self._key, self.round, self.trace)
        state = at_round(self._algorithm, self.round).round(self.problem, self._state, Clients(round_))
        self._state = jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), state, self._state)
        self.round, self.messages = self.round + 1, round_.messages
        return Progress(round_.stacked_traffic(), round_.attendance() if self.conditions.record else ())

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


@functools.lru_cache(maxsize=64)
def _program(problem: Problem, function: str) -> Callable[..., tuple[Reply[Tree], jax.Array]]:
    """Return a client's program by name. All workers share its compiled code, which holds no data."""

    def run(
        algorithm: Algorithm,
        data: ClientData,
        id: Count,
        t: Count,
        key: Key,
        steps_word: jax.Array,
        state: Tree,
        note: Tree,
        steps: Count | None,
        args: tuple[Tree, ...],
    ) -> tuple[Reply[Tree], jax.Array]:
        client = Client(
            id=id, row=0, data=data, round=t, key=key, steps_word=steps_word, state=state, note=note, fixed_steps=steps
        )
        out = getattr(at_round(algorithm, t), function)(LocalProblem(problem, client), client, *args)
        reply = out if isinstance(out, Reply) else Reply(out)
        reply = reply._replace(note=note if reply.note is None else reply.note)
        return reply, accounting.split(client.work)

    return jax.jit(run)


class IsolatedRound(Round):
    """A round whose clients are workers."""

    def __init__(
        self, engine: IsolatedExecution, data: ClientSource, weights: jax.Array, key: Key, t: int, trace: Trace | None
    ):
        super().__init__(
            count=data.count,
            sizes=data.sizes,
            weights=weights,
            t=t,
            key=key,
            conditions=engine.conditions,
            trace=trace,
        )
        self.engine = engine

    @property
    def has_client_state(self) -> bool:
        """Whether clients remember something from round to round."""
        return self.engine.workers[0].state is not None

    def execute(self, request: Request) -> Executed:
        """Send the program's name and its arguments to every client that is present, and put the replies together."""
        size, guard, weights = request.ids.shape[0], request.guard, request.weights
        name, algorithm = _sendable(request.fn)
        here = np.ones(size, bool) if request.present is None else np.asarray(request.present)
        replies: list[Tree] = [None] * size
        arrived, accepted, work = np.zeros(size, bool), np.zeros(size, bool), accounting.split(NO_WORK)
        for k in map(int, np.flatnonzero(here)):
            id, letter = int(request.ids[k]), self._letter(name, request, k)
            sent = self.engine.send(id, wire.encode(letter))
            if sent is None:
                continue
            arrived[k], self.engine.counted[id] = True, letter["exchange"]
            reply = wire.decode(sent)
            value, passed = guard.inspect(jax.tree.map(jnp.asarray, reply["value"]))
            replies[k], accepted[k] = value, bool(passed)
            work += reply["work"]
        expected = self._expected(name, algorithm, request.note, request.broadcast, request.per_client)
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), expected.value)
        replies = [empty if reply is None else reply for reply in replies]
        stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *replies)
        done = Executed(stacked, None, jnp.asarray(arrived), jnp.asarray(accepted), expected.note, work)
        if weights is None:
            return done
        kept = jnp.where(accepted, jnp.asarray(weights), 0.0)
        if guard.stacks:
            total = players.scale(guard.combine(stacked, done.accepted), jnp.sum(kept))
        else:
            total = jax.tree.map(lambda v: jnp.tensordot(kept.astype(v.dtype), v, 1), stacked)
        return done._replace(value=total, weight=jnp.sum(kept))

    def _letter(self, function: str, request: Request, place: int) -> Tree:
        """Return what the client at a place of the cohort is sent."""
        id = int(request.ids[place])
        own = jax.tree.map(lambda a: a[place], request.per_client)
        steps = self.fixed_steps(id)
        return {
            "function": function,
            "round": int(self.t),
            "exchange": f"{self.t}/{len(self.answers)}",
            "counted": self.engine.counted.get(id),
            "place": f"{request.number}/{place}",
            "key": _host(keys.derive(request.key, id)),
            "steps_word": _host(self.steps_words(jnp.asarray([id]))[0]),
            "steps": None if steps is None else _host(steps),
            "arguments": _host((*request.broadcast, *own)),
        }

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

    def _expected(
        self,
        function: str,
        algorithm: Algorithm,
        note: Tree,
        broadcast: tuple[Tree, ...],
        per_client: tuple[Tree, ...],
    ) -> Reply[Tree]:
        """Return the shapes of a reply and of what a client will keep, which the server knows from the program alone."""
        worker, key = self.engine.workers[0], keys.root(0)
        own = jax.tree.map(lambda a: a[0], per_client)
        steps = self.fixed_steps(0)
        args = (algorithm, worker.data, 0, self.t, key, key[0], worker.state, note, steps, (*broadcast, *own))
        return jax.eval_shape(_program(self.engine.problem, function), *args)[0]


def _host(tree: Tree) -> Tree:
    return jax.tree.map(np.asarray, tree)


def _sendable(fn: ClientFunction[Tree]) -> tuple[str, Algorithm]:
    """Return the name of a client's program, and the algorithm whose method it is."""
    name, algorithm = getattr(fn, "__name__", ""), getattr(fn, "__self__", None)
    if not isinstance(algorithm, Algorithm) or not hasattr(algorithm, name):
        raise InputError(f"{name or fn!r} cannot be sent to clients: map a method of the algorithm, not a closure or a lambda.")
    return name, algorithm
