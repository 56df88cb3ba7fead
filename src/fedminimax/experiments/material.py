"""The clients' data of an experiment, and what is held out: from data sets, files of features, tables, or the user's own.

The keyword arguments of :func:`examples` and :func:`table` are the keys of ``[data]``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedminimax.checks import integer, real
from fedminimax.data import datasets, partition
from fedminimax.data.clients import REPLACEMENT, ClientData, ClientSource
from fedminimax.data.federation import Federation
from fedminimax.errors import InputError
from fedminimax.experiments.kinds import find_file

TABLES = (".csv", ".tsv", ".parquet", ".pq")
Arrays = Mapping[str, Any]
Divide = Callable[..., Any]
"""What gives each example its client: a function of the labels."""


@dataclass(frozen=True)
class Material:
    """What an experiment trains and measures on.

    Attributes:
        clients: the clients' training data; None: the problem brings its own.
        held: held-out examples, "validation" and "test" where there are any: pooled arrays.
        apart: the same by client, made when it is asked for.
        classes: how many classes there are; None: a regression, or nobody knows.
        solution: the exact solution, where one is known.
    """

    clients: ClientSource | None = None
    held: Mapping[str, Arrays] = field(default_factory=dict)
    apart: Mapping[str, Callable[[], ClientData]] = field(default_factory=dict)
    classes: int | None = None
    solution: Any = None

    def offered(self) -> dict[str, Any]:
        """Return what problems and metrics may take from here."""
        count = None if self.clients is None else self.clients.count
        return {"clients": self.clients, "classes": self.classes, "solution": self.solution, "count": count}


class Divisible(Protocol):
    """What has not been divided among clients yet."""

    @property
    def kinds(self) -> Any:
        """By what the training examples are divided among clients."""

    def divide(self, owner: np.ndarray, count: int, kept: np.ndarray | None = None) -> Material:
        """Return the clients' data (see :class:`Pooled`)."""


@dataclass(frozen=True)
class Pooled:
    """Examples that have not been divided among clients yet.

    Attributes:
        train: the training examples.
        held: held-out ones.
        classes: how many classes there are.
        batching: how minibatches are drawn.
        seed: of what is held out.
        kinds: by what the training examples are divided among clients: their classes, before one was called positive.
    """

    train: Arrays
    held: Mapping[str, Arrays]
    classes: int
    batching: str
    seed: int
    kinds: Any

    def divide(self, owner: np.ndarray, count: int, kept: np.ndarray | None = None) -> Material:
        """Return the clients' data.

        Args:
            owner: the client of each training example.
            count: the number of clients.
            kept: the same, where some examples were taken away from clients: what is held out follows ``owner``.
        """

        def held(part: str) -> ClientData:
            labels = self.held[part]["labels"]
            owners = partition.own_distribution(owner, self.train["labels"], labels, count, seed=self.seed)
            return ClientData.from_owner(self.held[part], owners, count)

        clients = ClientData.from_owner(self.train, owner if kept is None else kept, count, self.batching)
        return Material(
            clients, self.held, {part: functools.cache(functools.partial(held, part)) for part in self.held}, self.classes
        )


def examples(
    name: Any,
    *,
    train: int | None = None,
    test: int | None = None,
    validation: int | float = 0,
    positive: int | None = None,
    centred: bool = False,
    size: int | None = None,
    batching: str = REPLACEMENT,
    seed: int = 0,
) -> Pooled:
    """A data set, or a file of features, to be divided among clients.

    Args:
        name: of the data set, or a path; or a :class:`~fedminimax.data.datasets.Dataset`.
        train: take only so many training examples, chosen at random; None: all.
        test: take only so many test examples.
        validation: hold out so many of the training examples, or this share of them, for choosing hyper-parameters.
        positive: the class that counts as positive; all others are then one class (for problems.auc). Clients are divided by
            the classes as they were.
        centred: whether images have pixels from -1 to 1, in place of 0 to 1.
        size: make square images this high and wide, by means over squares, to compute less; None: as they are.
        batching: how minibatches are drawn, "replacement" or "epochs".
        seed: of what is taken and held out.
    """
    whole = name if isinstance(name, datasets.Dataset) else datasets.load(name)
    count = len(whole.train["labels"])
    out = _size("validation", validation, count)
    wanted = count - out if train is None else integer("train", train)
    if wanted + out > count or wanted < 1:
        raise InputError(f"{whole.name} has {count} training examples: train = {wanted} and validation = {out} do not fit.")
    order = np.random.default_rng([integer("seed", seed, 0), 0]).permutation(count)
    held = {"validation": _rows(whole.train, order[:out])} if out else {}
    tests = len(whole.test["labels"])
    if test is not None and not 0 <= integer("test", test, 0) <= tests:
        raise InputError(f"{whole.name} has {tests} test examples: test = {test} is too many.")
    if tests and test != 0:
        taken = np.random.default_rng([seed, 1]).permutation(tests)[: tests if test is None else test]
        held["test"] = _rows(whole.test, taken)
    trained, classes = _rows(whole.train, order[out : out + wanted]), whole.classes
    kinds = trained["labels"]
    if size is not None:
        small = lambda part: {**part, "inputs": datasets.resized(part["inputs"], integer("size", size))}
        trained, held = small(trained), {part: small(rows) for part, rows in held.items()}
    if centred:
        two = lambda part: {**part, "inputs": 2 * part["inputs"] - 1}
        trained, held = two(trained), {part: two(rows) for part, rows in held.items()}
    if positive is not None:
        if not 0 <= positive < classes:
            raise InputError(f"positive is {positive}, but {whole.name} has classes 0 to {classes - 1}.")
        one = lambda part: {**part, "labels": partition.one_vs_rest(part["labels"], positive)}
        trained, held, classes = one(trained), {part: one(rows) for part, rows in held.items()}, 2
    return Pooled(trained, held, classes, batching, seed, kinds)


def table(
    name: Any,
    *,
    label: str | None = None,
    client: str | None = None,
    task: str | None = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    test_share: float = 0.25,
    min_rows: int = 20,
    validation: float = 0.0,
    batching: str = REPLACEMENT,
    seed: int = 0,
) -> Material:
    """A table, one column of which says who holds a row.

    Args:
        name: of a published table, or the path of a .csv, .tsv or .parquet file.
        label: the column to predict, of a file.
        client: the column that says who holds a row.
        task: "classification" or "regression"; None: as the label looks.
        include: columns to use although they are dates or identifiers.
        exclude: columns that are not to be features.
        test_share: the share of a client's rows to test on.
        min_rows: clients with fewer rows are left out.
        validation: the share of each client's training rows that is held out for choosing hyper-parameters.
        batching: how minibatches are drawn, "replacement" or "epochs".
        seed: of the split.
    """
    from fedminimax.data import published, tabular

    if str(name).endswith(TABLES):
        if label is None or client is None:
            lacking = " and ".join(key for key, value in (("label", label), ("client", client)) if value is None)
            raise InputError(f"{Path(str(name)).name} is a table: say which column is the {lacking}.")
        read = tabular.read_table(name, label, client, task)
    else:
        if label is not None or task is not None:
            raise InputError(f"{name} has a label and a task of its own: leave label and task out.")
        read = published.load_table(name, client=client)
    made = tabular.federate(read, test_share=test_share, min_rows=min_rows, seed=seed, include=include, exclude=exclude)
    return of_federation(made, validation, batching, seed)


def of_federation(made: Federation, validation: float = 0.0, batching: str = REPLACEMENT, seed: int = 0) -> Material:
    """Return the data of clients that have test sets of their own; of each a share is held out for validation."""
    if not 0 <= real(validation) < 1:
        raise InputError(f"validation is {validation!r}: give the share of each client's rows, at least 0 and below 1.")
    apart, train = {"test": made.test}, made.train
    if validation:
        rng = np.random.default_rng([seed, 0])
        orders = [rng.permutation(int(size)) for size in train.sizes]
        cuts = [min(len(order) - 1, max(1, round(validation * len(order)))) for order in orders]
        if min(cuts) < 1:
            raise InputError("A client has a single row, of which nothing can be held out: raise min_rows.")
        parts = list(train)
        apart["validation"] = ClientData.from_list([_rows(p, o[:c]) for p, o, c in zip(parts, orders, cuts, strict=True)])
        train = ClientData.from_list([_rows(p, o[c:]) for p, o, c in zip(parts, orders, cuts, strict=True)])
    fixed = {part: functools.partial(lambda data: data, data) for part, data in apart.items()}
    classes = None if made.classes is None else len(made.classes)
    return Material(train.with_batching(batching), {part: data.fields for part, data in apart.items()}, fixed, classes)


def _size(name: str, value: int | float, count: int) -> int:
    if isinstance(value, float):
        if not 0 <= value < 1:
            raise InputError(f"{name} is {value}: give a share, at least 0 and below 1, or a whole number of examples.")
        return round(value * count)
    return integer(name, value, 0)


def _rows(part: Arrays, chosen: np.ndarray) -> dict[str, Any]:
    chosen = np.sort(chosen)
    return {name: np.asarray(values)[chosen] for name, values in part.items()}


# -- by name -----------------------------------------------------------------------------------------------------------


def source(name: str, folders: Sequence[Path] = ()) -> Any:
    """Return what reads some data: a function whose keywords are the keys of its table; None where the name says nothing.

    Args:
        name: of a data set or a published table, or of a file: .npz, .csv, .tsv or .parquet.
        folders: where files are looked for first.
    """
    file = find_file(name, folders)
    if name.endswith((".npz", *TABLES)):
        return functools.partial(examples if name.endswith(".npz") else table, name if file is None else str(file))
    key = name.replace("-", "_")
    if key in datasets.DATASETS:
        return functools.partial(examples, key)
    from fedminimax.data.published import TABLES as published

    return functools.partial(table, key) if key in published else None


def material_of(made: Any) -> Material | Divisible:
    """Return what a user's own function made as an experiment takes it."""
    if isinstance(made, Material) or hasattr(made, "divide"):
        return made
    if isinstance(made, datasets.Dataset):
        return examples(made)
    if isinstance(made, Federation):
        return of_federation(made)
    if hasattr(made, "count") and hasattr(made, "sizes"):
        return Material(made)
    raise InputError(f"{type(made).__name__} is no data: give ClientData, a Federation or a Dataset.")
