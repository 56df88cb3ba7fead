"""Training without a step size: a method runs with steps from the data's curvature, and again with half of them if it must."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from fedminimax.algorithms import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.metrics import Metric
from fedminimax.observers import Observer, Watched
from fedminimax.problems.forms import AnyProblem
from fedminimax.result import Result
from fedminimax.run import run

OBJECTIVE, GAP = "objective", "gap"
_MEASURE = "training"
_EVALUATIONS = 20
_TRIES = 6
_ROOM = 0.1
"""How much of what was gained may be lost again: more, and the steps were too large."""
_ROUNDING = 1e-5

Methods = Callable[[float], Algorithm]
"""A method whose step sizes are multiplied by a number."""


@dataclass(frozen=True)
class Training:
    """How long to train, and who watches.

    Attributes:
        rounds: the most rounds.
        tol: the relative change of the objective between two evaluations below which training is over.
        seed: of all randomness.
        verbose: whether a progress bar is shown.
    """

    rounds: int
    tol: float
    seed: int
    verbose: bool

    def __call__(
        self, problem: AnyProblem, clients: ClientData, method: Algorithm | Methods, measure: Metric, judge: str
    ) -> tuple[Result, Algorithm]:
        """Return the result, and the method with the step sizes that led to it.

        Args:
            problem: what to solve.
            clients: the clients' data.
            method: a method, which runs once; or what makes one of a factor on its step sizes, which is halved while the
                training loses what it has gained.
            measure: the numbers that the history has, by name.
            judge: the one that must fall.
        """
        judge = f"{_MEASURE}/{judge}"
        given = isinstance(method, Algorithm)
        for attempt in range(1 if given else _TRIES):
            chosen = method if isinstance(method, Algorithm) else method(0.5**attempt)
            result = self._run(problem, clients, chosen, measure, judge)
            if result.interrupted:  # a search or a pipeline around this must stop, too
                raise KeyboardInterrupt
            if _went_well(result, judge):
                return result, chosen
        advice = (
            "give it smaller ones" if given else "look for columns or sites of another scale, or give a method with its own"
        )
        warnings.warn(
            f"{chosen!r} did not settle: the objective went from {result.history[judge][0]:.4g} to "
            f"{result.history[judge][-1]:.4g}. Its step sizes are too large for these data: {advice}.",
            ConvergenceWarning,
            stacklevel=4,
        )
        return result, chosen

    def _run(self, problem: AnyProblem, clients: ClientData, method: Algorithm, measure: Metric, judge: str) -> Result:
        with warnings.catch_warnings():  # of refused replies and of numbers that overflow, which lead to smaller steps
            warnings.simplefilter("ignore")
            return run(
                problem,
                clients,
                method,
                rounds=self.rounds,
                seed=self.seed,
                eval_every=max(1, self.rounds // _EVALUATIONS),
                metrics={_MEASURE: measure},
                observers=[_Settled(judge, self.tol)],
                progress=self.verbose,
            )


def frame(result: Result) -> pd.DataFrame:
    """Return the history as a table: the round and the metrics."""
    table = result.frame()
    kept = ["round", *(name for name in table if str(name).startswith(f"{_MEASURE}/"))]
    return table[kept].rename(columns=lambda name: str(name).removeprefix(f"{_MEASURE}/"))


def arrays(tree: Any) -> Any:
    """Return a tree of numbers on devices as one of NumPy's arrays."""
    return jax.tree.map(np.asarray, tree)


class _Settled(Observer):
    """Stops a run when a metric has changed by less than a share of itself since the last evaluation, or is no number."""

    def __init__(self, metric: str, tol: float):
        self._metric, self._tol, self._last = metric, tol, np.inf

    def on_evaluation(self, run: Watched) -> None:
        """Compare with the evaluation before."""
        value = float(run.numbers[self._metric])
        if not np.isfinite(value):
            run.stop(f"{self._metric} is {value}")
        elif abs(self._last - value) <= self._tol * abs(value):
            run.stop(f"{self._metric} has settled at {value:.6g}")
        self._last = value


def _went_well(result: Result, judge: str) -> bool:
    values, least = result.history[judge], result.history[judge].min()
    if not np.isfinite(values).all() or result.costs["dropped"].sum() > 0:
        return False
    room = _ROOM * (values[0] - least) + _ROUNDING * max(1.0, abs(least))
    apart = result.history.get(f"{_MEASURE}/{GAP}", np.zeros(1))[-1]
    chasing = result.stopped is not None and apart > room  # nothing changes any more, and still w is no answer to x
    return bool(values[-1] <= least + room and not chasing)
