"""Clients' own states on the host: in memory or in memory-mapped files, of which only a cohort's rows are ever touched.

A million clients' control variates do not fit on an accelerator, and need not: a round reads and writes the rows of its
cohort. Rows that nobody has written take no room (untouched pages of memory, holes in the files).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from numpy.typing import DTypeLike

from fedminimax.errors import InputError
from fedminimax.players import Array, Tree

DEVICE, HOST = "device", "host"
JOURNAL = 2**26
"""Bytes of new rows that may wait for :meth:`ClientStore.commit`."""
_NUMBERS = itertools.count()
_OPEN: weakref.WeakValueDictionary[int, ClientStore] = weakref.WeakValueDictionary()
"""Every store that is in use, by its number."""


class RowFormat:
    """How one client's state is laid out as a row of bytes."""

    def __init__(self, one: Tree):
        leaves, self.structure = jax.tree.flatten(one)
        self.shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        self.row_bytes = sum(shape.size * shape.dtype.itemsize for shape in self.shapes)

    def unpack(self, rows: jax.Array) -> Tree:
        """Return the states of which these are the bytes, inside a compiled program."""
        leaves, first = [], 0
        for shape in self.shapes:
            width = shape.dtype.itemsize
            part = rows[:, first : first + shape.size * width]
            part = part.reshape(rows.shape[0], *shape.shape, *((width,) if width > 1 else ()))
            leaves.append(part != 0 if shape.dtype == bool else lax.bitcast_convert_type(part, shape.dtype))
            first += shape.size * width
        return jax.tree.unflatten(self.structure, leaves)

    def pack(self, states: Tree) -> jax.Array:
        """Return the bytes of stacked states, inside a compiled program."""
        # As bytes, since what goes to the host may be rounded to 32 bits on its way (where x64 is on in one thread only).
        numbers = [leaf.astype(np.uint8) if leaf.dtype == bool else leaf for leaf in jax.tree.leaves(states)]
        return jnp.concatenate([lax.bitcast_convert_type(a, np.uint8).reshape(a.shape[0], -1) for a in numbers], axis=1)

    def read(self, ids: jax.Array, token: jax.Array) -> Tree:
        """Return a cohort's states from the store whose number the token is, inside a compiled program."""
        shape = jax.ShapeDtypeStruct((ids.shape[0], self.row_bytes), jnp.uint8)
        return self.unpack(io_callback(lambda ids, token: _OPEN[int(token)].read_rows(ids), shape, ids, token))

    def write(self, ids: jax.Array, here: jax.Array, states: Tree, token: jax.Array) -> jax.Array:
        """Take a cohort's states down in that store; return the token, which whoever reads next must wait for."""

        def write(ids: Array, here: Array, rows: Array, token: Array) -> np.ndarray:
            _OPEN[int(token)].write_rows(ids, np.asarray(here), rows)
            return np.asarray(token)

        return io_callback(write, jax.ShapeDtypeStruct((), jnp.int32), ids, here, self.pack(states), token)


class ClientStore:
    """The states of N clients, all alike at first: one row of bytes each.

    Writes wait in a journal until :meth:`commit`, so that rounds which are interrupted leave no trace.

    Args:
        count: N.
        initial: one client's state before round 0.
        folder: where to keep memory-mapped files; None: in memory.

    Attributes:
        rounds: after how many rounds of a run these are the states.
        number: by which compiled programs, that many runs share, know whose states to read and write.
    """

    def __init__(self, count: int, initial: Tree, folder: Path | None = None):
        initial = jax.tree.map(np.asarray, initial)
        leaves, format_ = jax.tree.leaves(initial), RowFormat(initial)
        self._structure, self.shapes, self.row_bytes = format_.structure, format_.shapes, format_.row_bytes
        self.count, self.folder, self.rounds = count, folder, 0
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise InputError(f"{folder} is a file, but the clients' states need a folder: name another.")
            if (folder / "written.npy").exists():
                raise InputError(
                    f"{folder} holds the clients' states of another run: name an empty folder. (Only the very result that "
                    "wrote them continues in it; a result that was saved and loaded brings its states along, into any folder.)"
                )
            folder.mkdir(parents=True, exist_ok=True)
        self._initial = self._packed(jax.tree.map(lambda leaf: leaf[None], leaves))[0]
        self._rows = self._room("states", (count, self.row_bytes), np.uint8)
        self._written = self._room("written", (count,), bool)
        self._journal: dict[int, np.ndarray] = {}
        self.number = next(_NUMBERS)
        _OPEN[self.number] = self

    def _room(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        if self.folder is None:
            return np.zeros(shape, dtype)
        return np.lib.format.open_memmap(self.folder / f"{name}.npy", "w+", dtype, shape)

    def _packed(self, leaves: list[np.ndarray]) -> np.ndarray:
        flat = [np.ascontiguousarray(leaf, s.dtype).reshape(len(leaf), -1) for leaf, s in zip(leaves, self.shapes, strict=True)]
        return np.concatenate([leaf.view(np.uint8) for leaf in flat], axis=1)

    def read_rows(self, ids: Sequence[int] | Array) -> np.ndarray:
        """Return the states of some clients as bytes, [S, row_bytes]."""
        ids = np.asarray(ids)
        rows = np.where(self._written[ids][:, None], self._rows[ids], self._initial)
        for place, id in enumerate(ids.tolist()):
            if id in self._journal:
                rows[place] = self._journal[id]
        return rows

    def write_rows(self, ids: Array, here: Array, rows: Array) -> None:
        """Take down new states, as bytes, of those clients that are ``here``."""
        rows = np.asarray(rows)
        for place, id in enumerate(np.asarray(ids).tolist()):
            if here[place]:
                self._journal[id] = rows[place].copy()

    def read(self, ids: Sequence[int] | Array) -> Tree:
        """Return the states of some clients, stacked."""
        return self._tree(self.read_rows(ids))

    def _tree(self, rows: np.ndarray) -> Tree:
        leaves, first = [], 0
        for shape in self.shapes:
            size = shape.size * shape.dtype.itemsize
            part = np.ascontiguousarray(rows[:, first : first + size])
            leaves.append(part.view(shape.dtype).reshape(len(rows), *shape.shape))
            first += size
        return jax.tree.unflatten(self._structure, leaves)

    def commit(self) -> None:
        """Make what was written lasting."""
        for id, row in self._journal.items():
            self._rows[id] = row
            self._written[id] = True
        self._journal.clear()

    def rollback(self) -> None:
        """Forget what was written since the last commit."""
        self._journal.clear()

    def written(self) -> np.ndarray:
        """Return the numbers of the clients whose state was ever written."""
        return np.flatnonzero(self._written)

    def dense(self) -> Tree:
        """Return all states, [N, ...]."""
        return self.read(np.arange(self.count))

    def take(self, other: Tree | ClientStore) -> None:
        """Take over the states of another store, or of arrays [N, ...]."""
        if other is self:
            return
        stored = isinstance(other, ClientStore)
        ids = other.written() if stored else np.arange(self.count)
        of_arrays = lambda ids: self._packed([np.asarray(leaf)[ids] for leaf in jax.tree.leaves(other)])
        rows_of = other.read_rows if stored else of_arrays
        for part in np.array_split(ids, max(1, -(-len(ids) * self.row_bytes // JOURNAL))):
            self.write_rows(part, np.ones(len(part), bool), rows_of(part))
            self.commit()

    def record(self) -> dict[str, Any]:
        """Return everything as arrays that can be saved: the rows that were written, and what the others are."""
        ids = self.written()
        initial = jax.tree.map(lambda a: a[0], self._tree(self._initial[None]))
        return {"clients": self.count, "initial": initial, "ids": ids, "rows": self.read_rows(ids), "rounds": self.rounds}

    @classmethod
    def restore(cls, record: dict[str, Any]) -> ClientStore:
        """Return a store in memory with what :meth:`record` returned."""
        store = cls(int(record["clients"]), record["initial"])
        store.write_rows(record["ids"], np.ones(len(record["ids"]), bool), record["rows"])
        store.commit()
        store.rounds = int(record["rounds"])
        return store

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else f"in {self.folder}"
        return f"ClientStore({self.count} clients, {len(self.written())} written, {self.row_bytes} bytes each, {where})"
