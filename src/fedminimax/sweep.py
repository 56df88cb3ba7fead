"""Many runs as one program: hyper-parameters and seeds side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedminimax import checks
from fedminimax.algorithms.base import Algorithm
from fedminimax.crew import gathered
from fedminimax.data.clients import ClientSource
from fedminimax.engines.layout import AUTO, Strategy
from fedminimax.errors import InputError
from fedminimax.federation.availability import Availability
from fedminimax.federation.guard import Guard
from fedminimax.federation.privacy import Privacy
from fedminimax.metrics import Metric
from fedminimax.plan import SIMULATOR, planned
from fedminimax.problems.forms import AnyProblem
from fedminimax.sweeps.bar import SweepBar
from fedminimax.sweeps.conduct import Conductor
from fedminimax.sweeps.halving import Halving
from fedminimax.sweeps.ledger import Finished, opened
from fedminimax.sweeps.selection import Selection
from fedminimax.sweeps.side_by_side import Common
from fedminimax.sweeps.space import Distribution, Setting, checked_search, settings_of
from fedminimax.sweeps.suggest import Optuna, driver_of
from fedminimax.sweeps.table import Sweep

__all__ = ["Sweep", "sweep"]


def sweep(
    problem: AnyProblem,
    clients: ClientSource,
    algorithm: Algorithm,
    *,
    rounds: int,
    grid: Mapping[str, Sequence[Any]] | None = None,
    search: Mapping[str, Any] | None = None,
    samples: int | None = None,
    search_seed: int = 0,
    halving: Halving | None = None,
    driver: str | Optuna | None = None,
    seeds: int | Iterable[int] = 1,
    eval_every: int | None = None,
    metrics: Iterable[Metric] | Mapping[str, Metric] | Metric = (),
    select: str | None = None,
    better: str | None = None,
    strategy: Strategy = AUTO,
    guard: Guard | None = None,
    availability: Availability | None = None,
    privacy: Privacy | None = None,
    devices: int | None = None,
    side_by_side: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Run many settings of a method, for several seeds, as one compiled program.

    Any hyper-parameter may vary, by number, name or object. Settings and seeds that share a program run side by side, as many
    as fit into memory, split over the devices; those that shape it (``local_steps``, ``batch_size``, another solver ...)
    make one program for each of their values. ::

        found = fm.sweep(
            task.problem, task.clients, fm.FessGDA(0.1, 0.1), rounds=200, seeds=3, metrics=fm.metrics.WorstCase(),
            search={"lr_x": fm.LogUniform(1e-4, 1e-1), "p": fm.Uniform(0, 1), "local_steps": [5, 10]}, samples=40,
            select="worst_case", folder="runs/search",
        )
        found.settings[found.chosen]

    Args:
        problem: what to solve.
        clients: the clients' data.
        algorithm: the method; its other hyper-parameters stay as they are.
        rounds: how many rounds.
        grid: lists of values for some of its hyper-parameters; all combinations are run.
        search: what others are drawn from: ``Uniform``, ``LogUniform``, ``Choice``, or a list. Every draw is run with every
            combination of the grid.
        samples: how many settings to draw.
        search_seed: of these draws.
        halving: run all settings for a while, and only the best to the end (:class:`~fedminimax.Halving`).
        driver: "optuna", or ``Optuna(batch=8)``: let Optuna suggest the samples, by the metric of ``select``.
        seeds: how many (0, 1, ...) or which.
        eval_every: evaluate every so many rounds (it must divide ``rounds``); by default about fifty times.
        metrics: as for :func:`fedminimax.run`; of the ``context`` they see the round, and not the costs.
        select: the metric that the winner is chosen by; never one on test data. By default that of ``halving``.
        better: whether "lower" or "higher" is better, where that metric does not say.
        strategy: how clients are run.
        guard: what replies must pass.
        availability: who answers; by default everybody.
        privacy: clip every message of a client, and add noise to it. Every setting that is tried asks the clients, and their
            epsilons compose: a sweep has none in its history.
        devices: how many cores or accelerators to split the runs over; None: all.
        side_by_side: run at most so many at once; None: as many as fit into memory.
        folder: keep what has been run there. The same call goes on where it was stopped, and returns the same. Processes that
            are :func:`~fedminimax.distributed.apart` share the runs through it, and all of them return the outcome.
        progress: show a progress bar; by default on a terminal only.
    """
    given = {"rounds": rounds, "eval_every": eval_every, "metrics": metrics, "guard": guard, "availability": availability}
    fixed = {"privacy": privacy, "seed": 0, "engine": SIMULATOR, "trace": None, "record": False, "start": None}
    plan = planned(problem, clients, algorithm, **given, **fixed)  # type: ignore[arg-type]
    used, every = _seeds(seeds), _every(rounds, eval_every)
    if side_by_side is not None:
        checks.integer("side_by_side", side_by_side)
    by = Selection.of(select, better, halving, plan.metrics)
    suggests = None if driver is None else driver_of(driver)
    settings, spaces, total = list[Setting](), dict[str, Distribution](), 0
    if suggests is None:
        settings = settings_of(algorithm, grid, search, samples, search_seed)
        total = sum(_lengths(halving, rounds, every, len(settings)))
    else:
        spaces = _to_choose_from(algorithm, grid, search, halving, by)
        total = rounds * checks.integer("samples", samples)
    methods = [_made(algorithm, setting, plan.clients) for setting in settings]
    by.check(plan)
    asked: dict[str, Any] = {
        "rounds": int(rounds),
        "eval_every": every,
        "seeds": used,
        "settings": settings,
        "search": None if suggests is None else [search, samples, search_seed, suggests],
        "halving": halving,
        "strategy": strategy,
    }
    varied = tuple({**(grid or {}), **(search or {})})
    with gathered(folder) as crew, opened(folder, plan, varied, asked, crew) as ledger:
        if (before := ledger.outcome()) is not None:
            return _as_asked(before, settings, by)
        common = Common(plan, strategy, every, varied, devices)
        count = len(settings) if suggests is None else total // rounds
        ledger.progress(method=plan.method, settings=count, seeds=len(used), length=int(rounds), total=total * len(used))
        with SweepBar(plan.method, total * len(used), progress if crew.leads else False) as bar:
            conductor = Conductor(common, ledger, used, rounds, side_by_side, bar.add)

            def tried(batch: list[Setting]) -> np.ndarray:
                settings.extend(batch)
                conductor.run([_made(algorithm, setting, plan.clients) for setting in batch], everywhere=True)
                return conductor.numbers.scores(str(by.metric), range(len(settings) - len(batch), len(settings)), rounds)

            try:
                if suggests is None:
                    conductor.run(methods, halving, by.sign)
                else:
                    suggests.search(spaces, total // rounds, search_seed, str(by.better), tried)
                interrupted = False
            except Finished:
                interrupted = False
            except KeyboardInterrupt:
                interrupted = True
        if not crew.leads and not interrupted:
            return _as_asked(ledger.finished(), settings, by)
        found = conductor.numbers.outcome(plan, settings, used, by, repr(algorithm), interrupted)
        ledger.finish(found)
    return found


def _as_asked(found: Sweep, settings: list[Setting], by: Selection) -> Sweep:
    """Return an outcome from a folder with the settings as objects, and with the winner chosen as it is asked for now."""
    known = settings if len(settings) == len(found.settings) else found.settings  # a driver may not have come to the last
    return replace(found, settings=known, selected_by=by.metric, better=found.better | by.known)


def _made(algorithm: Algorithm, setting: Setting, clients: ClientSource) -> Algorithm:
    """Return the method with a setting, checked as a user's own would be."""
    method = algorithm.replace(**setting)
    method.check(clients)
    return method


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    chosen = list(range(seeds)) if isinstance(seeds, (int, np.integer)) else [int(s) for s in seeds]
    if any(not 0 <= s < 2**32 for s in chosen):
        raise InputError("A sweep's seeds must be whole numbers from 0 to 2^32 - 1.")
    if not chosen:
        raise InputError("A sweep needs at least one seed.")
    return chosen


def _every(rounds: int, eval_every: int | None) -> int:
    every = eval_every or max(d for d in range(1, max(1, rounds // 50) + 1) if rounds % d == 0)
    if rounds < 1 or rounds % every:
        raise InputError(f"A sweep evaluates at equal intervals: eval_every = {every} must divide rounds = {rounds}.")
    return every


def _lengths(halving: Halving | None, rounds: int, every: int, settings: int) -> Iterable[int]:
    """Return how many rounds all settings run from each comparison to the next, when none diverges."""
    since = 0
    for until in [*(halving.stops(rounds, every, settings) if halving is not None else []), rounds]:
        yield settings * (until - since)
        since, settings = until, max(1, settings // (1 if halving is None else halving.factor))


def _to_choose_from(
    algorithm: Algorithm, grid: Any, search: Mapping[str, Any] | None, halving: Halving | None, by: Selection
) -> dict[str, Distribution]:
    """Return what a driver is to choose from."""
    spaces = checked_search(algorithm, search)
    if grid or halving is not None or not spaces:
        raise InputError("A driver chooses from search={...} alone: put lists there too, and leave grid and halving out.")
    if by.metric is None:
        raise InputError("A driver needs select=..., the metric that it is to make better.")
    return spaces
