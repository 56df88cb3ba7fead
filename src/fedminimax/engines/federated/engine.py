"""The engine ``federation``: the same methods, between sites that hold their own data."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from fedminimax import checks
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.execution import Snapshot
from fedminimax.engines.federated import hello
from fedminimax.engines.federated.execution import REFUSE, RESTART, FederatedExecution, Sites
from fedminimax.engines.federated.gossip import GossipExecution
from fedminimax.engines.federated.group import Event, Group
from fedminimax.engines.federated.hello import Hello
from fedminimax.engines.federated.secure.rehearsal import check_method
from fedminimax.engines.federated.secure.settings import Secure, check_installed
from fedminimax.engines.federated.transport import Failure, Transport
from fedminimax.engines.federated.worker import COUNT, agreement, counted
from fedminimax.errors import InputError
from fedminimax.federation.round import Conditions
from fedminimax.federation.trace import Trace
from fedminimax.metrics.parts import Roll
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.problems.robust import Problem


class Federation:
    """The engine whose clients are sites: ``run(problem, engine.clients, method, engine=engine)``.

    Each exchange of a cohort is one group call, with missing replies allowed: a site that dies, hangs, restarts, or answers
    what cannot be, costs at most its own contribution. Who answered is in the trace (``record=True``), and the simulator
    replays it.

    With a :class:`PersonalizedProblem` there is no server: neighbours seal what they send each other, the engine carries it,
    and all sites are needed (``min_replies``, ``on_lost_state``, ``outliers`` and ``loss_outliers`` do not
    matter).

    Args:
        transport: what carries the messages, and the sites' names. Whoever made it closes it.
        timeout: seconds for a group call. A site that has not answered by then is left out, and nobody waits for it again; now
            and then it is asked whether it is there.
        min_replies: how many replies an exchange needs. With fewer, those that did not reply are asked again; then the run
            ends, and can be gone on with.
        retries: how often they are asked again.
        on_lost_state: what becomes of a site that has lost its client's state, where the method has one: "refuse" (it does not
            take part until it has it again) or "restart" (it goes on from the initial state; the simulator then cannot replay
            the run from its trace).
        outliers: a reply so many times longer than the median of all is refused; None: none is.
        loss_outliers: a reply whose reported loss is so many times the median of all is refused; None: none is. Honest sites
            may well differ by a hundred, and the worst of them is whom the weights are for; by a thousand they hardly do.
        pause: seconds before sites are asked again, twice as many each time.
        probe: seconds that a site which was left out has to say that it is there.
        known: a file to keep in what the sites say of themselves. With it a run may begin, or go on, while some of them are not
            there: they are taken in when they answer. Without it all must be there.
        secure: sums over sites are such that the server learns no site's own vector; the sites must have the same. None: the
            server sees each site's replies.
        tell: is told every :class:`Event`: which site answered, and which did not, and why.
    """

    asks_sites = True

    @property
    def saves_each_round(self) -> bool:
        """Whether a run in a folder is saved after every round: what sites have opened once they open in the same way only."""
        return self._secure is not None

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float = 60.0,
        min_replies: int = 1,
        retries: int = 2,
        on_lost_state: str = REFUSE,
        outliers: float | None = 1e4,
        loss_outliers: float | None = 1e3,
        pause: float = 0.5,
        probe: float = 1.0,
        known: str | Path | None = None,
        secure: Secure | None = None,
        tell: Callable[[Event], None] | None = None,
    ):
        for name, value in (("timeout", timeout), ("probe", probe), ("outliers", outliers), ("loss_outliers", loss_outliers)):
            if value is not None and not value > 0:
                raise InputError(f"{name} must be positive, not {value}.")
        checks.not_negative("pause", pause)
        checks.integer("min_replies", min_replies, least=0)
        checks.integer("retries", retries, least=0)
        if on_lost_state not in (REFUSE, RESTART):
            raise InputError(f"on_lost_state must be 'refuse' or 'restart', not {on_lost_state!r}.")
        if min_replies > len(transport.sites):
            raise InputError(
                f"min_replies is {min_replies}, but there are {len(transport.sites)} sites: ask for at most these."
            )
        if secure is not None:
            check_installed()
            secure.check_room(len(transport.sites))
        self.transport, self.timeout, self._pause, self._secure = transport, timeout, pause, secure
        self._known = None if known is None else Path(known)
        self._min_replies, self._on_lost_state, self._listener = min_replies, on_lost_state, tell
        self._outliers, self._loss_outliers = outliers, loss_outliers
        self.events: deque[Event] = deque(maxlen=10_000)
        """What became of the sites in the last calls."""
        self._group = Group(transport, timeout=timeout, retries=retries, pause=pause, probe=probe, tell=self._tell)

    def __repr__(self) -> str:
        return f"Federation({type(self.transport).__name__}{self.transport.sites}, min_replies={self._min_replies})"

    @functools.cached_property
    def _sites(self) -> dict[str, Hello]:
        found, failures = hello.ask(self.transport, self.transport.sites, self.timeout)
        for nth in range(self._group.retries):
            if len(found) == len(self.transport.sites):
                break
            time.sleep(self._pause * 2**nth)
            more, failures = hello.ask(self.transport, [s for s in self.transport.sites if s not in found], self.timeout)
            found |= more
        before = hello.load(self._known)
        for site in [site for site in self.transport.sites if site in before and site not in found]:
            found[site] = before[site]
            self._group.leave_out(site)
        hello.check(self.transport.sites, found, failures)
        hello.save(self._known, found)
        return {site: found[site] for site in self.transport.sites}

    @functools.cached_property
    def clients(self) -> RemoteClients:
        """What is known of the sites' data, to be given to ``run`` in place of the data: the sites are asked, once."""
        return hello.roll(self._sites)

    def held_out(self, name: str) -> Roll:
        """Return what is known of the sites' held-out data of a name, to be given to metrics in place of the data."""
        known = list(next(iter(self._sites.values())).held_out)
        if name not in known:
            raise InputError(f"The sites have no held-out data {name!r}, but {', '.join(known) or 'none at all'}.")
        roll = hello.roll(self._sites, name)
        return Roll(roll.sizes, roll.total, name)

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
    ) -> FederatedExecution | GossipExecution:
        """Begin a run (see :class:`~fedminimax.engines.execution.Engine`)."""
        if not isinstance(clients, RemoteClients) or clients.names != self.clients.names:
            raise InputError("The sites have the data: give engine.clients in place of it.")
        if isinstance(problem, PersonalizedProblem) and (self._secure is not None or conditions.privacy is not None):
            raise InputError("Neighbours seal what they send, and send it as it is: leave secure= and privacy= out.")
        wanted = agreement(problem, algorithm, conditions.privacy, self._secure)
        for site, said in self._sites.items():
            hello.compare(site, said, wanted | counted(clients.count if COUNT in said.agrees else None))
        held = {name: hello.roll(self._sites, name) for name in next(iter(self._sites.values())).held_out}
        names = self.transport.sites
        sites = Sites(
            self._group,
            names,
            self._still_there,
            held,
            self._min_replies,
            self._on_lost_state,
            self._outliers,
            self._loss_outliers,
            self._secure,
            {site: said.measures for site, said in self._sites.items()},
        )
        if isinstance(problem, PersonalizedProblem):
            return GossipExecution(problem, clients, algorithm, conditions, seed, trace, start, sites)
        execution = FederatedExecution(problem, clients, algorithm, conditions, seed, trace, start, sites)
        if self._secure is not None:
            check_method(execution, self._secure, (clients.shapes(0), execution.client_state))
        return execution

    def _still_there(self, sites: Collection[str], timeout: float) -> Mapping[str, Failure]:
        """Ask sites whether they are there, and as they were; return who is not, and why."""
        found, failures = hello.ask(self.transport, sites, timeout)
        wrong = {site: failure for site, now in found.items() if (failure := hello.changed(self._sites[site], now))}
        return failures | wrong

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        if self._listener is not None:
            self._listener(event)
