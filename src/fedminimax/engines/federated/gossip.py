"""A run between neighbours: the coordinator starts rounds, carries sealed messages, and counts; it has no model.

One group call delivers to every site what its neighbours have sealed for it, and takes back what it has sealed for them, until
all say that the round is over. The methods' rows are at the sites; what is here is the names of the rows.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import wire
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.exchange import host
from fedminimax.engines.execution import AtSites, Execution, Halted, Progress, Snapshot
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.execution import Sites
from fedminimax.engines.federated.gossip_messages import GOSSIP, KEYS, SETTLE, Turn, is_key, numbered
from fedminimax.engines.federated.measures import Measures
from fedminimax.engines.federated.messages import START, Refused, Whose
from fedminimax.engines.federated.transport import MALFORMED, Failure
from fedminimax.engines.program import rehearse
from fedminimax.errors import InputError
from fedminimax.federation.accounting import MIX, Traffic
from fedminimax.federation.round import Conditions
from fedminimax.federation.trace import Trace
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context
from fedminimax.players import Tree
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.random import keys

_SNAPSHOTS = 16
"""So many snapshots back sites keep their rows."""
_MOST_KEY = 2**16
"""The most bytes of a key, with its certificate and its signature."""
_PER_NUMBER, _SLACK = 16, 2**20
"""Bytes that a sealed message may have for each of its numbers, and beyond them."""


class Heard(NamedTuple):
    """What a site said in a round: what it has sealed for its neighbours, by number; or how the round went, once it is over."""

    state: str
    sealed: dict[int, np.ndarray]
    done: dict[str, Tree] | None


class GossipExecution(Execution):
    """A run under way between neighbours.

    Args:
        problem: what to solve.
        clients: what is known of the sites' data.
        algorithm: the method.
        conditions: what is let through and recorded.
        seed: of all randomness.
        trace: a record to replay, which must be None.
        start: where to go on from.
        sites: the sites, and how to get along with them.
    """

    def __init__(
        self,
        problem: PersonalizedProblem,
        clients: RemoteClients,
        algorithm: Algorithm,
        conditions: Conditions,
        seed: int,
        trace: Trace | None,
        start: Snapshot | None,
        sites: Sites,
    ):
        if trace is not None:
            raise InputError("Nodes toss their coins from the seed: replay a trace on the simulator.")
        self.problem, self.conditions, self.sites = problem, conditions, sites
        self._script = rehearse(problem, algorithm, clients, conditions)
        self.messages, self.round, self._key = self._script.messages, 0, np.asarray(keys.root(seed))
        first = np.cumsum([0, *np.asarray(clients.sizes)[:-1]])
        self.whose = {name: Whose(clients.count, k, int(first[k])) for k, name in enumerate(sites.names)}
        numbers = range(clients.count)
        self._neighbours = {
            name: [n for n, _ in problem.network.neighbours(k)] for k, name in zip(numbers, sites.names, strict=True)
        }
        self.run_name, self.session = secrets.token_hex(8), ""
        self.held: dict[str, str] = {}  # by site: the name of its row
        self._keys: dict[int, Any] = {}
        self._snapshots: deque[dict[str, str]] = deque(maxlen=_SNAPSHOTS)
        row = jax.eval_shape(lambda: jax.tree.map(lambda a: jnp.asarray(a)[:1], algorithm.init(problem)))
        self._measures = Measures(problem, clients, row, sites)
        self.restore(Snapshot(None) if start is None else start)

    @property
    def state(self) -> AtSites:
        """The names of the sites' rows."""
        return AtSites(self.run_name, tuple(self.held[name] for name in self.sites.names))

    @property
    def most_rounds(self) -> int | None:
        """One round at a time: what is lost when sites fail is then not more than that."""
        return 1

    @property
    def layout(self) -> dict[str, Any]:
        """Which sites there are."""
        return {"engine": "federation", "sites": list(self.sites.names)}

    def snapshot(self) -> Snapshot:
        """Return what the run goes on from: the names of the rows, which stay at the sites, and are kept there."""
        self._snapshots.append(dict(self.held))
        return Snapshot(self.state, None, self.round)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from there."""
        state = snapshot.state
        if isinstance(state, AtSites):
            if len(state.names) != len(self.sites.names):
                raise InputError(f"The run to go on with had {len(state.names)} sites, but there are {len(self.sites.names)}.")
            self.run_name, self.held = state.run, dict(zip(self.sites.names, state.names, strict=True))
        elif state is not None:
            raise InputError("Sites keep their rows themselves: a run between neighbours goes on from its own results only.")
        else:
            self.held = dict.fromkeys(self.sites.names, START)
        # What is asked from here on is not what was asked before, though the rounds may have the same numbers.
        self.session, self.round = secrets.token_hex(4), snapshot.round
        self._snapshots.append(dict(self.held))

    def evaluate(self, metrics: Mapping[str, Metric], costs: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return every number of every metric, from what the sites measure at their own players."""
        asked = {site: self._about(site, self.held[site]) for site in self.sites.names}
        return self._measures(metrics, asked, self.session, Context.at(self.round, costs))

    def close(self) -> None:
        """Let every site that is there keep its model; the transport is whoever opened it's to close."""
        if not self._keys:
            return
        id = f"{self.session}/settle"
        make = lambda site: wire.encode({"id": id, **self._about(site, self.held[site]), SETTLE: self.round})
        self.sites.group.ask(self.sites.names, make, lambda site, reply: messages.read(reply, id, SETTLE, _MOST_KEY), 0)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def advance(self, rounds: int) -> Progress:
        """Run so many rounds more, one after another."""
        done, before = [], Snapshot(self.state, None, self.round)
        try:
            for _ in range(rounds):
                done.append(self._one_round())
        except BaseException:
            self.restore(before)
            raise
        return jax.tree.map(lambda *rows: np.stack([np.asarray(row) for row in rows]), *done)

    def _one_round(self) -> Progress:
        if not self._keys:
            self._meet()
        delivered: dict[str, dict[int, np.ndarray]] = {site: {} for site in self.sites.names}
        for mix in range(sum(message.function == MIX for message in self.messages) + 1):
            heard = self._call(mix, delivered)
            over = {site: said.done for site, said in heard.items() if said.done is not None}
            if over:
                return self._finished(heard, over)
            for k, site in enumerate(self.sites.names):
                for to, sealed in heard[site].sealed.items():
                    delivered[self.sites.names[to]][k] = sealed
        raise _at_odds("say that a round is over after more exchanges than it has", self.sites.names)

    def _call(self, mix: int, delivered: Mapping[str, Mapping[int, np.ndarray]]) -> dict[str, Heard]:
        """Deliver what was sealed for every site, and return what they say."""
        id, turn = f"{self.session}/{self.round}/{mix}", f"{self.session}/{self.round}"
        kept = lambda site: sorted({held[site] for held in self._snapshots} - {START})

        def make(site: str) -> bytes:
            known = {number: self._keys[number] for number in self._neighbours[site]}
            told = numbered(known), numbered(dict(delivered[site]))
            drop = self.conditions.guard.drop_nonfinite
            asked = Turn(turn, kept(site), self.round, self._key, drop, mix, *told)  # type: ignore[arg-type]
            return wire.encode({"id": id, **self._about(site, self.held[site]), GOSSIP: asked._asdict()})

        return self._ask_all(make, lambda site, reply: self._read(site, reply, id))

    def _meet(self) -> None:
        """Ask every site for its public key of this run, which its neighbours will be told."""
        id = f"{self.session}/keys"

        def read(site: str, reply: wire.Bytes) -> Any:
            key: Any = messages.read(reply, id, KEYS, _MOST_KEY)[KEYS]
            if not is_key(key) or key.number != self.whose[site].number:
                raise Refused(Failure(MALFORMED, "a key that is not its own"))
            return key

        found = self._ask_all(lambda site: wire.encode({"id": id, **self._about(site, self.held[site]), KEYS: True}), read)
        self._keys = {self.whose[site].number: key for site, key in found.items()}

    def _about(self, site: str, state: str) -> dict[str, Any]:
        return {"run": self.run_name, "whose": self.whose[site], "state": state}

    def _ask_all(self, make: Any, read: Any) -> dict[str, Any]:
        group, names = self.sites.group, self.sites.names
        return group.ask(names, make, read, len(names), self.sites.hello, halted=_missing)

    def _read(self, site: str, reply: wire.Bytes, id: str) -> Heard:
        floats = max([sum(m.up.values()) for m in self.messages if m.function == MIX], default=0)
        most = _SLACK + len(self._neighbours[site]) * (_SLACK + _PER_NUMBER * floats)
        message = messages.read(reply, id, GOSSIP, most)
        said, state = message[GOSSIP], message.get("state")
        if isinstance(said, dict) and set(said) == {"done"} and isinstance(state, str) and state == id:
            return Heard(state, {}, self._read_done(said["done"]))
        known = isinstance(state, str) and state == self.held[site]  # a reply may have anything in its place, also an array
        if not isinstance(said, dict) or set(said) != {"sealed"} or not known:
            raise Refused(Failure(MALFORMED, "a reply that is not to what was asked"))
        sealed = said["sealed"]
        if not isinstance(sealed, dict) or set(sealed) != {str(number) for number in self._neighbours[site]}:
            raise Refused(Failure(MALFORMED, "messages to others than its neighbours"))
        if not all(isinstance(box, np.ndarray) and box.dtype == np.uint8 and box.ndim == 1 for box in sealed.values()):
            raise Refused(Failure(MALFORMED, "a sealed message that is none"))
        return Heard(self.held[site], {int(number): box for number, box in sealed.items()}, None)

    def _read_done(self, said: Any) -> dict[str, Tree]:
        exchanges, whole = len(self.messages), jnp.dtype("int32")
        counts = dict.fromkeys(("invited", "answered", "dropped"), jax.ShapeDtypeStruct((exchanges,), whole))
        more = {
            "work": jax.ShapeDtypeStruct((exchanges, 2, 3), whole),
            "waited": jax.ShapeDtypeStruct((exchanges,), jnp.dtype("float32")),
        }
        draws = {name: draw.like for name, draw in self._script.asked.draws.items()}
        told: dict[str, Tree] = messages.like(said, {"traffic": {**counts, **more}, "draws": draws}, "what it says of a round")
        if any((count < 0).any() for count in told["traffic"].values()):
            raise Refused(Failure(MALFORMED, "counts that are negative"))
        return told

    def _finished(self, heard: Mapping[str, Heard], over: Mapping[str, dict[str, Tree]]) -> Progress:
        """Take down a round that is over at all sites."""
        if len(over) < len(heard):
            raise _at_odds("say that the round is over, and others wait", list(over))
        first = next(iter(over.values()))["draws"]
        alike = lambda draws: all(
            np.array_equal(a, b) for a, b in zip(jax.tree.leaves(draws), jax.tree.leaves(first), strict=True)
        )
        if others := [site for site, said in over.items() if not alike(said["draws"])]:
            raise _at_odds(f"drew other coins than {self.sites.names[0]}", others)
        self.held = {site: said.state for site, said in heard.items()}
        self.round += 1
        traffic = [Traffic(**said["traffic"]) for said in over.values()]
        total = jax.tree.map(lambda *counts: np.sum(counts, axis=0, dtype=counts[0].dtype), *traffic)
        # An exchange between neighbours is one, however many took part in it.
        mixes = np.array([message.function == MIX for message in self.messages], bool)
        total = total._replace(answered=np.where(mixes, traffic[0].answered, total.answered))
        return Progress(total, self._attendance(first) if self.conditions.record else ())

    def _attendance(self, draws: dict[str, Tree]) -> tuple[Tree, ...]:
        """Return who was there, as a trace has it: everybody, in order, at every exchange."""
        count, exchanges = len(self.sites.names), len(self._script.asked.exchanges)
        everybody, waited = np.arange(count, dtype=np.int32), np.float32(0)
        return (everybody,), (np.int32(count),), (np.ones(count, bool),) * exchanges, host(draws), (waited,) * exchanges


def _missing(heard: int, asked: int, least: int, failures: Mapping[str, Failure]) -> Halted:
    reasons = "; ".join(f"{site}: {failure.text or failure.kind}" for site, failure in failures.items())
    return Halted(
        f"A round between neighbours needs all {asked} sites, and {heard} took part ({reasons}): see to these sites and go on "
        "with the same run"
    )


def _at_odds(what: str, sites: Any) -> Halted:
    return Halted(f"{', '.join(sites)} {what}: give all sites the same method and seed, and go on with the same run")
