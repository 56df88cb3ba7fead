"""The isolated engine: every client a worker that holds only its own data and state, every exchange bytes.

Slow and simple on purpose. It proves that no method shares what it should not, it can be stepped through with a debugger
(under ``jax.disable_jit()``), and its :class:`Worker` is the seam where a real transport plugs in: ``handle`` takes the
bytes of a request and returns the bytes of a reply.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.engines import accounting, keys, wire
from fedminimax.engines.accounting import NO_WORK, Message
from fedminimax.engines.client import Client, LocalProblem, Reply
from fedminimax.engines.cohort import ClientFunction, Clients, Cohort, Conditions, Executed, Round
from fedminimax.engines.guard import Guard, finite
from fedminimax.engines.keys import Key
from fedminimax.engines.simulator import Carry, Placed, Progress
from fedminimax.engines.store import ClientStore
from fedminimax.engines.trace import Trace
from fedminimax.errors import InputError
from fedminimax.network import Network
from fedminimax.players import Tree
from fedminimax.problems.robust import Problem
from fedminimax.schedules import at_round


class Worker:
    """One client on its own: its number, its data, its state, and the programs that the algorithm defines."""

    def __init__(self, id: int, data: ClientData, problem: Problem, algorithm: Algorithm, state: Tree):
        self.id, self.data, self.state = id, data, state
        self._problem, self._algorithm = problem, algorithm
        self._notes: dict[str, Tree] = {}
        self._round = -1

    def handle(self, request: bytes) -> bytes:
        """Run the program that the request names, and return its reply."""
        ask = wire.decode(request)
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
            self.state = out.state
        self._notes[ask["place"]] = out.note
        return wire.encode({"value": _host(out.value), "work": _host(work)})


class Isolated:
    """Runs rounds by sending messages to workers; the same interface as the simulator's."""

    def __init__(self, problem: Problem, conditions: Conditions):
        self.problem, self.conditions = problem, conditions
        self.messages: list[Message] = []
        self.workers: list[Worker] = []

    def start(
        self, algorithm: Algorithm, clients: ClientData, state: Tree | None = None, store: ClientStore | None = None
    ) -> Carry:
        """Hand every worker its own data, and return what the first round starts from."""
        own = algorithm.init_client(self.problem)
        self.workers = [Worker(i, clients.only(i), self.problem, algorithm, own) for i in range(clients.count)]
        return Carry(algorithm.init(self.problem) if state is None else state, None)

    def place(self, clients: ClientData) -> Placed:
        """Leave the data where it is: every worker has its own."""
        return Placed(clients, jnp.asarray(self.problem.client_weights(clients), float))

    def remember(self, carry: Carry, client_states: Tree) -> Carry:
        """Give the workers the states of an earlier run."""
        client_states = client_states.dense() if isinstance(client_states, ClientStore) else client_states
        for i, worker in enumerate(self.workers):
            worker.state = jax.tree.map(lambda a, i=i: np.asarray(a)[i], client_states)
        return carry

    def client_states(self, carry: Carry) -> Tree:
        """Return the workers' states, [N, ...]; only this, which a test may look at, crosses their walls."""
        return jax.tree.map(lambda *rows: np.stack([np.asarray(r) for r in rows]), *(w.state for w in self.workers))

    def most_rounds(self, cohort: int) -> int | None:
        """Return None: the workers keep their states themselves."""
        return None

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
        """Run ``rounds`` rounds, one after another."""
        done = []
        for t in range(first, first + rounds):
            round_ = IsolatedRound(self, data.clients, data.weights, key, t, trace)
            state = at_round(algorithm, t).round(self.problem, carry.state, Clients(round_))
            state = jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), state, carry.state)
            carry, self.messages = Carry(state, None), round_.messages
            done.append(Progress(round_.stacked_traffic(), round_.attendance() if self.conditions.record else ()))
        return carry, jax.tree.map(lambda *rows: np.stack([np.asarray(row) for row in rows]), *done)


@functools.lru_cache(maxsize=64)
def _program(problem: Problem, function: str) -> Any:
    """Return a client's program by name. All workers share its compiled code, which holds no data."""

    def run(
        algorithm: Any, data: Any, id: Any, t: Any, key: Any, steps_word: Any, state: Any, note: Any, steps: Any, args: Any
    ) -> Any:
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

    def __init__(self, engine: Isolated, data: ClientData, weights: Any, key: Key, t: int, trace: Trace | None):
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
        """Send ``fn``'s name and its arguments to every client that is present, and put the replies together."""
        name = getattr(fn, "__name__", "")
        algorithm = getattr(fn, "__self__", None)
        if not isinstance(algorithm, Algorithm) or not hasattr(algorithm, name):
            raise InputError(
                f"{name or fn!r} cannot be sent to clients: map a method of the algorithm, not a closure or a lambda."
            )
        here = np.ones(cohort.size, bool) if present is None else np.asarray(present)
        replies: list[Any] = [None] * cohort.size
        accepted, work = np.zeros(cohort.size, bool), accounting.split(NO_WORK)
        for k in np.flatnonzero(here):
            id = int(cohort.ids[k])
            own = jax.tree.map(lambda a, k=k: a[k], per_client)
            steps = self.fixed_steps(id)
            request = {
                "function": name,
                "round": int(self.t),
                "place": f"{cohort.number}/{k}",
                "key": _host(keys.derive(key, id)),
                "steps_word": _host(self.steps_words(jnp.asarray([id]))[0]),
                "steps": None if steps is None else _host(steps),
                "arguments": _host((*broadcast, *own)),
            }
            reply = wire.decode(self.engine.workers[id].handle(wire.encode(request)))
            value, passed = guard.inspect(jax.tree.map(jnp.asarray, reply["value"]))
            replies[k], accepted[k] = value, bool(passed)
            work += reply["work"]
        expected = self._expected(name, algorithm, cohort.note, broadcast, per_client)
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), expected.value)
        replies = [empty if reply is None else reply for reply in replies]
        stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *replies)
        refused = int(np.sum(here & ~accepted))
        if weights is None:
            return Executed(stacked, jnp.asarray(accepted), expected.note, refused, work)
        kept = jnp.where(accepted, jnp.asarray(weights), 0.0)
        if guard.stacks:
            total = players.scale(guard.combine(stacked, jnp.asarray(accepted)), jnp.sum(kept))
        else:
            total = jax.tree.map(lambda v: jnp.tensordot(kept.astype(v.dtype), v, 1), stacked)
        return Executed(total, jnp.sum(kept), expected.note, refused, work)

    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Any]:
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

    def mix_if(self, network: Network, rows: Tree, takes_place: Any) -> tuple[Tree, Any]:
        """Return what :meth:`mix` does, or zeros where there is no exchange."""
        if takes_place:
            return self.mix(network, rows)
        return players.zeros_like(rows), jnp.zeros((), jnp.int32)

    def _expected(self, function: str, algorithm: Algorithm, note: Tree, broadcast: Any, per_client: Any) -> Reply:
        """Return the shapes of a reply and of what a client will keep, which the server knows from the program alone."""
        worker, key = self.engine.workers[0], keys.root(0)
        own = jax.tree.map(lambda a: a[0], per_client)
        steps = self.fixed_steps(0)
        args = (algorithm, worker.data, 0, self.t, key, key[0], worker.state, note, steps, (*broadcast, *own))
        return jax.eval_shape(_program(self.engine.problem, function), *args)[0]


def _host(tree: Tree) -> Tree:
    return jax.tree.map(np.asarray, tree)
