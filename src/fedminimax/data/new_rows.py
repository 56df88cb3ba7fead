"""Rows that a trained model has not seen, as it takes them; and what about them is unlike the training rows, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from fedminimax.data.encoding import MISSING, Encoding, as_numbers, as_texts
from fedminimax.errors import InputError

FAR = 10.0
"""A median is far from the training mean beyond so many deviations, and a deviation unlike beyond such a ratio."""
_ENOUGH = 100  # values, before their deviation says something: rare large values are in few samples
_SHOWN = 3  # values of a column that a sentence names


def as_trained(frame: pd.DataFrame, numbers: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return rows whose columns of numbers are numbers, and notes on texts among them, which count as missing."""
    columns, notes = {}, []
    for column in frame.columns:
        values = frame[column]
        if column in numbers and (types.is_bool_dtype(values) or not types.is_numeric_dtype(values)):
            values, odd = _numbers(values)
            if len(odd):
                notes.append(
                    f"{rows(len(odd))} {have(len(odd))} text in column {column} ({listed(odd)}): it counts as missing."
                )
        if column in numbers and np.isinf(as_numbers(values)).any():
            raise InputError(f"The column {column!r} has an infinite number: clean that row.")
        columns[column] = values
    return pd.DataFrame(columns, index=frame.index), notes


def _numbers(values: pd.Series[Any]) -> tuple[pd.Series[Any], pd.Series[Any]]:
    """Return a column that was numbers in training as numbers, and the values that are none."""
    read = pd.to_numeric(values.map(_without_spaces).astype(object), errors="coerce").astype(np.float64)
    odd = values[read.isna() & values.notna()]
    if len(odd) and not read.notna().any():
        raise InputError(
            f"The column {values.name!r} has no number in it ({listed(odd)}), where the model was trained on numbers."
        )
    return read, odd


def _without_spaces(value: object) -> object:
    """Return a value that ``pandas.to_numeric`` reads as it is meant: dates and the like are not numbers of nanoseconds."""
    return (
        value.strip() or None if isinstance(value, str) else value if isinstance(value, int | float | np.number) else str(value)
    )


def notes_on(frame: pd.DataFrame, encoding: Encoding) -> list[str]:
    """Return what is unlike the training rows: new categories, missing values where there were none, other units."""
    notes = []
    for column, (mean, deviation) in encoding.scales.items():
        values = as_numbers(frame[column])
        known = values[~np.isnan(values)]
        lacking = len(values) - len(known)
        if lacking and column not in encoding.gaps:
            notes.append(
                f"{rows(lacking)} {have(lacking)} no value in column {column}, which no training row lacked: it counts as the "
                f"mean, {mean:.4g}."
            )
        notes += units(column, known, mean, deviation)
    for column, values in encoding.categories.items():
        notes += _categories(frame[column], values)
    return notes


def _categories(values: pd.Series[Any], known: Sequence[str]) -> list[str]:
    texts = pd.Series(as_texts(values), dtype=object)
    new = texts[~texts.isin(list(known)) & values.notna().to_numpy()]
    lacking = int(values.isna().sum()) if MISSING not in known else 0
    notes = []
    if len(new):
        what = f"the new value {listed(new)}" if new.nunique() == 1 else f"new values ({listed(new)})"
        they = "it counts" if len(new) == 1 else "they count"
        notes.append(f"{rows(len(new))} {have(len(new))} {what} in column {values.name}: {they} as no known value.")
    if lacking:
        they = "it counts" if lacking == 1 else "they count"
        notes.append(
            f"{rows(lacking)} {have(lacking)} no value in column {values.name}, which no training row lacked: {they} as no "
            "known value."
        )
    return notes


def units(column: str, values: npt.NDArray[np.float64], mean: float, deviation: float) -> list[str]:
    """Ask whether a column is in the units of training, where its median or its spread are far from there.

    Args:
        column: its name.
        values: the new ones, none missing.
        mean: the training rows'.
        deviation: the training rows'.
    """
    flag = 0 <= mean <= 1 and np.isin(values, (0.0, 1.0)).all()  # one row with a rare yes is no matter of units
    if not len(values) or flag:
        return []
    median, spread = float(np.median(values)), float(values.std())
    if abs(median - mean) > FAR * deviation:
        found = f"the median is {median:.4g}, in training the mean was {mean:.4g} (deviation {deviation:.4g})"
    elif len(values) >= _ENOUGH and np.ptp(values) > 0 and not 1 / FAR <= spread / deviation <= FAR:
        found = f"the deviation is {spread:.4g}, in training it was {deviation:.4g}"
    else:
        return []
    return [f"{column}: {found}: are these the same units?"]


def listed(values: pd.Series[Any]) -> str:
    """Name the most frequent of some values."""
    most = values.astype(str).value_counts()
    more = f" and {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
    return ", ".join(f"'{value}'" for value in most.index[:_SHOWN]) + more


def rows(count: int) -> str:
    """Return "1 row" or "3 rows"."""
    return f"{count:,} row{'s' if count != 1 else ''}"


def have(count: int) -> str:
    """Return the verb for so many rows."""
    return "has" if count == 1 else "have"
