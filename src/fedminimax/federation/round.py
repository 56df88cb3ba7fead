"""One round under way, whatever carries it out: its randomness, its records, and what an engine is asked and brings back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax import steps as local_steps
from fedminimax.federation import accounting
from fedminimax.federation.accounting import NO_WORK, Message, Traffic
from fedminimax.federation.availability import Availability
from fedminimax.federation.client import Client, R
from fedminimax.federation.guard import Guard
from fedminimax.federation.privacy import Privacy, Sent
from fedminimax.federation.trace import Asked, Trace
from fedminimax.network import Network
from fedminimax.players import Array, Count, Tree
from fedminimax.random import keys
from fedminimax.random.keys import Key

ClientFunction = Callable[Concatenate[Any, Client, ...], R]
"""A client's program: ``fn(problem, client, *what was sent)``; the problem as in :mod:`fedminimax.problems.forms`."""

# Streams of randomness within a round: phases count up from zero, so these cannot meet them.
_STEPS = 2**32 - 1
SERVER, CLIENT, ANSWER, ORDER, DELAY = range(5)


_DEFAULT_GUARD = Guard()


@dataclass(frozen=True)
class Conditions:
    """How a run is carried out, apart from the algorithm: who answers, what is let through, recorded and hidden."""

    guard: Guard = _DEFAULT_GUARD
    availability: Availability | None = None
    record: bool = False
    privacy: Privacy | None = None


class Request(NamedTuple):
    """What an engine is asked to carry out: a client's program on the clients of a cohort."""

    fn: ClientFunction[Tree]
    """The program."""
    number: int
    """Which cohort of the round this is."""
    ids: jax.Array
    """Its clients, [S]."""
    present: jax.Array | None
    """Which of them there are to answer, [S]; None: all."""
    key: Key
    """From which each client's randomness is derived, by its number."""
    broadcast: tuple[Tree, ...]
    """What everybody is sent."""
    per_client: tuple[Tree, ...]
    """What each is sent its own row of, [S, ...]."""
    note: Tree
    """What clients have kept since an exchange before, stacked; None: nothing."""
    weights: jax.Array | None
    """Of the sum that is wanted, [S]; None: the replies are wanted, stacked."""
    guard: Guard
    """What replies must pass."""
    privacy: Privacy | None = None
    """What protects replies before they leave their clients; None: they leave as they are."""


class Executed(NamedTuple):
    """What an engine brings back from a cohort.

    Fewer replies may arrive than clients were said to be present: a network loses some. What counts is what arrived, and a
    client whose reply was lost remembers what it did before it was asked, so that a record of who arrived can be replayed.
    """

    value: Tree
    """The weighted sum of the replies, or the replies stacked; those that were not accepted are zeros."""
    weight: jax.Array | None
    """The total weight of the accepted replies; None: they are stacked."""
    arrived: jax.Array
    """Whose replies arrived, [S]."""
    accepted: jax.Array
    """Whose replies also passed the guard, [S]."""
    note: Tree
    """What the clients keep until the end of the round, stacked."""
    work: jax.Array
    """What the clients whose replies arrived computed, in parts (see :func:`accounting.split`)."""


class Attendance(NamedTuple):
    """Who is in a cohort (-1: an empty place), and how many were invited."""

    ids: jax.Array
    invited: jax.Array


class Round(ABC):
    """One round under way. Engines say how a client's function is carried out; everything else is shared."""

    def __init__(
        self,
        *,
        count: int,
        sizes: Array,
        weights: jax.Array,
        t: Count,
        key: Key,
        conditions: Conditions,
        trace: Trace | None,
    ):
        self.count, self.sizes, self.weights, self.t = count, sizes, weights, t
        self.key = key
        self.conditions, self.trace = conditions, trace
        self.messages: list[Message] = []
        self.traffic: list[Traffic] = []
        self.cohorts: list[Attendance] = []
        self.answers: list[jax.Array] = []
        self.waited: list[jax.Array] = []
        self.sent: list[Sent] = []
        self.draws: dict[str, Tree] = {}
        self.asked = Asked()
        self._phases = 0

    @abstractmethod
    def execute(self, request: Request) -> Executed:
        """Run a program on a cohort's clients; with weights return the weighted sum, without them the stacked replies."""

    @abstractmethod
    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Count]:
        """Return W times the rows, and how many messages were ignored because they were not finite (see Guard)."""

    def gossip(self, network: Network, rows: Tree, when: jax.Array | None) -> Tree:
        """Carry out one exchange along all edges, if it is time for it, and count it."""
        messages = 2 * network.edge_count
        takes_place = True if when is None else when
        out, ignored = self.mix_if(network, rows, takes_place)
        row = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), rows)
        self.messages.append(Message(accounting.MIX, accounting.NOTHING, accounting.measure_reply(row), messages))
        count = jnp.where(takes_place, 1, 0)  # of exchanges, not of messages: there may be more of those than 32 bits hold
        self.traffic.append(Traffic(0, count, ignored, accounting.split(NO_WORK), 0.0))
        return out

    def mix_if(self, network: Network, rows: Tree, takes_place: jax.Array | bool) -> tuple[Tree, Count]:
        """Return what :meth:`mix` does, or zeros where there is no exchange."""
        if takes_place is True:
            return self.mix(network, rows)
        nothing = lambda: (players.zeros_like(rows), jnp.zeros((), jnp.int32))
        return jax.lax.cond(takes_place, lambda: self.mix(network, rows), nothing)

    @property
    @abstractmethod
    def has_client_state(self) -> bool:
        """Whether clients remember something from round to round."""

    def attendance(self) -> tuple[Tree, ...]:
        """Return who was in each cohort, how many were invited to it, who answered each exchange, what was drawn, and waits."""
        cohorts, invited = tuple(c.ids for c in self.cohorts), tuple(c.invited for c in self.cohorts)
        return cohorts, invited, tuple(self.answers), self.draws, tuple(self.waited)

    def next_key(self) -> Key:
        """Return the key of the next phase."""
        self._phases += 1
        return keys.derive(self.key, self.t, self._phases - 1)

    def steps_words(self, ids: jax.Array) -> jax.Array:
        """Return the random words from which clients' numbers of local steps are drawn."""
        return steps_words(self.key, self.t, ids)

    def fixed_steps(self, client: Count) -> Count | None:
        """Return the recorded number of local steps, if this run replays a trace."""
        if self.trace is None or self.trace.steps is None:
            return None
        return jnp.asarray(self.trace.steps)[self.t, client]

    def replies(
        self, availability: Availability, key: Key, ids: jax.Array, *, again: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return which clients' replies to a request arrive in time, and after how many seconds (None: at once)."""
        answers = availability.answers(self.key, keys.variant(key, ANSWER), self.t, ids, again=again)
        delay = availability.delay
        if delay is None:
            return answers, None
        seconds = delay.seconds(self.key, keys.variant(key, DELAY), ids)
        return answers if delay.deadline is None else answers & (seconds <= delay.deadline), seconds

    def stacked_traffic(self) -> Traffic:
        """Return the round's counts, one entry an exchange."""
        kinds = Traffic(*(jnp.int32 for _ in Traffic._fields))._replace(waited=jnp.float32)
        columns = zip(*self.traffic, strict=True) if self.traffic else [()] * len(kinds)  # a round may ask nobody anything
        return Traffic(*(jnp.array([*column], kind) for column, kind in zip(columns, kinds, strict=True)))


def steps_words(key: Key, t: Count, ids: jax.Array) -> jax.Array:
    """Return the random words from which clients' numbers of local steps are drawn in round t; ``key`` is the run's."""
    return keys.words_for(keys.derive(key, t, _STEPS), ids)


def everybodys_steps(spec: local_steps.Steps, key: Key, t: Count, sizes: jax.Array, batch_size: int | None) -> jax.Array:
    """Return every client's tau_i in round t, [N]; ``key`` is the run's."""
    ids = jnp.arange(sizes.shape[0])
    return jnp.broadcast_to(local_steps.draw(spec, steps_words(key, t, ids), ids, sizes, batch_size), ids.shape)
