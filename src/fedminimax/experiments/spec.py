"""The tables that every experiment has, as pydantic models; what is in those of methods, problems and metrics is their own.

What a problem or a method takes is not written down here: :mod:`fedminimax.experiments.reader` reads it off their declarations.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from fedminimax.errors import InputError
from fedminimax.experiments.mistakes import Mistakes, dotted, nearest
from fedminimax.experiments.positions import Path, lines_of
from fedminimax.experiments.reader import STRICT

TRAIN, VALIDATION, TEST = "train", "validation", "test"
"""What data a metric is taken on."""

Positive = Annotated[int, Field(ge=1)]
Table = dict[str, Any]


class Search(BaseModel):
    """How settings are tried, and which is chosen."""

    model_config = STRICT
    select: str | None = None
    better: Literal["lower", "higher"] | None = None
    samples: Positive | None = None
    halving: Positive | Table | Any = None
    seed: int = 0


class Stop(BaseModel):
    """When a run is given up."""

    model_config = STRICT
    metric: str
    below: float | None = None
    above: float | None = None
    after: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _a_level(self) -> Stop:
        if self.below is None and self.above is None:
            raise ValueError("give below or above, a level at which to stop")
        return self


class Spec(BaseModel):
    """One experiment, as its file has it.

    Attributes:
        problem: what is solved, by name, with its arguments.
        methods: what solves it: a table for each label.
        rounds: how many communication rounds each run has.
        name: what to call the experiment; by default as its file.
        data: where the examples come from.
        partition: how they are divided among clients.
        clients: the clients' data as an object, in Python only.
        seeds: how many runs each method has (seeds 0, 1, ...), or their seeds.
        eval_every: how many rounds from one evaluation to the next.
        metrics: what is measured: a table for each label.
        availability: who answers.
        guard: what replies must pass.
        privacy: how messages are clipped and what noise they get.
        engine: what carries rounds out.
        checkpoint_every: how often a run is saved: rounds, or a text such as "30s" or "5min".
        match_upload: give all methods the same floats up a round: true, a method's label, or a number.
        search: how lists and ranges of hyper-parameters are tried.
        stop: at what level of a metric runs are given up: they end there, and a setting of which one would is not chosen.
    """

    model_config = STRICT
    problem: Any
    methods: Annotated[Table, Field(min_length=1)]
    rounds: Positive
    name: Annotated[str, Field(min_length=1)] | None = None
    data: Any = None
    partition: Any = None
    clients: Any = None
    seeds: Positive | Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1)] = 1
    eval_every: Positive | None = None
    metrics: Table = {}
    availability: Any = None
    guard: Any = None
    privacy: Any = None
    engine: Any = "simulator"
    checkpoint_every: Positive | str | None = None
    match_upload: bool | str | Positive = False
    search: Search = Search()
    stop: Stop | None = None

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: Any) -> Any:
        if isinstance(seeds, list) and len(set(seeds)) < len(seeds):
            raise ValueError("two are the same: give different seeds")
        return seeds

    @field_validator("checkpoint_every")
    @classmethod
    def _time(cls, value: Any) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"\d+(\.\d+)?\s*(s|min|h)", value):
            raise ValueError('give a number of rounds, or a time such as "30s" or "5min"')
        return value

    @property
    def chosen_seeds(self) -> list[int]:
        """The seeds of the runs."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)


def parse(text: str, file: str) -> tuple[Table, Mistakes]:
    """Return the tables of a file, and where to note mistakes in it; what is no TOML is an error with its line."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), flags=re.S)
        reason, line = (said[1], said[2]) if said else (str(error), None)
        number = line or len(text.splitlines()) or 1
        hint = " A text needs quotes, and a key may be there once only." if said else ""
        raise InputError(f"{file}:{number}: this is not TOML ({reason}).{hint}") from None
    return tree, Mistakes(file, lines_of(text))


def validated(tree: Mapping[str, Any], mistakes: Mistakes) -> Spec | None:
    """Return the spec; None, with the mistakes noted, where something is wrong with its fixed tables."""
    try:
        return Spec.model_validate(dict(tree))
    except ValidationError as error:
        found = error.errors()
        extra = {
            nearest(p["loc"][-1], Spec.model_fields) for p in found if p["type"] == "extra_forbidden" and len(p["loc"]) == 1
        }
        for problem in found:  # a key that is misspelt is not missing too
            if problem["type"] != "missing" or f"did you mean {problem['loc'][-1]!r}?" not in extra:
                _note(problem, tree, mistakes)
        sound = {key: value for key, value in tree.items() if not mistakes.within((key,)) and key in Spec.model_fields}
        lacking = {"problem": None, "methods": {"": None}, "rounds": 10**9}  # so that the rest can be looked at too
        return Spec.model_construct(**{**lacking, **sound, "search": _search(sound)})


def _search(sound: Mapping[str, Any]) -> Search:
    return Search.model_validate(sound.get("search", {}))


def _note(problem: Any, tree: Mapping[str, Any], mistakes: Mistakes) -> None:
    """Turn what pydantic found into a sentence about a place in the file."""
    path: Path = tuple(problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = Search.model_fields if path[0] == "search" else [n for n in Spec.model_fields if n != "clients"]
        mistakes.add(path, f"{dotted(path[:-1])} has no {path[-1]!r}: {nearest(path[-1], known)}")
        return
    if problem["type"] == "missing":
        what = f"{dotted(path[:-1])} lacks {path[-1]!r}"
        mistakes.add(path[:-1], f"{what}: {_EXAMPLES.get(str(path[-1]), 'give it')}.")
        return
    path = path[: _depth(path, tree)]  # without the names of alternatives
    said = problem["msg"].removeprefix("Value error, ")
    shown = _value(path, tree)
    cure = _CURES.get(str(path[0]) if len(path) == 1 else f"{path[0]}.{path[1]}")
    says = cure if cure and not said.startswith(("two are", "give a")) else said[:1].lower() + said[1:]
    mistakes.add(path, f"{dotted(path)} is {shown!r}: {says}.")


def _depth(path: Path, tree: Any) -> int:
    for depth, key in enumerate(path):
        listed = isinstance(tree, list) and isinstance(key, int) and key < len(tree)
        if not listed and not (isinstance(tree, Mapping) and key in tree):
            return depth
        tree = tree[key]
    return len(path)


def _value(path: Path, tree: Any) -> Any:
    for key in path:
        tree = tree[key]
    return tree


_EXAMPLES = {
    "problem": 'name one, such as [problem] with name = "fair_classification" below it',
    "methods": "give at least one, such as [methods.FessGDA] with lr_x = 0.1 and lr_y = 0.1 below it",
    "rounds": "say how many communication rounds there are, such as rounds = 200",
}
_WHOLE = "give a whole number of at least 1"
_CURES = {
    "rounds": _WHOLE,
    "eval_every": _WHOLE,
    "seeds": "give how many, a whole number of at least 1, or a list of them such as [0, 1, 2]",
    "name": "give a text in quotes",
    "methods": "give a table for each, such as [methods.FessGDA]",
    "metrics": "give a table for each, such as [metrics.Value]",
    "checkpoint_every": 'give a number of rounds, or a time such as "30s" or "5min"',
    "match_upload": "give true, the label of a method, or a number of floats",
    "search": 'give a table, such as [search] with select = "accuracy/worst" below it',
    "stop": 'give a table, such as stop = {metric = "accuracy/mean", below = 0.2, after = 50}',
    "search.select": 'give the name of a number, such as "accuracy/worst"',
    "search.better": "give 'lower' or 'higher'",
    "search.samples": _WHOLE,
    "search.seed": "give a whole number",
}
