"""What the columns of a table are: numbers, categories, dates, identifiers; and the tables that tell a person so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fedminimax.data.federation import Federation

NUMBER, CATEGORY, DATE, ID, CONSTANT = "number", "category", "date", "id", "constant"
"""The roles of columns that may be features."""
LABEL, CLIENT = "label", "client"

HEADER = ["column", "role", "used", "missing", "note"]
"""What the rows of :func:`rows` are."""
MOST_SITES = 12
"""More sites than these are summed up in :func:`label_rows`."""
_NAMED = 3  # sites that lack a class


@dataclass(frozen=True)
class Column:
    """What a column was taken for.

    Attributes:
        name: its name.
        role: "number", "category", "date", "id" (unique or nearly so), "constant", "label" or "client".
        used: whether it is a feature.
        missing: the share of its values that are missing.
        distinct: how many different values it has.
        note: why it is left out, or what was read otherwise than it is written; may be empty.
    """

    name: str
    role: str
    used: bool
    missing: float
    distinct: int
    note: str = ""


def rows(federation: Federation) -> list[list[str]]:
    """Return a row of text for each column of the table: its name, role, whether it is used, missing values, and a note."""
    return [
        [str(column.name), column.role, "yes" if column.used else "no", _share(column.missing), column.note]
        for column in federation.columns
    ]


def label_header(federation: Federation) -> list[str]:
    """Return what the rows of :func:`label_rows` are."""
    if federation.classes is None:
        return ["site", "rows", "mean", "least", "most"]
    return ["site", "rows", *federation.classes]


def label_rows(federation: Federation) -> list[list[str]]:
    """Return what is to be predicted at each site, in rows of text: the rows of each class, or the quantity's range.

    For more than twelve sites it is the sum, the range over sites, and the sites that lack a class.
    """
    if federation.classes is None:
        return _quantities(federation)
    counts = federation.class_counts if federation.class_counts is not None else count_classes(federation)
    made = [_counted(name, own) for name, own in zip(federation.names, counts, strict=True)]
    total = _counted("all" if len(made) <= MOST_SITES else f"all {len(made):,}", counts.sum(axis=0))
    if len(made) <= MOST_SITES:
        return [*made, total]
    sizes = counts.sum(axis=1)
    least = ["least", f"{sizes.min():,}", *(f"{n:,}" for n in counts.min(axis=0))]
    most = ["most", f"{sizes.max():,}", *(f"{n:,}" for n in counts.max(axis=0))]
    return [total, least, most, ["without any", "", *(_lacking(federation.names, own) for own in counts.T)]]


def count_classes(federation: Federation) -> npt.NDArray[np.int64]:
    """Return how many rows of each class each site has, [N, C], for training and testing together."""
    classes = len(federation.classes or ())
    counts = np.zeros((len(federation.names), classes), np.int64)
    for data in (federation.train, federation.test):
        owners = np.repeat(np.arange(len(federation.names)), np.asarray(data.sizes))
        np.add.at(counts, (owners, np.asarray(data.fields["labels"])), 1)
    return counts


def _counted(name: str, counts: npt.NDArray[np.int64]) -> list[str]:
    rows = int(counts.sum())
    return [name, f"{rows:,}", *(f"{n:,} ({_share(n / max(rows, 1))})" for n in counts)]


def _lacking(names: list[str], counts: npt.NDArray[np.int64]) -> str:
    """Return how many sites have no row of a class, and the first of them."""
    lacking = np.flatnonzero(counts == 0)
    named = ", ".join(names[i] for i in lacking[:_NAMED])
    more = ", ..." if len(lacking) > _NAMED else ""
    return f"{len(lacking):,} ({named}{more})" if len(lacking) else "0"


def _quantities(federation: Federation) -> list[list[str]]:
    mean, deviation = federation.target_scale or (0.0, 1.0)
    if federation.target_means is not None:  # the rows are elsewhere, and their least and most are single rows'
        sizes = np.asarray(federation.train.sizes) + np.asarray(federation.test.sizes)
        each = zip(federation.names, sizes, federation.target_means, strict=True)
        return [
            *([name, f"{n:,}", f"{own:.4g}", "–", "–"] for name, n, own in each),
            ["all", f"{sizes.sum():,}", f"{mean:.4g}", "–", "–"],
        ]
    parts = zip(federation.train, federation.test, strict=True)
    sites = [np.concatenate([part["labels"] for part in both]) * deviation + mean for both in parts]
    row = lambda name, own: [name, f"{len(own):,}", f"{own.mean():.4g}", f"{own.min():.4g}", f"{own.max():.4g}"]
    total = row("all" if len(sites) <= MOST_SITES else f"all {len(sites):,}", np.concatenate(sites))
    if len(sites) <= MOST_SITES:
        return [*(row(name, own) for name, own in zip(federation.names, sites, strict=True)), total]
    order = np.argsort([own.mean() for own in sites])
    ends = [row(f"{end} mean: {federation.names[i]}", sites[i]) for end, i in (("least", order[0]), ("most", order[-1]))]
    return [total, *ends]


def _share(share: float) -> str:
    """Return a share in per cent: "0%" is none at all, and "100%" is all."""
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{share:.1%}" if share not in (0, 1) else f"{share:.0%}"
