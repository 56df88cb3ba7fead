"""Methods tuned with equal budgets, trained, and judged on every site's own test rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedminimax import metrics, models
from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.errors import InputError
from fedminimax.fairness import baselines as base
from fedminimax.fairness.bootstrap import DRAWS
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.judging import Busy, Judging, Tell
from fedminimax.fairness.measures import Choice, first_measure, measures_of
from fedminimax.fairness.tuning import (
    BUDGET,
    SIMULATED,
    Trials,
    Tuned,
    further,
    make,
    search_space,
    to_search,
    tune,
)
from fedminimax.fairness.words import EQUAL, SIZE, check_choice, method_of, penalty_text
from fedminimax.penalties import ChiSquare, Penalty
from fedminimax.problems.robust import RobustProblem
from fedminimax.problems.robust_model import ENTROPY, SQUARED, robust_model
from fedminimax.result import Result
from fedminimax.run import run

ALL_BASELINES = (base.MAJORITY, base.POOLED, base.LOCAL)


@dataclass(frozen=True)
class Training:
    """How all methods are trained.

    Attributes:
        rounds: how many rounds.
        search_rounds: how many a trial of a search has.
        local_steps: K.
        batch_size: examples a local step; None: all.
        seeds: how many runs of each method.
        eval_every: how often to measure.
        progress: of :func:`fedminimax.run`.
    """

    rounds: int
    search_rounds: int
    local_steps: int
    batch_size: int | None
    seeds: int
    eval_every: int
    progress: bool | str | None

    @property
    def common(self) -> dict[str, Any]:
        """The hyper-parameters that all methods share."""
        return {"local_steps": self.local_steps, "batch_size": self.batch_size}


def contest(
    federation: Federation,
    methods: Iterable[str] = ("ScaffPD", "FedAvg", "DRFA"),
    *,
    penalty: Penalty | None = None,
    rounds: int = 200,
    local_steps: int = 20,
    batch_size: int | None = 32,
    loss: str | None = None,
    ridge: float = 1e-3,
    weights: str = EQUAL,
    model: Any = None,
    seeds: int = 1,
    settings: Mapping[str, Mapping[str, float]] | None = None,
    search_rounds: int | None = None,
    eval_every: int | None = None,
    baselines: Sequence[str] = ALL_BASELINES,
    draws: int = DRAWS,
    progress: bool | None = None,
    tell: Tell = lambda line: None,
    busy: Busy = nullcontext,
) -> Comparison:
    """Tune methods with equal budgets, train with the best settings, and judge every site on its own test rows.

    Args:
        federation: train and test data by client (see :func:`fedminimax.data.silos`, :func:`fedminimax.data.federate`).
        methods: names of methods for a RobustProblem; the first is the one that the others are compared with. "FedAvg:size" is
            FedAvg with weights p_i by size, whatever ``weights`` says.
        penalty: psi; by default ChiSquare(0.1).
        rounds: how many rounds each method trains.
        local_steps: K, for all.
        batch_size: examples a local step, for all; None: the full local batch.
        loss: "entropy" or "squared"; by default cross-entropy for classes, and squares for a quantity.
        ridge: the l2 regularisation.
        weights: "equal" or "size": the p_i of the average that FedAvg and its kin minimise, and of the average shown.
        model: a Flax module; by default a linear model, with which the problem is convex.
        seeds: how many runs of each method after the search.
        settings: hyper-parameters of some methods; of these only what has no default and is not given is searched.
        search_rounds: how many rounds a trial of the search has; by default half of ``rounds``.
        eval_every: how often to measure; by default about twenty times.
        baselines: which of "majority", "pooled" and "local" to judge too.
        draws: how often test rows are drawn anew for the intervals.
        progress: show progress bars; by default on a terminal only.
        tell: called with a line about each search.
        busy: a context manager to show while something is under way, such as rich's ``console.status``.
    """
    chosen = checked(methods, rounds, seeds, weights, baselines)
    classify, choice = federation.task == CLASSIFICATION, first_measure(federation)
    loss = loss or (ENTROPY if classify else SQUARED)
    classes = len(federation.classes or []) if classify else None
    network = models.Linear(classes or 1) if model is None else model
    psi = penalty or ChiSquare(0.1)
    p = SIZE if weights == SIZE else None
    problem = robust_model(network, federation.train, classes, penalty=psi, loss=loss, ridge=ridge, weights=p)
    test = _curve(federation, choice)
    how = Training(
        rounds, search_rounds or max(4, rounds // 2), local_steps, batch_size, seeds, eval_every or max(1, rounds // 20),
        f"{test.name}/worst20" if progress is None else progress,
    )  # fmt: skip
    given = {name: dict(values) for name, values in (settings or {}).items()}
    tuned = tune_all(problem, federation.train, chosen, given, how, tell, busy)
    final = {name: {**given.get(name, {}), **(tuned[name].settings if name in tuned else {})} for name in chosen}
    results: dict[str, list[Result]] = {}
    judges = [test, metrics.WorstCase(), metrics.ClientWeights(each=True)]
    for name in chosen:
        results[name] = _train(weighed(problem, name), federation.train, make(name, how.common | final[name]), how, judges)
        if results[name][-1].interrupted:
            tell(f"Interrupted: {name} after {results[name][-1].rounds} rounds; what follows is what there is.")
            break
    asked = {
        "loss": loss, "ridge": ridge, "penalty": penalty_text(psi), "weights": weights, "rounds": rounds, "draws": draws,
        "local_steps": local_steps, "batch_size": batch_size, "seeds": seeds,
    }  # fmt: skip
    found = Judging(federation, problem, loss, choice, weights, draws, tell, busy)
    scores, judged = found.scores(results, baselines)
    made = Comparison(
        federation, problem, network, {m: final[m] for m in results}, {m: t for m, t in tuned.items() if m in results},
        results, scores, choice, measures_of(federation), found.rows, asked=asked,
    )  # fmt: skip
    return found.with_words(made, judged)


def checked(
    methods: Iterable[str], rounds: int, seeds: int, weights: str, baselines: Sequence[str] = ALL_BASELINES
) -> list[str]:
    """Return the methods without repetition, or say what is wrong with what is asked for."""
    chosen = list(dict.fromkeys(methods))
    if not chosen:
        raise InputError("Name at least one method.")
    for name in chosen:
        method_of(name)
    check_choice("weights", weights, (EQUAL, SIZE))
    for name in baselines:
        check_choice("a baseline", name, ALL_BASELINES)
    if rounds < 1 or seeds < 1:
        raise InputError("rounds and seeds must be at least 1.")
    return chosen


def weighed(problem: RobustProblem, name: str) -> RobustProblem:
    """Return the problem with the weights p_i that a method's name asks for."""
    weights = method_of(name)[1]
    return problem if weights is None else problem.replace(weights=SIZE if weights == SIZE else None)


def tune_all(
    problem: RobustProblem,
    train: ClientSource,
    methods: Sequence[str],
    given: Mapping[str, Mapping[str, float]],
    how: Training,
    tell: Tell,
    busy: Busy,
    trials: Trials = SIMULATED,
) -> dict[str, Tuned]:
    """Search the step sizes of all methods, and again for all of them while the best of one lies on an edge."""
    if all(name in given and not to_search(name, _any_grid(name), given[name]) for name in methods):
        return {}
    start = trials.losses(problem, train)
    total = max(float(jnp.sum(problem.penalty.maximize(start))), 1e-12)
    scale = trials.smoothness(problem, train), float(jnp.mean(start)), train.count, how.local_steps, total
    grids = {name: to_search(name, search_space(name, *scale), given.get(name, {})) for name in methods}
    grids = {name: grid for name, grid in grids.items() if grid}
    tuned: dict[str, Tuned] = {}
    for turn in range(trials.most):
        for name, grid in grids.items():
            with busy(f"{name}: {np.prod([len(v) for v in grid.values()])} settings for {how.search_rounds} rounds"):
                tuned[name] = tune(
                    weighed(problem, name), train, name, grid, tuned.get(name), trials.search,
                    rounds=how.search_rounds, **how.common, fixed=given.get(name),
                )  # fmt: skip
        edged = [name for name, one in tuned.items() if one.edges]
        if not edged or turn == trials.most - 1:
            break
        tell(f"The best of {', '.join(edged)} lies on the edge of what was tried: up to {BUDGET} settings more for each.")
        grids = {name: further(one) for name, one in tuned.items()}
    for name, one in tuned.items():
        tell(f"{one.sentence(name)}, after {how.search_rounds} rounds")
    return tuned


def _any_grid(name: str) -> dict[str, list[float]]:
    return search_space(name, 1.0, 1.0, 1, 1)


def _train(problem: RobustProblem, train: ClientData, method: Any, how: Training, judges: list[Any]) -> list[Result]:
    done: list[Result] = []
    for seed in range(how.seeds):
        done.append(
            run(problem, train, method, seed=seed, rounds=how.rounds, eval_every=how.eval_every, metrics=judges,
                progress=how.progress)
        )  # fmt: skip
        if done[-1].interrupted:
            break
    return done


def _curve(federation: Federation, choice: Choice) -> Any:
    """Return what is drawn over rounds: where a class is rare the test loss, as accuracy would praise predicting nobody."""
    if federation.task != CLASSIFICATION:
        return metrics.ClientError(federation.test, 1.0 if federation.target_scale is None else federation.target_scale[1])
    return metrics.ClientLoss(federation.test) if choice.rare else metrics.ClientAccuracy(federation.test)
