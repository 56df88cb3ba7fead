"""Rounds by messages: what a server asks a client to do, how the client does it, and what becomes of the replies.

The isolated engine and a real federation rest on these. They differ in what carries the messages, and what becomes of those
that are lost.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.engines.execution import Execution, Progress, Snapshot
from fedminimax.errors import InputError
from fedminimax.federation import accounting
from fedminimax.federation.accounting import NO_WORK
from fedminimax.federation.client import Client, LocalProblem, Reply
from fedminimax.federation.cohort import Clients
from fedminimax.federation.guard import finite
from fedminimax.federation.privacy import Privacy
from fedminimax.federation.round import ClientFunction, Conditions, Executed, Request, Round
from fedminimax.federation.trace import Trace
from fedminimax.players import Count, Tree
from fedminimax.problems.robust import Problem
from fedminimax.random import keys
from fedminimax.random.keys import Key
from fedminimax.schedules import at_round

Program = Callable[..., tuple[Reply[Tree], jax.Array]]
"""A client's program: what it replies and keeps, and what it computed (see :func:`accounting.split`)."""


class Heard(NamedTuple):
    """One client's reply, as it arrived: what it sends, and what it computed."""

    value: Tree
    work: Any


@functools.lru_cache(maxsize=64)
def client_program(problem: Problem, function: str, privacy: Privacy | None = None) -> Program:
    """Return a client's program by name. All clients in a process share its compiled code, which holds no data."""

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
        noise: Key | None = None,
    ) -> tuple[Reply[Tree], jax.Array]:
        client = Client(
            id=id, row=0, data=data, round=t, key=key, steps_word=steps_word, state=state, note=note, fixed_steps=steps
        )
        out = getattr(at_round(algorithm, t), function)(LocalProblem(problem, client), client, *args)
        reply = out if isinstance(out, Reply) else Reply(out)
        reply = reply._replace(note=note if reply.note is None else reply.note)
        if privacy is not None:  # whether it came to a finite end is the client's to know, and the noise would hide it
            kept = None if reply.state is None else players.select(finite(reply.value), reply.state, state)
            reply = reply._replace(value=privacy.protect(reply.value, key if noise is None else noise), state=kept)
        return reply, accounting.split(client.work)

    return jax.jit(run)


def carry_out(
    problem: Problem,
    algorithm: Algorithm,
    data: ClientData,
    id: int,
    letter: Any,
    state: Tree,
    note: Tree,
    privacy: Privacy | None = None,
    noise: Key | None = None,
) -> tuple[Reply[Tree], jax.Array]:
    """Do at a client what a letter says (see :meth:`MessageRound.letter`).

    Args:
        problem: what is solved.
        algorithm: the method.
        data: the client's own.
        id: its number.
        letter: what it is sent.
        state: what it remembers from round to round.
        note: what it has kept in this round.
        privacy: what protects its reply.
        noise: the key of the noise; None: the letter's, which the server knows.
    """
    run, round, arguments = client_program(problem, letter["function"], privacy), letter["round"], tuple(letter["arguments"])
    args = data, id, round, letter["key"], letter["steps_word"], state, note, letter["steps"], arguments
    return run(algorithm, *args) if noise is None else run(algorithm, *args, noise)


class MessageExecution(Execution):
    """A run whose rounds are messages: the server is this process.

    Args:
        problem: what to solve, bound to its clients.
        clients: their data, or what is known of them.
        algorithm: the method.
        conditions: who answers, what is let through, what is recorded.
        seed: of all randomness.
        trace: a record to replay.
    """

    def __init__(
        self,
        problem: Problem,
        clients: ClientSource,
        algorithm: Algorithm,
        conditions: Conditions,
        seed: int,
        trace: Trace | None,
    ):
        self.problem, self.algorithm, self.conditions, self.trace = problem, algorithm, conditions, trace
        self.clients, self.key = clients, keys.root(seed)
        self.weights = jnp.asarray(problem.client_weights(clients), float)
        self.round, self.messages = 0, []
        self._state: Tree = None

    @property
    def state(self) -> Tree:
        """The algorithm's state after the last round."""
        return self._state

    @abstractmethod
    def next_round(self) -> MessageRound:
        """Return the round that comes next, which is to be carried out."""

    def here(self) -> Snapshot:
        """Return what a round that fails goes back to."""
        return self.snapshot()

    def advance(self, rounds: int) -> Progress:
        """Run so many rounds more, one after another."""
        done, before = [], self.here()
        try:
            for _ in range(rounds):
                done.append(self._one_round())
        except BaseException:
            self.restore(before)
            raise
        return jax.tree.map(lambda *rows: np.stack([np.asarray(row) for row in rows]), *done)

    def _one_round(self) -> Progress:
        round_ = self.next_round()
        state = at_round(self.algorithm, self.round).round(self.problem, self._state, Clients(round_))
        self._state = jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.result_type(old)), state, self._state)
        self.round, self.messages = self.round + 1, round_.messages
        return Progress(round_.stacked_traffic(), round_.attendance() if self.conditions.record else (), tuple(round_.sent))


class MessageRound(Round):
    """A round whose clients are asked by messages."""

    def __init__(self, run: MessageExecution):
        super().__init__(
            count=run.clients.count,
            sizes=run.clients.sizes,
            weights=run.weights,
            t=run.round,
            key=run.key,
            conditions=run.conditions,
            trace=run.trace,
        )
        self.problem = run.problem

    @abstractmethod
    def exchange(self, function: str, request: Request, places: Sequence[int], expected: Reply[Tree]) -> dict[int, Heard]:
        """Ask the clients at some places of a cohort, and return what arrived, by place.

        Args:
            function: the name of the client's program.
            request: what is asked.
            places: who is there to answer.
            expected: the shapes of a reply.
        """

    def secure_sum(self, function: str, request: Request, places: Sequence[int], expected: Reply[Tree]) -> Executed | None:
        """Return the weighted sum of replies that nobody sees one by one; None: they are asked for one by one, and added up.

        Args:
            function: the name of the client's program.
            request: what is asked.
            places: who is there to answer.
            expected: the shapes of a reply.
        """
        return None

    @property
    @abstractmethod
    def one_client(self) -> tuple[Tree, Tree]:
        """The shapes of one client's data, and of what it remembers."""

    def execute(self, request: Request) -> Executed:
        """Send the program's name and its arguments to every client that is present, and put the replies together."""
        size, guard, weights = request.ids.shape[0], request.guard, request.weights
        name, algorithm = sendable(request.fn)
        here = np.ones(size, bool) if request.present is None else np.asarray(request.present)
        expected = self.expected(name, algorithm, request)
        places = [int(k) for k in np.flatnonzero(here)]
        if weights is not None and (summed := self.secure_sum(name, request, places, expected)) is not None:
            return summed
        heard = self.exchange(name, request, places, expected)
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), expected.value)
        replies: list[Tree] = [empty] * size
        arrived, accepted, work = np.zeros(size, bool), np.zeros(size, bool), accounting.split(NO_WORK)
        for k, reply in sorted(heard.items()):
            value, passed = guard.inspect(jax.tree.map(jnp.asarray, reply.value))
            replies[k], arrived[k], accepted[k] = value, True, bool(passed)
            work += reply.work
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

    def letter(self, function: str, request: Request, place: int) -> dict[str, Tree]:
        """Return what the client at a place of the cohort is sent."""
        id = int(request.ids[place])
        own = jax.tree.map(lambda a: a[place], request.per_client)
        steps = self.fixed_steps(id)
        return {
            "function": function,
            "round": int(self.t),
            "place": f"{request.number}/{place}",
            "key": host(keys.derive(request.key, id)),
            "steps_word": host(self.steps_words(jnp.asarray([id]))[0]),
            "steps": None if steps is None else host(steps),
            "arguments": host((*request.broadcast, *own)),
        }

    def expected(self, function: str, algorithm: Algorithm, request: Request) -> Reply[Tree]:
        """Return the shapes of a reply and of what a client will keep, which the server knows from the program alone."""
        (data, state), key = self.one_client, keys.root(0)
        own = jax.tree.map(lambda a: a[0], request.per_client)
        args = 0, self.t, key, key[0], state, request.note, self.fixed_steps(0), (*request.broadcast, *own)
        return jax.eval_shape(client_program(self.problem, function, request.privacy), algorithm, data, *args)[0]


def host(tree: Tree) -> Tree:
    """Return a tree as NumPy's arrays."""
    return jax.tree.map(np.asarray, tree)


def sendable(fn: ClientFunction[Tree]) -> tuple[str, Algorithm]:
    """Return the name of a client's program, and the algorithm whose method it is."""
    name, algorithm = getattr(fn, "__name__", ""), getattr(fn, "__self__", None)
    if not isinstance(algorithm, Algorithm) or not hasattr(algorithm, name):
        raise InputError(f"{name or fn!r} cannot be sent to clients: map a method of the algorithm, not a closure or a lambda.")
    return name, algorithm
