"""What the values of a column say: texts, numbers that are written as text, dates, and the marks of a missing value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from fedminimax.errors import InputError

MISSING = "missing"
"""The category of a missing value."""
MARKS = frozenset({"", "?", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "<na>", "nat", MISSING})
"""What stands for a missing value in any column, in upper or lower case."""
MARKS_AMONG_NUMBERS = frozenset(
    {"unknown", "unk", "none", "-", "--", ".", "*", "n.a.", "n.a", "nd", "n.d.", "not known", "not available", "not recorded"}
    | {"not measured", "not applicable", "no data", "undefined", "refused"}
)
"""What stands for a missing value among numbers and dates; among texts it is a category like others."""
MOST_JUNK = 0.05
"""The share of texts up to which a column of numbers or dates is still one."""
ISO = "ISO8601"
"""The format of dates such as 2024-01-31 and 2024-01-31T10:20."""

_SHOWN = 4  # texts that a sentence names
_TIME = r"(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?"
_ISO = re.compile(rf"\d{{4}}-\d{{1,2}}-\d{{1,2}}{_TIME}(?: ?(?:Z|[+-]\d{{2}}:?\d{{2}}))?")
_YEAR_FIRST = re.compile(rf"\d{{4}}([/.])\d{{1,2}}\1\d{{1,2}}{_TIME}")
_YEAR_LAST = re.compile(rf"(\d{{1,2}})([/.-])(\d{{1,2}})\2\d{{4}}{_TIME}")


class Texts(NamedTuple):
    """A column as text: which of its different texts each row has, and how many rows have each."""

    codes: npt.NDArray[np.intp]  # -1 where the value is missing
    distinct: list[str]
    counts: npt.NDArray[np.int64]

    @property
    def rows(self) -> npt.NDArray[Any]:
        """The text of each row; of a missing value, "missing"."""
        return self.per_row(self.distinct, MISSING, object)

    def per_row(self, values: Sequence[Any] | npt.NDArray[Any], missing: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the value of each row's text."""
        return np.array([*values, missing], dtype)[self.codes]


class Reading(NamedTuple):
    """Texts read as numbers, or as dates."""

    values: npt.NDArray[np.float64]  # of each different text; NaN where it is none
    odd: list[tuple[str, int]]  # texts that count as missing, and in how many rows, the most frequent first
    share: float  # of the rows, those with a text that is neither a number nor a mark of a missing one
    form: str = ""  # of dates: "ISO8601", or as "%d/%m/%Y"

    @property
    def fits(self) -> bool:
        """Whether the column is one of numbers, or dates, with a few texts among them."""
        return self.share <= MOST_JUNK and not np.isnan(self.values).all()


def texts_of(values: pd.Series[Any]) -> Texts:
    """Return a column as text. Whole numbers are written without point: pandas makes them floats where one is missing."""
    try:
        codes, distinct = pd.factorize(values)
    except TypeError as error:
        raise InputError(f"The column {values.name!r} has lists or the like in it: make it text, or leave it out.") from error
    texts = [plain(value) for value in distinct]
    # Two values may be one text, and some are marks of a missing one.
    places = {text: place for place, text in enumerate(dict.fromkeys(t for t in texts if t.casefold() not in MARKS))}
    codes = np.array([*(places.get(text, -1) for text in texts), -1], np.intp)[codes]
    return Texts(codes, list(places), np.bincount(codes[codes >= 0], minlength=len(places)))


def plain(value: object) -> str:
    """Return a value as text, without the spaces around it; a whole float without its point."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def as_texts(values: pd.Series[Any]) -> npt.NDArray[Any]:
    """Return values as text; a missing one is "missing"."""
    return texts_of(values).rows


def is_number(values: pd.Series[Any]) -> bool:
    """Tell whether a column holds real numbers."""
    return types.is_numeric_dtype(values) and not types.is_bool_dtype(values) and not types.is_complex_dtype(values)


def as_numbers(values: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """Return a column of numbers, NaN where one is missing, or is a text that is none."""
    if is_number(values):
        return values.to_numpy(np.float64, na_value=np.nan)
    texts = texts_of(values)
    return texts.per_row(read_numbers(texts).values, np.nan, np.float64)


def as_days(values: pd.Series[Any], form: str) -> npt.NDArray[np.float64]:
    """Return a column of dates as days since 1970 (UTC), NaN where one is missing; numbers are taken for such days.

    Args:
        values: the column.
        form: the dates' format where they are text: "ISO8601", or as "%d/%m/%Y".
    """
    if is_number(values):
        return as_numbers(values)
    if types.is_datetime64_any_dtype(values):
        return _days(pd.to_datetime(values, utc=True))
    texts = texts_of(values)
    return texts.per_row(_parsed(texts.distinct, form), np.nan, np.float64)


def read_numbers(texts: Texts) -> Reading:
    """Return what numbers the texts are."""
    numbers = pd.to_numeric(pd.Series(texts.distinct, dtype=object), errors="coerce")
    return _reading(texts, numbers.to_numpy(np.float64, na_value=np.nan))


def read_dates(texts: Texts) -> Reading:
    """Return what dates the texts are, as days since 1970: 2024-01-31, 31/01/2024, 01/31/2024, 31.1.2024 or 2024/01/31.

    Where no day is above 12, so that 03/04/2024 may be either, the day is taken to come first.
    """
    form = _format(texts.distinct)
    return _reading(texts, _parsed(texts.distinct, form), form)


def _reading(texts: Texts, values: npt.NDArray[np.float64], form: str = "") -> Reading:
    no = np.flatnonzero(np.isnan(values))
    odd = sorted(((texts.distinct[i], int(texts.counts[i])) for i in no), key=lambda one: -one[1])
    junk = sum(count for text, count in odd if text.casefold() not in MARKS_AMONG_NUMBERS)
    return Reading(values, odd, junk / max(int(texts.counts.sum()), 1), form)


def _format(texts: Sequence[str]) -> str:
    """Return the dates' format, by the first that looks like one, and where the year comes last by the numbers above 12."""
    for text in texts:
        if _ISO.fullmatch(text):
            return ISO
        if found := _YEAR_FIRST.fullmatch(text):
            return found[1].join(("%Y", "%m", "%d"))
        if found := _YEAR_LAST.fullmatch(text):
            break
    else:
        return ISO
    dates = [m for m in map(_YEAR_LAST.fullmatch, texts) if m]
    month_first = any(int(m[3]) > 12 for m in dates) and not any(int(m[1]) > 12 for m in dates)
    return found[2].join(("%m", "%d", "%Y") if month_first else ("%d", "%m", "%Y"))


def _parsed(texts: Sequence[str], form: str) -> npt.NDArray[np.float64]:
    """Return the days of texts that look like dates of that format, and NaN for others."""
    looks = _ISO if form == ISO else _YEAR_FIRST if form.startswith("%Y") else _YEAR_LAST
    dates = [text if looks.fullmatch(text) else None for text in texts]
    if form == ISO:
        return _days(pd.to_datetime(pd.Series(dates, dtype=object), format=ISO, errors="coerce", utc=True))
    parts = [re.split("[ T]", text, maxsplit=1) if text else [None] for text in dates]  # the day, and perhaps the time
    day = pd.to_datetime(pd.Series([part[0] for part in parts], dtype=object), format=form, errors="coerce", utc=True)
    return _days(day) + np.array([_clock(part[1]) if len(part) > 1 and part[1] else 0.0 for part in parts])


def _clock(text: str) -> float:
    """Return what part of a day has passed at a time, such as 10:20:30."""
    return sum(float(number) / whole for number, whole in zip(text.split(":"), (24, 1440, 86_400), strict=False))


def _days(dates: pd.Series[Any]) -> npt.NDArray[np.float64]:
    since = dates - pd.Timestamp("1970-01-01", tz="UTC")
    return np.asarray(since / pd.Timedelta(days=1), np.float64)


# -- in words ------------------------------------------------------------------------------------------------------------


def quoted(texts: Sequence[str], last: str = ", ") -> str:
    """Return texts in quotes, the last after another word; of many the first few."""
    shown = [repr(text) for text in texts[:_SHOWN]]
    if len(texts) > _SHOWN:
        return f"{', '.join(shown)}{last}{len(texts) - _SHOWN} more"
    return last.join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def odd_ones(odd: Sequence[tuple[str, int]]) -> str:
    """Say which texts count as missing, and how many rows have them; nothing where there are none."""
    if not odd:
        return ""
    rows = sum(count for _, count in odd)
    return f"{quoted([text for text, _ in odd], ' and ')} ({rows:,} row{'s' if rows != 1 else ''}) read as missing"
