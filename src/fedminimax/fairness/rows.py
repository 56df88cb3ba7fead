"""Test rows in an order in which sums over sites, and over the classes within them, are sums over slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedminimax.data.clients import ClientData
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.fairness.measures import positive_class
from fedminimax.fairness.outputs import labels_of

Ints = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Rows:
    """Rows by site, and within a site by class. A *cell* is the rows of one class at one site; of a quantity, a site's rows.

    Attributes:
        order: the place of each row in the flat order of the clients' data, [n].
        site: the site of each row, [n], ascending.
        labels: class numbers, or a quantity in its units, [n].
        sites: how many sites there are; each has a row.
        classes: how many classes; 0 for a quantity.
        positive: the class that recall and precision are about; None: there is none.
    """

    order: Ints
    site: Ints
    labels: npt.NDArray[np.float64] | npt.NDArray[np.int64]
    sites: int
    classes: int
    positive: int | None

    @classmethod
    def of(cls, data: ClientData, federation: Federation) -> Rows:
        """Return the rows of some clients' data, such as ``federation.test``."""
        site = np.repeat(np.arange(data.count), np.asarray(data.sizes))
        labels = labels_of(data, federation)
        classes = len(federation.classes or []) if federation.task == CLASSIFICATION else 0
        order = np.lexsort((labels, site)) if classes else np.arange(data.total)
        return cls(order, site[order], labels[order], data.count, classes, positive_class(federation))

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def by_site(self) -> Ints:
        """Where each site's rows begin, [N]."""
        return beginnings(self.site)

    @cached_property
    def cells(self) -> Ints:
        """Where each cell begins, [cells]."""
        return beginnings(self.site, self.labels) if self.classes else self.by_site

    @cached_property
    def cell_sizes(self) -> Ints:
        """How many rows each cell has, [cells]."""
        return np.diff([*self.cells, len(self)])

    @cached_property
    def cells_by_site(self) -> Ints:
        """Where each site's cells begin, [N]."""
        return beginnings(self.site[self.cells])

    @cached_property
    def is_positive(self) -> npt.NDArray[np.float64]:
        """1.0 for the rows of the positive class, [n]."""
        return (self.labels == (-1 if self.positive is None else self.positive)).astype(float)

    @cached_property
    def positives(self) -> Ints:
        """How many positive rows each site has, [N]."""
        return np.add.reduceat(self.is_positive, self.by_site).astype(np.intp)

    @cached_property
    def sizes(self) -> Ints:
        """How many rows each site has, [N]."""
        return np.diff([*self.by_site, len(self)])


def beginnings(*keys: npt.NDArray[np.generic]) -> Ints:
    """Return where a new value of any of the keys begins."""
    changed = np.zeros(len(keys[0]), bool)
    changed[:1] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed)
