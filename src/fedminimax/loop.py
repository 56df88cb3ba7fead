"""The rounds of a run: advance, evaluate, tell those who watch."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from fedminimax.engines.execution import Execution, Halted
from fedminimax.engines.simulator import ROOM
from fedminimax.federation import accounting
from fedminimax.federation.spending import SPENT, Spending
from fedminimax.inputs import MADE_ON, fingerprint
from fedminimax.interrupts import noticed
from fedminimax.observers import Watched, tell, wanted
from fedminimax.plan import Plan
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.result import Result
from fedminimax.story import Story, steps_taken

_CALL_SECONDS = 0.5


class Loop:
    """A run under way.

    Args:
        plan: what to run.
        execution: what runs it.
        observers: who watches.
    """

    def __init__(self, plan: Plan, execution: Execution, observers: list[Any]):
        self._plan, self._execution, self._observers = plan, execution, observers
        self._story, self._clock, self._interrupted = Story(plan.before, plan.now, plan.first), _Clock(), False
        self._watched = Watched(plan.method, repr(plan.algorithm), plan.seed, plan.first, plan.last, execution, self)
        self._watched.eval_every = plan.every
        self._made_on = fingerprint(plan.problem, plan.clients)
        self._spending = _spending(plan)
        costs = dict.fromkeys(accounting.names(gossip=isinstance(plan.problem, PersonalizedProblem)), 0.0)
        self._watched.costs = {**costs, **self._story.total} if plan.resumed is not None else costs

    def go(self) -> Result:
        """Run to the last round, or until somebody wants to stop or presses Ctrl-C; return what came of it."""
        plan, watched, most = self._plan, self._watched, min(ROOM, self._execution.most_rounds or ROOM)
        pace, halted = 1, None
        try:
            with noticed() as pressed:
                self._begin()
                while watched.round < plan.last and watched.stopped is None:
                    if pressed:
                        raise KeyboardInterrupt
                    evaluation = min(plan.last, plan.first + ((watched.round - plan.first) // plan.every + 1) * plan.every)
                    stop = min([evaluation, *wanted(self._observers, watched)])
                    count = min(stop - watched.round, pace, most)
                    before = time.perf_counter()
                    progress = self._execution.advance(count)
                    pace = self._clock.took(time.perf_counter() - before, count)
                    self._story.went_on(self._execution.messages, progress)
                    if self._spending is not None:
                        self._spending.add(progress.sent)
                    watched.round = self._execution.round
                    tell(self._observers, "on_rounds", watched)
                    if watched.round == evaluation:
                        self._evaluate()
        except KeyboardInterrupt:
            self._interrupted = True
        except Halted as error:
            watched.stopped = halted = str(error)
        if self._story.last_evaluation != self._execution.round:
            self._evaluate()
        tell(self._observers, "on_end", watched)
        if (watched.stopped is not None and watched.stopped.startswith("The observer")) or halted:
            warnings.warn(f"{watched.stopped}. The run ended after {watched.round} rounds; its result is kept.", stacklevel=4)
        return self.result()

    def _begin(self) -> None:
        plan, watched, before = self._plan, self._watched, self._plan.before
        if plan.resumed is None or before is None:
            self._evaluate(first=True)
            return
        # What the run has told before it was stopped is not told again, but those who count evaluations may look at them.
        watched.round = watched.resumed = plan.resumed
        watched.evaluated = self._story.last_evaluation
        watched.evaluation = {n: v[-1] for n, v in before.history.items() if n != "round" and n not in before.costs}
        tell(self._observers, "on_start", watched)
        if plan.evaluates(plan.resumed) and watched.evaluated != plan.resumed:  # it was stopped between rounds and evaluation
            self._evaluate()

    def _evaluate(self, first: bool = False) -> None:
        watched = self._watched
        watched.costs = {**watched.costs, **self._story.total}
        watched.evaluation = self._execution.evaluate(self._plan.metrics, watched.costs)
        if self._spending is not None:
            watched.evaluation = {**watched.evaluation, **self._spending.epsilons()}
        watched.evaluated = self._execution.round
        self._story.evaluated(watched.evaluated, watched.evaluation)
        if first:
            tell(self._observers, "on_start", watched)
        tell(self._observers, "on_evaluation", watched)

    def result(self, whole: bool = True) -> Result:
        """Return what has come of the run so far.

        Args:
            whole: whether a recorded trace has the local steps that the seed alone would draw again.
        """
        plan, story, end, earlier = self._plan, self._story, self._execution.snapshot(), self._plan.before
        trace = None
        if plan.conditions.record:
            trace = story.trace(self._steps(end.round) if whole or plan.first > 0 else None)
        return Result(
            state=end.state,
            history=story.history(),
            costs=story.costs(),
            messages=self._execution.messages or ([] if earlier is None else earlier.messages),
            method=plan.method,
            settings=repr(plan.algorithm),
            seed=plan.seed,
            rounds=end.round,
            client_states=end.client_states,
            trace=trace,
            seconds=self.seconds,
            compile_seconds=self._clock.compiling,
            interrupted=self._interrupted,
            stopped=self._watched.stopped,
            info={MADE_ON: self._made_on, **({} if self._spending is None else {SPENT: self._spending.record()})},
        )

    @property
    def seconds(self) -> float:
        """The wall time of the rounds, but of the first call."""
        return self._clock.running + (0.0 if self._plan.before is None else self._plan.before.seconds)

    def history(self) -> dict[str, np.ndarray]:
        """Return the evaluations so far."""
        return self._story.history()

    def _steps(self, last: int) -> np.ndarray | None:
        plan = self._plan
        return steps_taken(plan.algorithm, plan.clients, plan.seed, plan.trace, plan.before, plan.first, last)


def _spending(plan: Plan) -> Spending | None:
    before, privacy = plan.before, plan.conditions.privacy
    if privacy is None:
        return None
    info, rounds = (None, 0) if before is None else (before.info, before.rounds)
    return Spending.after(privacy, plan.clients.count, info, rounds)


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
