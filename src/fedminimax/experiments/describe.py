"""From objects back to tables: what a file would say of them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedminimax.algorithms.solvers import PerClient
from fedminimax.errors import InputError
from fedminimax.experiments import kinds
from fedminimax.experiments.kinds import own_name
from fedminimax.experiments.mistakes import dotted
from fedminimax.experiments.parameters import parameters
from fedminimax.experiments.positions import Path
from fedminimax.problems.base import Form
from fedminimax.problems.robust import SharedForm

_ALONE = (kinds.GUARD, kinds.PRIVACY, kinds.AVAILABILITY, kinds.WAVE, kinds.DELAY)
"""Kinds of which there is one only, so that no table names it."""
_NAMED = (
    kinds.METHOD, kinds.PROBLEM, kinds.METRIC, kinds.PARTITION, kinds.MODEL, kinds.PENALTY, kinds.SET, kinds.NETWORK,
    kinds.SOLVER, kinds.STEPS, kinds.SCHEDULE, kinds.ENGINE, kinds.CLASSIFIER,
)  # fmt: skip
_KEYS = {"methods": "method", "metrics": "metric"}


def described(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of an experiment with every object described; one that a file cannot describe is an error."""
    found = {}
    for name, value in tree.items():
        if name == "clients":
            raise _no_name(("clients",), value)
        if name in _KEYS:
            key = _KEYS[name]
            found[name] = {label: _labelled(each, label, key, (name, label)) for label, each in value.items()}
        elif value is not None:
            found[name] = plain(value, (name,))
    return found


def _labelled(value: Any, label: str, key: str, path: Path) -> dict[str, Any]:
    """Return the table of a method or a metric, which need not be named where its label does."""
    table = plain(value, path, key)
    table = {key: table} if isinstance(table, str) else dict(table)
    return {k: v for k, v in table.items() if not (k == key and v == label)}


def plain(value: Any, path: Path, key: str = "name") -> Any:
    """Return anything as numbers, texts, lists and tables."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.generic, np.ndarray)) or hasattr(value, "tolist"):
        return np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v, (*path, str(k))) for k, v in value.items() if v is not None}
    if isinstance(value, (Form, SharedForm)) or hasattr(value, "_fields"):  # a problem, a point
        raise _no_name(path, value)
    if isinstance(value, (list, tuple)):
        return [plain(v, (*path, k)) for k, v in enumerate(value)]
    if isinstance(value, functools.partial):
        bound = inspect.signature(value.func).bind_partial(*value.args, **value.keywords).arguments
        return {key: _name(value.func, path), **plain(bound, path)}
    if isinstance(value, type) or inspect.isroutine(value):
        return _name(value, path)
    if isinstance(value, PerClient):
        return [plain(value.kinds[kind][place], (*path, k)) for k, (kind, place) in enumerate(value.places)]
    if (name := kinds.RANGE.name_of(type(value))) is not None:
        return {name: [value.low, value.high], **({"whole": True} if value.whole else {})}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _instance(value, path, key)
    raise _no_name(path, value)


def _instance(value: Any, path: Path, key: str) -> Any:
    """Return the table of a dataclass's instance: what differs from its defaults."""
    cls: Any = type(value)
    if path[0] == "metrics" and any(getattr(value, name, None) is not None for name in ("data", "clients")):
        raise _no_name(path, value)
    known = parameters(cls)
    fields = {name: getattr(value, name) for name in known}
    given = {name: v for name, v in fields.items() if known[name].required or not _same(v, known[name].default)}
    rest = {name: plain(v, (*path, name)) for name, v in given.items() if v is not None}
    if any(kind.name_of(cls) for kind in _ALONE):
        return rest
    if (name := kinds.SCHEDULE.name_of(cls)) is not None:
        first = next(iter(known))
        return {name: rest.pop(first), **rest}
    return {key: _name(cls, path, value), **rest}


def _name(thing: Any, path: Path, value: Any = None) -> str:
    ours = str(getattr(thing, "__module__", "")).startswith("fedminimax.")  # what a user defined is listed in this process only
    listed = next((name for kind in _NAMED if ours and (name := kind.name_of(thing)) is not None), None)
    found = listed or own_name(thing)
    if found is None:
        raise _no_name(path, thing if value is None else value)
    return found


def _same(value: Any, default: Any) -> bool:
    try:
        return bool(type(value) is type(default) and value == default) or (
            isinstance(value, (int, float)) and isinstance(default, (int, float)) and value == default
        )
    except (TypeError, ValueError):
        return False


def _no_name(path: Path, value: Any) -> InputError:
    what = f"{dotted(path)} is a {type(value).__name__}" if path else type(value).__name__
    cures = {
        "problem": "give the name of the problem and its arguments, {'name': 'fair_classification', ...}, or the function that "
        "makes it, as 'package.module:function'",
        "clients": "give data and partition by name instead",
        "metrics": "give the metric's name and what data it is on, {'metric': 'ClassAccuracy', 'on': 'test'}",
    }
    cure = cures.get(
        str(path[0]) if path else "", "give it a name, as a class or a function of a module, 'package.module:Name'"
    )
    return InputError(f"{what}, which a file cannot describe: {cure}.")
