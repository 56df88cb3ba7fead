"""Numbers that users give, as numbers or as an error that names the cause and the cure."""

from __future__ import annotations

import operator
from typing import Any

from fedminimax.errors import InputError


def integer(name: str, value: Any, least: int = 1) -> int:
    """Return the value as an int that is at least ``least``, or say what is wrong with it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{name} is {value!r}: give an integer of at least {least}.")
    return number


def real(value: Any) -> float:
    """Return the value as a float, not a number where it is none, so that every comparison with it fails."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
