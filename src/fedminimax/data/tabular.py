"""Tables whose rows belong to someone: each value of one column, such as a state or a race, is a client.

:func:`read_table` reads a user's own; :mod:`fedminimax.data.published` those that the fairness literature uses.
:func:`federate` makes clients' data of either. It prepares the columns as a real federation would, by what clients report of
theirs (:mod:`fedminimax.data.encoding`).
"""

from __future__ import annotations

import difflib
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from fedminimax.checks import integer, real
from fedminimax.data.clients import ClientData
from fedminimax.data.datasets import reason_of
from fedminimax.data.encoder import Encoder
from fedminimax.data.encoding import Encoding, as_numbers, as_texts, by_size, client_report, combine, encode, places_among
from fedminimax.data.federation import CLASSIFICATION, REGRESSION, Federation
from fedminimax.errors import InputError

_MOST_CATEGORIES = 100  # a column with more is a name or an identifier, or wants grouping
_MOST_CLASSES = 20  # a numeric label with more distinct values is taken for a quantity


@dataclass(frozen=True)
class Table:
    """A table, with what to predict and who holds each row. Its columns are checked when it is made.

    Attributes:
        name: its name, for messages.
        frame: the rows; missing values are NaN or None.
        label: the column to predict.
        client: the column whose values are the clients.
        task: "classification" or "regression".
        test: the official test rows, if there are any, with the same columns.
    """

    name: str
    frame: pd.DataFrame
    label: str
    client: str
    task: str
    test: pd.DataFrame | None = None

    def __post_init__(self) -> None:
        columns = list(self.frame.columns)
        if self.frame.empty:
            raise InputError(f"{self.name} is empty ({len(self.frame)} rows, {len(columns)} columns): give it rows.")
        if len(set(columns)) < len(columns):
            twice = next(c for c in columns if columns.count(c) > 1)
            raise InputError(f"{self.name} has two columns {twice!r}: rename one.")
        _require(self.label, columns, "label", self.name)
        _require(self.client, columns, "client column", self.name)
        if self.label == self.client:
            raise InputError(f"The column {self.label!r} cannot be both the label and the client: choose two columns.")
        if self.task not in (CLASSIFICATION, REGRESSION):
            raise InputError(f"task is {self.task!r}: give 'classification' or 'regression'.")
        for role, column in (("label", self.label), ("client column", self.client)):
            distinct = self.frame[column].dropna().unique()
            if len(distinct) < 2:
                found = f"has the one value {distinct[0]}" if len(distinct) else "is missing in every row"
                raise InputError(f"The {role} {column!r} of {self.name} {found}: choose a column with two values or more.")
        if self.task == REGRESSION and not is_number(self.frame[self.label]):
            raise InputError(f"The label {self.label!r} of {self.name} is not numeric: make the task classification.")
        if self.test is not None and set(self.test.columns) != set(columns):
            odd = sorted(map(str, set(self.test.columns) ^ set(columns)))
            raise InputError(f"The test part of {self.name} has other columns than the table: {', '.join(odd)} differ.")


def read_table(path: str | os.PathLike[str], label: str, client: str, task: str | None = None) -> Table:
    """Return the table in a CSV or Parquet file.

    Args:
        path: the file: .csv, .tsv, .parquet or .pq. In text files an empty field, ``?`` and pandas' other marks, such as
            NA, are missing values.
        label: the column to predict.
        client: the column whose values are the clients.
        task: "classification" or "regression"; by default a numeric label with more than 20 distinct values makes a
            regression, and any other label a classification.

    Returns:
        The table.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if not path.exists():
        raise InputError(f"There is no file {path}: check the path.")
    if kind not in (".csv", ".tsv", ".parquet", ".pq"):
        raise InputError(f"{path} ends in {path.suffix or 'no suffix'}: give a .csv, .tsv, .parquet or .pq file.")
    try:
        if kind in (".parquet", ".pq"):
            frame = pd.read_parquet(path).reset_index(drop=True)
        else:
            separator = "," if kind == ".csv" else "\t"
            frame = pd.read_csv(path, sep=separator, na_values="?", skipinitialspace=True, low_memory=False)
    except ImportError as error:
        raise InputError(f"{path} is a Parquet file, which takes pyarrow to read: pip install pyarrow.") from error
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path} is empty: give a file with a line of column names and rows below it.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as {kind} ({reason_of(error)}): check what is in it.") from error
    if not frame.index.equals(pd.RangeIndex(len(frame))):  # pandas took the first column for names of the rows
        raise InputError(f"The rows of {path} have more fields than its first line: name every column there.")
    if task is None and label in frame:
        many = is_number(frame[label]) and frame[label].nunique() > _MOST_CLASSES
        task = REGRESSION if many else CLASSIFICATION
    return Table(path.name, frame, label, client, task or CLASSIFICATION)


def federate(
    table: Table,
    *,
    test_share: float = 0.25,
    min_rows: int = 20,
    seed: int = 0,
    dtype: npt.DTypeLike = "float32",
    ignore: Collection[str] = (),
) -> Federation:
    """Return a table as clients' data, standardised and one-hot encoded by what the clients report of their training rows.

    A client that has rows in the table's official test part is tested on these. The rows of any other are shuffled and
    split, in each class alike where a class has two rows or more. Missing numbers become the mean, and a further feature
    tells where they were; a missing category is a category. Columns that do not vary are left out.

    Args:
        table: from :func:`load_table` or :func:`read_table`.
        test_share: share of a client's rows to test on, between 0 and 1; every client keeps a row for either use.
        min_rows: clients with fewer rows are left out; at least 2.
        seed: seed of the shuffles. A client's shuffle does not depend on which other clients there are.
        dtype: type of the inputs, and of a regression's labels.
        ignore: columns that are not to be features.

    Returns:
        The federation.
    """
    if not 0 < real(test_share) < 1:
        raise InputError(f"test_share is {test_share!r}: give a number above 0 and below 1.")
    least, seed, kind = integer("min_rows", min_rows, 2), integer("seed", seed, 0), _float_type(dtype)
    numeric, categorical = _kinds(table, ignore)

    dropped: dict[str, int] = {}
    own = _by_client(table.frame, table, dropped)
    official = {} if table.test is None else _by_client(table.test, table, dropped)
    sizes = {name: len(own.get(name, ())) for name in sorted({*own, *official}, key=by_size)}
    dropped |= {name: size for name, size in sizes.items() if size < least}
    names = [name for name, size in sizes.items() if size >= least]
    if len(names) < 2:
        raise InputError(
            f"Of the {len(sizes)} clients of {table.name}, {len(names)} have {least} rows or more: lower min_rows, or choose "
            "another client column."
        )
    train, test = [], []
    for name in names:
        tested = _tested(own[name][table.label], table.task, test_share, [seed, zlib.crc32(name.encode())])
        train.append(own[name] if name in official else own[name][~tested])
        test.append(official.get(name, own[name][tested]))

    encoding = combine([client_report(part, numeric, categorical) for part in train])
    _check_features(encoding, table.name)
    # The labels' mean and deviation, or the classes, come about in the same way.
    quantity, quality = ([table.label], []) if table.task == REGRESSION else ([], [table.label])
    target = combine([client_report(part, quantity, quality) for part in train])
    if not target.features:
        raise InputError(f"The clients' training rows of {table.name} all have one label: lower min_rows, or choose another.")

    def data(parts: Sequence[pd.DataFrame]) -> ClientData:
        labels = [_labels(part[table.label], name, target, kind) for part, name in zip(parts, names, strict=True)]
        inputs = [encode(part, encoding, kind) for part in parts]
        return ClientData.from_list([{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)])

    classes, scale = target.categories.get(table.label), target.scales.get(table.label)
    missing = {c: sum(int(part[c].isna().sum()) for part in (*train, *test)) for c in (*numeric, *categorical)}
    return Federation(
        train=data(train),
        test=data(test),
        names=names,
        features=encoding.features,
        classes=classes,
        task=table.task,
        target_scale=scale,
        missing={column: count for column, count in missing.items() if count},
        dropped=dropped,
        encoder=Encoder(encoding, table.label, table.client, table.task, classes, scale),
    )


def _check_features(encoding: Encoding, name: str) -> None:
    for column, values in encoding.categories.items():
        if len(values) > _MOST_CATEGORIES:
            raise InputError(
                f"The column {column!r} of {name} has {len(values)} categories, more than {_MOST_CATEGORIES}: drop it, "
                f"for example with ignore=[{column!r}]."
            )
    if not encoding.features:
        raise InputError(f"{name} has no column left to learn from: none varies beside the label and the client.")


def _labels(values: pd.Series[Any], name: str, target: Encoding, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a client's labels, standardised or as class numbers."""
    column = str(values.name)
    if column in target.scales:
        mean, deviation = target.scales[column]
        return ((as_numbers(values) - mean) / deviation).astype(kind)
    numbers = places_among(values, target.categories[column])
    if numbers.min() < 0:
        raise InputError(
            f"The class {values.iloc[numbers.argmin()]} is in test rows of client {name} and in nobody's training rows: leave "
            "these rows out, or give another seed."
        )
    return numbers


def _tested(labels: pd.Series[Any], task: str, share: float, seed: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which of a client's rows to test on: at least one, not all, and of each class its share, give or take one.

    The only row of a class is kept for training, where the class would otherwise be unknown, unless all rows are such.
    """
    generator = np.random.default_rng(seed)
    classes = pd.factorize(labels)[0] if task == CLASSIFICATION else np.zeros(len(labels), np.intp)
    order = generator.permutation(len(labels))
    order = order[np.argsort(classes[order], kind="stable")]
    common = order[np.bincount(classes)[classes[order]] > 1]
    order = common if common.size else order
    count = min(max(round(share * len(order)), 1), len(order) - 1)
    # Equally spaced in the order of classes, from a random start; in integers, so that the places are distinct.
    places = (np.arange(count) * len(order) + generator.integers(len(order))) // count
    tested = np.zeros(len(labels), bool)
    tested[order[places]] = True
    return tested


def _by_client(frame: pd.DataFrame, table: Table, dropped: dict[str, int]) -> dict[str, pd.DataFrame]:
    """Return each client's rows by its name, and count the rows that cannot be used in ``dropped``."""
    for key, column in (("(missing client)", table.client), ("(missing label)", table.label)):
        lacking = frame[column].isna()
        if lacking.any():
            dropped[key] = dropped.get(key, 0) + int(lacking.sum())
            frame = frame[~lacking]
    return {str(name): rows for name, rows in frame.groupby(as_texts(frame[table.client]))}


def _kinds(table: Table, ignore: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the numeric and the categorical columns that are features. Names and types are known to all clients."""
    ignore = [ignore] if isinstance(ignore, str) else ignore
    for column in ignore:
        _require(column, list(table.frame.columns), "column to ignore", table.name)
    numeric: list[str] = []
    categorical: list[str] = []
    for column in table.frame.columns:
        if column in (table.label, table.client, *ignore):
            continue
        values = table.frame[column]
        if is_number(values):
            numeric.append(column)
        elif (
            types.is_bool_dtype(values)
            or isinstance(values.dtype, pd.CategoricalDtype | pd.StringDtype)
            or values.dtype == object
        ):
            categorical.append(column)
        else:
            raise InputError(
                f"The column {column!r} of {table.name} has the type {values.dtype}: make it numbers or text, or leave it out "
                f"with ignore=[{column!r}]."
            )
    return numeric, categorical


def _require(column: str, columns: Collection[Any], role: str, name: str) -> None:
    """Say which columns there are, when there is none of that name."""
    if column not in columns:
        known = [str(c) for c in columns]
        close = difflib.get_close_matches(str(column), known, 1, 0.5)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise InputError(f"{name} has no column {column!r} to be its {role}{hint}: choose one of {', '.join(known)}.")


def is_number(values: pd.Series[Any]) -> bool:
    """Tell whether a column holds real numbers."""
    return types.is_numeric_dtype(values) and not types.is_bool_dtype(values) and not types.is_complex_dtype(values)


def _float_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind != "f":
        raise InputError(f"dtype is {dtype!r}: give a type of floats, such as 'float32'.")
    return kind
