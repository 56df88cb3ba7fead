"""Combinations that cannot be: what is wrong with an experiment although each of its tables is right."""

from __future__ import annotations

from fedminimax.experiments import material
from fedminimax.experiments.kinds import ENGINE, METHOD
from fedminimax.experiments.mistakes import dotted, nearest
from fedminimax.experiments.plan import Method, Plan
from fedminimax.experiments.reader import WRONG, Call
from fedminimax.experiments.spec import TEST, TRAIN, VALIDATION


def check(plan: Plan) -> None:
    """Note every combination that cannot be run, as far as it shows without the data."""
    _check_data(plan)
    _check_methods(plan)
    _check_metrics(plan)
    _check_rounds(plan)
    _check_search(plan)


def _check_data(plan: Plan) -> None:
    spec, mistakes = plan.spec, plan.mistakes
    if plan.problem is WRONG or mistakes.within(("data",), ("partition",)):
        return
    name = _name(plan)
    given = spec.data is not None or spec.clients is not None
    if plan.brings_data and given:
        where = "data" if spec.data is not None else "clients"
        mistakes.add((where,), f"{name} makes its own data: leave {where} out.")
    if spec.clients is not None and (spec.data is not None or spec.partition is not None):
        where = "data" if spec.data is not None else "partition"
        mistakes.add((where,), f"The clients' data are given: leave {where} out.")
    elif plan.needs_data and not given:
        mistakes.add(("problem",), f'{name} needs data: give it, such as [data] with name = "digits" below it.')
    if spec.partition is not None and spec.data is None and spec.clients is None:
        mistakes.add(("partition",), "There is a partition, but no data to divide: give [data], or leave it out.")
    if isinstance(plan.data, Call):
        own = getattr(plan.data.factory, "func", None) is material.table
        pooled = getattr(plan.data.factory, "func", None) is material.examples
        if own and spec.partition is not None:
            mistakes.add(("partition",), "The table says who holds each row (data.client): leave partition out.")
        if pooled and spec.partition is None:
            mistakes.add(("data",), 'The examples are to be divided: give [partition], such as name = "iid", clients = 10.')


def _name(plan: Plan) -> str:
    if isinstance(plan.problem, Call):
        return str(getattr(plan.problem.factory, "__name__", "The problem"))
    return str(getattr(plan.problem, "name", "The problem"))


def _check_methods(plan: Plan) -> None:
    form, count, name = plan.form, plan.count, _name(plan)
    for label, method in plan.methods.items():
        algorithm, path = method.algorithm, ("methods", label)
        if form is not None and not issubclass(form, algorithm.solves):
            fit = [
                n
                for n, made in METHOD.names().items()
                if isinstance(made, type) and issubclass(form, getattr(made, "solves", object))
            ]
            wants = algorithm.solves.__name__
            cure = f"choose another, such as {', '.join(sorted(fit)[:4])}"
            if form.__name__ == "RobustProblem" and wants == "MinimaxProblem":
                cure += ", or write as_minimax = true in [problem]"
            says = f"{dotted(path)} is for a {wants}, but {name} is a {form.__name__}: {cure}."
            plan.mistakes.add(path, says)
        if count is not None:
            cohorts = method.lists.get("cohort_size", [getattr(algorithm, "cohort_size", None)])
            large = [size for size in cohorts if size is not None and size > count]
            if large:
                at = (*path, "cohort_size")
                says = f"{dotted(at)} is {max(large)}, but there are {count} clients: ask for at most {count}."
                plan.mistakes.add(at, says)
            counts = getattr(getattr(algorithm, "local_steps", None), "counts", None)
            if counts is not None and len(counts) != count:
                at = (*path, "local_steps")
                plan.mistakes.add(at, f"{dotted(at)} has {len(counts)} numbers, but there are {count} clients: give one each.")
    matched = plan.spec.match_upload
    if isinstance(matched, str) and matched not in plan.spec.methods:
        says = f"match_upload is {matched!r}, which is no label of a method: {nearest(matched, plan.spec.methods)}"
        plan.mistakes.add(("match_upload",), says)


def _check_metrics(plan: Plan) -> None:
    """Held-out data must be there to be measured on."""
    there = held_out(plan)
    if there is None:
        return
    for label, judge in plan.judges.items():
        if judge.on != TRAIN and judge.on not in there and isinstance(judge.metric, Call):
            at = ("metrics", label, "on")
            cure = "write validation = 0.1 in [data]" if judge.on == VALIDATION and plan.spec.data else "take it on train"
            plan.mistakes.add(at, f"{dotted(at)} is {judge.on!r}, but there is no {judge.on} data here: {cure}.")


def held_out(plan: Plan) -> list[str] | None:
    """Return what data will be held out, as far as the file tells; None where it does not."""
    if isinstance(plan.data, material.Material):
        return list(plan.data.held)
    if plan.data is None:
        return [] if plan.spec.data is None and isinstance(plan.problem, Call) and plan.brings_data else None
    known = isinstance(plan.data, Call) and getattr(plan.data.factory, "func", None) in (material.examples, material.table)
    if not known:
        return None
    given = plan.data.arguments
    return [*([VALIDATION] if given.get("validation") else []), *([TEST] if given.get("test", 1) != 0 else [])]


def _check_rounds(plan: Plan) -> None:
    spec, every = plan.spec, plan.spec.eval_every
    if plan.mistakes.within(("rounds",), ("eval_every",)) or every is None:
        return
    if every > spec.rounds:
        says = f"eval_every is {every}, but there are {spec.rounds} rounds: give at most {spec.rounds}."
        plan.mistakes.add(("eval_every",), says)
    elif plan.swept and spec.rounds % every:
        near = max(d for d in range(1, every + 1) if spec.rounds % d == 0)
        label = plan.swept[0].label
        plan.mistakes.add(
            ("eval_every",),
            f"eval_every is {every}, which does not divide rounds = {spec.rounds}: where hyper-parameters have several values "
            f"(methods.{label}) it must; {near} does.",
        )


def _check_search(plan: Plan) -> None:
    spec, mistakes = plan.spec, plan.mistakes
    _check_selection(plan)
    for method in plan.swept:
        first = method.swept[0]
        at = ("methods", method.label, first)
        if isinstance(plan.engine, tuple(ENGINE.names().values())) and not isinstance(plan.engine, ENGINE.find("simulator")):
            name = next(n for n, made in ENGINE.names().items() if isinstance(plan.engine, made))
            says = f"{dotted(at)} has several values, which the {name} engine cannot try: give one, or use the simulator."
            mistakes.add(at, says)
        if method.ranges and spec.search.samples is None and not mistakes.within(("search",)):
            drawn = next(iter(method.ranges))
            where = ("methods", method.label, drawn)
            says = f"{dotted(where)} is a range: say how many settings to draw, such as samples = 20 in [search]."
            mistakes.add(where, says)
        if spec.search.select is None and not mistakes.within(("search",)):
            such = next((f'"{label}"' for label, judge in plan.judges.items() if judge.on != TEST), '"a metric"')
            says = f"{dotted(at)} has several values: say what the best is chosen by, such as select = {such} in [search]."
            mistakes.add(at, says)


def _check_selection(plan: Plan) -> None:
    """The winner is chosen by a metric on training or validation data, never on test data."""
    select, path = plan.spec.search.select, ("search", "select")
    if select is None or plan.mistakes.within(("metrics",)):
        return
    label = judged_by(plan, select)
    if label is None:
        plan.mistakes.add(path, f"search.select is {select!r}, but no metric has that name: {nearest(select, plan.judges)}")
    elif plan.judges[label].on == TEST:
        plan.mistakes.add(
            path,
            f"search.select is {select!r}, which is taken on test data: what is chosen on test data cannot be tested on them. "
            'Hold data out (validation = 0.1 in [data]) and choose by a metric with on = "validation", or by one on "train".',
        )


def judged_by(plan: Plan, column: str) -> str | None:
    """Return the label of the metric that a column of the history belongs to."""
    return next((name for name in (column, column.rpartition("/")[0]) if name in plan.judges), None)


def settings_of(method: Method, samples: int | None) -> int:
    """Return how many settings of a method are tried."""
    count = 1
    for values in method.lists.values():
        count *= len(values)
    if method.ranges:
        return count * (samples or 1)
    return min(count, samples) if samples and method.lists else count
