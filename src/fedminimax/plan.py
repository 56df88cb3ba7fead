"""What a run is, settled before anything runs: its inputs, checked; where it begins, and where it will be over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.data.remote import RemoteClients
from fedminimax.data.shards import ClientShard
from fedminimax.engines.execution import START, AtSites, Engine, Execution, Snapshot
from fedminimax.engines.isolated import Isolated
from fedminimax.engines.mesh import Mesh
from fedminimax.engines.program import rehearse
from fedminimax.engines.rows import OwnStates
from fedminimax.engines.simulator import Simulator
from fedminimax.errors import InputError
from fedminimax.federation import spending
from fedminimax.federation.availability import Availability
from fedminimax.federation.guard import Guard
from fedminimax.federation.privacy import Privacy
from fedminimax.federation.round import Conditions
from fedminimax.federation.trace import Trace
from fedminimax.inputs import beginning, check_continued, check_input
from fedminimax.metrics import Metric, named
from fedminimax.players import Tree
from fedminimax.problems.forms import AnyProblem
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.problems.robust import Problem
from fedminimax.result import Result

SIMULATOR, ISOLATED, MESH, FEDERATION = "simulator", "isolated", "mesh", "federation"
_ENGINES: dict[str, Callable[[], Engine]] = {SIMULATOR: Simulator, ISOLATED: Isolated, MESH: Mesh}


@dataclass(frozen=True)
class Plan:
    """A run that is about to begin, or to go on.

    Attributes:
        problem: what to solve, bound to its clients.
        clients: their data, as bound.
        algorithm: the method.
        conditions: who answers, what is let through, what is recorded.
        seed: of all randomness.
        metrics: what to evaluate, by name.
        engine: what carries the rounds out.
        first: the round at which the run begins.
        last: the round at which it will be over.
        eval_every: how many rounds apart the evaluations are; None: as :attr:`every` says.
        trace: a record to replay.
        start: where it starts or goes on; None: at the algorithm's own start.
        before: the result of the rounds before those to come; None: there is none.
        resumed: the round from which a run that was stopped goes on; None: it begins.
    """

    problem: Problem
    clients: ClientSource
    algorithm: Algorithm
    conditions: Conditions
    seed: int
    metrics: dict[str, Metric]
    engine: Engine
    first: int
    last: int
    eval_every: int | None = None
    trace: Trace | None = None
    start: Snapshot | None = None
    before: Result | None = None
    resumed: int | None = None

    @property
    def every(self) -> int:
        """How many rounds apart the evaluations are, counted from the first round."""
        return self.eval_every or max(1, (self.last - self.first) // 50)

    @property
    def now(self) -> int:
        """The next round."""
        return self.first if self.resumed is None else self.resumed

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return type(self.algorithm).__name__

    def evaluates(self, round: int) -> bool:
        """Tell whether the metrics are taken after so many rounds, whenever the run ends."""
        return (round - self.first) % self.every == 0

    def open(self) -> Execution:
        """Begin the run on its engine."""
        inputs = self.problem, self.clients, self.algorithm, self.conditions
        return self.engine.open(*inputs, seed=self.seed, trace=self.trace, start=self.start)


def planned(
    problem: AnyProblem,
    clients: ClientSource,
    algorithm: Algorithm,
    *,
    rounds: int,
    seed: int,
    eval_every: int | None,
    metrics: Iterable[Metric] | Mapping[str, Metric] | Metric,
    engine: str | Engine,
    guard: Guard | None,
    availability: Availability | None,
    trace: Trace | None,
    record: bool,
    start: Result | Snapshot | Tree | None,
    privacy: Privacy | None = None,
) -> Plan:
    """Return the plan of a run, or say what is wrong with its inputs (see :func:`fedminimax.run` for the arguments)."""
    bound, data = check_input(problem, clients, algorithm, rounds, eval_every)
    before = start if isinstance(start, Result) else None
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InputError(f"seed must be a whole number, not {seed!r}.")
    if availability is not None:
        if not isinstance(availability, Availability):
            raise InputError(f"availability must be an Availability, such as Availability(0.5), not {availability!r}.")
        availability.check(data.count)
    if privacy is not None:
        _check_privacy(privacy, bound)
    if record and before is not None and before.trace is None:
        raise InputError("The result to continue has no trace to add to: record from the first round on.")
    if before is not None and before.method == type(algorithm).__name__:
        check_continued(before, bound, data, algorithm)
    begin = beginning(algorithm, bound, data.count, start)
    first = 0 if begin is None else begin.round
    last = first + rounds
    conditions = Conditions(guard or Guard(), availability, record, privacy)
    if trace is not None:
        if not isinstance(trace, Trace):
            raise InputError(f"trace must be a Trace, such as Trace(cohorts=(array,)), not {type(trace).__name__}.")
        asked = rehearse(bound, algorithm, data, conditions).asked
        trace = trace.check(last, data.count, first).fit(asked, type(algorithm).__name__, last, first)
        algorithm.check(data, trace.steps)
    carrier = engine_of(engine)
    begin = _without_names(begin, carrier)
    _check_places(data, begin, carrier)
    return Plan(
        problem=bound,
        clients=data,
        algorithm=algorithm,
        conditions=conditions,
        seed=int(seed) if before is None else before.seed,
        metrics=named(metrics),
        engine=carrier,
        first=first,
        last=last,
        eval_every=eval_every,
        trace=trace,
        start=begin,
        before=before,
    )


def _check_privacy(privacy: Privacy, problem: Problem) -> None:
    """Raise an error where messages cannot be protected, or where it could not be said how well they are."""
    if not isinstance(privacy, Privacy):
        raise InputError(f"privacy must be a Privacy, such as Privacy(clip=1.0, noise=1.0), not {privacy!r}.")
    if isinstance(problem, PersonalizedProblem):
        raise InputError(
            "Privacy is for what clients send to a server, but these nodes talk to their neighbours: leave privacy out."
        )
    spending.check_installed()


def _without_names(begin: Snapshot | None, engine: Engine) -> Snapshot | None:
    """Return where a run begins without what only sites know: the name of a run whose clients remember nothing."""
    if begin is None or getattr(engine, "asks_sites", False) or not isinstance(begin.client_states, AtSites):
        return begin
    return begin._replace(client_states=None) if set(begin.client_states.names) <= {START} else begin


def _check_places(clients: ClientSource, begin: Snapshot | None, engine: Engine) -> None:
    """Raise an error where data, or clients' states, are with sites that the engine does not ask."""
    if getattr(engine, "asks_sites", False):
        return
    if isinstance(clients, ClientShard) and not isinstance(engine, Mesh):
        raise InputError("These are one process's clients of several: run them with engine='mesh', on all processes.")
    if isinstance(clients, RemoteClients):
        raise InputError("These clients' data is with the sites: give the engine that asks them, engine=Federation(transport).")
    if begin is not None and isinstance(begin.client_states, OwnStates) and not isinstance(engine, Mesh):
        raise InputError(
            "The result to continue has the states of one process's clients of several: give Snapshot(result.state, "
            "OwnStates.together(states of all processes), result.rounds), or go on from the run's folder."
        )
    if begin is not None and AtSites in (type(begin.client_states), type(begin.state)):
        raise InputError(
            "The clients' states of this run are with the sites: go on with it in the federation, or replay its trace from the "
            "start."
        )


def engine_of(engine: str | Engine) -> Engine:
    """Return an engine by its name, or the one that is given."""
    if isinstance(engine, str) and engine in _ENGINES:
        return _ENGINES[engine]()
    if engine == FEDERATION:
        raise InputError(
            "A federation needs a transport to its sites: give engine=Federation(transport), which is in "
            "fedminimax.engines.federated, and engine.clients."
        )
    if isinstance(engine, (type, str)) or not isinstance(engine, Engine):
        *names, last = (repr(name) for name in _ENGINES)
        known = f"{', '.join(names)} or {last}"
        raise InputError(f"engine must be {known}, or an engine such as Simulator(devices=1), not {engine!r}.")
    return engine
