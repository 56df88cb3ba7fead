"""What the columns of a table are taken for, and which of them are features.

These are the decisions that a real federation takes once, before any training, and tells all of its members: the names of the
columns, the role of each, the format of dates, how classes are spelt, and which columns are left out. Here they are taken by
looking at the whole table, since the simulator has it; members who must not pool rows would agree on them in a written
description of their data, and each would read its own "unknown" among numbers as missing. What depends on values beyond that,
the means, deviations and lists of categories, never comes from here: it is made of what clients report
(:mod:`fedminimax.data.encoding`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from fedminimax.data.columns import CATEGORY, CLIENT, CONSTANT, DATE, ID, LABEL, NUMBER, Column
from fedminimax.data.encoding import Rows, rows_of
from fedminimax.data.labels import Label
from fedminimax.data.values import (
    ISO,
    Texts,
    as_numbers,
    is_number,
    odd_ones,
    quoted,
    read_dates,
    read_numbers,
    texts_of,
)
from fedminimax.errors import InputError, nearest

MOST_CATEGORIES = 100
"""A text column with more is a name, or wants grouping."""

_NEARLY = 0.95  # different texts by rows: so many are identifiers
_ENOUGH = 20  # rows, below which different texts say little
_PAIRS = 10.0  # equal pairs that chance would give: where there is none, whole numbers were given out, not measured
_NAMES = re.compile(
    r"(^|[^a-z])(id|ids|uid|uuid|guid|pid|mrn|nr|no|number|key|index|idx|serial|record|case|row|unnamed)([^a-z]|$)|(?-i:[a-z]I[dD]$)",
    re.IGNORECASE,
)
_DATES = "left out unless it is included"
_FIRST = {"%d": "dates with the day first", "%m": "dates with the month first"}  # where it may be the one or the other
_MOSTLY = 0.5  # the share of texts from which a column with numbers in it is one of texts, without a word
_SHOWN = 20  # names of columns in a sentence


@dataclass(frozen=True)
class Schema:
    """What is known of a table before any row is used.

    Attributes:
        columns: what each was taken for.
        numeric: the features that are numbers, dates among them.
        categorical: the features that are categories.
        dates: the formats of the dates that are features.
        notes: what was read otherwise than it is written, in sentences.
        left_out: the columns that might be features and are none, but for those that are not wanted.
    """

    columns: list[Column]
    numeric: list[str] = field(default_factory=list)
    categorical: list[str] = field(default_factory=list)
    dates: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def rows(self, frame: pd.DataFrame) -> Rows:
        """Return the features of rows, as numbers and texts."""
        return rows_of(frame, self.numeric, self.categorical, self.dates)


class Look(NamedTuple):
    """What a column looks like."""

    role: str
    kind: str  # number, category or date: what it would be as a feature
    missing: float
    distinct: int
    note: str = ""
    said: str = ""  # what was read otherwise than it is written
    form: str = ""  # of dates

    @property
    def crowded(self) -> bool:
        """Whether there are too many categories."""
        return self.kind == CATEGORY and self.distinct > MOST_CATEGORIES


def decide(
    frame: pd.DataFrame, name: str, label: str, client: str, read: Label, include: Collection[str], exclude: Collection[str]
) -> Schema:
    """Return the schema of a table.

    Args:
        frame: its rows.
        name: its name, for messages.
        label: the column to predict.
        client: the column that says who holds a row.
        read: the label's values.
        include: columns to use although they are dates or identifiers.
        exclude: columns not to use.
    """
    wanted, unwanted = _chosen(frame, name, label, client, include, exclude)
    looks = {}
    for column in frame.columns:
        if column == label:
            looks[column] = Look(LABEL, CATEGORY, float(read.missing.mean()), len(read.distinct), read.note, read.note)
        elif column == client:
            sites = texts_of(frame[column])
            looks[column] = Look(CLIENT, CATEGORY, float((sites.codes < 0).mean()), len(sites.distinct))
        else:
            looks[column] = look_at(frame[column], name, column in unwanted)
    return settle(looks, name, wanted, unwanted)


def settle(looks: Mapping[str, Look], name: str, wanted: Collection[str], unwanted: Collection[str]) -> Schema:
    """Return the schema of columns, by what they look like.

    Args:
        looks: of every column.
        name: the table's, for messages.
        wanted: columns to use although they are dates or identifiers.
        unwanted: columns not to use.
    """
    schema = Schema([])
    for column, look in looks.items():
        used, note = _use(look, str(column), name, column in wanted, column in unwanted)
        schema.columns.append(Column(column, look.role, used, look.missing, look.distinct, note))
        if look.said and (used or look.role == LABEL):
            schema.notes.append(f"{column}: {look.said}.")
        if used and look.kind == DATE:
            schema.dates[column] = look.form
        if used:
            (schema.categorical if look.kind == CATEGORY else schema.numeric).append(column)
        elif column not in unwanted and look.role not in (LABEL, CLIENT):
            schema.left_out.append(column)
    return schema


def used_in(schema: Schema, names: Collection[str]) -> list[Column]:
    """Return what the columns were taken for, once it is known which of them vary in training."""
    return [
        dataclasses.replace(c, used=False, note=c.note or "the same in all training rows")
        if c.used and c.name not in names
        else c
        for c in schema.columns
    ]


def _chosen(
    frame: pd.DataFrame, name: str, label: str, client: str, include: Collection[str], exclude: Collection[str]
) -> tuple[set[str], set[str]]:
    """Return the columns to include and to exclude, each once, or say what is wrong with them."""
    include, exclude = ([given] if isinstance(given, str) else given for given in (include, exclude))
    for column, use in (*((c, "include") for c in include), *((c, "exclude") for c in exclude)):
        require(column, frame, use, name)
    both = sorted(str(column) for column in set(include) & set(exclude))
    if both:
        raise InputError(f"The column {both[0]!r} is both to be included and to be excluded: choose.")
    for role, column in (("label", label), ("client column", client)):
        if column in include:
            raise InputError(f"The column {column!r} is the {role} of {name}, which is no feature: do not include it.")
    return set(include), set(exclude)


def require(column: str, frame: pd.DataFrame, use: str, name: str) -> None:
    """Say which columns there are, when there is none of that name.

    Args:
        column: its name.
        frame: the rows that should have it.
        use: what it is to be, such as "be its label".
        name: the table's.
    """
    if column not in frame.columns:
        known = [str(c) for c in frame.columns]
        hint = nearest(column, known)
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        raise InputError(f"{name} has no column {column!r} to {use}{hint}: choose one of {', '.join(known[:_SHOWN])}{more}.")


def _use(look: Look, column: str, name: str, wanted: bool, unwanted: bool) -> tuple[bool, str]:
    """Return whether a column is a feature, and the note on it."""
    if unwanted and look.role not in (LABEL, CLIENT):
        return False, "excluded"
    if look.role in (LABEL, CLIENT, CONSTANT):
        return False, look.note
    if wanted and look.crowded:
        raise InputError(
            f"The column {column!r} of {name} has {look.distinct:,} categories, more than {MOST_CATEGORIES}: group its values, "
            "or do not include it."
        )
    if wanted:
        return True, _listed("in days" if look.kind == DATE else "", look.said)
    return look.role in (NUMBER, CATEGORY) and not look.crowded, look.note


# -- what a column looks like -------------------------------------------------------------------------------------------


def look_at(values: pd.Series[Any], name: str, unwanted: bool) -> Look:
    """Return what a column looks like.

    Args:
        values: the column.
        name: the table's, for messages.
        unwanted: whether it is not to be used; then it may be of whatever kind.
    """
    try:
        return _look(values, name)
    except InputError:
        if not unwanted:
            raise
        return Look(CATEGORY, CATEGORY, float(values.isna().mean()), 0)  # of whatever kind it is: nobody reads it


def _look(values: pd.Series[Any], name: str) -> Look:
    if types.is_datetime64_any_dtype(values):
        return _varying(Look(DATE, DATE, float(values.isna().mean()), int(values.nunique()), _DATES, "", ISO))
    if is_number(values):
        return _of_numbers(as_numbers(values), str(values.name), types.is_integer_dtype(values))
    if not (
        types.is_bool_dtype(values) or isinstance(values.dtype, pd.CategoricalDtype | pd.StringDtype) or values.dtype == object
    ):
        raise InputError(
            f"The column {values.name!r} of {name} has the type {values.dtype}: make it numbers or text, or leave it out with "
            f"exclude=[{values.name!r}]."
        )
    texts = texts_of(values)
    fixed = types.is_bool_dtype(values) or isinstance(values.dtype, pd.CategoricalDtype)
    return _of_texts(texts) if fixed else _of_written(texts, str(values.name))


def _of_written(texts: Texts, name: str) -> Look:
    """Return what texts look like that may be numbers or dates."""
    numbers = read_numbers(texts)
    if numbers.fits:
        said = odd_ones(numbers.odd)
        look = _of_numbers(texts.per_row(numbers.values, np.nan, np.float64), name, True)
        return look._replace(note=_listed(look.note, said), said=said)
    dates = read_dates(texts)
    if dates.fits:
        days = texts.per_row(dates.values, np.nan, np.float64)
        distinct = len(np.unique(days[~np.isnan(days)]))
        said = _listed(_FIRST.get(dates.form[:2], ""), odd_ones(dates.odd))
        return _varying(Look(DATE, DATE, float(np.isnan(days).mean()), distinct, _listed(_DATES, said), said, dates.form))
    look = _of_texts(texts)
    # A number or two among texts, such as a code, is nothing to wonder at.
    if look.role == CATEGORY and numbers.share < _MOSTLY and not np.isnan(numbers.values).all():
        such = quoted([numbers.odd[0][0]])
        said = f"{numbers.share:.0%} of its values, such as {such}, are no numbers, so it is a category"
        return look._replace(note=_listed(look.note, said), said=said)
    return look


def _listed(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _of_texts(texts: Texts) -> Look:
    rows, distinct = int(texts.counts.sum()), len(texts.distinct)
    look = Look(CATEGORY, CATEGORY, float((texts.codes < 0).mean()), distinct)
    if rows >= _ENOUGH and distinct >= _NEARLY * rows:
        note = "a different text in every row" if distinct == rows else f"{distinct:,} different texts in {rows:,} rows"
        return look._replace(role=ID, note=note)
    if look.crowded:
        return look._replace(note=f"{distinct:,} categories, more than {MOST_CATEGORIES}")
    return _varying(look)


def _of_numbers(numbers: npt.NDArray[np.float64], name: str, whole: bool) -> Look:
    known = numbers[~np.isnan(numbers)]
    distinct = len(np.unique(known))
    look = Look(NUMBER, NUMBER, 1 - len(known) / max(len(numbers), 1), distinct)
    if not np.isfinite(known).all():
        return look  # and an error, as soon as it is used
    # pandas makes floats of whole numbers where one is missing; other floats were measured.
    if distinct == len(known) > 1 and (whole or look.missing) and _identify(known, name):
        return look._replace(role=ID, note="a different whole number in every row")
    return _varying(look)


def _identify(numbers: npt.NDArray[np.float64], name: str) -> bool:
    """Tell whether different whole numbers are identifiers: they are called so, or chance would have repeated some.

    n numbers drawn from a range of R values have n (n - 1) / 2R equal pairs on average.
    """
    if (numbers % 1).any():
        return False
    pairs = len(numbers) * (len(numbers) - 1) / (2 * (float(np.ptp(numbers)) + 1))
    return pairs >= _PAIRS or _NAMES.search(name) is not None


def _varying(look: Look) -> Look:
    """Return the look, as a constant where a column has one value or none. Missing ones among them make a second value."""
    if look.distinct + (look.missing > 0) > 1:
        return look
    return look._replace(role=CONSTANT, note="the same in every row" if look.distinct else "missing in every row")
