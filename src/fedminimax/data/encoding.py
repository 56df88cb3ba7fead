"""How rows become inputs, as in a real federation.

A client sends a :func:`client_report`, with sums and lists of categories and no row; the server sends back what it could
:func:`combine` from the reports, by which each client encodes its own rows. Which columns are numbers, categories and dates is
settled before (:mod:`fedminimax.data.schema`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.checks import real
from fedminimax.data.values import MISSING, as_days, as_numbers, as_texts
from fedminimax.errors import InputError

__all__ = [
    "MISSING", "Encoding", "Moments", "Report", "Rows", "as_numbers", "as_texts", "by_size", "client_report", "combine",
    "encode", "inputs", "places_among", "report", "rows_of",
]  # fmt: skip


class Moments(NamedTuple):
    """How many values there are, their mean, and the sum of their squared deviations from it."""

    n: int
    mean: float
    squares: float


@dataclass(frozen=True)
class Report:
    """All that a client tells the server of its rows.

    Attributes:
        rows: how many there are.
        moments: of each numeric column, over the values that are not missing.
        categories: of each categorical column, those that occur.
    """

    rows: int
    moments: dict[str, Moments]
    categories: dict[str, frozenset[str]]


@dataclass(frozen=True)
class Encoding:
    """All that the server tells the clients: how to make inputs of rows.

    Attributes:
        scales: mean and standard deviation of each numeric column that varies.
        gaps: the numeric columns that some training rows lack.
        categories: those of each categorical column that has two or more, in order.
        dates: which of the numeric columns are dates, in days since 1970, and their format where they are text: "ISO8601",
            or as "%d/%m/%Y".
    """

    scales: dict[str, tuple[float, float]]
    gaps: list[str]
    categories: dict[str, list[str]]
    dates: dict[str, str] = field(default_factory=dict)

    @property
    def features(self) -> list[str]:
        """The names of the inputs, in order."""
        flags = [f"{column} is missing" for column in self.gaps]
        return [*self.scales, *flags, *(f"{column}={value}" for column, values in self.categories.items() for value in values)]

    @property
    def numeric(self) -> list[str]:
        """The numeric columns, dates among them."""
        return list(dict.fromkeys([*self.scales, *self.gaps]))


@dataclass(frozen=True)
class Rows:
    """Rows of a table by columns, as numbers and texts: what a client has before it encodes.

    Attributes:
        count: how many there are.
        numbers: the numeric columns, NaN where a value is missing.
        texts: the categorical columns, "missing" where a value is.
    """

    count: int
    numbers: dict[str, npt.NDArray[np.float64]]
    texts: dict[str, npt.NDArray[Any]]

    def part(self, where: slice | npt.NDArray[Any]) -> Rows:
        """Return some of the rows: those of a slice, of a mask, or at places."""
        numbers = {column: values[where] for column, values in self.numbers.items()}
        texts = {column: values[where] for column, values in self.texts.items()}
        return Rows(len(np.empty(self.count, bool)[where]), numbers, texts)

    def joined(self, other: Rows) -> Rows:
        """Return these rows, followed by others of the same columns."""
        join = lambda own, others: {column: np.concatenate([values, others[column]]) for column, values in own.items()}
        return Rows(self.count + other.count, join(self.numbers, other.numbers), join(self.texts, other.texts))


def rows_of(
    frame: pd.DataFrame, numeric: Collection[str], categorical: Collection[str], dates: Mapping[str, str] | None = None
) -> Rows:
    """Return the named columns of a table as numbers and texts.

    Args:
        frame: the rows.
        numeric: the columns that are numbers; a text among them is a missing one.
        categorical: the columns that are categories.
        dates: the formats of those numeric columns that are dates.
    """
    dates = dates or {}
    numbers = {c: as_days(frame[c], dates[c]) if c in dates else as_numbers(frame[c]) for c in numeric}
    return Rows(len(frame), numbers, {c: as_texts(frame[c]) for c in categorical})


def client_report(frame: pd.DataFrame, numeric: Sequence[str], categorical: Sequence[str]) -> Report:
    """Return what a client sends, given its training rows: sums and categories, no row."""
    return report(rows_of(frame, numeric, categorical))


def report(rows: Rows) -> Report:
    """Return what a client sends, given its training rows as numbers and texts: sums and categories, no row."""
    moments = {}
    for column, values in rows.numbers.items():
        values = values[~np.isnan(values)]
        if np.isinf(values).any():
            raise InputError(f"The column {column!r} has an infinite number: clean that row, or leave the column out.")
        # Deviations from the client's own mean: a sum of plain squares would lose a small spread about a large mean.
        mean = float(values.mean()) if values.size else 0.0
        moments[column] = Moments(values.size, mean, float(np.square(values - mean).sum()))
    return Report(rows.count, moments, {column: frozenset(values) for column, values in rows.texts.items()})


def combine(reports: Sequence[Report]) -> Encoding:
    """Return what the server makes of the clients' reports: the pooled means, deviations and categories.

    With n_i, mean_i and S_i from client i: mean = sum n_i mean_i / n, and S = sum S_i + n_i (mean_i - mean)^2, the spread
    within clients and between them. It is what the pooled rows have.
    """
    rows = sum(report.rows for report in reports)
    scales, gaps = {}, []
    for column in reports[0].moments:
        moments = [report.moments[column] for report in reports]
        n = sum(m.n for m in moments)
        mean = math.fsum(m.n * m.mean for m in moments) / max(n, 1)
        deviation = math.sqrt(math.fsum(m.squares + m.n * (m.mean - mean) ** 2 for m in moments) / max(n, 1))
        # A constant such as 0.1 leaves a deviation of rounding errors, which is not to be blown up to 1.
        if deviation > n * np.finfo(np.float64).eps * abs(mean):
            scales[column] = (mean, deviation)
        if 0 < n < rows:
            gaps.append(column)
    union = {c: sorted(frozenset[str]().union(*(r.categories[c] for r in reports)), key=by_size) for c in reports[0].categories}
    return Encoding(scales, gaps, {column: values for column, values in union.items() if len(values) > 1})


def encode(frame: pd.DataFrame, encoding: Encoding, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return a client's rows as inputs, [n, d]; a category that no training row has is all zeros."""
    return inputs(rows_of(frame, encoding.numeric, encoding.categories, encoding.dates), encoding, dtype)


def inputs(rows: Rows, encoding: Encoding, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return rows that are numbers and texts already as inputs, [n, d]."""
    made = np.zeros((rows.count, len(encoding.features)), dtype)
    place = 0
    for column, (mean, deviation) in encoding.scales.items():
        scaled = (rows.numbers[column] - mean) / deviation
        made[:, place] = np.where(np.isnan(scaled), 0.0, scaled)
        place += 1
    for column in encoding.gaps:
        made[:, place] = np.isnan(rows.numbers[column])
        place += 1
    for column, values in encoding.categories.items():
        numbers = places_among(rows.texts[column], values)
        known = np.flatnonzero(numbers >= 0)
        made[known, place + numbers[known]] = 1
        place += len(values)
    return made


def places_among(texts: npt.NDArray[Any], known: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return the place of each text among the known ones, or -1."""
    return pd.Index(list(known), dtype=object).get_indexer(pd.Index(texts, dtype=object)).astype(np.int32)


def by_size(text: str) -> tuple[float, str]:
    """Sort numbers by size, before words."""
    number = real(text)
    return (math.inf if math.isnan(number) else number, text)
