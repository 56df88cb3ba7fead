"""What an experiment will run, read from its tables before any data is: problem, methods, metrics, conditions."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.federation import Federation
from fedminimax.errors import InputError
from fedminimax.experiments import kinds, material
from fedminimax.experiments.mistakes import Mistakes, dotted, nearest
from fedminimax.experiments.parameters import Parameter, parameters, returns, takes
from fedminimax.experiments.positions import Path
from fedminimax.experiments.reader import WRONG, Call, Reader
from fedminimax.experiments.spec import TEST, TRAIN, VALIDATION, Spec, validated
from fedminimax.metrics import METRICS
from fedminimax.problems import Task

ON = (TRAIN, VALIDATION, TEST)
HELD = ("data", "clients")
"""The fields in which metrics take held-out data."""


@dataclass(frozen=True)
class Method:
    """A method of an experiment.

    Attributes:
        label: what tables and legends call it.
        algorithm: the method, with the first of the values where there are several.
        lists: hyper-parameters with several values.
        ranges: hyper-parameters that are drawn.
    """

    label: str
    algorithm: Algorithm
    lists: dict[str, list[Any]] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)

    @property
    def swept(self) -> list[str]:
        """The hyper-parameters that have several values."""
        return [*self.lists, *self.ranges]


@dataclass(frozen=True)
class Judge:
    """A metric of an experiment: its label, what makes it (or itself), and the data that it is taken on."""

    label: str
    metric: Any
    on: str

    def make(self, there: material.Material) -> Any:
        """Return the metric, with the held-out data that it is taken on."""
        if not isinstance(self.metric, Call):
            return self.metric
        offered = there.offered() | dict.fromkeys(HELD)
        if is_measure(self.metric.factory):
            return self._function(there)
        known = parameters(self.metric.factory)
        if self.on != TRAIN and "clients" in known:
            offered["clients"] = there.apart[self.on]()
        elif self.on != TRAIN and "data" in known:
            offered["data"] = there.held[self.on]
        made = self.metric.make(offered)
        if self.on == TRAIN or any(name in known for name in HELD):
            return made
        if not isinstance(made, tuple(METRICS.values())):
            return lambda problem, clients, state: made(problem, there.apart[self.on](), state)
        return METRICS["On"](made, there.apart[self.on]())

    def _function(self, there: material.Material) -> Any:
        measure, given = self.metric.factory, self.metric.arguments

        def judged(problem: Any, clients: Any, state: Any) -> Any:
            return measure(problem, clients if self.on == TRAIN else there.apart[self.on](), state, **given)

        if (better := getattr(measure, "better", None)) is not None:
            judged.better = better  # type: ignore[attr-defined]
        return judged


def is_measure(thing: Any) -> bool:
    """Tell whether a function is a metric itself, of (problem, clients, state), and not what makes one."""
    return not isinstance(thing, type) and list(parameters(thing))[:3] == ["problem", "clients", "state"]


@dataclass
class Plan:
    """An experiment, read. What is wrong in ``mistakes`` was noted while it was."""

    spec: Spec
    mistakes: Mistakes
    reader: Reader
    problem: Any = WRONG
    as_minimax: bool = False
    data: Any = None
    partition: Any = None
    drop: dict[str, Any] | None = None
    methods: dict[str, Method] = field(default_factory=dict)
    judges: dict[str, Judge] = field(default_factory=dict)
    engine: Any = WRONG
    guard: Any = None
    privacy: Any = None
    availability: Any = None
    halving: Any = None

    @property
    def swept(self) -> list[Method]:
        """The methods of which several settings are tried."""
        return [method for method in self.methods.values() if method.swept]

    @property
    def form(self) -> type | None:
        """The form of the problem, as far as its declaration tells."""
        from fedminimax.problems import MinimaxProblem, PersonalizedProblem, RobustProblem

        known = (MinimaxProblem, RobustProblem, PersonalizedProblem)
        said = returns(self.problem.factory) if isinstance(self.problem, Call) else type(self.problem)
        if isinstance(self.problem, Task):
            said = type(self.problem.problem)
        if typing.get_origin(said) is Task:
            said = typing.get_args(said)[0]
        return MinimaxProblem if self.as_minimax and said is RobustProblem else said if said in known else None

    @property
    def brings_data(self) -> bool:
        """Whether the problem has clients of its own, as far as its declaration tells."""
        if not isinstance(self.problem, Call):
            return isinstance(self.problem, Task)
        said = returns(self.problem.factory)
        return said is Task or typing.get_origin(said) is Task

    @property
    def needs_data(self) -> bool:
        """Whether the problem takes clients' data."""
        known = parameters(self.problem.factory) if isinstance(self.problem, Call) and callable(self.problem.factory) else {}
        return "clients" in known and known["clients"].required and int not in takes(known["clients"].hint).plain

    @property
    def count(self) -> int | None:
        """The number of clients, as far as the file tells."""
        for call in (self.partition, self.problem if self.brings_data else None):
            if isinstance(call, Call) and "clients" in (known := parameters(call.factory)):
                number = call.arguments.get("clients", known["clients"].default)
                if isinstance(number, int):
                    return number
        said = self.spec.partition.get("clients") if isinstance(self.spec.partition, Mapping) else None
        if isinstance(said, int):  # of a partition that has other mistakes
            return said
        return getattr(self.spec.clients, "count", None)


def read(tree: Mapping[str, Any], mistakes: Mistakes, folders: Sequence[FilePath] = ()) -> Plan:
    """Return what an experiment will run, with everything noted that its tables have wrong."""
    spec = validated(tree, mistakes)
    assert spec is not None
    plan = Plan(spec, mistakes, Reader(mistakes, folders))
    if "problem" in tree:
        _read_problem(plan)
    _read_data(plan)
    if "methods" in tree and not mistakes.within(("methods",)):
        for label in spec.methods:
            if (method := _read_method(plan, label)) is not None:
                plan.methods[label] = method
    for label in spec.metrics if isinstance(spec.metrics, Mapping) else ():
        if (judge := _read_judge(plan, label)) is not None:
            plan.judges[label] = judge
    plan.engine = plan.reader.described(spec.engine, kinds.ENGINE, ("engine",))
    for name, kind in (("guard", kinds.GUARD), ("privacy", kinds.PRIVACY), ("availability", kinds.AVAILABILITY)):
        value = getattr(spec, name)
        value = {"probability": value} if name == "availability" and type(value) in (int, float) else value
        setattr(plan, name, None if value is None else plan.reader.described(value, kind, (name,)))
    if (halving := spec.search.halving) is not None:
        table = {"factor": halving} if isinstance(halving, int) else halving
        if isinstance(table, Mapping):  # compared by what the winner is chosen by
            table = {"metric": spec.search.select or "", "better": spec.search.better, **table}
        plan.halving = plan.reader.described(table, kinds.HALVING, ("search", "halving"), provided=())
    return plan


def _read_problem(plan: Plan) -> None:
    value = plan.spec.problem
    if isinstance(value, Mapping) and "as_minimax" in value:
        value = dict(value)
        plan.as_minimax = value.pop("as_minimax") is True
    offered = ["classes", "count", "clients"]
    plan.problem = plan.reader.described(value, kinds.PROBLEM, ("problem",), provided=_taken(plan, value, offered))


def _taken(plan: Plan, value: Any, offered: list[str]) -> list[str]:
    """Return what a problem takes from the experiment: a parameter of that name may be a number of clients to make."""
    name = value if isinstance(value, str) else value.get("name") if isinstance(value, Mapping) else None
    try:
        factory = kinds.PROBLEM.get(name, plan.reader.folders) if isinstance(name, str) else name
    except InputError:
        return offered
    known = parameters(factory) if callable(factory) else {}
    return [n for n in offered if n not in known or n == "classes" or int not in takes(known[n].hint).plain]


def _read_data(plan: Plan) -> None:
    spec, path = plan.spec, ("data",)
    if spec.clients is not None:
        known = isinstance(spec.clients, (Federation, material.Material)) or hasattr(spec.clients, "sizes")
        if not known:
            plan.mistakes.add(("clients",), f"clients is {spec.clients!r}: give ClientData, as fm.run takes it.")
        plan.data = material.material_of(spec.clients) if known else WRONG
        return
    if spec.data is None:
        return
    value = {"name": spec.data} if isinstance(spec.data, str) else spec.data
    if isinstance(value, Mapping) and isinstance(value.get("name"), str) and ":" not in value["name"]:
        found = material.source(value["name"], plan.reader.folders)
        value = {**value, "name": found or value["name"]}
    plan.data = plan.reader.described(value, kinds.DATA, path)
    if spec.partition is not None:
        partition = spec.partition
        if isinstance(partition, Mapping) and "drop" in partition:
            partition = dict(partition)
            plan.drop = _read_drop(plan, partition.pop("drop"))
        provided = ("labels", "n_or_labels")
        plan.partition = plan.reader.described(partition, kinds.PARTITION, ("partition",), provided=provided)


def _read_drop(plan: Plan, value: Any) -> dict[str, Any] | None:
    from fedminimax.data.partition import drop_examples

    path = ("partition", "drop")
    if not isinstance(value, Mapping):
        plan.mistakes.add(path, f"partition.drop is {value!r}: give a table with client_share and example_share.")
        return None
    found = plan.reader.arguments(drop_examples, value, kinds.PARTITION, path, dotted(path), provided=("owner",))
    return None if found is WRONG else found


def _read_method(plan: Plan, label: str) -> Method | None:
    value, path = plan.spec.methods[label], ("methods", label)
    if not label.strip() or re.search(r"[/\\\0]", label) or label.startswith("."):
        plan.mistakes.add(path, f"The label {label!r} cannot name a folder: leave out slashes, and do not begin with a dot.")
        return None
    if isinstance(value, Algorithm):
        return Method(label, value)
    if isinstance(value, (str, type)) or not isinstance(value, Mapping):
        value = {"method": value}
    chosen = value.get("method")
    if chosen is None and kinds.METHOD.find(label) is None:
        near = nearest(label, kinds.METHOD.names())
        plan.mistakes.add(
            path, f'There is no method {label!r}: {near} (A label of your own needs method = "..." in its table.)'
        )
        return None
    if isinstance(chosen, Algorithm):
        fields = {item.name: getattr(chosen, item.name) for item in dataclasses.fields(chosen)}  # type: ignore[arg-type]
        value = {**fields, **value, "method": type(chosen)}
    lists: dict[str, list[Any]] = {}
    ranges: dict[str, Any] = {}

    def convert(parameter: Parameter, given: Any, at: Path) -> Any:
        """Take several values for one, and ranges."""
        taken = takes(parameter.hint, parameter.name)
        several = isinstance(given, list) and not taken.lists and not any(typing.get_origin(o) is tuple for o in taken.plain)
        if several:
            each = [plan.reader.convert(parameter, v, (*at, k), kinds.METHOD) for k, v in enumerate(given)]
            if not given:
                plan.mistakes.add(at, f"{dotted(at)} is an empty list: give the values to try.")
            if not given or any(v is WRONG for v in each):
                return WRONG
            lists[parameter.name] = each
            return each[0]
        if (drawn := _range(plan, given, at)) is not None:
            if drawn is not WRONG:
                ranges[parameter.name] = drawn
            return drawn if drawn is WRONG else drawn.low
        return plan.reader.convert(parameter, given, at, kinds.METHOD)

    call = plan.reader.described(value, kinds.METHOD, path, key="method", default=label, convert=convert)
    made = plan.reader.make(call) if isinstance(call, Call) else call
    if made is WRONG:
        return None
    if not isinstance(made, Algorithm):
        plan.mistakes.add(path, f"{dotted(path)} is a {type(made).__name__}, not a method: name a class made with @algorithm.")
        return None
    for name, values in lists.items():
        for k, each in enumerate(values):
            try:
                made.replace(**{name: each})
            except InputError as error:
                plan.mistakes.add((*path, name, k), f"{dotted((*path, name))}: {error}")
    return Method(label, made, lists, ranges)


def _range(plan: Plan, given: Any, at: Path) -> Any:
    """Return the range that a table describes, such as {log_uniform = [1e-4, 1e-1]}; None where it describes none."""
    if isinstance(given, tuple(kinds.RANGE.names().values())):
        return given
    if not isinstance(given, Mapping):
        return None
    key = next((k for k in given if kinds.RANGE.find(k) is not None), None)
    if key is None:
        return None
    bounds = given[key]
    numbers = isinstance(bounds, list) and len(bounds) == 2 and all(type(b) in (int, float) for b in bounds)
    if not numbers or set(given) - {key, "whole"}:
        says = f"{dotted(at)} is a range: write {{{key} = [least, greatest]}}, two numbers (and whole = true for whole ones)."
        plan.mistakes.add(at, says)
        return WRONG
    arguments = {"low": bounds[0], "high": bounds[1], "whole": given.get("whole") is True}
    return plan.reader.make(Call(kinds.RANGE, kinds.RANGE.find(key), arguments, at))


def _read_judge(plan: Plan, label: str) -> Judge | None:
    value, path = plan.spec.metrics[label], ("metrics", label)
    if not isinstance(value, (str, type, Mapping)):
        held = any(getattr(value, name, None) is not None for name in HELD)
        return Judge(label, value, TEST if held else TRAIN)  # whatever it holds, nothing is to be chosen by it
    table = dict(value) if isinstance(value, Mapping) else {"metric": value}
    on = table.pop("on", TRAIN)
    if on not in ON:
        plan.mistakes.add((*path, "on"), f"{dotted((*path, 'on'))} is {on!r}: {nearest(on, ON)}")
        return None
    chosen = table.get("metric")
    if chosen is not None and not isinstance(chosen, (str, type)) and not is_measure(chosen):
        return Judge(label, chosen, on)
    if chosen is None and kinds.METRIC.find(label) is None:
        near = nearest(label, kinds.METRIC.names())
        plan.mistakes.add(
            path, f'There is no metric {label!r}: {near} (A label of your own needs metric = "..." in its table.)'
        )
        return None
    provided = ("data", "clients", "classes", "solution", "problem", "state")
    made = plan.reader.described(table, kinds.METRIC, path, key="metric", default=label, provided=provided)
    return None if made is WRONG else Judge(label, made, on)
