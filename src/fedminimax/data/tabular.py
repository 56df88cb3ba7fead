"""Tables whose rows belong to someone: each value of one column, such as a state or a race, is a client.

:func:`read_table` reads a user's own; :mod:`fedminimax.data.published` those that the fairness literature uses.
:func:`federate` makes clients' data of either. What each column is, and which are left out, is a decision about the whole
table (:mod:`fedminimax.data.schema` says what that means in a real federation). Inputs are made as a real federation would make
them, by what clients report of their training rows (:mod:`fedminimax.data.encoding`).
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.checks import integer, real
from fedminimax.data import schema as schemas
from fedminimax.data.clients import ClientData
from fedminimax.data.columns import count_classes
from fedminimax.data.encoder import Encoder
from fedminimax.data.encoding import Encoding, Rows, by_size, combine, inputs, places_among, report
from fedminimax.data.federation import CLASSIFICATION, REGRESSION, Federation
from fedminimax.data.labels import check_label, find_positive, guess_task, read_label
from fedminimax.data.reading import read_frame
from fedminimax.data.schema import MOST_CATEGORIES, require
from fedminimax.data.values import MISSING, as_texts, texts_of
from fedminimax.errors import InputError


@dataclass(frozen=True)
class Table:
    """A table, with what to predict and who holds each row. Its columns are checked when it is made.

    Attributes:
        name: its name, for messages.
        frame: the rows; missing values are NaN, None, or texts such as ``?`` and ``NA``.
        label: the column to predict.
        client: the column whose values are the clients.
        task: "classification" or "regression".
        test: the official test rows, if there are any, with the same columns.
        positive: which of two classes is the positive one; None: the rarer.
        notes: what was noticed when the file was read, in sentences.
    """

    name: str
    frame: pd.DataFrame
    label: str
    client: str
    task: str
    test: pd.DataFrame | None = None
    positive: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = list(self.frame.columns)
        if self.frame.empty:
            raise InputError(f"{self.name} is empty ({len(self.frame)} rows, {len(columns)} columns): give it rows.")
        if len(set(columns)) < len(columns):
            twice = next(c for c in columns if columns.count(c) > 1)
            raise InputError(f"{self.name} has two columns {twice!r}: rename one.")
        require(self.label, self.frame, "be its label", self.name)
        require(self.client, self.frame, "be its client column", self.name)
        if self.label == self.client:
            raise InputError(f"The column {self.label!r} cannot be both the label and the client: choose two columns.")
        if self.task not in (CLASSIFICATION, REGRESSION):
            raise InputError(f"task is {self.task!r}: give 'classification' or 'regression'.")
        check_label(self.frame[self.label], self.label, self.name, self.task)
        clients = texts_of(self.frame[self.client]).distinct
        if len(clients) < 2:
            found = f"has the one value {clients[0]}" if clients else "is missing in every row"
            raise InputError(
                f"The client column {self.client!r} of {self.name} {found}: choose a column with two values or more."
            )
        if self.test is not None and set(self.test.columns) != set(columns):
            odd = sorted(map(str, set(self.test.columns) ^ set(columns)))
            raise InputError(f"The test part of {self.name} has other columns than the table: {', '.join(odd)} differ.")
        if self.positive is not None:
            read = read_label(self.frame[self.label], self.task)
            classes, counts = np.unique(read.values[~read.missing], return_counts=True)
            find_positive(self.positive, classes.tolist(), counts.tolist(), self.label, self.task)


def read_table(
    path: str | os.PathLike[str], label: str, client: str, task: str | None = None, positive: str | None = None
) -> Table:
    """Return the table in a CSV or Parquet file.

    Args:
        path: the file: .csv, .tsv, .parquet or .pq. Commas, semicolons, tabs and bars between columns are recognised, and so
            are decimal commas (:func:`fedminimax.data.reading.read_frame`).
        label: the column to predict.
        client: the column whose values are the clients.
        task: "classification" or "regression"; by default a label of two values or of texts makes a classification, one with
            more than 20 different numbers a regression, and with fewer numbers one is asked.
        positive: which of two classes is the positive one, whose recall and precision count; by default the rarer.

    Returns:
        The table.
    """
    frame, notes = read_frame(path)
    name = Path(path).name
    if task is None and label in frame:
        task = guess_task(frame[label], label, name)
    return Table(name, frame, label, client, task or CLASSIFICATION, positive=positive, notes=tuple(notes))


def federate(
    table: Table,
    *,
    test_share: float = 0.25,
    min_rows: int = 20,
    seed: int = 0,
    dtype: npt.DTypeLike = "float32",
    include: Collection[str] = (),
    exclude: Collection[str] = (),
    group: str | None = None,
) -> Federation:
    """Return a table as clients' data, standardised and one-hot encoded by what the clients report of their training rows.

    A client that has rows in the table's official test part is tested on these. The rows of any other are shuffled and
    split, in each class alike where a class has two rows or more. Missing numbers become the mean, and a further feature
    tells where they were; a missing category is a category. Dates, identifiers and columns that do not vary are left out.

    In a real federation the roles of the columns, the spellings of the label and the texts that mean a missing number belong
    to the schema that its members agree on; the simulator settles them by looking at the whole table. Means, deviations,
    categories and classes are made of reports by client, here as there.

    Args:
        table: from :func:`load_table` or :func:`read_table`.
        test_share: share of a client's rows to test on, between 0 and 1; every client keeps a row for either use.
        min_rows: clients with fewer rows are left out; at least 2.
        seed: seed of the shuffles. A client's shuffle does not depend on which other clients there are.
        dtype: type of the inputs, and of a regression's labels.
        include: columns to use although they are dates, which then count days, or identifiers.
        exclude: columns that are not to be features.
        group: a sensitive column, whose values of the test rows are kept beside them. It is a feature unless it is excluded.

    Returns:
        The federation.
    """
    if not 0 < real(test_share) < 1:
        raise InputError(f"test_share is {test_share!r}: give a number above 0 and below 1.")
    least, seed, kind = integer("min_rows", min_rows, 2), integer("seed", seed, 0), _float_type(dtype)
    if group is not None:
        _check_group(group, table)
    label = read_label(table.frame[table.label], table.task)
    schema = schemas.decide(table.frame, table.name, table.label, table.client, label, include, exclude)
    held, dropped = _hold(table, schema, group)
    names, owner = _clients(held, least, table.name, dropped)
    split = _split(held, owner, names, test_share, seed)
    made = _encoded(table, schema, held, names, owner, split, kind)
    made = dataclasses.replace(made, dropped=dropped, missing=_missing(held, np.concatenate(split)))
    if made.classes is None:
        return made
    counts = count_classes(made)
    positive = find_positive(table.positive, made.classes, counts.sum(axis=0).tolist(), table.label, table.task)
    return dataclasses.replace(made, class_counts=counts, positive=positive)


class _Held(NamedTuple):
    """The rows that somebody holds, of both parts of a table."""

    rows: Rows  # the features
    label: Rows  # the label alone
    client: npt.NDArray[Any]  # who holds a row
    official: npt.NDArray[np.bool_]  # whether a row is of the official test part
    group: npt.NDArray[Any] | None
    lacking: dict[str, npt.NDArray[np.bool_]]  # where columns have no value that are left out, but not by wish


_Places: TypeAlias = npt.NDArray[np.intp]


def _encoded(
    table: Table,
    schema: schemas.Schema,
    held: _Held,
    names: list[str],
    owner: _Places,
    split: tuple[_Places, _Places],
    kind: np.dtype[Any],
) -> Federation:
    """Return the clients' rows as inputs and labels, by what they report of their training rows."""
    train, test = split
    encoding = _combined(held.rows.part(train), owner[train])
    encoding = dataclasses.replace(encoding, dates={c: form for c, form in schema.dates.items() if c in encoding.numeric})
    if not encoding.features:
        raise InputError(f"{table.name} has no column left to learn from: none varies beside the label and the client.")
    # The labels' mean and deviation, or the classes, come about in the same way.
    target = _combined(held.label.part(train), owner[train])
    if not target.features:
        raise InputError(f"The clients' training rows of {table.name} all have one label: lower min_rows, or choose another.")

    def data(places: _Places) -> ClientData:
        labels = _labels(held.label.part(places), owner[places], names, target, kind)
        fields = {"inputs": inputs(held.rows.part(places), encoding, kind), "labels": labels}
        return ClientData.from_owner(fields, owner[places], len(names))

    classes, scale = target.categories.get(table.label), target.scales.get(table.label)
    return Federation(
        train=data(train),
        test=data(test),
        names=names,
        features=encoding.features,
        classes=classes,
        task=table.task,
        target_scale=scale,
        missing={},
        dropped={},
        encoder=Encoder(encoding, table.label, table.client, table.task, classes, scale),
        columns=schemas.used_in(schema, {*encoding.numeric, *encoding.categories}),
        notes=[*table.notes, *schema.notes],
        groups=None if held.group is None else held.group[test],
    )


def _hold(table: Table, schema: schemas.Schema, group: str | None) -> tuple[_Held, dict[str, int]]:
    """Return the rows that have a client and a label, and how many lack one."""
    parts = [table.frame] if table.test is None else [table.frame, table.test]

    def whole(column: str) -> pd.Series[Any]:
        return pd.concat([pd.Series(part[column]) for part in parts], ignore_index=True)

    label, client = read_label(whole(table.label), table.task), as_texts(whole(table.client))
    rows = schema.rows(parts[0])
    for part in parts[1:]:
        rows = rows.joined(schema.rows(part))
    nobody = client == MISSING
    lacking = {"(missing client)": int(nobody.sum()), "(missing label)": int((label.missing & ~nobody).sum())}
    there = ~(nobody | label.missing)
    kept = {table.label: label.values[there]}
    held = _Held(
        rows.part(there),
        Rows(int(there.sum()), *((kept, {}) if table.task == REGRESSION else ({}, kept))),
        client[there],
        (np.arange(len(there)) >= len(table.frame))[there],
        None if group is None else as_texts(whole(group))[there],
        {column: (texts_of(whole(column)).codes < 0)[there] for column in schema.left_out},
    )
    return held, {key: count for key, count in lacking.items() if count}


def _clients(held: _Held, least: int, name: str, dropped: dict[str, int]) -> tuple[list[str], _Places]:
    """Return the names of the clients with enough rows, and the number of each row's client, or -1.

    Those with too few are added to ``dropped``.
    """
    codes, texts = pd.factorize(held.client)
    found = [str(text) for text in texts]
    sizes = np.bincount(codes[~held.official], minlength=len(found))
    order = sorted(range(len(found)), key=lambda code: by_size(found[code]))
    dropped |= {found[code]: int(sizes[code]) for code in order if sizes[code] < least}
    kept = [code for code in order if sizes[code] >= least]
    if len(kept) < 2:
        raise InputError(
            f"Of the {len(found)} clients of {name}, {len(kept)} have {least} rows or more: lower min_rows, or choose another "
            "client column."
        )
    numbers = np.full(len(found), -1, np.intp)
    numbers[kept] = np.arange(len(kept))
    return [found[code] for code in kept], numbers[codes]


def _split(held: _Held, owner: _Places, names: Sequence[str], share: float, seed: int) -> tuple[_Places, _Places]:
    """Return the places of the training rows and of the test rows, client after client, each one's as the table has them."""
    order = np.argsort(owner, kind="stable")
    order = order[np.count_nonzero(owner < 0) :]
    ends = np.cumsum(np.bincount(owner[order], minlength=len(names)))
    classes = [pd.factorize(values)[0] for values in held.label.texts.values()] or [np.zeros(held.label.count, np.intp)]
    tested = held.official.copy()
    for own, name in zip(np.split(order, ends[:-1]), names, strict=True):
        if not held.official[own].any():
            tested[own] = tested_rows(classes[0][own], share, seed, name)
    return order[~tested[order]], order[tested[order]]


def tested_rows(labels: npt.NDArray[Any], share: float, seed: int, name: str) -> npt.NDArray[np.bool_]:
    """Return which of a client's rows to test on: at least one, not all, and of each class its share, give or take one.

    The only row of a class is kept for training, where the class would otherwise be unknown, unless all rows are such.

    Args:
        labels: the class of each row; all alike for a quantity.
        share: how many of them, between 0 and 1.
        seed: of the shuffles.
        name: the client's, on which its shuffle depends, and on no other client.
    """
    classes = pd.factorize(labels)[0]
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    order = generator.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    common = order[np.bincount(classes)[classes[order]] > 1]
    order = common if common.size else order
    count = min(max(round(share * len(order)), 1), len(order) - 1)
    # Equally spaced in the order of classes, from a random start; in integers, so that the places are distinct.
    places = (np.arange(count) * len(order) + generator.integers(len(order))) // count
    tested = np.zeros(len(classes), bool)
    tested[order[places]] = True
    return tested


def _combined(rows: Rows, owner: _Places) -> Encoding:
    """Return what the server makes of the reports of clients, each on its own rows; the rows are in the clients' order."""
    ends = np.cumsum(np.bincount(owner)).tolist()
    return combine([report(rows.part(slice(start, end))) for start, end in zip([0, *ends[:-1]], ends, strict=True)])


def _labels(rows: Rows, owner: _Places, names: Sequence[str], target: Encoding, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the labels of rows, standardised or as class numbers."""
    for column, (mean, deviation) in target.scales.items():
        return ((rows.numbers[column] - mean) / deviation).astype(kind)
    (column,) = target.categories
    numbers = places_among(rows.texts[column], target.categories[column])
    if numbers.min() < 0:
        first = int(numbers.argmin())
        raise InputError(
            f"The class {rows.texts[column][first]} is in test rows of client {names[owner[first]]} and in nobody's training "
            "rows: leave these rows out, or give another seed."
        )
    return numbers


def _missing(held: _Held, places: _Places) -> dict[str, int]:
    """Return how many values of a column are missing at some places, of those that lack any."""
    rows = held.rows.part(places)
    counts = {column: int(np.isnan(values).sum()) for column, values in rows.numbers.items()}
    counts |= {column: int((values == MISSING).sum()) for column, values in rows.texts.items()}
    counts |= {column: int(values[places].sum()) for column, values in held.lacking.items()}
    return {column: count for column, count in counts.items() if count}


def _check_group(group: str, table: Table) -> None:
    require(group, table.frame, "group by", table.name)
    if group == table.label:
        raise InputError(f"The column {group!r} is the label: group by another column.")
    count = len(texts_of(table.frame[group]).distinct)
    if count > MOST_CATEGORIES:
        raise InputError(
            f"The column {group!r} of {table.name} has {count:,} values, too many to group by: make at most "
            f"{MOST_CATEGORIES} groups of it."
        )


def _float_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind != "f":
        raise InputError(f"dtype is {dtype!r}: give a type of floats, such as 'float32'.")
    return kind
