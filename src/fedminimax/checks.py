"""Numbers that users give, as numbers or as an error that names the cause and the cure."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

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


def not_negative(name: str, value: Any) -> None:
    """Raise an error if numbers are not finite or below zero; what is no number yet, inside a compiled program, passes."""
    if not isinstance(value, (int, float, np.ndarray, np.generic)):
        return
    if not np.isfinite(value).all():
        raise InputError(f"{name} must be finite, not {value}.")
    if (np.asarray(value) < 0).any():
        raise InputError(f"{name} must not be negative, but is {value}.")


def real(value: Any) -> float:
    """Return the value as a float, not a number where it is none, so that every comparison with it fails."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
