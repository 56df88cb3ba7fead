"""The objects of an experiment: its data is read and divided, its problem made, and all of it is checked against each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fedminimax.compare import at_upload, budget
from fedminimax.data import partition
from fedminimax.errors import InputError
from fedminimax.experiments.checks import check, judged_by
from fedminimax.experiments.material import Divisible, Material, material_of
from fedminimax.experiments.mistakes import dotted, nearest
from fedminimax.experiments.plan import Method, Plan
from fedminimax.experiments.positions import Path
from fedminimax.experiments.reader import WRONG, Call, CallError
from fedminimax.inputs import check_input
from fedminimax.metrics import direction, evaluate
from fedminimax.problems import RobustProblem, Task


@dataclass(frozen=True)
class Ready:
    """All that an experiment runs.

    Attributes:
        plan: what its file says.
        problem: the problem.
        clients: the clients' data.
        methods: the methods, their cohorts matched where that was asked for.
        metrics: the metrics by label.
        columns: the numbers and arrays that they give, by name, with their shapes.
        on: what data each column is taken on.
        better: which way each column is better.
    """

    plan: Plan
    problem: Any
    clients: Any
    methods: dict[str, Method]
    metrics: dict[str, Any]
    columns: dict[str, tuple[int, ...]]
    on: dict[str, str]
    better: dict[str, str]

    @property
    def eval_every(self) -> int:
        """How many rounds from one evaluation to the next; by default about fifty evaluations at equal intervals."""
        rounds = self.plan.spec.rounds
        return self.plan.spec.eval_every or max(d for d in range(1, max(1, rounds // 50) + 1) if rounds % d == 0)


def prepare(plan: Plan) -> Ready:
    """Return what an experiment runs; what is wrong with it is one error, with everything that is."""
    check(plan)
    there = _material(plan)
    problem, there = _problem(plan, there)
    if problem is WRONG or there is None or there.clients is None:
        plan.mistakes.raise_if_any()
        raise InputError("The problem has no clients: give [data] and [partition], or a problem that brings its own.")
    methods = _fitting(plan, problem, there)
    metrics = _metrics(plan, there)
    columns = _columns(plan, problem, there, metrics)
    _check_choice(plan, columns, metrics)
    plan.mistakes.raise_if_any()
    try:
        methods = _matched(plan, problem, there.clients, methods)
    except InputError as error:
        plan.mistakes.add(("match_upload",), f"match_upload: {error}")
        plan.mistakes.raise_if_any()
    on = {name: plan.judges[label].on for name in columns if (label := judged_by(plan, name)) is not None}
    better = {name: way for name in columns if (way := direction(metrics, name)) is not None}
    return Ready(plan, problem, _kept(plan, problem, there.clients), methods, metrics, columns, on, better)


def _kept(plan: Plan, problem: Any, clients: Any) -> Any:
    """Return what this process keeps of the clients' data: where an engine deals clients out, its own clients'."""
    try:
        return getattr(plan.engine, "own", lambda problem, clients: clients)(problem, clients)
    except InputError as error:
        plan.mistakes.add(("engine",), f"engine: {error}")
        plan.mistakes.raise_if_any()
        raise


def _made(plan: Plan, call: Any, **provided: Any) -> Any:
    """Make something of what the file describes; :data:`WRONG` with a mistake noted where it refuses."""
    if not isinstance(call, Call):
        return call
    try:
        return call.make(provided)
    except CallError as error:
        plan.mistakes.add(error.path, f"{dotted(call.path)}: {error}")
    except InputError as error:
        plan.mistakes.add(call.path, f"{dotted(call.path)}: {error}")
    return WRONG


def _material(plan: Plan) -> Material | None:
    if plan.data is None:
        return Material()
    if plan.data is WRONG or plan.partition is WRONG or plan.mistakes.within(("data",), ("partition",), ("clients",)):
        return None
    made = _made(plan, plan.data)
    if made is WRONG:
        return None
    try:
        there = material_of(made)
    except InputError as error:
        plan.mistakes.add(("data",), f"data: {error}")
        return None
    if isinstance(there, Material):
        return there
    if plan.partition is None:
        plan.mistakes.add(("data",), 'The examples are to be divided: give [partition], such as name = "iid", clients = 10.')
        return None
    return _divided(plan, there)


def _divided(plan: Plan, pooled: Divisible) -> Material | None:
    labels = pooled.kinds
    owner = _made(plan, plan.partition, labels=labels, n_or_labels=labels)
    if owner is WRONG:
        return None
    try:
        count = plan.count or int(np.max(owner)) + 1
        kept = None if plan.drop is None else partition.drop_examples(owner, **plan.drop)
        return pooled.divide(owner, count, kept)
    except InputError as error:
        plan.mistakes.add(("partition",), f"partition: {error}")
        return None


def _problem(plan: Plan, there: Material | None) -> tuple[Any, Material | None]:
    if there is None or plan.problem is WRONG or plan.mistakes.within(("problem",)):
        return WRONG, there
    made = _made(plan, plan.problem, **there.offered())
    if made is WRONG:
        return WRONG, there
    if isinstance(made, Task):
        held = {"test": made.test} if made.test is not None else {}
        there = replace(there, clients=made.clients, solution=made.solution, held={**there.held, **held})
        made = made.problem
    if plan.as_minimax:
        if not isinstance(made, RobustProblem):
            at = ("problem", "as_minimax")
            plan.mistakes.add(at, f"problem.as_minimax is for weights on clients, a RobustProblem: {made.name} is none.")
            return WRONG, there
        made = made.as_minimax()
    if not hasattr(made, "bind"):
        says = f"problem made a {type(made).__name__}: it must return a MinimaxProblem, a RobustProblem or a Task."
        plan.mistakes.add(("problem",), says)
        return WRONG, there
    return made, there


def _fitting(plan: Plan, problem: Any, there: Material) -> dict[str, Method]:
    """Return the methods that can be run on this problem and these clients."""
    for label, method in plan.methods.items():
        path = ("methods", label)
        if plan.mistakes.within(path):
            continue
        try:
            check_input(problem, there.clients, method.algorithm, plan.spec.rounds, plan.spec.eval_every)  # type: ignore[arg-type]
        except InputError as error:
            plan.mistakes.add(_field(path, plan.spec.methods[label], str(error)), f"{dotted(path)}: {error}")
    if plan.availability not in (None, WRONG):
        try:
            plan.availability.check(there.clients.count)  # type: ignore[union-attr]
        except InputError as error:
            plan.mistakes.add(("availability",), f"availability: {error}")
    return dict(plan.methods)


def _field(path: Path, table: Any, says: str) -> Path:
    """Return the place of the first key of a table that a sentence names; otherwise that of the table."""
    keys = table if isinstance(table, dict) else {}
    told = sorted((found.start(), key) for key in keys if (found := re.search(rf"\b{re.escape(key)}\b", says)))
    return (*path, told[0][1]) if told else path


def _metrics(plan: Plan, there: Material) -> dict[str, Any]:
    made = {}
    for label, judge in plan.judges.items():
        if plan.mistakes.within(("metrics", label)):
            continue
        try:
            made[label] = judge.make(there)
        except KeyError:
            at = ("metrics", label, "on")
            plan.mistakes.add(at, f"{dotted(at)} is {judge.on!r}, but there is no {judge.on} data by client here.")
        except InputError as error:
            path = error.path if isinstance(error, CallError) else ("metrics", label)
            plan.mistakes.add(path, f"{dotted(('metrics', label))}: {error}")
    return made


def _columns(plan: Plan, problem: Any, there: Material, metrics: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return what the metrics give, by name; nothing is computed."""
    sound = [m for label, m in plan.methods.items() if not plan.mistakes.within(("methods", label))]
    if not sound:
        return {}
    bound, clients = problem.bind(there.clients)
    columns: dict[str, tuple[int, ...]] = {}
    for label, metric in metrics.items():
        leaves, structure = jax.tree.flatten(metric)
        functions = [leaf if callable(leaf) else None for leaf in leaves]
        arrays = [None if callable(leaf) else leaf for leaf in leaves]
        order: list[str] = []

        def values(
            arrays: Any,
            clients: Any,
            functions: Any = functions,
            structure: Any = structure,
            label: str = label,
            order: list[str] = order,
        ) -> Any:
            whole = jax.tree.unflatten(structure, [a if f is None else f for a, f in zip(arrays, functions, strict=True)])
            found = evaluate({label: whole}, bound, clients, sound[0].algorithm.init(bound))
            order[:] = found  # what is traced gives them by the alphabet
            return found

        try:
            shapes = jax.eval_shape(values, arrays, clients)
        except InputError as error:
            plan.mistakes.add(("metrics", label), f"{dotted(('metrics', label))}: {error}")
            continue
        columns |= {name: tuple(shapes[name].shape) for name in order}
    return columns


def _check_choice(plan: Plan, columns: dict[str, tuple[int, ...]], metrics: dict[str, Any]) -> None:
    select, path = plan.spec.search.select, ("search", "select")
    if select is None or plan.mistakes.within(("metrics",), ("search",), ("methods",)):
        return
    numbers = [name for name, shape in columns.items() if not shape]
    if select not in numbers:
        label = judged_by(plan, select)
        near = [name for name in numbers if judged_by(plan, name) == label] or numbers
        plan.mistakes.add(path, f"search.select is {select!r}, but the metrics give no such number: {nearest(select, near)}")
    elif plan.spec.search.better is None and direction(metrics, select) is None:
        says = f'Nothing says which way {select!r} is better: write better = "lower" or better = "higher" in [search].'
        plan.mistakes.add(path, says)


def _matched(plan: Plan, problem: Any, clients: Any, methods: dict[str, Method]) -> dict[str, Method]:
    """Return the methods with cohorts such that all send the same number of floats up in a round."""
    wanted = plan.spec.match_upload
    if wanted is False:
        return methods
    floats = budget(problem, clients, {label: m.algorithm for label, m in methods.items()}, wanted)
    at = lambda method: at_upload(problem, clients, method.algorithm, floats)
    return {label: replace(method, algorithm=at(method)) for label, method in methods.items()}
