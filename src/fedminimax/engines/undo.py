"""What files of rows were like: old rows, kept from the moment that they are overwritten, so that a checkpoint can go back.

A copy of all rows would cost as much at every checkpoint as there are clients. A log costs the rows that are touched: the first
time that one is overwritten after a checkpoint, its old bytes are added to the log that began with that checkpoint, and are on
disk before the new ones are written. Going back to a checkpoint is putting back the rows of all logs since, the newest first.
It may be interrupted and begun again.
"""

from __future__ import annotations

import os
import struct
import weakref
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

_HEAD = struct.Struct("<4sIII")
_MAGIC = b"FMU1"
_NAME = "undo-{}.log"

Put = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
"""Writes the rows, and whether they were ever written, of some clients: (ids, flags, rows)."""


class UndoLog:
    """The logs of one store.

    Args:
        folder: where they are.
        row_bytes: how long a row is.
    """

    def __init__(self, folder: Path, row_bytes: int):
        self._folder, self._row_bytes = folder, row_bytes
        self._file: BinaryIO | None = None
        self._kept: set[int] = set()
        self.mark: str | None = None
        """The checkpoint whose rows are being kept; None: none yet."""

    def begin(self, mark: str) -> None:
        """Keep from now on what is overwritten: the rows of a checkpoint that is being taken. Marks are in order."""
        if mark == self.mark:
            return
        self.close()
        path = self._path(mark)
        self._kept = {int(id) for ids, _, _ in self._batches(path) for id in ids}
        whole = self._whole(path)
        file = path.open("ab", buffering=0)
        file.truncate(whole)  # a batch that was cut short is none, and its rows are as they were
        self._file, self.mark = file, mark
        weakref.finalize(self, file.close)
        sync_folder(self._folder)

    def missing(self, ids: np.ndarray) -> np.ndarray:
        """Return those of some clients whose rows must be kept before they are overwritten."""
        if self._file is None:
            return ids[:0]
        return np.array([id for id in ids.tolist() if id not in self._kept], np.int64)

    def keep(self, ids: np.ndarray, flags: np.ndarray, rows: np.ndarray) -> None:
        """Keep the rows of some clients; when this returns they are on disk."""
        if self._file is None or not len(ids):
            return
        body = b"".join([ids.astype("<i8").tobytes(), flags.astype(np.uint8).tobytes(), np.ascontiguousarray(rows).tobytes()])
        before = os.fstat(self._file.fileno()).st_size
        batch = memoryview(_HEAD.pack(_MAGIC, len(ids), self._row_bytes, zlib.crc32(body)) + body)
        try:
            while batch:
                batch = batch[self._file.write(batch) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(before)
            raise
        self._kept.update(ids.tolist())

    def go_back(self, mark: str, put: Put, settle: Callable[[], None]) -> None:
        """Put the rows back as they were at a checkpoint, and keep from there on what is overwritten.

        Args:
            mark: the checkpoint.
            put: writes rows.
            settle: makes what was written lasting.
        """
        self.close()
        since = [known for known in reversed(self.marks()) if known >= mark]
        for known in since:
            for ids, flags, rows in self._batches(self._path(known)):
                put(ids, flags, rows)
        settle()
        for known in since:  # the newest first: those that are left must still lead back
            if known > mark:
                self._path(known).unlink()
        self.begin(mark)

    def forget(self, mark: str) -> None:
        """Let go of logs from before a checkpoint: nobody goes back that far."""
        for known in self.marks():
            if known < mark:
                self._path(known).unlink(missing_ok=True)

    def marks(self) -> list[str]:
        """Return the checkpoints from which logs begin, in order."""
        start, end = _NAME.split("{}")
        return sorted(path.name[len(start) : -len(end)] for path in self._folder.glob(_NAME.format("*")))

    def close(self) -> None:
        """Keep nothing more."""
        if self._file is not None:
            self._file.close()
        self._file, self.mark, self._kept = None, None, set()

    def _path(self, mark: str) -> Path:
        return self._folder / _NAME.format(mark)

    def _batches(self, path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Read a log up to where it is whole."""
        if not path.exists():
            return
        with path.open("rb") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                magic, count, row_bytes, check = _HEAD.unpack(head)
                if magic != _MAGIC or row_bytes != self._row_bytes:
                    return
                body = file.read(count * (9 + row_bytes))
                if len(body) < count * (9 + row_bytes) or zlib.crc32(body) != check:
                    return
                ids = np.frombuffer(body, "<i8", count)
                flags = np.frombuffer(body, np.uint8, count, 8 * count)
                yield ids, flags.astype(bool), np.frombuffer(body, np.uint8, offset=9 * count).reshape(count, row_bytes)

    def _whole(self, path: Path) -> int:
        return sum(_HEAD.size + len(ids) * (9 + self._row_bytes) for ids, _, _ in self._batches(path))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder lasting."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
