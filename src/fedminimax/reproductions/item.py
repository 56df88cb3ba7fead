"""An item of a paper, as its file in the catalogue has it: an experiment, its panels, and what should come out of it."""

from __future__ import annotations

import functools
import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedminimax.errors import InputError, nearest
from fedminimax.experiments.experiment import Experiment
from fedminimax.reproductions.expectations import Expectation

SMALL, PAPER, SMOKE = "small", "paper", "smoke"
SCALES = (SMALL, PAPER, SMOKE)
"""On two cores in minutes; as printed; in seconds, to see that it runs."""
EVERY = "*"
"""In place of a method's label: all methods."""
WHOLE = "all"
"""The name of the panel of an item that has only one."""


class Across(BaseModel):
    """What the panels of an item differ in, as numbers: its figure then has what came out against them, not curves.

    Attributes:
        name: what they are, as an axis calls it.
        groups: panels that are drawn together, and the number that each stands for.
        log: whether the axis has powers of ten.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    groups: dict[str, dict[str, float]]
    log: bool = False


class Item(BaseModel):
    """A figure or a table of a paper, or a question that it leaves.

    Attributes:
        name: "paper/item", by which it is asked for.
        title: what it shows.
        also: what else of the paper is of the same runs, such as "table-4": it is found by these names too.
        claim: what the paper says of it, in a sentence of ours.
        shows: the metrics to draw, the first one first.
        against: what they are drawn against: "round", "floats_up" or "grad_evals".
        differs: by scale, what is not as in the paper.
        found: what we found out beyond the verdict, in sentences without figures.
        printed: the numbers that the paper prints, by panel, method and metric, in the metric's units: shown beside ours.
        experiment: the tables of an experiment.
        small: what is otherwise at the small scale.
        paper: what is otherwise at the scale of the paper.
        smoke: what is otherwise when it is only tried.
        panels: what is otherwise in each panel, and within it by scale.
        across: what panels differ in, where it is a number.
        divisions: by scale, how many times all of it is done, with other data or another division of it each time.
        varies: the seeds that differ between divisions, such as "partition.seed".
        float64: whether it is run in double precision.
        expect: what should come out of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    title: str
    also: list[str] = []
    claim: str
    shows: list[str] = Field(min_length=1)
    against: str = "round"
    differs: dict[str, list[str]] = {}
    found: list[str] = []
    printed: dict[str, dict[str, dict[str, float]]] = {}
    experiment: dict[str, Any]
    small: dict[str, Any] = {}
    paper: dict[str, Any] = {}
    smoke: dict[str, Any] = {}
    panels: dict[str, dict[str, Any]] = {}
    across: Across | None = None
    divisions: dict[str, int] = {}
    varies: list[str] = []
    float64: bool = False
    expect: list[Expectation] = Field(min_length=1)

    @property
    def source(self) -> str:
        """The paper's short name."""
        return self.name.partition("/")[0]

    @property
    def other_names(self) -> list[str]:
        """By what it is asked for too."""
        return [f"{self.source}/{other}" for other in self.also]

    def panel_names(self, scale: str) -> list[str]:
        """Return the names of the panels that there are at a scale."""
        return [name for name, changes in self.panels.items() if changes.get(scale) is not False] or [WHOLE]

    def experiments(self, scale: str) -> dict[str, list[Experiment]]:
        """Return the experiments of each panel, one for each division."""
        if scale not in SCALES:
            raise InputError(f"There is no scale {scale!r}: choose {', '.join(SCALES)}.")
        divisions = range(self.divisions.get(scale, 1))
        return {panel: [self._experiment(panel, scale, k) for k in divisions] for panel in self.panel_names(scale)}

    def digest(self, scale: str) -> str:
        """Return what tells this version of the item at a scale from others: its experiments, and what is expected of them."""
        tables = {panel: [one.tables for one in divisions] for panel, divisions in self.experiments(scale).items()}
        whole = {"tables": tables, "expect": [one.model_dump() for one in self.expected(scale)], "float64": self.float64}
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def expected(self, scale: str) -> list[Expectation]:
        """Return what should come out at a scale: without the methods and the panels that are left out there."""
        removed = {label for label, changes in getattr(self, scale).get("methods", {}).items() if changes is False}
        panels = self.panel_names(scale)

        def there(side: str) -> bool:
            label, _, elsewhere = (part.strip() for part in side.partition("@"))
            return label not in removed and (not elsewhere or elsewhere in panels)

        kept = [one for one in self.expect if there(one.method) and (not one.than or any(map(there, one.than)))]
        kept = [one for one in kept if one.wider_than is None or one.wider_than in panels]
        groups = {} if self.across is None else self.across.groups
        over = lambda one: {} if one.group is None else {"over": groups[one.group]}
        return [one.model_copy(update={"than": [*filter(there, one.than)], **over(one)}) for one in kept]

    @model_validator(mode="after")
    def _groups_are_there(self) -> Item:
        known = {} if self.across is None else self.across.groups
        if wrong := {one.group for one in self.expect if one.group is not None} - set(known):
            raise ValueError(f"there is no group {', '.join(sorted(wrong))} in across")
        if wrong := {panel for panels in known.values() for panel in panels} - set(self.panels):
            raise ValueError(f"across has panels that there are not: {', '.join(sorted(wrong))}")
        return self

    def _experiment(self, panel: str, scale: str, division: int) -> Experiment:
        own = self.panels.get(panel, {})
        tables = merged(self.experiment, getattr(self, scale))
        tables = merged(tables, {key: value for key, value in own.items() if key not in SCALES})
        tables = merged(tables, own.get(scale, {}))
        for path in self.varies:
            table, key = path.split(".")
            tables = merged(tables, {table: {key: division}})
        return Experiment(**{"name": self.name if panel == WHOLE else f"{self.name}, {panel}", **tables})


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with changes: tables within them are merged, one of another name is another thing.

    False removes what is neither true nor false. A change of ``"*"`` is one of every table beside it.
    """
    out = dict(base)
    if EVERY in changes:
        out = {key: merged(value, changes[EVERY]) for key, value in out.items()}
    for key, value in changes.items():
        if key == EVERY:
            continue
        old = out.get(key)
        if value is False and old is not None and not isinstance(old, bool):
            del out[key]
        elif isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("name", old.get("name")) == old.get("name"):
            out[key] = merged(old, value)
        else:
            out[key] = value
    return out


@functools.cache
def items() -> dict[str, Item]:
    """Return all items of the catalogue, by name."""
    tables = {}
    papers = resources.files("fedminimax.reproductions") / "catalogue"
    for paper in sorted(papers.iterdir(), key=lambda path: path.name):
        if paper.is_dir():
            for file in sorted(paper.iterdir(), key=lambda path: path.name):
                if file.name.endswith(".toml"):
                    tables[f"{paper.name}/{file.name.removesuffix('.toml')}"] = read(file)
    return {name: Item.model_validate({"name": name, **extended(name, tables)}) for name in tables}


def read(file: Traversable) -> dict[str, Any]:
    """Read the tables of an item from its file."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def extended(name: str, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tables of an item: with those of the item that it ``extends``, where it says nothing else.

    What else is found in the runs, what the paper prints of them, and what it is also called, is not taken over.
    """
    own = dict(tables[name])
    base = own.pop("extends", None)
    if base is None:
        return own
    if base not in tables:
        raise InputError(f"{name} extends {base!r}, which there is not{nearest(str(base), tables)}.")
    if "extends" in tables[base]:
        raise InputError(f"{name} extends {base}, which extends another: extend {tables[base]['extends']} itself.")
    taken = {key: value for key, value in tables[base].items() if key not in ("also", "found", "printed", "expect")}
    return merged(taken, own)


def find(name: str) -> Item:
    """Return the item of a name."""
    known = items()
    name = next((item.name for item in known.values() if name in item.other_names), name)
    if name not in known:
        raise InputError(
            f"There is no {name!r} to reproduce{nearest(name, known)}: fedminimax reproduce --list shows what there is."
        )
    return known[name]
