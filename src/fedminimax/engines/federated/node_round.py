"""A round of a method without a server, at one node: its own work, done, and its exchanges, as far as messages have come.

A method's ``step`` is one program for all nodes. A site runs it for its own row: :meth:`Nodes.map` is work with its data, and
:meth:`Nodes.mix` needs what its neighbours have sent. Where that has not come yet, the program is left (:class:`Waits`), and
run again from its beginning when it has: what was computed before is in a log and is not computed again. So a round can be left
and gone on with, by another process too, and no thread waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players, wire
from fedminimax.algorithms.decentralized import Decentralized
from fedminimax.data.clients import ClientData
from fedminimax.engines.exchange import carry_out, host, sendable
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.messages import Malformed, Refused
from fedminimax.errors import InputError
from fedminimax.federation.cohort import Clients
from fedminimax.federation.guard import Guard, finite
from fedminimax.federation.nodes import Nodes, Rows
from fedminimax.federation.round import Conditions, Executed, Request, Round
from fedminimax.network import Network
from fedminimax.players import Count, Tree
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.random import keys
from fedminimax.random.keys import Key
from fedminimax.schedules import at_round


@wire.message
class Worked(NamedTuple):
    """What a node's program made: its value, what is kept for the next program, and what was computed."""

    value: Tree
    note: Tree
    work: Any


@wire.message
class Mixed(NamedTuple):
    """What an exchange made: the node's row of WX, and how many messages were ignored."""

    row: Tree
    ignored: int


class Waits(Exception):
    """The round waits for the neighbours' rows; ``row`` is what they wait for from here."""

    def __init__(self, row: Tree):
        super().__init__()
        self.row = row


class Here(NamedTuple):
    """One node: the problem, the method, its data, and its number."""

    problem: PersonalizedProblem
    algorithm: Decentralized[Any]
    data: ClientData
    number: int


class NodeRound(Round):
    """A round as one node has it: its cohort is the node alone, and its rows are one.

    Args:
        here: the node.
        t: the round.
        key: of the run's randomness.
        log: what was made before in this round, in order; what is made is added.
        listen: returns what the neighbours sent, by number: None where there is nothing yet.
        drop: whether messages that are not finite are ignored.
    """

    def __init__(
        self, here: Here, t: int, key: Key, log: list[Worked | Mixed], listen: Callable[[], Listened | None], drop: bool
    ):
        conditions = Conditions(Guard(drop_nonfinite=drop))
        sizes = np.asarray(here.data.sizes)
        super().__init__(count=1, sizes=sizes, weights=jnp.ones(1), t=t, key=key, conditions=conditions, trace=None)
        self._here, self._log, self._listen, self._nth = here, log, listen, 0

    @property
    def has_client_state(self) -> bool:
        """A node remembers its row, which is the method's state, and nothing beside it."""
        return False

    def carry_out(self, state: Tree) -> Tree:
        """Return the node's row after the round, or raise :class:`Waits`."""
        nodes = Nodes(Clients(self), self._here.problem.network)
        nodes.count = self._here.problem.network.count  # there are as many, though one of them is here
        step = at_round(self._here.algorithm, self.t).step
        new = nodes.result(step(self._here.problem, Rows(jax.tree.map(_alone, state)), nodes))
        return host(jax.tree.map(lambda row, old: jnp.asarray(row)[0].astype(jnp.result_type(old)), new, state))

    def execute(self, request: Request) -> Executed:
        """Run a program on the node, unless that was done before."""
        done, yes = self._once(Worked, lambda: self._work(request)), jnp.ones(1, bool)
        note = jax.tree.map(_alone, done.note)
        return Executed(jax.tree.map(_alone, done.value), None, yes, yes, note, jnp.asarray(done.work))

    def _work(self, request: Request) -> Worked:
        own, here = (lambda tree: jax.tree.map(lambda a: a[0], tree)), self._here
        letter = {
            "function": sendable(request.fn)[0],
            "round": self.t,
            "key": keys.derive(request.key, here.number),
            "steps_word": self.steps_words(jnp.asarray([here.number]))[0],
            "steps": None,
            "arguments": (*request.broadcast, *own(request.per_client)),
        }
        out, work = carry_out(here.problem, here.algorithm, here.data, here.number, letter, None, own(request.note))
        return Worked(host(out.value), host(out.note), np.asarray(work))

    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Count]:
        """Return the node's row of WX, once the neighbours' rows are there."""
        row = host(jax.tree.map(lambda a: a[0], rows))
        done = self._once(Mixed, lambda: self._exchange(network, row))
        return jax.tree.map(_alone, done.row), jnp.asarray(done.ignored, jnp.int32)

    def mix_if(self, network: Network, rows: Tree, takes_place: jax.Array | bool) -> tuple[Tree, Count]:
        """Return what :meth:`mix` does, or zeros where there is no exchange."""
        return self.mix(network, rows) if takes_place else (players.zeros_like(rows), jnp.zeros((), jnp.int32))

    def _exchange(self, network: Network, row: Tree) -> Mixed:
        heard = self._listen()
        if heard is None:
            raise Waits(row)
        total, ignored, drop = jax.tree.map(np.zeros_like, row), 0, self.conditions.guard.drop_nonfinite
        for neighbour, weight in network.neighbours(self._here.number):
            other = read_row(heard(neighbour), row)
            if other is None or (drop and not finite(other)):
                ignored += 1
            elif not drop or finite(row):  # one that is not sound hears its neighbours to no avail
                total = jax.tree.map(lambda t, x, y, a=weight: t + np.asarray(a, t.dtype) * (x - y), total, row, other)
        return Mixed(total, ignored)

    def _once(self, kind: type[Any], make: Callable[[], Any]) -> Any:
        """Return the next entry of the log, which is made if it is not there."""
        nth = self._nth
        self._nth += 1
        if nth == len(self._log):
            self._log.append(make())
        if not isinstance(self._log[nth], kind):
            raise Malformed("the log is of another round")
        return self._log[nth]


Listened = Callable[[int], bytes]
"""Returns what a neighbour of a number sent, opened."""


def read_row(plain: bytes, like: Tree) -> Tree | None:
    """Return the row that a neighbour sent; None: it is none, or of another structure, shape or type."""
    try:
        return messages.like(wire.decode(plain), like, "a row")
    except (InputError, Refused):
        return None


def _alone(leaf: Any) -> jax.Array:
    return jnp.asarray(leaf)[None]
