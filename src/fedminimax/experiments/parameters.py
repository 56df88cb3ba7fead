"""What a class or a function takes, read off its own declaration: the keys of its table in a file."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Union

from fedminimax.experiments.kinds import BY_PARAMETER, Kind, kinds_of

_FLAX = ("parent", "name")
"""Fields that every Flax module has, and no file sets."""


class Parameter(NamedTuple):
    """One thing that a class or a function takes.

    Attributes:
        name: its name, the key in a file.
        hint: its type, as declared.
        required: whether there is no default.
        default: the default.
        static: whether it shapes a method's program.
    """

    name: str
    hint: Any
    required: bool
    default: Any = None
    static: bool = False


@functools.lru_cache(maxsize=512)
def parameters(factory: Any) -> dict[str, Parameter]:
    """Return what is needed to call a class or a function, by name and in order."""
    hints = _hints(factory)
    if dataclasses.is_dataclass(factory) and isinstance(factory, type):
        skipped = _FLAX if any(base.__module__.startswith("flax.") for base in factory.__mro__) else ()
        found = {}
        for field in dataclasses.fields(factory):
            if field.init and field.name not in skipped:
                make: Any = None if field.default_factory is dataclasses.MISSING else field.default_factory
                required = field.default is dataclasses.MISSING and make is None
                default = None if required else field.default if make is None else make()
                static = bool(field.metadata.get("static"))
                found[field.name] = Parameter(field.name, hints.get(field.name, Any), required, default, static)
        return found
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return {}
    named = {n: p for n, p in signature.parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    default = lambda item: (True, None) if item.default is item.empty else (False, item.default)
    return {name: Parameter(name, hints.get(name, Any), *default(item)) for name, item in named.items()}


def takes_anything(factory: Callable[..., Any]) -> bool:
    """Tell whether a function passes on keys that it does not name (``**options``)."""
    try:
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):
        return False


def returns(factory: Callable[..., Any]) -> Any:
    """Return what a function says that it returns; None where it does not say."""
    return None if isinstance(factory, type) else _hints(factory).get("return")


def _hints(factory: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(factory.func if isinstance(factory, functools.partial) else factory)
    except (NameError, TypeError, AttributeError):  # a type that is known to a checker only
        return {}


class Takes(NamedTuple):
    """What a parameter takes.

    Attributes:
        plain: the types of plain values, for pydantic; an empty tuple where there are none.
        kinds: the kinds of things that can be named or described.
        lists: the kinds of which it takes a list.
        anything: whether any plain value will do.
        loads: whether it takes a function of the user's.
    """

    plain: tuple[Any, ...]
    kinds: tuple[Kind, ...]
    lists: tuple[Kind, ...]
    anything: bool
    loads: bool


@functools.lru_cache(maxsize=1024)
def takes(hint: Any, name: str = "") -> Takes:
    """Return what a parameter of some type, and name, takes."""
    if hint is Any and name in BY_PARAMETER:
        return Takes((), (BY_PARAMETER[name],), (), False, False)
    plain: list[Any] = []
    kinds: list[Kind] = []
    lists: list[Kind] = []
    anything = loads = False
    for option in _options(hint):
        origin, inner = typing.get_origin(option), typing.get_args(option)
        listed = [k for part in inner for o in _options(part) for k in kinds_of(o)] if _is_list(origin or option) else []
        if option is Any or option is object:
            anything = True
        elif origin is not None and origin in (Callable, types.FunctionType):
            loads = True
        elif listed:
            lists += listed
        elif found := kinds_of(option):
            kinds += found
        elif _is_list(origin or option):
            plain.append(tuple[inner] if origin is tuple else tuple[inner[0], ...] if inner else tuple)  # type: ignore[valid-type]
        elif option in (int, float, str, bool, type(None)) or origin is typing.Literal:
            plain.append(option)
        elif isinstance(option, type) and hasattr(option, "__fspath__"):
            plain.append(str)
    unknown = not (plain or kinds or lists or anything or loads)
    return Takes(tuple(plain), tuple(dict.fromkeys(kinds)), tuple(dict.fromkeys(lists)), anything or unknown, loads)


def _options(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return [option for part in typing.get_args(hint) for option in _options(part)]
    return [hint]


def _is_list(origin: Any) -> bool:
    return (
        isinstance(origin, type) and issubclass(origin, (Sequence, Collection)) and not issubclass(origin, (str, bytes, dict))
    )


def wanted(taken: Takes, real: bool = False) -> str:
    """Return what a parameter takes in words: "a whole number, or a list of numbers"."""
    words = [_word(option) for option in taken.plain if option is not type(None)]
    if real:
        words += ["a number", "a schedule such as {piecewise = [0.1, 0.01], until = [100]}"]
    for kind in taken.kinds:
        words.append(f"a {kind.what} such as {{name = {next(iter(kind.names()))!r}, ...}}".replace("'", '"'))
    words += [f"a list with a {kind.what} for each client" for kind in taken.lists]
    words += ["a function, as 'package.module:name' or 'file.py:name'"] if taken.loads else []
    return " or ".join(dict.fromkeys(words)) or "something else"


def _word(option: Any) -> str:
    inner = typing.get_args(option)
    if typing.get_origin(option) is typing.Literal:
        return " or ".join(repr(choice) for choice in inner)
    if typing.get_origin(option) is tuple or option is tuple:
        many: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}
        return f"a list of {many.get(inner[0] if inner else None, 'values')}"
    return {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}.get(option, str(option))
