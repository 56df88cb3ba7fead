"""A run under way among sites: every exchange of a cohort is one group call, and what a site fails to do is its own loss."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import wire
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.evaluation import Gatherer, shapes_of_parts
from fedminimax.engines.exchange import Heard, MessageExecution, MessageRound
from fedminimax.engines.execution import AtSites, Snapshot
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.group import Group
from fedminimax.engines.federated.hello import check_told
from fedminimax.engines.federated.messages import START, Refused, Whose
from fedminimax.engines.federated.outliers import Usual
from fedminimax.engines.federated.secure import fixed_point, measures
from fedminimax.engines.federated.secure.settings import Secure
from fedminimax.engines.federated.secure.wanted import Wanted, collector_of, counting
from fedminimax.engines.federated.transport import MALFORMED, REFUSED, Failure
from fedminimax.errors import InputError
from fedminimax.federation.accounting import Work
from fedminimax.federation.client import Reply
from fedminimax.federation.guard import Guard
from fedminimax.federation.round import Conditions, Executed, Request
from fedminimax.federation.trace import Trace
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import Context, Roll
from fedminimax.network import Network
from fedminimax.players import Count, Tree
from fedminimax.problems.robust import Problem

REFUSE, RESTART = "refuse", "restart"
_WORK = jax.ShapeDtypeStruct((len(Work._fields), 3), jnp.dtype("int32"))
"""What clients' work is told in (see :func:`fedminimax.federation.accounting.split`)."""
_SNAPSHOTS = 16
"""So many snapshots back sites keep their clients' states."""


@dataclass(frozen=True)
class Sites:
    """The sites of a run, and how it gets along with them.

    Attributes:
        group: asks them.
        names: their names, in the order of the clients' numbers.
        hello: asks some whether they are there and as they were, and returns who is not.
        held_out: what is known of held-out data at the sites, by name.
        min_replies: how many replies an exchange needs.
        on_lost_state: "refuse" or "restart".
        outliers: how many times longer than the median a reply may be.
        loss_outliers: how many times larger than the median a reported loss may be.
        secure: how sums over sites hide each of them; None: they do not.
        measures: by site, the names of the metrics of which it tells its part; None: of any.
    """

    group: Group
    names: tuple[str, ...]
    hello: Callable[[Collection[str], float], Mapping[str, Failure]]
    held_out: Mapping[str, RemoteClients]
    min_replies: int
    on_lost_state: str
    outliers: float | None
    loss_outliers: float | None
    secure: Secure | None = None
    measures: Mapping[str, Collection[str] | None] = field(default_factory=dict)


class FederatedExecution(MessageExecution):
    """A run under way among sites."""

    def __init__(
        self,
        problem: Problem,
        clients: RemoteClients,
        algorithm: Algorithm,
        conditions: Conditions,
        seed: int,
        trace: Trace | None,
        start: Snapshot | None,
        sites: Sites,
    ):
        super().__init__(problem, clients, algorithm, conditions, seed, trace)
        self.sites, self.usual, self.data = sites, Usual(sites.outliers, sites.loss_outliers), clients
        self.client_state: Tree = jax.eval_shape(lambda: algorithm.init_client(problem))
        first = np.cumsum([0, *np.asarray(clients.sizes)[:-1]])
        self.whose = {name: Whose(clients.count, k, int(first[k])) for k, name in enumerate(sites.names)}
        self.collector = None if sites.secure is None else collector_of(sites.secure, sites.group, sites.hello, self.whose)
        self.run_name, self.session = secrets.token_hex(8), ""
        self.held: dict[str, str] = {}  # by site: the name of the state that its client goes on from
        self._evaluations = 0
        self._snapshots: deque[dict[str, str]] = deque(maxlen=_SNAPSHOTS)
        self._gatherer = Gatherer(problem, Roll.of(clients), self._ask_parts, self._give)
        self.restore(Snapshot(algorithm.init(problem)) if start is None else start)

    @property
    def most_rounds(self) -> int | None:
        """One round at a time: what is lost when sites fail is then not more than that."""
        return 1

    @property
    def layout(self) -> dict[str, Any]:
        """Which sites there are."""
        return {"engine": "federation", "sites": list(self.sites.names)}

    def next_round(self) -> FederatedRound:
        """Return the round that comes next."""
        self._before = dict(self.held)  # to which a round that fails goes back
        return FederatedRound(self)

    def here(self) -> Snapshot:
        """Return what a round that fails goes back to."""
        # With secure sums sites know by the run's name what they have opened, also where their clients remember nothing.
        known = self.client_state is not None or self.sites.secure is not None
        states = AtSites(self.run_name, tuple(self.held[n] for n in self.sites.names)) if known else None
        return Snapshot(jax.tree.map(np.asarray, self._state), states, self.round)

    def snapshot(self) -> Snapshot:
        """Return all that the run goes on from; the clients' states stay with them, and are kept there."""
        self._snapshots.append(dict(self.held))
        return self.here()

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from there."""
        states: Any = snapshot.client_states
        if isinstance(states, AtSites):
            if len(states.names) != len(self.sites.names):
                raise InputError(f"The run to go on with had {len(states.names)} sites, but there are {len(self.sites.names)}.")
            self.run_name, self.held = states.run, dict(zip(self.sites.names, states.names, strict=True))
        elif states is not None:
            raise InputError("Sites keep their clients' states themselves: a federation goes on from its own results only.")
        else:
            self.held = dict.fromkeys(self.sites.names, START)
        # What is asked from here on is not what was asked before, though the rounds may have the same numbers.
        self.session = secrets.token_hex(4)
        self._state, self.round = jax.tree.map(jnp.asarray, snapshot.state), snapshot.round
        self._before = dict(self.held)
        self._snapshots.append(dict(self.held))

    def kept(self, site: str) -> list[str]:
        """Return the names of the states that a site may be asked to go back to."""
        return sorted({held[site] for held in (self._before, *self._snapshots)} - {START})

    def evaluate(self, metrics: Mapping[str, Metric], costs: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return every number of every metric at the state, from the sites' parts. What lacks a site's part is NaN."""
        check_told(metrics, len(self.sites.names), self.sites.measures)
        return self._gatherer(metrics, self._state, Context.at(self.round, costs))

    def close(self) -> None:
        """The transport is whoever opened it's to close."""

    def _ask_parts(self, requests: Sequence[Any]) -> list[Tree]:
        self._evaluations += 1
        id, by_site = f"{self.session}/parts/{self._evaluations}", dict(zip(self.sites.names, requests, strict=True))
        shares: dict[str, dict[int | str, ClientData]] = {
            site: {name: roll.shapes(k) for name, roll in self.sites.held_out.items()} for k, site in enumerate(by_site)
        }
        expected = {
            site: shapes_of_parts(self.problem, k, self.data.shapes(k), shares[site], request)
            for k, (site, request) in enumerate(by_site.items())
        }

        if self.collector is not None and not measures.are_open(expected[self.sites.names[0]], self.collector.secure):
            return [*measures.summed_parts(self.collector, id, by_site, expected)]

        def read(site: str, reply: wire.Bytes) -> Tree:
            message = messages.read(reply, id, "parts", messages.room(expected[site]))
            return messages.like(message["parts"], expected[site], "a part of a metric")

        make = lambda site: wire.encode({"id": id, "whose": self.whose[site], "parts": by_site[site]})
        found = self.sites.group.ask(self.sites.names, make, read, 0, self.sites.hello)
        unknown = lambda shapes: jax.tree.map(lambda s: np.full(s.shape, np.nan), shapes)
        return [found[site] if site in found else unknown(expected[site]) for site in self.sites.names]

    def _give(self, client: int, number: int, share: ClientData) -> None:
        raise InputError(
            "Held-out data is with the sites: let each load its share, and give engine.held_out(name) in its place."
        )


class FederatedRound(MessageRound):
    """A round whose clients are sites."""

    def __init__(self, run: FederatedExecution):
        super().__init__(run)
        self._run = run

    @property
    def has_client_state(self) -> bool:
        """Whether clients remember something from round to round."""
        return self._run.client_state is not None

    @property
    def one_client(self) -> tuple[Tree, Tree]:
        """The shapes of one client's data, and of what it remembers."""
        return self._run.data.shapes(0), self._run.client_state

    def exchange(self, function: str, request: Request, places: Sequence[int], expected: Reply[Tree]) -> dict[int, Heard]:
        """Ask all sites of a cohort in one group call."""
        run, asked, id = self._run, self._asked(request, places), self._id
        letters = lambda site: [self.letter(function, request, k) for k in asked[site]]
        make = lambda site: wire.encode({"id": id, **self._request(site, letters(site), request)})
        read = lambda site, reply: self._read(site, reply, id, len(asked[site]), expected, request.guard)
        refuse = lambda heard: self._outliers(function, heard)
        heard = run.sites.group.ask(tuple(asked), make, read, run.sites.min_replies, run.sites.hello, refuse=refuse)
        for site, (state, _) in heard.items():
            run.held[site] = state
        return {k: value for site, (_, values) in heard.items() for k, value in zip(asked[site], values, strict=True)}

    def secure_sum(self, function: str, request: Request, places: Sequence[int], expected: Reply[Tree]) -> Executed | None:
        """Return the weighted sum of replies that the server does not see one by one; None: this federation has none."""
        run, collector, weights = self._run, self._run.collector, np.asarray(request.weights, np.float64)
        if collector is None:
            return None
        asked, secure = self._asked(request, places), collector.secure
        like = Heard(expected.value, _WORK)._asdict()

        def work(site: str) -> dict[str, Tree]:
            letters = [self.letter(function, request, k) for k in asked[site]]
            bounds = {"max_norm": request.guard.max_norm, "max_loss": request.guard.max_loss}
            return {**self._request(site, letters, request), "secure": {"weights": weights[asked[site]], **bounds}}

        enough = counting({site: float(np.abs(weights[own]).sum()) for site, own in asked.items()})
        words, fewest = fixed_point.length(like), min(run.sites.min_replies, len(asked))
        room = messages.room(like) + 8 * words
        read = lambda site, message: self._state_name(site, message, self._id)
        wanted = Wanted(self._id, tuple(asked), work, read, self._refused, words, room, fewest, enough)
        found = collector.sum(wanted)
        run.held |= found.said
        assert found.total is not None
        total = fixed_point.unpack(found.total, like, secure)
        there = np.zeros(request.ids.shape[0], bool)
        there[[k for site in found.said for k in asked[site]]] = True
        kept = jnp.where(there, jnp.asarray(request.weights), 0.0)
        value, arrived = jax.tree.map(jnp.asarray, total["value"]), jnp.asarray(there)
        return Executed(value, jnp.sum(kept), arrived, arrived, expected.note, jnp.asarray(total["work"]))

    @property
    def _id(self) -> str:
        return f"{self._run.session}/{int(self.t)}/{len(self.answers)}"

    def _asked(self, request: Request, places: Sequence[int]) -> dict[str, list[int]]:
        """Return the places of a cohort by their sites."""
        asked: dict[str, list[int]] = {}
        for k in places:
            asked.setdefault(self._run.sites.names[int(request.ids[k])], []).append(k)
        return asked

    def _request(self, site: str, letters: list[dict[str, Tree]], request: Request) -> dict[str, Any]:
        run = self._run
        return {
            "run": run.run_name,
            "whose": run.whose[site],
            "turn": f"{run.session}/{int(self.t)}",
            "state": run.held[site],
            "keep": run.kept(site),
            "noted": request.note is not None,
            "letters": letters,
        }

    def _read(
        self, site: str, reply: wire.Bytes, id: str, count: int, expected: Reply[Tree], guard: Guard
    ) -> tuple[str, list[Heard]]:
        """Return the name of a site's state after an exchange, and its replies, one for each of its places."""
        like = Heard(expected.value, _WORK)._asdict()
        try:
            message = messages.read(reply, id, "replies", messages.room(like, count))
        except Refused as refused:
            self._refused(site, refused)
            raise
        replies, state = message["replies"], self._state_name(site, message, id)
        if not isinstance(replies, list) or len(replies) != count:
            raise Refused(Failure(MALFORMED, "a reply that is not to what was asked"))
        heard = [Heard(**messages.like(value, like, "a reply")) for value in replies]
        for one in heard:
            if not guard.inspect(jax.tree.map(jnp.asarray, one.value))[1] or (one.work < 0).any():
                raise Refused(Failure(REFUSED, "the guard refused its reply: it is not finite, or out of bounds"))
        return state, heard

    def _refused(self, site: str, refused: Refused) -> None:
        if refused.lost and self._run.sites.on_lost_state == RESTART:
            self._run.held[site] = START

    def _state_name(self, site: str, message: dict[str, Any], id: str) -> str:
        """Return the name of a site's state after an exchange: that of the exchange, or what it was."""
        state = message.get("state")
        if not isinstance(state, str) or state not in (id, self._run.held[site]):
            raise Refused(Failure(MALFORMED, "a reply that is not to what was asked"))
        return state

    def _outliers(self, function: str, heard: Mapping[str, tuple[str, list[Heard]]]) -> dict[str, Failure]:
        """Return whose replies are far longer than the others'."""
        values = {site: [one.value for one in found] for site, (_, found) in heard.items()}
        return dict.fromkeys(
            self._run.usual.refused(function, values),
            Failure(REFUSED, "its reply is far longer than the others', or the loss that it reports far larger"),
        )

    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Count]:
        """There is none: nodes of a network are refused before a run begins."""
        raise InputError("A federation has a server: methods of nodes on a network run on the simulator.")
