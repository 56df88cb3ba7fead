"""What a sweep tries: every combination of a grid, values that are drawn, or both."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedminimax import checks
from fedminimax.algorithms.base import Algorithm
from fedminimax.errors import InputError

Setting = dict[str, Any]
"""Values for some hyper-parameters, by name."""


@runtime_checkable
class Distribution(Protocol):
    """Where values are drawn from. One of your own needs this method only."""

    def at(self, u: float) -> Any:
        """Return the value below which a share ``u`` of all draws are, 0 <= u < 1."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Numbers from ``low`` to ``high``, all equally likely; with ``whole`` the whole numbers from ``low`` to ``high``.

    ``Uniform(0, 1)``, or ``Uniform(2, 8, whole=True)`` for a number of steps.
    """

    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        _check_range(self, self.low, self.high)

    def at(self, u: float) -> float | int:
        """Return the value at this share."""
        if self.whole:
            return min(int(self.high), math.floor(self.low + u * (self.high - self.low + 1)))
        return float(self.low + u * (self.high - self.low))


@dataclass(frozen=True)
class LogUniform:
    """Numbers from ``low`` to ``high`` whose logarithms are equally likely: step sizes; with ``whole`` whole numbers.

    ``LogUniform(1e-4, 1e-1)`` draws as many numbers below 1e-3 as between 1e-3 and 1e-2.
    """

    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        _check_range(self, self.low, self.high)
        if not self.low > 0:
            raise InputError(f"LogUniform starts at {self.low}, but only numbers above zero have logarithms: use Uniform.")

    def at(self, u: float) -> float | int:
        """Return the value at this share."""
        drawn = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        value = min(max(drawn, self.low), self.high)  # and not beyond the ends by rounding
        return round(value) if self.whole else float(value)


@dataclass(frozen=True, init=False)
class Choice:
    """One of some values, all equally likely: numbers, names, solvers, schedules. A plain list means the same."""

    values: tuple[Any, ...]

    def __init__(self, values: Iterable[Any]) -> None:
        object.__setattr__(self, "values", tuple(values_of("Choice", values)))

    def at(self, u: float) -> Any:
        """Return the value at this share."""
        return self.values[int(u * len(self.values))]


def settings_of(
    algorithm: Algorithm,
    grid: Mapping[str, Any] | None,
    search: Mapping[str, Any] | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> list[Setting]:
    """Return what is to be tried: every combination of the grid's values, each with every draw from the search.

    A hyper-parameter's draws depend on the seed and its name alone: asking for more samples adds to those there were.
    """
    lists = checked_grid(algorithm, grid)
    spaces = checked_search(algorithm, search)
    if both := sorted(set(lists) & set(spaces)):
        raise InputError(f"{', '.join(both)} is in the grid and in the search: leave it in one of them.")
    if samples is not None and not spaces:
        raise InputError("samples says how many settings to draw, but there is no search={...} to draw them from.")
    if spaces and samples is None:
        raise InputError("A search needs samples=..., the number of settings to draw from it.")
    draws: list[Setting] = [{}]
    if spaces:
        count = checks.integer("samples", samples)
        shares = {name: np.random.default_rng([seed, zlib.crc32(name.encode())]).random(count) for name in spaces}
        draws = [{name: space.at(float(shares[name][k])) for name, space in spaces.items()} for k in range(count)]
    points = [dict(zip(lists, point, strict=True)) for point in itertools.product(*lists.values())]
    return [point | draw for point in points for draw in draws]


def checked_grid(algorithm: Algorithm, grid: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """Return a grid's values by hyper-parameter, or say what is wrong with one."""
    _check_names(algorithm, grid, "grid")
    for name, values in (grid or {}).items():
        if isinstance(values, Distribution):
            raise InputError(f"The grid has a {type(values).__name__} for {name!r}: give it as search={{{name!r}: ...}}.")
    return {name: values_of(f"The grid's {name!r}", values) for name, values in (grid or {}).items()}


def checked_search(algorithm: Algorithm, search: Mapping[str, Any] | None) -> dict[str, Distribution]:
    """Return where each hyper-parameter is drawn from, or say what is wrong with one."""
    _check_names(algorithm, search, "search")
    spaces: dict[str, Distribution] = {}
    for name, space in (search or {}).items():
        if isinstance(space, type):
            raise InputError(f"The search has the class {space.__name__} for {name!r}: give one with its range.")
        known = isinstance(space, Distribution)
        spaces[name] = space if known else Choice(values_of(f"The search's {name!r}", space))
    return spaces


def values_of(what: str, values: Any) -> list[Any]:
    """Return the values of a list as Python's own numbers where they are numbers; anything else is an error."""
    if isinstance(values, (str, bytes, Mapping)) or (np.ndim(values) == 0 and not isinstance(values, Iterable)):
        raise InputError(f"{what} is {values!r}, but must be a list of values to try, such as [{values!r}].")
    found = [value.item() if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0 else value for value in values]
    if not found:
        raise InputError(f"{what} has no values: give at least one.")
    return found


def _check_names(algorithm: Algorithm, given: Mapping[str, Any] | None, where: str) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"{where} must be a dict of hyper-parameters, such as {{'lr_x': [0.1, 0.01]}}, not {given!r}.")
    known = [f.name for f in fields(algorithm)]  # type: ignore[arg-type]
    for name in given or {}:
        if name not in known:
            raise InputError(f"{type(algorithm).__name__} has no hyper-parameter {name!r}: it has {', '.join(known)}.")


def _check_range(owner: Any, low: Any, high: Any) -> None:
    name = type(owner).__name__
    if not (math.isfinite(checks.real(low)) and math.isfinite(checks.real(high))):
        raise InputError(f"{name} goes from one number to another, not from {low!r} to {high!r}.")
    if not low < high:
        raise InputError(f"{name} goes from {low} to {high}: the first must be the smaller one.")
    if owner.whole and (low != int(low) or high != int(high)):
        raise InputError(f"{name} draws whole numbers from {low} to {high}: give whole numbers.")
