"""Clients' own states on the host: in memory or in memory-mapped files, of which only a cohort's rows are ever touched.

A million clients' control variates do not fit on an accelerator, and need not: a round reads and writes the rows of its
cohort. Rows that nobody has written take no room (untouched pages of memory, holes in the files).
"""

from __future__ import annotations

import itertools
import os
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from numpy.typing import DTypeLike

from fedminimax.engines.undo import UndoLog
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

    def packed(self, leaves: list[np.ndarray]) -> np.ndarray:
        """Return the bytes of stacked states, of which these are the leaves, [S, row_bytes]."""
        flat = [np.ascontiguousarray(leaf, s.dtype).reshape(len(leaf), -1) for leaf, s in zip(leaves, self.shapes, strict=True)]
        return np.concatenate([leaf.view(np.uint8) for leaf in flat], axis=1)

    def unpacked(self, rows: np.ndarray) -> Tree:
        """Return the stacked states of which these are the bytes."""
        leaves, first = [], 0
        for shape in self.shapes:
            size = shape.size * shape.dtype.itemsize
            part = np.ascontiguousarray(rows[:, first : first + size])
            leaves.append(part.view(shape.dtype).reshape(len(rows), *shape.shape))
            first += size
        return jax.tree.unflatten(self.structure, leaves)

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


class Room:
    """An array whose rows are read in place, and written so that a full disk is an error and not the end of the process.

    Args:
        array: in memory, or mapped to a file.
    """

    def __init__(self, array: np.ndarray):
        self.array = array
        mapped = isinstance(array, np.memmap)
        self._file = open(array.filename, "r+b", buffering=0) if mapped else None  # type: ignore[attr-defined]  # noqa: SIM115
        self._first = array.offset if mapped else 0  # type: ignore[attr-defined]
        if self._file is not None:
            weakref.finalize(self, self._file.close)

    def put(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Write some rows."""
        if self._file is None:
            self.array[ids] = rows
            return
        rows = np.ascontiguousarray(rows, self.array.dtype).reshape(len(ids), -1)
        width, file = rows.shape[1] * rows.itemsize, self._file.fileno()
        for id, row in zip(ids.tolist(), rows, strict=True):
            at, left = self._first + id * width, memoryview(row.tobytes())
            while left:
                done = os.pwrite(file, left, at)
                at, left = at + done, left[done:]

    def settle(self) -> None:
        """Wait until what was written is on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())


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
        self._take_format(initial)
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
        self._begin(jax.tree.leaves(initial))

    def _take_format(self, initial: Tree) -> None:
        self._format = RowFormat(initial)
        self.shapes, self.row_bytes = self._format.shapes, self._format.row_bytes

    def _begin(self, initial: list[np.ndarray], mode: Literal["w+", "r+"] = "w+") -> None:
        self._initial = self._format.packed([leaf[None] for leaf in initial])[0]
        self._rows = self._room("states", (self.count, self.row_bytes), np.uint8, mode)
        self._written = self._room("written", (self.count,), bool, mode)
        self._journal: dict[int, np.ndarray] = {}
        self._waiting: dict[int, np.ndarray] = {}
        self._undo = None if self.folder is None else UndoLog(self.folder, self.row_bytes)
        self.number = next(_NUMBERS)
        _OPEN[self.number] = self

    def _room(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, mode: Literal["w+", "r+"]) -> Room:
        if self.folder is None:
            return Room(np.zeros(shape, dtype))
        return Room(np.lib.format.open_memmap(self.folder / f"{name}.npy", mode, dtype, shape))

    @classmethod
    def reopen(cls, folder: Path, count: int, initial: Tree, mark: str, rounds: int) -> ClientStore:
        """Return the store whose files are in a folder, with its states as they were at a checkpoint.

        Args:
            folder: where the files are.
            count: N.
            initial: one client's state before round 0.
            mark: the checkpoint.
            rounds: after how many rounds it was taken.
        """
        initial = jax.tree.map(np.asarray, initial)
        store = cls.__new__(cls)
        store._take_format(initial)
        store.count, store.folder, store.rounds = count, folder, rounds
        try:
            store._begin(jax.tree.leaves(initial), "r+")
        except (OSError, ValueError) as error:
            raise InputError(f"The clients' states in {folder} cannot be read ({error}): a file is damaged or gone.") from None
        if store._rows.array.shape != (count, store.row_bytes):
            raise InputError(f"The clients' states in {folder} are those of other clients: the file has another shape.")
        assert store._undo is not None
        store._undo.go_back(mark, store._put, store.settle)
        return store

    def read_rows(self, ids: Sequence[int] | Array) -> np.ndarray:
        """Return the states of some clients as bytes, [S, row_bytes]."""
        ids = np.asarray(ids)
        rows = np.where(self._written.array[ids][:, None], self._rows.array[ids], self._initial)
        for place, id in enumerate(ids.tolist()):
            newest = self._journal.get(id, self._waiting.get(id))
            if newest is not None:
                rows[place] = newest
        return rows

    def write_rows(self, ids: Array, here: Array, rows: Array) -> None:
        """Take down new states, as bytes, of those clients that are ``here``."""
        rows = np.asarray(rows)
        for place, id in enumerate(np.asarray(ids).tolist()):
            if here[place]:
                self._journal[id] = rows[place].copy()

    def read(self, ids: Sequence[int] | Array) -> Tree:
        """Return the states of some clients, stacked."""
        return self._format.unpacked(self.read_rows(ids))

    def commit(self) -> None:
        """Make what was written lasting. Where files cannot take it, it waits in memory, and the run goes on."""
        self._waiting |= self._journal
        self._journal.clear()
        try:
            self._flush()
        except OSError as error:
            warnings.warn(
                f"The clients' states cannot be written to {self.folder} ({error}): they wait in memory until there is room.",
                stacklevel=2,
            )

    def _flush(self) -> None:
        if not self._waiting:
            return
        ids = np.fromiter(self._waiting, np.int64, len(self._waiting))
        if self._undo is not None:
            old = self._undo.missing(ids)
            self._undo.keep(old, self._written.array[old], self._rows.array[old])
        self._put(ids, np.ones(len(ids), bool), np.stack(list(self._waiting.values())))
        self._waiting.clear()

    def _put(self, ids: np.ndarray, flags: np.ndarray, rows: np.ndarray) -> None:
        self._rows.put(ids, rows)
        self._written.put(ids, flags)

    def rollback(self) -> None:
        """Forget what was written since the last commit."""
        self._journal.clear()

    def mark(self, name: str) -> None:
        """Remember the states as they are now under the name of a checkpoint; names are in order."""
        assert self._undo is not None, "a store in memory is kept as a whole"
        self._flush()
        self._undo.begin(name)

    def forget(self, name: str) -> None:
        """Let go of what checkpoints before this one were."""
        if self._undo is not None:
            self._undo.forget(name)

    def settle(self) -> None:
        """Make sure that what was written would survive the machine."""
        self._rows.settle()
        self._written.settle()

    def written(self) -> np.ndarray:
        """Return the numbers of the clients whose state was ever written."""
        return np.union1d(np.flatnonzero(self._written.array), np.fromiter(self._waiting, np.int64, len(self._waiting)))

    def dense(self) -> Tree:
        """Return all states, [N, ...]."""
        return self.read(np.arange(self.count))

    def take(self, other: Tree | ClientStore) -> None:
        """Take over the states of another store, or of arrays [N, ...]."""
        if other is self:
            return
        stored = isinstance(other, ClientStore)
        ids = other.written() if stored else np.arange(self.count)
        of_arrays = lambda ids: self._format.packed([np.asarray(leaf)[ids] for leaf in jax.tree.leaves(other)])
        rows_of = other.read_rows if stored else of_arrays
        for part in np.array_split(ids, max(1, -(-len(ids) * self.row_bytes // JOURNAL))):
            self.write_rows(part, np.ones(len(part), bool), rows_of(part))
            self.commit()

    def record(self) -> dict[str, Any]:
        """Return everything as arrays that can be saved: the rows that were written, and what the others are."""
        ids = self.written()
        initial = jax.tree.map(lambda a: a[0], self._format.unpacked(self._initial[None]))
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
