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


_NO_NUMBERS = {
    "O": "objects: convert it to numbers, for instance by array.astype(float)",
    "U": "texts: number its categories, or read a table with fedminimax.data.tabular",
    "S": "bytes: convert it to numbers",
    "M": "dates: convert them to numbers, such as days since the first",
    "m": "times: convert them to numbers, such as days",
}


def numbers(name: str, value: Any) -> None:
    """Raise an error unless a value is numbers or an array of them."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "torch":
        raise InputError(f"{name} is a PyTorch {kind.__name__}: give a NumPy array, such as tensor.detach().cpu().numpy().")
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        raise InputError(
            f"{name} is a {kind.__name__}: give arrays, such as {{'inputs': frame[columns].to_numpy(), 'labels': "
            "frame[label].to_numpy()}, or a whole table to fedminimax.data.tabular.federate."
        )
    try:
        known = getattr(value, "dtype", None)  # of an array: no copy is made to find out
        dtype = known if isinstance(known, np.dtype) else np.asarray(value).dtype
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be read as an array of numbers: {error}") from error
    if dtype.kind in _NO_NUMBERS:
        raise InputError(f"{name} has {_NO_NUMBERS[dtype.kind]}.")
