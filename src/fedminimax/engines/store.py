"""Clients' own states on the host: in memory or in memory-mapped files, of which only a cohort's rows are ever touched.

A million clients' control variates do not fit on an accelerator, and need not: a round reads and writes the rows of its
cohort. Rows that nobody has written take no room (untouched pages of memory, holes in the files).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedminimax.errors import InputError
from fedminimax.players import Tree

DEVICE, HOST = "device", "host"
JOURNAL = 2**26
"""Bytes of new rows that may wait for :meth:`ClientStore.commit`."""


class ClientStore:
    """The states of N clients, all alike at first.

    Writes wait in a journal until :meth:`commit`, so that rounds which are interrupted leave no trace.

    Args:
        count: N.
        initial: one client's state before round 0.
        folder: where to keep memory-mapped files; None: in memory.

    Attributes:
        rounds: after how many rounds of a run these are the states.
    """

    def __init__(self, count: int, initial: Tree, folder: Path | None = None):
        leaves, self._structure = jax.tree.flatten(jax.tree.map(np.asarray, initial))
        self.count, self.folder, self._initial = count, folder, leaves
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise InputError(f"{folder} is a file, but the clients' states need a folder: name another.")
            if (folder / "written.npy").exists():
                raise InputError(
                    f"{folder} holds the clients' states of another run: name an empty folder, or continue that run "
                    "(run(..., start=result, client_store=folder))."
                )
            folder.mkdir(parents=True, exist_ok=True)
        self._rows = [self._room(f"state_{k}", leaf.shape, leaf.dtype) for k, leaf in enumerate(leaves)]
        self._written = self._room("written", (), np.dtype(bool))
        self.rounds = 0
        self._journal: dict[int, list[np.ndarray]] = {}

    def _room(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if self.folder is None:
            return np.zeros((self.count, *shape), dtype)
        return np.lib.format.open_memmap(self.folder / f"{name}.npy", "w+", dtype, (self.count, *shape))

    @property
    def row_bytes(self) -> int:
        """The size of one client's state."""
        return sum(leaf.nbytes for leaf in self._initial)

    def read(self, ids: Any) -> Tree:
        """Return the states of some clients, stacked."""
        ids = np.asarray(ids)
        known = self._written[ids]
        out = []
        for k, (rows, initial) in enumerate(zip(self._rows, self._initial, strict=True)):
            value = np.where(known.reshape(-1, *[1] * initial.ndim), rows[ids], initial)
            for place, id in enumerate(ids.tolist()):
                if id in self._journal:
                    value[place] = self._journal[id][k]
            out.append(value)
        return jax.tree.unflatten(self._structure, out)

    def write(self, ids: Any, here: Any, states: Tree) -> None:
        """Take down new states of those clients that are ``here``."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
        for place, id in enumerate(np.asarray(ids).tolist()):
            if here[place]:
                self._journal[id] = [leaf[place].copy() for leaf in leaves]

    def commit(self) -> None:
        """Make what was written lasting."""
        for id, row in self._journal.items():
            for rows, value in zip(self._rows, row, strict=True):
                rows[id] = value
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
        rows_of = other.read if stored else lambda ids: jax.tree.map(lambda a: np.asarray(a)[ids], other)
        for part in np.array_split(ids, max(1, -(-len(ids) * self.row_bytes // JOURNAL))):
            self.write(part, np.ones(len(part), bool), rows_of(part))
            self.commit()

    def record(self) -> dict[str, Any]:
        """Return everything as arrays that can be saved: the rows that were written, and what the others are."""
        ids = self.written()
        initial = jax.tree.unflatten(self._structure, self._initial)
        return {"clients": self.count, "initial": initial, "ids": ids, "rows": self.read(ids)}

    @classmethod
    def restore(cls, record: dict[str, Any]) -> ClientStore:
        """Return a store in memory with what :meth:`record` returned."""
        store = cls(int(record["clients"]), record["initial"])
        store.write(record["ids"], np.ones(len(record["ids"]), bool), record["rows"])
        store.commit()
        return store

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else f"in {self.folder}"
        return f"ClientStore({self.count} clients, {len(self.written())} written, {self.row_bytes} bytes each, {where})"
