"""What the API reference describes, and on which page: all public names, found where they are defined."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from fedminimax import names
from fedminimax.algorithms import ALGORITHMS


class Page(NamedTuple):
    """A page of the reference: where it is, what it is called, what it opens with, and the objects that it describes."""

    path: str
    title: str
    opening: str
    objects: dict[str, Any]
    prefix: str = "fedminimax"


# Where a public name is described, by the module that defines it; one that is not here is described with "runs".
_ROOMS = {
    "problems": "forms",
    "network": "forms",
    "algorithms": "solvers",
    "data": "clients",
    "federation": "conditions",
    "steps": "conditions",
    "schedules": "conditions",
    "engines": "engines",
    "observers": "observers",
    "progress": "observers",
    "penalties": "penalties",
    "compare": "sweeps",
    "sweep": "sweeps",
    "sweeps": "sweeps",
}
_TITLES = {
    "runs": ("Runs and results", "Carrying a method out, and what comes back."),
    "sweeps": ("Sweeps and comparisons", "Many settings, seeds and methods."),
    "forms": ("Forms of problems", "The three forms, and the graph of the third."),
    "clients": ("Clients' data", "Who holds what."),
    "conditions": (
        "Conditions of a run",
        "Who takes part, for how many steps, with which step sizes, and what is let through.",
    ),
    "engines": ("Engines", "How rounds are carried out."),
    "observers": ("Observers", "What watches a run."),
    "penalties": ("Penalties on weights", "How far the weights on clients may go, and at what price."),
    "solvers": ("Local solvers", "What a client does with its gradients."),
}
_MODULES = {  # modules whose names are written with the module's: fm.metrics.Phi
    "problems": "Tasks ready to use",
    "metrics": "Metrics",
    "sets": "Sets",
    "models": "Networks",
    "data": "Federations",
    "data.datasets": "Data sets",
    "data.partition": "Partitions",
    "data.tabular": "Tables",
    "data.published": "Published tables",
    "plots": "Pictures",
    "fairness": "Fairness contests",
    "saved": "Models to keep",
    "sklearn": "Estimators",
    "authoring": "For authors of methods",
    "testing": "Checks of your own parts",
}


def identifier(thing: Any) -> str:
    """Return where an object is defined, which is what mkdocstrings calls it."""
    return f"{thing.__module__}.{thing.__qualname__}"


def _describable(thing: Any) -> bool:
    return (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith("fedminimax")


@cache
def pages() -> list[Page]:
    """Return all pages; each object is described once, on the first page that has it."""
    public = {name: getattr(names, name) for name in names.__all__}
    found = [*_methods(public)]
    rooms: dict[str, dict[str, Any]] = {room: {} for room in _TITLES}
    described = {identifier(thing) for page in found for thing in page.objects.values()}
    for name, thing in public.items():
        if identifier(thing) not in described:
            room = thing.__module__.split(".")[1]
            rooms[_ROOMS.get(room, "runs")][name] = thing
    for room, things in rooms.items():  # what one calls comes before what comes back
        rooms[room] = dict(sorted(things.items(), key=lambda item: inspect.isclass(item[1])))
    found += [Page(f"reference/{room}.md", *_TITLES[room], rooms[room]) for room in _TITLES if rooms[room]]
    for module, title in _MODULES.items():
        found.append(_module_page(module, title, {identifier(thing) for page in found for thing in page.objects.values()}))
    return found


def _methods(public: dict[str, Any]) -> list[Page]:
    """Return a page for each file of methods, opening with its citation."""
    by_module: dict[str, dict[str, Any]] = {}
    modules = {thing.__module__ for name, thing in public.items() if name in ALGORITHMS}
    for name, thing in sorted(public.items(), key=lambda item: item[0] not in ALGORITHMS):
        if thing.__module__ in modules:
            by_module.setdefault(thing.__module__, {})[name] = thing
    found = []
    for module, methods in sorted(by_module.items()):
        title, opening = title_of(importlib.import_module(module))
        found.append(Page(f"reference/methods/{module.rpartition('.')[2]}.md", title, opening, methods))
    return found


def _module_page(name: str, title: str, described: set[str]) -> Page:
    module = importlib.import_module(f"fedminimax.{name}")
    listed = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
    own = lambda thing: bool(getattr(module, "__all__", None)) or thing.__module__ == module.__name__
    objects = {each: getattr(module, each) for each in listed}
    kept = {n: t for n, t in objects.items() if _describable(t) and own(t) and identifier(t) not in described}
    return Page(f"reference/{name.replace('.', '_')}.md", title, inspect.getdoc(module) or "", kept, module.__name__)


def title_of(module: ModuleType) -> tuple[str, str]:
    """Return the name that a module of methods opens with, and its citation."""
    doc = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    rest = (inspect.getdoc(module) or "")[len(doc) :].strip()
    title, _, more = re.split(r"([.:](?:\s|$))", doc, maxsplit=1)
    return title, "\n\n".join(part for part in (more.strip()[:1].upper() + more.strip()[1:], rest) if part)


@cache
def identifiers() -> dict[str, str]:
    """Return where each described object is, by its name, by the name with which users write it, and by its place."""
    found: dict[str, str] = {}
    for page in reversed(pages()):  # the first page's names are the public ones: they win
        for name, thing in page.objects.items():
            place = identifier(thing)
            found |= {name: place, f"{page.prefix}.{name}": place, place: place, f"fedminimax.{name}": place}
    return found


def written(page: Page, convert: Callable[[str], str]) -> str:
    """Return a page of the reference in Markdown, for mkdocstrings to fill in."""
    lines = [f"# {page.title}", "", convert(page.opening), ""]
    for name, thing in page.objects.items():
        lines += [f"::: {identifier(thing)}", "    options:", f'      heading: "{name}"', f'      toc_label: "{name}"']
        if name in ALGORITHMS:  # init, round and the clients' programs are how a method is written, not how it is used
            made = [each for each, member in vars(thing).items() if isinstance(member, classmethod)]
            lines += ["      members:" + ("".join(f"\n        - {each}" for each in made) or " false")]
        lines += [""]
    return "\n".join(lines)


def contents(convert: Callable[[str], str]) -> str:
    """Return the reference's first page: every name with its first paragraph; the methods in one table."""
    lines = [
        "# API reference",
        "",
        "Every public name, as `fm.name` after `import fedminimax as fm`. Each leads to its arguments and formulas.",
        "",
    ]
    heading = ""
    for page in pages():
        title = "Methods" if "/methods/" in page.path else page.title
        if title != heading:
            lines += ["", f"## {title}", "", "| name | what it is |", "|---|---|"]
            heading = title
        prefix = page.prefix.removeprefix("fedminimax").removeprefix(".")
        for name, thing in page.objects.items():
            written_as = f"{prefix}.{name}" if prefix else name
            summary = _in_a_cell(convert((inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")))
            lines.append(f"| [`{written_as}`][{identifier(thing)}] | {summary} |")
    return "\n".join(lines)


def _in_a_cell(text: str) -> str:
    """Return Markdown whose bars do not end a cell of a table."""
    in_formulas = re.sub(r"\$[^$]+\$", lambda m: m[0].replace("\\|", "\\Vert ").replace("|", "\\vert "), text)
    return in_formulas.replace("|", "&#124;")
