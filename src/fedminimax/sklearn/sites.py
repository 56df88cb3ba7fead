"""Whose row is whose: the ``clients`` that ``fit`` is given, as numbers and names."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.errors import InputError


class Sites(NamedTuple):
    """The clients of some rows."""

    owner: npt.NDArray[np.intp]
    """The number of every row's client, [rows]."""
    names: npt.NDArray[Any]
    """What the clients are called, [N]: sorted where that is possible."""

    @classmethod
    def of(cls, clients: Any, rows: int) -> Sites:
        """Return the clients of so many rows, or say what is wrong with them.

        Args:
            clients: one value a row (numbers, texts, categories); None: all rows are one client's.
            rows: how many rows there are.
        """
        if clients is None:
            return cls(np.zeros(rows, np.intp), np.zeros(1, np.intp))
        if isinstance(clients, str) or not np.iterable(clients):
            raise InputError(f"clients is {clients!r}: give the client of every row, such as a column of the table.")
        shape = np.shape(clients)  # type: ignore[call-overload]
        if len(shape) != 1:
            raise InputError(f"clients has shape {shape}: give one value for each of the {rows} rows.")
        values = pd.Series(clients).reset_index(drop=True)
        if len(values) != rows:
            raise InputError(f"clients has {len(values)} values, but X has {rows} rows: give the client of every row.")
        missing = np.flatnonzero(values.isna())
        if missing.size:
            raise InputError(
                f"clients is missing in {missing.size} of {rows} rows, first in row {missing[0]}: name a client, or leave "
                "these rows out."
            )
        owner, found = pd.factorize(values.astype(object))
        names = np.asarray(found, object)
        try:
            order = np.argsort(names, kind="stable")
        except TypeError:  # texts and numbers side by side have no order
            order = np.arange(len(names))
        place = np.empty(len(names), np.intp)
        place[order] = np.arange(len(names))
        return cls(place[owner], np.array(list(names[order])) if _alike(names) else names[order])


def _alike(names: npt.NDArray[Any]) -> bool:
    """Tell whether all names are of one type, so that an array of them keeps what they are."""
    return len({type(name) for name in names}) == 1 and not isinstance(names[0], tuple)
