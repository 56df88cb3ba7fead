"""Clients' states that are with several processes: each has its own clients' in memory, and they all are in the files of a
checkpoint, one file a process, of which any process reads the rows that it needs.

In a file every client's state is one row of bytes (:class:`~fedminimax.engines.store.RowFormat`), and nothing else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedminimax import wire
from fedminimax.engines.store import JOURNAL, RowFormat
from fedminimax.errors import InputError
from fedminimax.players import Tree


class Part(NamedTuple):
    """A file of a checkpoint, with some clients' states.

    Attributes:
        first: the first client.
        last: the one after the last.
        file: its name within the checkpoint's folder.
        hash: of its contents.
    """

    first: int
    last: int
    file: str
    hash: str


@wire.message
class OwnStates(NamedTuple):
    """The states of a process's own clients, where others have those of the others.

    Attributes:
        first: the process's first client.
        clients: how many there are in all.
        rows: arrays over its own clients.
    """

    first: int
    clients: int
    rows: Tree

    @property
    def last(self) -> int:
        """The client after its last."""
        return self.first + len(jax.tree.leaves(self.rows)[0])

    @staticmethod
    def together(parts: Iterable[OwnStates]) -> Tree:
        """Return the states of all clients, [N, ...], from those of all processes."""
        found = sorted(parts, key=lambda part: part.first)
        ends = [0, *(part.last for part in found)]
        if [part.first for part in found] != ends[:-1] or ends[-1] != found[0].clients:
            raise InputError("These are not the states of all clients, each once: give those of every process of one run.")
        return jax.tree.map(lambda *rows: np.concatenate(rows), *(part.rows for part in found))

    def write(self, folder: Path) -> Part:
        """Write them to a file in a checkpoint's folder, where they would survive the machine."""
        name, check = f"clients-{self.first}-{self.last}.rows", hashlib.sha256()
        leaves = jax.tree.leaves(self.rows)
        format_ = RowFormat(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), self.rows))
        step = max(1, JOURNAL // max(1, format_.row_bytes))
        with (folder / name).open("wb") as file:
            for at in range(0, self.last - self.first, step):
                part = format_.packed([leaf[at : at + step] for leaf in leaves]).data
                check.update(part)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        return Part(self.first, self.last, name, check.hexdigest())


@wire.message
class SavedStates(NamedTuple):
    """The states of all clients in the files of a checkpoint.

    Attributes:
        folder: the checkpoint's, as a text.
        clients: how many there are.
        parts: of each file the first client, the one after the last, and its name.
    """

    folder: str
    clients: int
    parts: Sequence[tuple[int, int, str]]

    def read(self, initial: Tree, first: int = 0, last: int | None = None) -> Tree:
        """Return the states of some clients, arrays over them, and touch no others.

        Args:
            initial: one client's state before round 0, for its shapes.
            first: the first client.
            last: the one after the last; None: all that come.
        """
        last, format_ = self.clients if last is None else last, RowFormat(jax.eval_shape(lambda: initial))
        rows = np.empty((last - first, format_.row_bytes), np.uint8)
        for begin, end, name in self.parts:
            low, high = max(first, begin), min(last, end)
            if low < high:
                self._read(name, (low - begin) * format_.row_bytes, rows[low - first : high - first])
        return format_.unpacked(rows)

    def _read(self, name: str, offset: int, rows: np.ndarray) -> None:
        try:
            with (Path(self.folder) / name).open("rb") as file:
                file.seek(offset)
                whole = file.readinto(rows.data) == rows.nbytes
        except OSError as error:
            raise InputError(f"The clients' states in {self.folder} cannot be read here ({error}).") from None
        if not whole:
            raise InputError(f"{self.folder}: {name} is too short for these clients' states.")
