"""Rows that a trained model has not seen, as it takes them; and what about them is unlike the training rows, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from fedminimax.data.encoding import Encoding, Rows
from fedminimax.data.values import MARKS_AMONG_NUMBERS, MISSING, as_days, as_numbers, is_number, quoted, texts_of
from fedminimax.errors import InputError

FAR = 10.0
"""A median is far from the training mean beyond so many deviations, and a deviation unlike beyond such a ratio."""
_ENOUGH = 100  # values, before their deviation says something: rare large values are in few samples
_SHOWN = 3  # values of a column that a sentence names

Floats = npt.NDArray[np.float64]


def read_rows(frame: pd.DataFrame, encoding: Encoding) -> tuple[Rows, list[str]]:
    """Return rows as numbers and texts, as in training, and what is unlike the training rows.

    Args:
        frame: rows with the columns of the encoding.
        encoding: how they become inputs.
    """
    numbers: dict[str, Floats] = {}
    texts: dict[str, npt.NDArray[Any]] = {}
    notes: list[str] = []
    for column in encoding.numeric:
        numbers[column], said = _numbers(frame[column], encoding.dates.get(column))
        notes += [*said, *_compared(column, numbers[column], encoding)]
    for column, known in encoding.categories.items():
        found = texts_of(frame[column])
        texts[column] = found.per_row(found.distinct, MISSING, object)
        notes += _new(column, texts[column], known)
    return Rows(len(frame), numbers, texts), notes


def _numbers(values: pd.Series[Any], form: str | None) -> tuple[Floats, list[str]]:
    """Return a column of numbers, or of dates as days, and a note on texts that are neither: they count as missing."""
    kind = "number" if form is None else "date"
    if form is not None:
        read = as_days(values, form)
    elif types.is_datetime64_any_dtype(values) or types.is_timedelta64_dtype(values):
        raise InputError(f"The column {values.name!r} has dates or times in it, where the model was trained on numbers.")
    else:
        read = as_numbers(values.astype(float) if types.is_bool_dtype(values) else values)
    if np.isinf(read).any():
        raise InputError(f"The column {values.name!r} has an infinite number: clean that row.")
    if is_number(values) or not np.isnan(read).any():
        return read, []
    texts = texts_of(values)
    marked = np.isin([text.casefold() for text in texts.rows], [MISSING, *MARKS_AMONG_NUMBERS])  # missing, as in training
    odd = texts.rows[np.isnan(read) & ~marked]
    if not len(odd):
        return read, []
    if np.isnan(read).all():
        found = f"The column {values.name!r} has no {kind} in it ({listed(odd)})"
        raise InputError(f"{found}, where the model was trained on {kind}s.")
    said = f"{rows(len(odd))} a text in column {values.name} that is no {kind} ({listed(odd)}): {counts(len(odd))} as missing."
    return read, [said]


def _compared(column: str, values: Floats, encoding: Encoding) -> list[str]:
    """Return notes on values that are missing where none was in training, and on units."""
    if column not in encoding.scales:
        return []
    mean, deviation = encoding.scales[column]
    known = values[~np.isnan(values)]
    lacking, notes = len(values) - len(known), []
    if lacking and column not in encoding.gaps:
        shown = _date(mean) if column in encoding.dates else f"{mean:.4g}"
        notes.append(
            f"{rows(lacking)} no value in column {column}, which no training row lacked: {counts(lacking)} as the mean, "
            f"{shown}."
        )
    return notes + (dates if column in encoding.dates else units)(column, known, mean, deviation)


def _new(column: str, texts: npt.NDArray[Any], known: Sequence[str]) -> list[str]:
    """Return notes on categories that no training row had."""
    new = texts[~np.isin(texts.astype(str), [MISSING, *known])]
    lacking = 0 if MISSING in known else int((texts == MISSING).sum())
    notes = []
    if len(new):
        what = f"the new value {listed(new)}" if len(set(new)) == 1 else f"new values ({listed(new)})"
        notes.append(f"{rows(len(new))} {what} in column {column}: {counts(len(new))} as no known value.")
    if lacking:
        notes.append(
            f"{rows(lacking)} no value in column {column}, which no training row lacked: {counts(lacking)} as no known value."
        )
    return notes


def units(column: str, values: Floats, mean: float, deviation: float) -> list[str]:
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


def dates(column: str, values: Floats, mean: float, deviation: float) -> list[str]:
    """Say where dates, in days since 1970, are far from those of training: the model goes on in a straight line there.

    Args:
        column: its name.
        values: the new ones, none missing.
        mean: the training rows'.
        deviation: the training rows'.
    """
    if not len(values) or abs(float(np.median(values)) - mean) <= FAR * deviation:
        return []
    found = f"the median is {_date(float(np.median(values)))}, in training the mean was {_date(mean)}"
    return [f"{column}: {found} (deviation {deviation:.4g} days): the model has seen no such dates."]


def _date(days: float) -> str:
    return (pd.Timestamp("1970-01-01") + pd.Timedelta(days=round(days))).strftime("%Y-%m-%d")


def listed(values: npt.NDArray[Any]) -> str:
    """Name the most frequent of some values."""
    most = [str(value) for value in pd.Series(values, dtype=object).value_counts().index]
    more = f" and {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
    return ", ".join(quoted([value]) for value in most[:_SHOWN]) + more


def rows(count: int) -> str:
    """Return "1 row has" or "3 rows have"."""
    return "1 row has" if count == 1 else f"{count:,} rows have"


def counts(count: int) -> str:
    """Return the words for what becomes of so many rows."""
    return "it counts" if count == 1 else "they count"
