"""Experiments as TOML text: written from tables, and changed key by key without touching the rest."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import tomlkit

from fedminimax.errors import InputError
from fedminimax.experiments.positions import Path

_ORDER = (
    "name",
    "rounds",
    "seeds",
    "eval_every",
    "checkpoint_every",
    "match_upload",
    "problem",
    "data",
    "partition",
    "methods",
)
_LABELLED = ("methods", "metrics")


def write(tree: Mapping[str, Any]) -> str:
    """Return the text of a file with these tables: those of the experiment, the methods and the metrics under headings."""
    order = [name for name in _ORDER if name in tree] + [name for name in tree if name not in _ORDER]
    scalar = lambda name: not isinstance(tree[name], Mapping)
    document = tomlkit.document()
    for name in sorted(order, key=lambda name: not scalar(name)):
        if scalar(name):
            document.add(name, _inline(tree[name]))
        elif name in _LABELLED:
            group = tomlkit.table(is_super_table=True)
            for label, table in tree[name].items():
                group.add(label, _table(table))
            document.add(name, group)
        else:
            document.add(name, _table(tree[name]))
    return tomlkit.dumps(document)


def _table(table: Mapping[str, Any]) -> Any:
    made = tomlkit.table()
    for name, value in table.items():
        made.add(name, _inline(value))
    return made


def _inline(value: Any) -> Any:
    if isinstance(value, Mapping):
        made = tomlkit.inline_table()
        for name, inner in value.items():
            made.append(name, _inline(inner))
        return made
    if isinstance(value, (list, tuple)):
        listed = tomlkit.array()
        for inner in value:
            listed.append(_inline(inner))
        return listed
    return tomlkit.item(value)


def setting(text: str) -> tuple[Path, Any]:
    """Return the key and the value of ``methods.FessGDA.beta=0.1``, as a file would write them; words need no quotes."""
    key, given, value = text.partition("=")
    if not given or not key.strip():
        raise InputError(f"--set has {text!r}: write key=value, such as methods.FessGDA.beta=0.1.")
    for attempt in (value, f'"{value.strip()}"'):
        try:
            found: Any = tomllib.loads(f"{key} = {attempt}")
            break
        except tomllib.TOMLDecodeError:
            continue
    else:
        raise InputError(f'--set has {text!r}: the key must be as in the file, such as methods."my label".beta=0.1.')
    path: list[str] = []
    depth = len(_keys(key))
    while len(path) < depth:
        (name, found), *_ = found.items()
        path.append(name)
    return tuple(path), found


def _keys(key: str) -> list[str]:
    found, keys = tomllib.loads(f"{key} = 0"), []
    while isinstance(found, dict):
        (name, found), *_ = found.items()
        keys.append(name)
    return keys


def changed(text: str, settings: Iterable[tuple[Path, Any]]) -> str:
    """Return the text of a file with some keys set; comments and all else stay as they are."""
    document = tomlkit.parse(text)
    for path, value in settings:
        table: Any = document
        for key in path[:-1]:
            if key not in table:
                table[key] = tomlkit.table()
            table = table[key]
            if not isinstance(table, Mapping):
                raise InputError(f"--set {'.'.join(map(str, path))}: {key} is no table in the file.")
        table[path[-1]] = _inline(value)
    return tomlkit.dumps(document)
