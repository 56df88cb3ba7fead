"""Files as tables: what separates the columns, and how decimals are written."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedminimax.data.datasets import reason_of
from fedminimax.data.values import MARKS, MARKS_AMONG_NUMBERS, MOST_JUNK, Texts, is_number, texts_of
from fedminimax.errors import InputError

ENDINGS = (".csv", ".tsv", ".parquet", ".pq")
"""How the names of files end that can be read."""

_SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}
_SAMPLED = 1 << 16  # characters of a file, by which its separator is told
_DECIMAL = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")


class Contents(NamedTuple):
    """What a file has: the rows, and what was read otherwise than one may expect, in sentences."""

    frame: pd.DataFrame
    notes: list[str]


def read_frame(path: str | os.PathLike[str]) -> Contents:
    """Return the rows of a CSV or Parquet file.

    Commas, semicolons, tabs and bars between columns are recognised, and so are decimal commas. Empty fields, ``?``, ``NA``
    and the like (:data:`fedminimax.data.values.MARKS`) are missing values. Thousands separators are not guessed.

    Args:
        path: the file: .csv, .tsv, .parquet or .pq.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if not path.exists():
        raise InputError(f"There is no file {path}: check the path.")
    if kind not in ENDINGS:
        raise InputError(f"{path} ends in {path.suffix or 'no suffix'}: give a .csv, .tsv, .parquet or .pq file.")
    try:
        if kind in (".parquet", ".pq"):
            return Contents(pd.read_parquet(path).reset_index(drop=True), [])
        usual = "\t" if kind == ".tsv" else ","
        separator = _separator(path, usual)
        frame = _text(path, separator)
    except ImportError as error:
        raise InputError(f"{path} is a Parquet file, which takes pyarrow to read: pip install pyarrow.") from error
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path} is empty: give a file with a line of column names and rows below it.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read as {kind} ({reason_of(error)}): save it as UTF-8.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as {kind} ({reason_of(error)}): check what is in it.") from error
    if not frame.index.equals(pd.RangeIndex(len(frame))):  # pandas took the first column for names of the rows
        raise InputError(f"The rows of {path} have more fields than its first line: name every column there.")
    notes = [] if separator == usual else [f"{path.name}: {_SEPARATORS[separator]} separate its columns."]
    return Contents(frame, notes + _decimal_commas(frame, path.name, separator))


def _text(path: Path, separator: str) -> pd.DataFrame:
    marks = sorted({form for mark in MARKS for form in (mark, mark.upper(), mark.capitalize(), "NaN", "<NA>", "NaT")})
    # pandas' own marks would make "None" a missing value, which among texts may well be an answer.
    frame = pd.read_csv(path, sep=separator, na_values=marks, keep_default_na=False, skipinitialspace=True, low_memory=False)
    frame.columns = pd.Index([name.strip() for name in frame.columns])
    return frame


def _separator(path: Path, usual: str) -> str:
    """Return what separates the columns: what gives all rows as many fields as the first line, and of such the most."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = file.read(_SAMPLED).splitlines()
    lines = [line for line in (lines[:-1] if len(lines) > 2 else lines) if line.strip()][:100]  # the last may be cut off
    scores = {}
    for separator in _SEPARATORS:
        try:
            fields = [len(row) for row in csv.reader(lines, delimiter=separator, skipinitialspace=True) if row]
        except csv.Error:
            continue
        if fields and fields[0] > 1:
            scores[separator] = (set(fields) == {fields[0]}, fields[0])
    # Where two are as good, the comma comes last: it is also within numbers and sentences.
    return max(scores, key=lambda separator: scores[separator], default=usual)


def _decimal_commas(frame: pd.DataFrame, name: str, separator: str) -> list[str]:
    """Write decimal commas as points, in place, and say so; where commas may be thousands', say that they were left."""
    found: list[str] = []
    notes = []
    shown = ""
    for place, column in enumerate(frame.columns):
        values = frame.iloc[:, place]
        if is_number(values) or pd.api.types.is_bool_dtype(values):
            continue
        texts = texts_of(values)
        commas = _with_commas(texts)
        if not commas:
            continue
        doubtful = _thousands(commas, separator)
        if doubtful:
            notes.append(f"{column}: {doubtful}.")
            continue
        written = [text.replace(",", ".") if _DECIMAL.fullmatch(text) else text for text in texts.distinct]
        frame[column] = _column(texts, written)
        found.append(str(column))
        shown = shown or commas[0]
    if found:
        notes.insert(0, f"{name}: decimals have commas in {', '.join(found)}, so {shown!r} is {shown.replace(',', '.')}.")
    return notes


def _thousands(commas: Sequence[str], separator: str) -> str:
    """Say why numbers with commas are left as text: two commas are thousands', and between commas one may be."""
    several = [text for text in commas if text.count(",") > 1]
    if several:
        return f"{several[0]!r} has separators of thousands, so it is text: write {several[0].replace(',', '')}"
    if separator == "," and all(_THOUSANDS.fullmatch(text) for text in commas):
        whole, decimal = commas[0].replace(",", ""), commas[0].replace(",", ".")
        return f"{commas[0]!r} may have a decimal comma or thousands, so it is text: write {whole} or {decimal}"
    return ""


def _with_commas(texts: Texts) -> list[str]:
    """Return the texts with decimal commas, if they and numbers without any are all there is but a few."""
    commas = [text for text in texts.distinct if _DECIMAL.fullmatch(text) or _THOUSANDS.fullmatch(text)]
    if not commas:
        return []
    other = [
        not (_DECIMAL.fullmatch(text) or _PLAIN.fullmatch(text) or _THOUSANDS.fullmatch(text))
        and text.casefold() not in MARKS_AMONG_NUMBERS
        for text in texts.distinct
    ]
    return commas if texts.counts[np.array(other)].sum() <= MOST_JUNK * texts.counts.sum() else []


def _column(texts: Texts, written: Sequence[str]) -> Any:
    """Return a column of the texts as they are written now: of numbers where all of them are."""
    numbers = pd.to_numeric(pd.Series(written, dtype=object), errors="coerce")
    if not numbers.isna().any():
        return texts.per_row(numbers.to_numpy(np.float64), np.nan, np.float64)
    return texts.per_row(written, None, object)
