"""What is predicted: classes, of which one may be spelt in several ways, or a quantity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.data.federation import CLASSIFICATION, REGRESSION
from fedminimax.data.values import MISSING, Texts, as_numbers, is_number, odd_ones, plain, quoted, read_numbers, texts_of
from fedminimax.errors import InputError

MOST_CLASSES = 20
"""More different numbers are a quantity; more different texts are hardly classes."""
_SHOWN = 8  # values that a sentence names


class Label(NamedTuple):
    """A label's column as it is meant."""

    values: npt.NDArray[Any]  # numbers, or the names of classes
    missing: npt.NDArray[np.bool_]
    note: str  # what was read otherwise than it is written

    @property
    def distinct(self) -> npt.NDArray[Any]:
        """The different values, in order."""
        return np.unique(self.values[~self.missing])


def read_label(values: pd.Series[Any], task: str) -> Label:
    """Return a label's values: numbers for a regression, and otherwise the names of classes.

    Texts that differ in capitals or spaces alone are one class, by the name that most rows have: "no" and "NO". Numbers with
    a few texts among them are numbers, and the texts are missing labels.
    """
    if is_number(values):
        numbers = as_numbers(values)
        return Label(numbers if task == REGRESSION else texts_of(values).rows, np.isnan(numbers), "")
    texts = texts_of(values)
    reading = read_numbers(texts)
    if reading.fits or task == REGRESSION:
        lacking = texts.per_row(np.isnan(reading.values), True, bool)
        names = [MISSING if np.isnan(number) else plain(number) for number in reading.values]
        read = texts.per_row(*((reading.values, np.nan, np.float64) if task == REGRESSION else (names, MISSING, object)))
        return Label(read, lacking, odd_ones(reading.odd))
    names, note = _folded(texts)
    return Label(texts.per_row(names, MISSING, object), texts.codes < 0, note)


def _folded(texts: Texts) -> tuple[list[str], str]:
    """Return the name of each different text's class, and which texts are one class."""
    spellings: dict[str, list[int]] = {}
    for place, text in enumerate(texts.distinct):
        spellings.setdefault(" ".join(text.casefold().split()), []).append(place)
    names, notes = list(texts.distinct), []
    for places in spellings.values():
        places.sort(key=lambda place: -int(texts.counts[place]))
        for place in places:
            names[place] = texts.distinct[places[0]]
        if len(places) > 1:
            notes.append(f"{quoted([texts.distinct[place] for place in places], ' and ')} are one class")
    return names, "; ".join(notes)


def guess_task(values: pd.Series[Any], label: str, name: str) -> str:
    """Return the task that a label looks like, or ask: two values are classes, more than 20 numbers a quantity.

    Args:
        values: the label's column.
        label: its name.
        name: the table's.
    """
    numbers = read_label(values, REGRESSION)
    read = is_number(values) or read_numbers(texts_of(values)).fits
    distinct = (numbers if read else read_label(values, CLASSIFICATION)).distinct
    if len(distinct) <= 2:
        return CLASSIFICATION
    if read and len(distinct) > MOST_CLASSES:
        return REGRESSION
    if read:
        raise InputError(
            f"The label {label!r} of {name} has {len(distinct)} different numbers ({_some(list(map(plain, distinct)))}), "
            "which may be classes or a quantity: say --task classification or --task regression (task= in Python)."
        )
    if len(distinct) > MOST_CLASSES:
        raise InputError(
            f"The label {label!r} of {name} has {len(distinct)} different texts ({_some(list(distinct))}): choose another "
            "column, or say --task classification (task= in Python) if they are classes."
        )
    return CLASSIFICATION


def check_label(values: pd.Series[Any], label: str, name: str, task: str) -> None:
    """Say what is wrong with a label: it is missing, has one value, or is no number where a quantity is to be predicted."""
    read = read_label(values, task)
    if task == REGRESSION and not is_number(values) and not read_numbers(texts_of(values)).fits and values.notna().any():
        raise InputError(f"The label {label!r} of {name} is not numeric: make the task classification.")
    if len(read.distinct) < 2:
        one = f"has the one value {plain(read.distinct[0])}" if len(read.distinct) else "is missing in every row"
        raise InputError(f"The label {label!r} of {name} {one}: choose a column with two values or more.")


def find_positive(positive: Any, classes: Sequence[str], counts: Sequence[int], label: str, task: str) -> int | None:
    """Return the number of the class that is called positive: of two the one that is named, or the rarer one.

    Args:
        positive: its name, spelt as one likes, or None.
        classes: the classes' names; none for a regression.
        counts: the rows of each.
        label: the label's column.
        task: "classification" or "regression".
    """
    if positive is None:
        # Of two that are as frequent, the second: 1 of 0 and 1, yes of no and yes.
        return None if len(classes) != 2 else int(counts[1] <= counts[0])
    if task == REGRESSION:
        raise InputError(f"The positive class is {positive!r}, but the label {label!r} is a quantity: leave it out.")
    there = ", ".join(f"{name} ({count:,} rows)" for name, count in zip(classes[:MOST_CLASSES], counts, strict=False))
    if len(classes) > 2:
        raise InputError(
            f"A positive class is for two classes, but the label {label!r} has {len(classes)}: leave {positive!r} out."
        )
    fold = lambda name: " ".join(plain(name).casefold().split())
    named = [number for number, name in enumerate(classes) if fold(name) == fold(positive)]
    if not named:
        raise InputError(
            f"The positive class is {positive!r}, but the label {label!r} has the classes {there}: choose one of them."
        )
    return named[0]


def _some(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= _SHOWN else f"{', '.join(values[: _SHOWN - 2])}, ..., {values[-1]}"
