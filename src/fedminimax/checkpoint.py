"""Checkpoints on disk: all that a run goes on from, each whole or not there.

A checkpoint is a folder ``checkpoints/<round>.<number>``. Its arrays are written by orbax-checkpoint; when they are complete
comes ``checkpoint.json``, with what the arrays are and a hash of every file. A folder without it is none, and one of which a
hash is wrong is damaged: the one before takes its place.

Of a run over many processes, each has written a file with its own clients' states (:mod:`fedminimax.engines.rows`).

Clients' states that live in files stay there. The store's log leads back to how they were (:mod:`fedminimax.engines.undo`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedminimax import wire
from fedminimax._version import __version__
from fedminimax.engines.rows import Part, SavedStates
from fedminimax.engines.store import ClientStore
from fedminimax.errors import InputError
from fedminimax.folders import FORMAT, write_json
from fedminimax.result import Result

CHECKPOINTS = "checkpoints"
_MANIFEST, _ARRAYS, _TOGETHER = "checkpoint.json", "arrays", "together"
_SMALL = 2**24
"""Bytes below which arrays are saved as one: each that is saved alone costs files, and more time than its bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
        name: its folder's.
        result: what had come of the run.
        facts: what else was written down: the first and last round, the interval of evaluations, the layout.
        version: the fedminimax that wrote it.
        packages: versions of what else its numbers depend on.
        files: where clients' states live in files, or those of the checkpoint that have them; None: they are in the result.
    """

    name: str
    result: Result
    facts: dict[str, Any]
    version: str
    packages: dict[str, str]
    files: Path | SavedStates | None

    def with_states(self, initial: Callable[[], Any]) -> Result:
        """Return the result with the clients' states that are in files as they were: what was written since is taken back.

        Args:
            initial: returns one client's state before round 0.
        """
        if self.files is None:
            return self.result
        if isinstance(self.files, SavedStates):
            return Result(**{**self.result.__dict__, "client_states": self.files})
        count, rounds = int(self.facts["clients"]), self.result.rounds
        store = ClientStore.reopen(self.files, count, initial(), self.name, rounds)
        return Result(**{**self.result.__dict__, "client_states": store})


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of what a run's bits depend on beside fedminimax."""
    found = {}
    for package in ("jax", "jaxlib"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def next_name(folder: Path, rounds: int) -> str:
    """Return the name of a new checkpoint after so many rounds; names sort by age."""
    taken = [name for name in _names(folder) if name.startswith(f"{rounds:09d}.")]
    return f"{rounds:09d}.{int(taken[-1].rpartition('.')[2]) + 1 if taken else 0:03d}"


def make(folder: Path, name: str) -> Path:
    """Return the folder of a checkpoint that is to be written."""
    place = folder.resolve() / CHECKPOINTS / name
    place.mkdir(parents=True)
    return place


def write(
    folder: Path, name: str, result: Result, facts: dict[str, Any], elsewhere: Callable[[], list[Part]] | None = None
) -> None:
    """Write a checkpoint. It is there when this returns, and not before; where it cannot be written, nothing is left of it.

    Args:
        folder: the run's.
        name: the checkpoint's.
        result: what has come of the run.
        facts: what else to write down.
        elsewhere: waits for clients' states that others write into it; None: they are in the result.
    """
    place, store = folder / CHECKPOINTS / name, result.client_states
    files = store.folder if isinstance(store, ClientStore) else None
    if files is not None:
        facts = facts | {"clients": store.count}
        store.settle()
        result = Result(**{**result.__dict__, "client_states": None})
    try:
        parts = [] if elsewhere is None else elsewhere()
        if parts:
            result = Result(**{**result.__dict__, "client_states": None})
        description, arrays = wire.take_apart(result.record())
        small = [array for array in arrays if array.nbytes < _SMALL]
        tree = {f"{k:06d}": array for k, array in enumerate(arrays) if array.nbytes >= _SMALL}
        tree[_TOGETHER] = np.frombuffer(b"".join([b"\0", *(array.tobytes() for array in small)]), np.uint8)
        (place / _ARRAYS).mkdir(parents=True)
        _save(place / _ARRAYS, tree)
        manifest = {
            "format": FORMAT,
            "version": __version__,
            "packages": versions(),
            "rounds": result.rounds,
            "facts": facts,
            "states": [part[:3] for part in parts] or (None if files is None else os.path.relpath(files, folder)),
            "description": description,
            "shapes": [[array.dtype.name, list(array.shape)] for array in arrays],
            "files": {str(path.relative_to(place)): _hash_and_keep(path) for path in _inside(place / _ARRAYS)}
            | {part.file: part.hash for part in parts},
        }
        write_json(place / _MANIFEST, manifest | {"hash": _hash_of(manifest)})
        _settle(place, place.parent)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


class Damaged(Exception):
    """A checkpoint is not as it was written."""


def read(folder: Path, name: str) -> Checkpoint:
    """Read a checkpoint; one that is not as it was written is :class:`Damaged`."""
    place = folder / CHECKPOINTS / name
    manifest = _checked(place)
    importlib.import_module("fedminimax.algorithms")  # it names the classes of its states, which must be known
    tree = _handler().restore((place / _ARRAYS).resolve())
    together, at, arrays = np.asarray(tree[_TOGETHER]), 1, []
    for k, (kind, shape) in enumerate(manifest["shapes"]):
        dtype, count = np.dtype(kind), int(np.prod(shape, dtype=np.int64))
        if f"{k:06d}" in tree:
            arrays.append(np.asarray(tree[f"{k:06d}"]))
            continue
        arrays.append(np.frombuffer(together[at : at + count * dtype.itemsize].tobytes(), dtype).reshape(shape))
        at += count * dtype.itemsize
    result = Result.of_record(wire.put_together(manifest["description"], arrays))
    kept = manifest["states"]
    files: Path | SavedStates | None = None
    if isinstance(kept, list):
        files = SavedStates(str(place.resolve()), max(last for _, last, _ in kept), kept)
    elif kept is not None:
        files = Path(os.path.normpath(folder / kept))
    return Checkpoint(name, result, manifest["facts"], manifest["version"], manifest["packages"], files)


def _checked(place: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest, once all that it tells of is there."""
    try:
        manifest = json.loads((place / _MANIFEST).read_bytes())
        if manifest["format"] > FORMAT:
            raise InputError(
                f"{place} was written by fedminimax {manifest['version']}, which is later than this {__version__}."
            )
        if manifest.pop("hash", None) != _hash_of(manifest):
            raise Damaged(f"{_MANIFEST} is not as it was written")
        for path, wanted in manifest["files"].items():
            if _hash(place / path) != wanted:
                raise Damaged(f"{path} is not as it was written")
    except (OSError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise Damaged(f"a file is missing or cannot be read: {error}") from error
    return manifest


def newest(folder: Path, say: Callable[[str], None] = lambda sentence: None) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, and say of every newer one what is wrong with it; None: there is none."""
    for name in reversed(_names(folder)):
        try:
            return read(folder, name)
        except Damaged as error:
            say(f"The checkpoint after {int(name.partition('.')[0])} rounds is damaged ({error}): the one before it is taken")
    return None


def clear(folder: Path, newer: str | None) -> None:
    """Remove folders that were not finished, and checkpoints newer than the one that is gone on from (None: all)."""
    for place in (folder / CHECKPOINTS).glob("*"):
        if not (place / _MANIFEST).exists() or newer is None or place.name > newer:
            shutil.rmtree(place, ignore_errors=True)


def prune(folder: Path, keep: int) -> str | None:
    """Remove all but the newest checkpoints; return the oldest that is left."""
    names = _names(folder)
    for name in names[:-keep]:
        (folder / CHECKPOINTS / name / _MANIFEST).unlink(missing_ok=True)  # first, so that it is none before it is in parts
        shutil.rmtree(folder / CHECKPOINTS / name, ignore_errors=True)
    return next(iter(names[-keep:]), None)


def warm_up() -> None:
    """Load what saving needs, which takes a second: best while something is compiled."""
    _handler()


def _names(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in (folder / CHECKPOINTS).glob(f"*/{_MANIFEST}"))


def _handler() -> Any:
    # Trained weights hardly shrink; one file for many arrays is what `_SMALL` is for; and that a checkpoint is there whole or
    # not at all is the manifest's business. Without compression, database and orbax's own renaming it takes half the time.
    from orbax.checkpoint import PyTreeCheckpointHandler

    return PyTreeCheckpointHandler(use_ocdbt=False, use_compression=False)


def _save(place: Path, tree: dict[str, np.ndarray]) -> None:
    from orbax.checkpoint.args import PyTreeSave

    _handler().save(place.resolve(), args=PyTreeSave(tree))


def _inside(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_and_keep(path: Path) -> str:
    """Return a file's hash, once it would survive the machine."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _hash(path)


def _hash_of(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _settle(*folders: Path) -> None:
    """Make the names in folders lasting."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
