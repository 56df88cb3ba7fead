"""Tables whose rows belong to someone: each value of one column, such as a state or a race, is a client.

:func:`load_table` reads the tables that the fairness literature uses, from their official files; :func:`read_table` reads
a user's own. :func:`federate` makes clients' data of either. It prepares the columns as a real federation would: a client
sends a :func:`client_report`, with sums and lists of categories and no row, and the server sends back what it could
:func:`combine` from the reports, by which each client encodes its own rows.
"""

from __future__ import annotations

import difflib
import io
import math
import os
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pooch
from pandas.api import types

from fedminimax.checks import integer, real
from fedminimax.data.clients import ClientData
from fedminimax.data.datasets import FOLDER_VARIABLE, _check, _download, _reason
from fedminimax.errors import InputError

CLASSIFICATION, REGRESSION = "classification", "regression"
MISSING = "missing"
"""The category of a missing value."""

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
        if self.task == REGRESSION and not _is_number(self.frame[self.label]):
            raise InputError(f"The label {self.label!r} of {self.name} is not numeric: make the task classification.")
        if self.test is not None and set(self.test.columns) != set(columns):
            odd = sorted(map(str, set(self.test.columns) ^ set(columns)))
            raise InputError(f"The test part of {self.name} has other columns than the table: {', '.join(odd)} differ.")


@dataclass(frozen=True)
class Federation:
    """A table as clients' data, ready to train on.

    Attributes:
        train: {"inputs": [n, d] float, "labels": int32 class numbers, or floats for a regression}, by client.
        test: likewise; the same clients in the same order.
        names: the clients' names.
        features: the names of the d inputs, such as "age", "age is missing" and "workclass=Private".
        classes: the classes' names by number; None for a regression.
        task: "classification" or "regression".
        target_scale: mean and standard deviation of the training labels, by which a regression's labels were
            standardised; None for a classification.
        missing: how many values of a column were missing in the clients' rows, for each column that lacks any.
        dropped: the clients left out and how many rows each had, not counting an official test part's; and how many rows,
            in both parts, had no client, "(missing client)", or no label, "(missing label)".
    """

    train: ClientData
    test: ClientData
    names: list[str]
    features: list[str]
    classes: list[str] | None
    task: str
    target_scale: tuple[float, float] | None
    missing: dict[str, int]
    dropped: dict[str, int]


def load_table(name: str, folder: str | os.PathLike[str] | None = None, client: str | None = None) -> Table:
    """Return a published table by name.

    Args:
        name: "communities_crime", "adult", "compas" or "german_credit"; hyphens will do too.
        folder: where the official files are, in ``communities-crime/``, ``adult/``, ``compas/`` and ``german-credit/``, and
            where they are put when they have to be downloaded. By default the folder that the environment variable
            FEDMINIMAX_DATA names, and otherwise the user's cache.
        client: the column whose values are the clients; each table has a default.

    Returns:
        The table, without the columns that are no features.
    """
    key = name.replace("-", "_")
    if key not in TABLES:
        raise InputError(f"There is no table {name!r}: choose one of {', '.join(TABLES)}.")
    return TABLES[key](Path(folder or os.environ.get(FOLDER_VARIABLE) or pooch.os_cache("fedminimax")), client)


def communities_crime(folder: Path, client: str | None = None) -> Table:
    """Communities and Crime: violent crime in 1,994 US communities, regression; clients are the 46 states."""
    client = _choice("communities_crime", client, ("state",))
    contents = _contents(folder, "communities-crime/communities.data")
    frame = pd.read_csv(io.BytesIO(contents), header=None, names=_COMMUNITIES.split(), na_values="?")
    frame = frame.drop(columns=["county", "community", "communityname", "fold"])
    return Table("communities_crime", frame, "ViolentCrimesPerPop", client, REGRESSION)


def adult(folder: Path, client: str | None = None) -> Table:
    """Adult: is an income over $50,000, 32,561 + 16,281 people; clients by education, race or sex."""
    client = _choice("adult", client, ("education", "race", "sex"))
    parts = []
    for file in ("adult/adult.data", "adult/adult.test"):
        # The test file opens with a line that begins with a bar.
        source = io.BytesIO(_contents(folder, file))
        part = pd.read_csv(source, header=None, names=_ADULT.split(), na_values="?", skipinitialspace=True, comment="|")
        part["income"] = part["income"].str.rstrip(".")  # as the test file's labels end
        # The weight is of the survey, not of the person; education-num is education, in numbers.
        parts.append(part.drop(columns=["fnlwgt", *(["education-num"] if client == "education" else [])]))
    return Table("adult", parts[0], "income", client, CLASSIFICATION, parts[1])


def compas(folder: Path, client: str | None = None) -> Table:
    """COMPAS: is a defendant charged again within two years, 6,172 people; clients by race, sex or age_cat."""
    client = _choice("compas", client, ("race", "sex", "age_cat"))
    frame = pd.read_csv(io.BytesIO(_contents(folder, "compas/compas-scores-two-years.csv")))
    # ProPublica's own filter: the score belongs to this arrest, the case was found, it is no traffic offence, it was scored.
    keep = frame["days_b_screening_arrest"].between(-30, 30) & (frame["is_recid"] != -1)
    keep &= (frame["c_charge_degree"] != "O") & frame["score_text"].notna()
    # What was known at the arrest, without names and scores; the other columns tell what came after.
    return Table("compas", frame.loc[keep, _COMPAS.split()].reset_index(drop=True), "two_year_recid", client, CLASSIFICATION)


def german_credit(folder: Path, client: str | None = None) -> Table:
    """German credit: is a credit good or bad, 1,000 people; clients by purpose, housing, job or another category."""
    # The values keep the file's codes, such as A43: what some of them mean is disputed (Groemping, South German Credit
    # data: correcting a widely used data set, 2019).
    contents = _contents(folder, "german-credit/german.data")
    frame = pd.read_csv(io.BytesIO(contents), sep=" ", header=None, names=_GERMAN.split())
    others = [str(column) for column in frame if column != "purpose" and not _is_number(frame[column])]
    client = _choice("german_credit", client, ("purpose", *others))
    frame["credit"] = frame["credit"].map({1: "good", 2: "bad"})
    return Table("german_credit", frame, "credit", client, CLASSIFICATION)


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
        raise InputError(f"{path} cannot be read as {kind} ({_reason(error)}): check what is in it.") from error
    if not frame.index.equals(pd.RangeIndex(len(frame))):  # pandas took the first column for names of the rows
        raise InputError(f"The rows of {path} have more fields than its first line: name every column there.")
    if task is None and label in frame:
        many = _is_number(frame[label]) and frame[label].nunique() > _MOST_CLASSES
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
    sizes = {name: len(own.get(name, ())) for name in sorted({*own, *official}, key=_order)}
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
    for column, values in encoding.categories.items():
        if len(values) > _MOST_CATEGORIES:
            raise InputError(
                f"The column {column!r} of {table.name} has {len(values)} categories, more than {_MOST_CATEGORIES}: drop it, "
                f"for example with ignore=[{column!r}]."
            )
    if not encoding.features:
        raise InputError(f"{table.name} has no column left to learn from: none varies beside the label and the client.")

    # The labels' mean and deviation, or the classes, come about in the same way.
    quantity, quality = ([table.label], []) if table.task == REGRESSION else ([], [table.label])
    target = combine([client_report(part, quantity, quality) for part in train])
    if not target.features:
        raise InputError(f"The clients' training rows of {table.name} all have one label: lower min_rows, or choose another.")

    def data(parts: Sequence[pd.DataFrame]) -> ClientData:
        labels = [_labels(part[table.label], name, target, kind) for part, name in zip(parts, names, strict=True)]
        inputs = [encode(part, encoding, kind) for part in parts]
        return ClientData.from_list([{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)])

    missing = {c: sum(int(part[c].isna().sum()) for part in (*train, *test)) for c in (*numeric, *categorical)}
    return Federation(
        train=data(train),
        test=data(test),
        names=names,
        features=encoding.features,
        classes=target.categories.get(table.label),
        task=table.task,
        target_scale=target.scales.get(table.label),
        missing={column: count for column, count in missing.items() if count},
        dropped=dropped,
    )


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
        values = _numbers(frame[column])
        values = values[~np.isnan(values)]
        if np.isinf(values).any():
            raise InputError(f"The column {column!r} has an infinite number: clean that row, or leave the column out.")
        # Deviations from the client's own mean: a sum of plain squares would lose a small spread about a large mean.
        mean = float(values.mean()) if values.size else 0.0
        moments[column] = Moments(values.size, mean, float(np.square(values - mean).sum()))
    return Report(len(frame), moments, {column: frozenset(_texts(frame[column])) for column in categorical})


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
    union = {c: sorted(frozenset[str]().union(*(r.categories[c] for r in reports)), key=_order) for c in reports[0].categories}
    return Encoding(scales, gaps, {column: values for column, values in union.items() if len(values) > 1})


def encode(frame: pd.DataFrame, encoding: Encoding, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return a client's rows as inputs, [n, d]; a category that no training row has is all zeros."""
    blocks: list[npt.NDArray[Any]] = []
    for column, (mean, deviation) in encoding.scales.items():
        scaled = (_numbers(frame[column]) - mean) / deviation
        blocks.append(np.where(np.isnan(scaled), 0.0, scaled)[:, None])
    blocks += [frame[column].isna().to_numpy()[:, None] for column in encoding.gaps]
    for column, values in encoding.categories.items():
        blocks.append(_places(frame[column], values)[:, None] == np.arange(len(values)))
    return np.hstack(blocks, dtype=dtype)


def _labels(values: pd.Series[Any], name: str, target: Encoding, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a client's labels, standardised or as class numbers."""
    column = str(values.name)
    if column in target.scales:
        mean, deviation = target.scales[column]
        return ((_numbers(values) - mean) / deviation).astype(kind)
    numbers = _places(values, target.categories[column])
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
    return {str(name): rows for name, rows in frame.groupby(_texts(frame[table.client]))}


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
        if _is_number(values):
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


def _choice(name: str, client: str | None, choices: Sequence[str]) -> str:
    """Return the client column, by default the first choice."""
    if client is not None and client not in choices:
        raise InputError(f"The clients of {name} cannot be by {client!r}: choose one of {', '.join(choices)}.")
    return client or choices[0]


def _contents(folder: Path, file: str) -> bytes:
    """Return an official file, downloaded if it is not in the folder."""
    url, md5, sha256 = _FILES[file]
    path = folder / file
    if not path.exists():
        _download(url, path, md5)
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}): check that it is a file and may be read.") from error
    _check(str(path), contents, sha256)
    return contents


def _is_number(values: pd.Series[Any]) -> bool:
    return types.is_numeric_dtype(values) and not types.is_bool_dtype(values) and not types.is_complex_dtype(values)


def _float_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind != "f":
        raise InputError(f"dtype is {dtype!r}: give a type of floats, such as 'float32'.")
    return kind


def _numbers(values: pd.Series[Any]) -> npt.NDArray[np.float64]:
    return values.to_numpy(np.float64, na_value=np.nan)


def _texts(values: pd.Series[Any]) -> npt.NDArray[Any]:
    """Return values as text. Whole numbers are written without point: pandas makes them floats where one is missing."""
    try:
        codes, distinct = pd.factorize(values)
    except TypeError as error:
        raise InputError(f"The column {values.name!r} has lists or the like in it: make it text, or leave it out.") from error
    whole = lambda value: isinstance(value, float | np.floating) and float(value).is_integer()
    texts = [str(int(value)) if whole(value) else str(value) for value in distinct]
    return np.array([*texts, MISSING], object)[codes]  # the code of a missing value is -1


def _places(values: pd.Series[Any], known: list[str]) -> npt.NDArray[np.int32]:
    """Return the place of each value among the known texts, or -1."""
    return pd.Index(known, dtype=object).get_indexer(pd.Index(_texts(values), dtype=object)).astype(np.int32)


def _order(text: str) -> tuple[float, str]:
    """Sort numbers by size, before words."""
    number = real(text)
    return (math.inf if math.isnan(number) else number, text)


# The official place of each file, its md5, by which a download is checked, and its sha256, by which every file is.
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a/"
_FILES = {
    "communities-crime/communities.data": (
        _UCI + "communities/communities.data",
        "ce564679a46f4313b9e8d17e1dad0ceb",
        "09e0b5c07eae24c1efab19b2edee05e160e7f5743b6f31e31eec3d73624da2ea",
    ),
    "adult/adult.data": (
        _UCI + "adult/adult.data",
        "5d7c39d7b8804f071cdd1f2a7c460872",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    ),
    "adult/adult.test": (
        _UCI + "adult/adult.test",
        "35238206dfdf7f1fe215bbb874adecdc",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
    "compas/compas-scores-two-years.csv": (
        _PROPUBLICA + "compas-scores-two-years.csv",
        "9165d40c400bba93a8cffece2b74622b",
        "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
    ),
    "german-credit/german.data": (
        _UCI + "statlog/german/german.data",
        "6b94c2e35480e671545e52a808a8a549",
        "b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
    ),
}

# The columns, in the files' order where the file does not name them.
_ADULT = """
age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain capital-loss
hours-per-week native-country income
"""
_COMPAS = """
age sex race age_cat juv_fel_count juv_misd_count juv_other_count priors_count c_charge_degree two_year_recid
"""
_GERMAN = """
checking_account months credit_history purpose amount savings employment_since installment_rate personal_status_sex
other_debtors residence_since property age other_installment_plans housing existing_credits job dependents telephone
foreign_worker credit
"""
_COMMUNITIES = """
state county community communityname fold population householdsize racepctblack racePctWhite racePctAsian racePctHisp
agePct12t21 agePct12t29 agePct16t24 agePct65up numbUrban pctUrban medIncome pctWWage pctWFarmSelf pctWInvInc pctWSocSec
pctWPubAsst pctWRetire medFamInc perCapInc whitePerCap blackPerCap indianPerCap AsianPerCap OtherPerCap HispPerCap
NumUnderPov PctPopUnderPov PctLess9thGrade PctNotHSGrad PctBSorMore PctUnemployed PctEmploy PctEmplManu PctEmplProfServ
PctOccupManu PctOccupMgmtProf MalePctDivorce MalePctNevMarr FemalePctDiv TotalPctDiv PersPerFam PctFam2Par PctKids2Par
PctYoungKids2Par PctTeen2Par PctWorkMomYoungKids PctWorkMom NumIlleg PctIlleg NumImmig PctImmigRecent PctImmigRec5
PctImmigRec8 PctImmigRec10 PctRecentImmig PctRecImmig5 PctRecImmig8 PctRecImmig10 PctSpeakEnglOnly PctNotSpeakEnglWell
PctLargHouseFam PctLargHouseOccup PersPerOccupHous PersPerOwnOccHous PersPerRentOccHous PctPersOwnOccup PctPersDenseHous
PctHousLess3BR MedNumBR HousVacant PctHousOccup PctHousOwnOcc PctVacantBoarded PctVacMore6Mos MedYrHousBuilt
PctHousNoPhone PctWOFullPlumb OwnOccLowQuart OwnOccMedVal OwnOccHiQuart RentLowQ RentMedian RentHighQ MedRent
MedRentPctHousInc MedOwnCostPctInc MedOwnCostPctIncNoMtg NumInShelters NumStreet PctForeignBorn PctBornSameState
PctSameHouse85 PctSameCity85 PctSameState85 LemasSwornFT LemasSwFTPerPop LemasSwFTFieldOps LemasSwFTFieldPerPop
LemasTotalReq LemasTotReqPerPop PolicReqPerOffic PolicPerPop RacialMatchCommPol PctPolicWhite PctPolicBlack PctPolicHisp
PctPolicAsian PctPolicMinor OfficAssgnDrugUnits NumKindsDrugsSeiz PolicAveOTWorked LandArea PopDens PctUsePubTrans
PolicCars PolicOperBudg LemasPctPolicOnPatr LemasGangUnitDeploy LemasPctOfficDrugUn PolicBudgPerPop ViolentCrimesPerPop
"""

TABLES: dict[str, Callable[[Path, str | None], Table]] = {
    "communities_crime": communities_crime,
    "adult": adult,
    "compas": compas,
    "german_credit": german_credit,
}
"""The tables by name: functions of the folder that has them and the column that says who holds a row."""
