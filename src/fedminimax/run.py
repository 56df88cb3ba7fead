"""``run``: one algorithm on one problem, to one Result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.execution import Engine, Execution, Snapshot
from fedminimax.engines.isolated import Isolated
from fedminimax.engines.program import rehearse
from fedminimax.engines.simulator import ROOM, Simulator
from fedminimax.errors import InputError
from fedminimax.federation import accounting
from fedminimax.federation.availability import Availability
from fedminimax.federation.guard import Guard
from fedminimax.federation.round import Conditions
from fedminimax.federation.trace import Trace
from fedminimax.inputs import beginning, check_input
from fedminimax.metrics import Metric, named
from fedminimax.observers import Watched, checked, tell
from fedminimax.players import Tree
from fedminimax.problems.forms import AnyProblem
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.progress import ProgressBar
from fedminimax.result import Result
from fedminimax.story import Story, steps_taken

SIMULATOR, ISOLATED = "simulator", "isolated"
_ENGINES: dict[str, Callable[[], Engine]] = {SIMULATOR: Simulator, ISOLATED: Isolated}
_CALL_SECONDS = 0.5


def run(
    problem: AnyProblem,
    clients: ClientSource,
    algorithm: Algorithm,
    *,
    rounds: int,
    seed: int = 0,
    eval_every: int | None = None,
    metrics: Iterable[Metric] | Mapping[str, Metric] | Metric = (),
    engine: str | Engine = SIMULATOR,
    guard: Guard | None = None,
    availability: Availability | None = None,
    trace: Trace | None = None,
    record: bool = False,
    start: Result | Snapshot | Tree | None = None,
    progress: bool | str | None = None,
    observers: Any = (),
) -> Result:
    """Run an algorithm for some rounds, and return what came of it.

    The same seed gives the same run whatever the engine and its settings, to rounding.

    Args:
        problem: what to solve.
        clients: the clients' data.
        algorithm: the method with its hyper-parameters.
        rounds: how many communication rounds; with ``start`` this many more.
        seed: of all randomness.
        eval_every: evaluate the metrics every so many rounds (and before the first and after the last); by default about
            fifty times.
        metrics: functions of (problem, clients, state), by name or with a ``name`` of their own (see
            :mod:`fedminimax.metrics`).
        engine: "simulator" (compiled), "isolated" (every client a worker, every exchange bytes), or an engine with settings
            of its own, such as ``Simulator(strategy="map", devices=1, client_store="folder")``.
        guard: what replies must pass; by default non-finite ones are dropped.
        availability: who answers; by default everybody.
        trace: a record of cohorts and local steps to replay.
        record: keep a trace of this run in the result.
        start: what to start from. A result is continued exactly, from its last round and with its seed. A
            ``Snapshot(state, client_states, round)`` gives an algorithm's state, the clients' own where they have any, and
            the number of the next round, which schedules, traces and randomness go by; a state alone is taken at round 0. A
            dict gives some fields of the state but the players by name, such as ``{"z": z0}`` of FessGDA.
        progress: show a progress bar, with the metric of this name or the first; by default on a terminal only.
        observers: what else watches the run (see :mod:`fedminimax.observers`).
    """
    problem, clients = check_input(problem, clients, algorithm, rounds, eval_every)
    before = start if isinstance(start, Result) else None
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InputError(f"seed must be a whole number, not {seed!r}.")
    if availability is not None:
        if not isinstance(availability, Availability):
            raise InputError(f"availability must be an Availability, such as Availability(0.5), not {availability!r}.")
        availability.check(clients.count)
    if record and before is not None and before.trace is None:
        raise InputError("The result to continue has no trace to add to: record from the first round on.")
    begin = beginning(algorithm, problem, clients.count, start)
    first = 0 if begin is None else begin.round
    seed = seed if before is None else before.seed
    conditions = Conditions(guard or Guard(), availability, record)
    if trace is not None:
        if not isinstance(trace, Trace):
            raise InputError(f"trace must be a Trace, such as Trace(cohorts=(array,)), not {type(trace).__name__}.")
        asked = rehearse(problem, algorithm, clients, conditions).asked
        last = first + rounds
        trace = trace.check(last, clients.count, first).fit(asked, type(algorithm).__name__, last, first)
        algorithm.check(clients, trace.steps)
    judged, watching = named(metrics), checked(observers)
    metric, wanted = (progress, None) if isinstance(progress, str) else (None, progress)
    watching.insert(0, ProgressBar(metric, wanted))
    carrier = engine_of(engine)
    with carrier.open(problem, clients, algorithm, conditions, seed=seed, trace=trace, start=begin) as execution:
        watched = Watched(type(algorithm).__name__, repr(algorithm), seed, first, first + rounds, execution)
        loop = _Loop(execution, judged, watching, watched, Story(before, first), eval_every or max(1, rounds // 50))
        watched.costs = dict.fromkeys(accounting.names(gossip=isinstance(problem, PersonalizedProblem)), 0)
        interrupted = loop.go()
        end = execution.snapshot()
        messages = execution.messages or ([] if before is None else before.messages)
    costs = loop.story.costs()
    if costs and (refused := int(costs["dropped"][first:].sum())):
        warnings.warn(
            f"The guard refused {refused} of {int(costs['replies'][first:].sum())} replies (costs['dropped'] says when): "
            "a client is broken, or the step sizes are too large.",
            stacklevel=2,
        )
    return Result(
        state=end.state,
        history=loop.story.history(),
        costs=costs,
        messages=messages,
        method=watched.method,
        settings=watched.settings,
        seed=seed,
        rounds=end.round,
        client_states=end.client_states,
        trace=loop.story.trace(steps_taken(algorithm, clients, seed, trace, before, first, end.round)) if record else None,
        seconds=loop.clock.running + (0.0 if before is None else before.seconds),
        compile_seconds=loop.clock.compiling,
        interrupted=interrupted,
        stopped=watched.stopped,
    )


class _Loop:
    """The rounds of a run: advance, evaluate, tell."""

    def __init__(
        self,
        execution: Execution,
        metrics: dict[str, Metric],
        observers: list[Any],
        watched: Watched,
        story: Story,
        every: int,
    ):
        self._execution, self._metrics, self._observers, self._watched = execution, metrics, observers, watched
        self._every, self.story, self.clock = every, story, _Clock()

    def go(self) -> bool:
        """Run to the last round, or until somebody wants to stop; return whether it was interrupted by Ctrl-C."""
        watched, most = self._watched, min(ROOM, self._execution.most_rounds or ROOM)
        interrupted, pace = False, 1
        try:
            self._evaluate(first=True)
            while watched.round < watched.last and watched.stopped is None:
                done = watched.round - watched.first
                stop = min(watched.last, watched.first + (done // self._every + 1) * self._every)
                count = min(stop - watched.round, pace, most)
                before = time.perf_counter()
                progress = self._execution.advance(count)
                pace = self.clock.took(time.perf_counter() - before, count)
                self.story.went_on(self._execution.messages, progress)
                watched.round = self._execution.round
                tell(self._observers, "on_rounds", watched)
                if watched.round == stop:
                    self._evaluate()
        except KeyboardInterrupt:
            interrupted = True
        if self.story.last_evaluation != self._execution.round:
            self._evaluate()
        tell(self._observers, "on_end", watched)
        if watched.stopped is not None and watched.stopped.startswith("The observer"):
            warnings.warn(f"{watched.stopped}. The run ended after {watched.round} rounds; its result is kept.", stacklevel=3)
        return interrupted

    def _evaluate(self, first: bool = False) -> None:
        watched = self._watched
        watched.costs = {**watched.costs, **self.story.total}
        watched.evaluation = self._execution.evaluate(self._metrics, watched.costs)
        watched.evaluated = self._execution.round
        self.story.evaluated(watched.evaluated, watched.evaluation)
        if first:
            tell(self._observers, "on_start", watched)
        tell(self._observers, "on_evaluation", watched)


class _Clock:
    """Wall time, the first call (which compiles) apart; and how many rounds the next call should run."""

    def __init__(self) -> None:
        self.compiling, self.running, self._calls, self._pace = 0.0, 0.0, 0, 1

    def took(self, seconds: float, rounds: int) -> int:
        self._calls += 1
        if self._calls == 1:
            self.compiling = seconds
        else:
            self.running += seconds
            ideal = rounds * _CALL_SECONDS / max(seconds, 1e-6)
            self._pace = int(max(1, min(ideal, 8 * self._pace)))
        return self._pace


def engine_of(engine: str | Engine) -> Engine:
    """Return an engine by its name, or the one that is given."""
    if isinstance(engine, str) and engine in _ENGINES:
        return _ENGINES[engine]()
    if isinstance(engine, (type, str)) or not isinstance(engine, Engine):
        names = " or ".join(repr(name) for name in _ENGINES)
        raise InputError(f"engine must be {names}, or an engine such as Simulator(devices=1), not {engine!r}.")
    return engine
