"""How rows become inputs, as in a real federation.

A client sends a :func:`client_report`, with sums and lists of categories and no row; the server sends back what it could
:func:`combine` from the reports, by which each client encodes its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.checks import real
from fedminimax.errors import InputError

MISSING = "missing"
"""The category of a missing value."""


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
    """

    scales: dict[str, tuple[float, float]]
    gaps: list[str]
    categories: dict[str, list[str]]

    @property
    def features(self) -> list[str]:
        """The names of the inputs, in order."""
        flags = [f"{column} is missing" for column in self.gaps]
        return [*self.scales, *flags, *(f"{column}={value}" for column, values in self.categories.items() for value in values)]


def client_report(frame: pd.DataFrame, numeric: Sequence[str], categorical: Sequence[str]) -> Report:
    """Return what a client sends, given its training rows: sums and categories, no row."""
    moments = {}
    for column in numeric:
        values = as_numbers(frame[column])
        values = values[~np.isnan(values)]
        if np.isinf(values).any():
            raise InputError(f"The column {column!r} has an infinite number: clean that row, or leave the column out.")
        # Deviations from the client's own mean: a sum of plain squares would lose a small spread about a large mean.
        mean = float(values.mean()) if values.size else 0.0
        moments[column] = Moments(values.size, mean, float(np.square(values - mean).sum()))
    return Report(len(frame), moments, {column: frozenset(as_texts(frame[column])) for column in categorical})


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
    blocks: list[npt.NDArray[Any]] = []
    for column, (mean, deviation) in encoding.scales.items():
        scaled = (as_numbers(frame[column]) - mean) / deviation
        blocks.append(np.where(np.isnan(scaled), 0.0, scaled)[:, None])
    blocks += [frame[column].isna().to_numpy()[:, None] for column in encoding.gaps]
    for column, values in encoding.categories.items():
        blocks.append(places_among(frame[column], values)[:, None] == np.arange(len(values)))
    return np.hstack(blocks, dtype=dtype)


def as_numbers(values: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """Return a column of numbers, NaN where one is missing."""
    return values.to_numpy(np.float64, na_value=np.nan)


def as_texts(values: pd.Series[Any]) -> npt.NDArray[Any]:
    """Return values as text. Whole numbers are written without point: pandas makes them floats where one is missing."""
    try:
        codes, distinct = pd.factorize(values)
    except TypeError as error:
        raise InputError(f"The column {values.name!r} has lists or the like in it: make it text, or leave it out.") from error
    whole = lambda value: isinstance(value, float | np.floating) and float(value).is_integer()
    texts = [str(int(value)) if whole(value) else str(value) for value in distinct]
    return np.array([*texts, MISSING], object)[codes]  # the code of a missing value is -1


def places_among(values: pd.Series[Any], known: list[str]) -> npt.NDArray[np.int32]:
    """Return the place of each value among the known texts, or -1."""
    return pd.Index(known, dtype=object).get_indexer(pd.Index(as_texts(values), dtype=object)).astype(np.int32)


def by_size(text: str) -> tuple[float, str]:
    """Sort numbers by size, before words."""
    number = real(text)
    return (math.inf if math.isnan(number) else number, text)
