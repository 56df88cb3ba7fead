"""An item of a paper, as its file in the catalogue has it: an experiment, its panels, and what should come out of it."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

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


class Item(BaseModel):
    """A figure or a table of a paper.

    Attributes:
        name: "paper/item", by which it is asked for.
        title: what it shows.
        claim: what the paper says of it, in a sentence of ours.
        shows: the metrics to draw, the first one first.
        against: what they are drawn against: "round", "floats_up" or "grad_evals".
        differs: by scale, what is not as in the paper.
        found: what we found out beyond the verdict, in sentences without figures.
        experiment: the tables of an experiment.
        small: what is otherwise at the small scale.
        paper: what is otherwise at the scale of the paper.
        smoke: what is otherwise when it is only tried.
        panels: what is otherwise in each panel, and within it by scale.
        divisions: by scale, how many times all of it is done, with other data or another division of it each time.
        varies: the seeds that differ between divisions, such as "partition.seed".
        float64: whether it is run in double precision.
        expect: what should come out of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    title: str
    claim: str
    shows: list[str] = Field(min_length=1)
    against: str = "round"
    differs: dict[str, list[str]] = {}
    found: list[str] = []
    experiment: dict[str, Any]
    small: dict[str, Any] = {}
    paper: dict[str, Any] = {}
    smoke: dict[str, Any] = {}
    panels: dict[str, dict[str, Any]] = {}
    divisions: dict[str, int] = {}
    varies: list[str] = []
    float64: bool = False
    expect: list[Expectation] = Field(min_length=1)

    @property
    def source(self) -> str:
        """The paper's short name."""
        return self.name.partition("/")[0]

    def panel_names(self, scale: str) -> list[str]:
        """Return the names of the panels that there are at a scale."""
        return [name for name, changes in self.panels.items() if changes.get(scale) is not False] or [WHOLE]

    def experiments(self, scale: str) -> dict[str, list[Experiment]]:
        """Return the experiments of each panel, one for each division."""
        if scale not in SCALES:
            raise InputError(f"There is no scale {scale!r}: choose {', '.join(SCALES)}.")
        divisions = range(self.divisions.get(scale, 1))
        return {panel: [self._experiment(panel, scale, k) for k in divisions] for panel in self.panel_names(scale)}

    def expected(self, scale: str) -> list[Expectation]:
        """Return what should come out at a scale: without the methods that are left out there."""
        removed = {label for label, changes in getattr(self, scale).get("methods", {}).items() if changes is False}
        there = lambda side: side.partition("@")[0].strip() not in removed
        kept = [one for one in self.expect if there(one.method) and (not one.than or any(map(there, one.than)))]
        return [one.model_copy(update={"than": [*filter(there, one.than)]}) for one in kept]

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
    """Return tables with changes: tables within them are merged, one of another name is another thing, and false removes.

    A change of ``"*"`` is one of every table beside it.
    """
    out = dict(base)
    if EVERY in changes:
        out = {key: merged(value, changes[EVERY]) for key, value in out.items()}
    for key, value in changes.items():
        if key == EVERY:
            continue
        old = out.get(key)
        if value is False and isinstance(old, Mapping):
            del out[key]
        elif isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("name", old.get("name")) == old.get("name"):
            out[key] = merged(old, value)
        else:
            out[key] = value
    return out


@functools.cache
def items() -> dict[str, Item]:
    """Return all items of the catalogue, by name."""
    found = {}
    papers = resources.files("fedminimax.reproductions") / "catalogue"
    for paper in sorted(papers.iterdir(), key=lambda path: path.name):
        if paper.is_dir():
            for file in sorted(paper.iterdir(), key=lambda path: path.name):
                if file.name.endswith(".toml"):
                    item = read(file, f"{paper.name}/{file.name.removesuffix('.toml')}")
                    found[item.name] = item
    return found


def read(file: Traversable, name: str) -> Item:
    """Read an item from its file."""
    return Item.model_validate({"name": name, **tomllib.loads(file.read_text(encoding="utf-8"))})


def find(name: str) -> Item:
    """Return the item of a name."""
    known = items()
    if name not in known:
        raise InputError(
            f"There is no {name!r} to reproduce{nearest(name, known)}: fedminimax reproduce --list shows what there is."
        )
    return known[name]
