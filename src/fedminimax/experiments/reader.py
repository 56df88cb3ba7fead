"""From tables of a file to calls of the classes and functions that they name.

A thing that can be named is written in one of three ways: ``"Agnostic"``, where it needs nothing;
``{name = "CVaR", alpha = 0.2}``; or, with its first argument at its name, ``{CVaR = 0.2}`` and
``{piecewise = [0.1, 0.01], until = [100]}``. Keys and types are those that its own declaration has. Python objects are taken
wherever a file would describe them.
"""

from __future__ import annotations

import datetime
import functools
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedminimax.errors import InputError
from fedminimax.experiments.kinds import (
    CLASSIFIER,
    DATA,
    METRIC,
    MODEL,
    NETWORK,
    PARTITION,
    PROBLEM,
    RANGE,
    SCHEDULE,
    Kind,
    own,
)
from fedminimax.experiments.mistakes import Mistakes, dotted, nearest
from fedminimax.experiments.parameters import Parameter, Takes, parameters, takes, takes_anything, wanted
from fedminimax.experiments.positions import Path

NAME = "name"
LATER = (DATA, PARTITION, PROBLEM, MODEL, NETWORK, METRIC, CLASSIFIER)
"""Kinds that are made when the data is there, since they take something from it."""
WRONG = object()
"""In place of a value about which a mistake has been noted."""


class CallError(InputError):
    """What a class or function said of its arguments, with the place in the file."""

    def __init__(self, path: Path, says: str):
        super().__init__(says)
        self.path = path


@dataclass(frozen=True)
class Call:
    """A class or a function with the arguments that a file gives it.

    Attributes:
        kind: what kind of thing it makes.
        factory: what is called; or the thing itself, where a user named one.
        arguments: by name; there may be calls among them.
        path: the table.
    """

    kind: Kind
    factory: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    path: Path = ()

    def make(self, provided: Mapping[str, Any] | None = None) -> Any:
        """Make the thing.

        Args:
            provided: what the experiment has to offer ("clients", "classes", "solution", ...), where it is not given.
        """
        if not isinstance(self.factory, type) and not callable(self.factory):
            return self.factory
        known = parameters(self.factory)
        given = {name: _made(value, provided) for name, value in self.arguments.items()}
        for name, value in (provided or {}).items():
            if name in known and name not in given and _offers(known[name], value):
                given[name] = value
        if lacking := [name for name, item in known.items() if item.required and name not in given]:
            raise CallError(self.path, f"{' and '.join(lacking)} must be given: there is none here to take it from.")
        try:
            return self.factory(**given)
        except CallError:
            raise
        except (InputError, TypeError) as error:
            says = str(error)
            told = sorted((found.start(), name) for name in self.arguments if (found := re.search(rf"\b{name}\b", says)))
            raise CallError((*self.path, told[0][1]) if told else self.path, says) from error


def _made(value: Any, provided: Mapping[str, Any] | None) -> Any:
    if isinstance(value, tuple):
        return tuple(_made(each, provided) for each in value)
    if not isinstance(value, Call):
        return value
    if value.kind is MODEL and provided is not None and provided.get("classes", 0) is None:
        provided = {**provided, "classes": 1}  # a regression's model has one output
    return value.make(provided)


def _offers(parameter: Parameter, value: Any) -> bool:
    """Tell whether a value is for this parameter: what has the same name may be another thing, such as a number of clients."""
    if value is None:
        return False
    fits = takes(parameter.hint)
    if parameter.name in ("clients", "network"):
        return int not in fits.plain
    return parameter.required or parameter.name != "count"


class Reader:
    """Reads tables, and notes what is wrong with them.

    Args:
        mistakes: where to note it.
        folders: where a user's own files are.
    """

    def __init__(self, mistakes: Mistakes, folders: Sequence[FilePath] = ()):
        self.mistakes, self.folders = mistakes, tuple(folders)

    def described(
        self,
        value: Any,
        kind: Kind,
        path: Path,
        *,
        key: str = NAME,
        default: str | None = None,
        provided: Sequence[str] = (),
        convert: Callable[[Parameter, Any, Path], Any] | None = None,
    ) -> Any:
        """Return the call that a table describes, or the object itself; :data:`WRONG` where something is wrong with it.

        Args:
            value: a table, a name, or an object.
            kind: what it should be.
            path: where it is.
            key: the key that names it.
            default: what it is where no key does.
            provided: arguments that the experiment has, and need not be given.
            convert: what makes arguments of values, where that is not :meth:`convert`.
        """
        named = isinstance(value, Mapping) and key in value
        if isinstance(value, (str, type)):
            value = {key: value}
        elif not isinstance(value, Mapping):
            return self._object(value, kind, path)
        chosen, rest = value.get(key, default), {k: v for k, v in value.items() if k != key}
        short: list[str] = []
        if chosen is None:
            names = kind.names()
            short = [k for k in rest if isinstance(k, str) and kind.find(k) is not None]
            if not short and len(names) != 1:
                known = ", ".join(names) or '"package.module:Name"'
                self.mistakes.add(path, f"{dotted(path)} names no {kind.what}: write {key} = ..., one of {known}.")
                return WRONG
            chosen = short[0] if short else next(iter(names))
        factory = self._factory(chosen, kind, (*path, key) if named else path)
        if factory is WRONG:
            return WRONG
        if short and chosen == short[0]:
            first = next(iter(parameters(factory)), None)
            rest = {(first if k == chosen else k): v for k, v in rest.items()}
            aliases = {first: chosen}
        else:
            aliases = {}
        title = dotted(path)
        arguments = self.arguments(factory, rest, kind, path, title, provided=provided, convert=convert, aliases=aliases)
        if arguments is WRONG:
            return WRONG
        call = Call(kind, factory, arguments, path)
        return call if kind in LATER or convert is not None else self.make(call)

    def make(self, call: Call, provided: Mapping[str, Any] | None = None) -> Any:
        """Make a thing; :data:`WRONG` where it refuses its arguments."""
        try:
            return call.make(provided)
        except CallError as error:
            self.mistakes.add(error.path, f"{dotted(call.path)}: {error}")
            return WRONG

    def _object(self, value: Any, kind: Kind, path: Path) -> Any:
        base = kind.base()
        if isinstance(value, (bool, int, float, list)) or (base is not None and not isinstance(value, base)):
            self.mistakes.add(path, f"{dotted(path)} is {value!r}: give a {kind.what}, by its name or as a table.")
            return WRONG
        return value

    def _factory(self, chosen: Any, kind: Kind, path: Path) -> Any:
        if not isinstance(chosen, str):
            if callable(chosen) or not isinstance(chosen, (bool, int, float, list, dict)):
                return chosen
            self.mistakes.add(path, f"{dotted(path)} is {chosen!r}: give the name of a {kind.what}.")
            return WRONG
        try:
            return kind.get(chosen, self.folders)
        except InputError as error:
            self.mistakes.add(path, f"{dotted(path)}: {error}")
            return WRONG

    def arguments(
        self,
        factory: Any,
        table: Mapping[str, Any],
        kind: Kind,
        path: Path,
        title: str,
        *,
        provided: Sequence[str] = (),
        convert: Callable[[Parameter, Any, Path], Any] | None = None,
        aliases: Mapping[str | None, str] | None = None,
    ) -> Any:
        """Return the arguments that a table gives a class or function, each as its declaration wants it."""
        known = parameters(factory) if callable(factory) else {}
        settable = [name for name in known if name not in provided or name in ("classes", "count")]
        found, sound = {}, True
        for name, value in table.items():
            at = (*path, (aliases or {}).get(name, name))
            if name not in settable:
                if takes_anything(factory) and name not in known:
                    found[name] = value
                    continue
                self.mistakes.add(at, f"{title} has no {name!r}: {nearest(name, settable)}")
                sound = False
                continue
            read = (convert or functools.partial(self.convert, kind=kind))(known[name], value, at)
            sound &= read is not WRONG
            found[name] = read
        missing = [n for n, p in known.items() if p.required and n not in table and n not in provided]
        if missing and sound:
            self.mistakes.add(path, f"{title} lacks {' and '.join(missing)}: there is no default, give a value.")
        return found if sound and not missing else WRONG

    def convert(self, parameter: Parameter, value: Any, path: Path, kind: Kind | None = None) -> Any:
        """Return a value as a parameter takes it; :data:`WRONG` where it does not."""
        taken = takes(parameter.hint, parameter.name)
        real = kind is not None and kind.real and not parameter.static and taken.anything
        if real and isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        if isinstance(value, Mapping) or (isinstance(value, str) and taken.kinds and str not in taken.plain):
            return self._nested(taken, value, path, real)
        if isinstance(value, (list, tuple)) and taken.lists:
            each = [self._nested(taken._replace(kinds=taken.lists), v, (*path, k), False) for k, v in enumerate(value)]
            return WRONG if any(v is WRONG for v in each) else tuple(each)
        if isinstance(value, str) and taken.loads and ":" in value:
            try:
                return own(value, self.folders)
            except InputError as error:
                self.mistakes.add(path, f"{dotted(path)}: {error}")
                return WRONG
        simple = isinstance(value, (bool, int, float, str, list, tuple)) or value is None
        if not simple and not isinstance(value, (datetime.date, datetime.time)):  # an object of Python's
            return value
        if taken.anything and not real:
            return tuple(value) if isinstance(value, list) else value
        if taken.plain and not real:
            try:
                return _adapter(taken.plain).validate_python(value)
            except ValidationError:
                pass
        elif real and value is None:
            return value
        self.mistakes.add(path, f"{dotted(path)} is {value!r}: give {wanted(taken, real)}.")
        return WRONG

    def _nested(self, taken: Takes, value: Any, path: Path, real: bool) -> Any:
        kinds = [*taken.kinds, *([SCHEDULE] if real else [])]
        if not kinds:
            self.mistakes.add(path, f"{dotted(path)} is a table, {_shown(value)}: give {wanted(taken, real)}.")
            return WRONG
        named = value.get(NAME) if isinstance(value, Mapping) else value
        keys = [named] if isinstance(named, str) else list(value) if isinstance(value, Mapping) else []
        fits = [kind for kind in kinds if any(isinstance(k, str) and (":" in k or kind.find(k) is not None) for k in keys)]
        if not fits and not isinstance(named, str) and all(len(kind.names()) > 1 for kind in kinds):
            names = [name for kind in kinds for name in kind.names()] + list(RANGE.names() if real else [])
            first = keys[0] if keys else ""
            self.mistakes.add(path, f"{dotted(path)} has {first!r}, which names nothing: {nearest(first, names)}")
            return WRONG
        kind = (fits or kinds)[0]
        return self.described(value, kind, path, provided=("classes", "count") if kind in LATER else ())


def _shown(value: Any) -> str:
    return "{" + ", ".join(f"{k} = {v!r}" for k, v in value.items()) + "}" if isinstance(value, Mapping) else repr(value)


@functools.lru_cache(maxsize=256)
def _adapter(options: tuple[Any, ...]) -> TypeAdapter[Any]:
    """Return pydantic's validator of plain types: strict, but lists are welcome where Python has tuples."""
    whole: Any = typing.Union[tuple(_strict(option) for option in options)]  # noqa: UP007
    return TypeAdapter(whole, config=ConfigDict(arbitrary_types_allowed=True))


def _strict(option: Any) -> Any:
    from pydantic import BeforeValidator, Strict

    if typing.get_origin(option) is tuple or option is tuple:
        as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
        inner = tuple(_strict(part) if part is not Ellipsis else part for part in typing.get_args(option))
        whole: Any = tuple.__class_getitem__(inner) if inner else tuple
        return typing.Annotated[whole, as_tuple]
    return typing.Annotated[option, Strict()] if option in (int, float, str, bool) else option


STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
"""How the fixed tables of a file are validated."""
