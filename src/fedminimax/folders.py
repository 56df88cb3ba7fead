"""What a run leaves on disk: a folder that people and programs can read, written so that nothing is ever half there.

A run's folder has

- ``run.json``: which method, settings, seed and label, how far it came, and what the columns of its history are;
- ``history.csv``: one row an evaluation, the metrics that are numbers and the costs up to then, exact to the last bit;
- ``arrays.npz``: the metrics that are arrays, such as one number for each client, [evaluations, ...];
- ``identity.json``: checksums of what makes it this run: its method, problem, data and metrics;
- ``environment.json``: versions, the machine, the command;
- ``log.txt``: what happened, with the time;
- ``figures/``: pictures that belong to it, such as grids of samples.

Folders of several runs hold such folders at any depth. Tables, figures and reports are made from these alone.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax._version import __version__
from fedminimax.errors import InputError

if TYPE_CHECKING:  # reports are made without JAX
    from fedminimax.result import Result

FORMAT = 1
"""The number of this layout; folders with a greater one were written by a later version."""
RUN, HISTORY, ARRAYS, ENVIRONMENT, LOG, FIGURES, IDENTITY = (
    "run.json", "history.csv", "arrays.npz", "environment.json", "log.txt", "figures", "identity.json"
)  # fmt: skip
PRIVACY = "privacy"
"""Among a record's notes: how the clients' messages were protected; not there where they were not."""
PLAN, PROGRESS = "plan.json", "progress.json"
"""In the folder of a sweep: what it is, and how far it is while it goes."""
RUNNING, FINISHED, INTERRUPTED, STOPPED, DIVERGED = "running", "finished", "interrupted", "stopped", "diverged"
"""How a run stands."""


@dataclass(frozen=True)
class Record:
    """One run, as its folder has it.

    Attributes:
        label: what tables and legends call it; runs with the same label are seeds of one thing.
        method: the algorithm's name.
        settings: the algorithm with its hyper-parameters, as text.
        seed: the seed.
        rounds: how many rounds have been run.
        wanted: how many were asked for.
        status: "running", "finished", "interrupted" (by Ctrl-C), "stopped" (by an observer) or "diverged".
        history: arrays over the evaluations: "round", the metrics (numbers or arrays), the costs up to then.
        costs: which of them are costs.
        better: which way metrics are better, "lower" or "higher", by their names in the history.
        on: what data metrics were taken on, "train", "validation" or "test", where it is known.
        hyper: the hyper-parameters by name, those that are numbers, texts or lists.
        seconds: the wall time of its rounds.
        notes: anything else worth keeping that JSON can hold.
        data: a checksum of the clients' data; empty: not known. In a run's own folder ``identity.json`` has it.
        folder: where it is; None: nowhere yet.
    """

    label: str
    method: str
    settings: str
    seed: int
    rounds: int
    wanted: int
    status: str
    history: dict[str, np.ndarray]
    costs: tuple[str, ...] = ()
    better: dict[str, str] = field(default_factory=dict)
    on: dict[str, str] = field(default_factory=dict)
    hyper: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    folder: Path | None = None

    @classmethod
    def of(cls, result: Result, label: str | None = None, **known: Any) -> Record:
        """Return the record of a result, with whatever else is known of it."""
        status = INTERRUPTED if result.interrupted else STOPPED if result.stopped else FINISHED
        if PRIVACY in result.info:
            known["notes"] = {**known.get("notes", {}), PRIVACY: dict(result.info[PRIVACY]["settings"])}
        return cls(
            label=result.method if label is None else label,
            method=result.method,
            settings=result.settings,
            seed=result.seed,
            rounds=result.rounds,
            wanted=known.pop("wanted", result.rounds),
            status=known.pop("status", status),
            history=dict(result.history),
            costs=tuple(result.costs),
            seconds=result.seconds,
            **known,
        )

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that are numbers."""
        return [n for n, v in self.history.items() if v.ndim == 1 and n != "round" and n not in self.costs]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The metrics that are arrays, [evaluations, ...]."""
        return {name: values for name, values in self.history.items() if values.ndim > 1}

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write the record into a folder; a reader finds the old one or the new one, whole."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        numbers = {name: values for name, values in self.history.items() if values.ndim == 1}
        if self.arrays:
            packed = io.BytesIO()
            np.savez_compressed(packed, **{name.replace("/", "\\"): values for name, values in self.arrays.items()})  # type: ignore[arg-type]
            write_atomically(target / ARRAYS, packed.getvalue())
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(numbers)
        writer.writerows(zip(*(values.tolist() for values in numbers.values()), strict=True))
        write_atomically(target / HISTORY, table.getvalue().encode())
        kept = {name: value for name, value in self.__dict__.items() if name not in ("history", "folder")}
        kept |= {"format": FORMAT, "version": __version__, "columns": {n: v.dtype.name for n, v in numbers.items()}}
        write_json(target / RUN, kept | {"arrays": list(self.arrays)})
        return target

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Record:
        """Read what :meth:`write` wrote."""
        place = Path(folder)
        kept = read_json(place / RUN)
        columns, arrays = kept.pop("columns"), kept.pop("arrays")
        kept = {name: value for name, value in kept.items() if name in cls.__dataclass_fields__}
        try:
            with (place / HISTORY).open(newline="") as file:
                names, *rows = csv.reader(file)
            history = {
                name: np.array([row[k] for row in rows], dtype=str).astype(columns[name]) for k, name in enumerate(names)
            }
            if arrays:
                with np.load(place / ARRAYS) as packed:  # which may be an evaluation ahead of the table, never behind
                    history |= {name: packed[name.replace("/", "\\")][: len(rows)] for name in arrays}
            kept |= {"costs": tuple(kept["costs"]), "data": kept.get("data") or data_checksum(place / IDENTITY)}
            return cls(**kept, history=history, folder=place)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"The run in {place} cannot be read ({error}): a file of it is damaged or missing.") from error

    def labelled(self, label: str) -> Record:
        """Return the same run under another label."""
        return replace(self, label=label)


def data_checksum(path: Path) -> str:
    """Return the checksum of the clients' data from a file that has the identity of a run or of a sweep; empty: not known."""
    with suppress(InputError, LookupError, TypeError):
        clients = read_json(path)["identity"]["clients"]
        return f"{clients['count']} clients, {clients['contents']}"
    return ""


def runs_in(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Find the folders of runs at or below a path, in the order of their names."""
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"There is no folder {root}: give the folder of a run or of an experiment.")
    yield from (found.parent for found in sorted(root.rglob(RUN)))


def make_folder(path: Path) -> None:
    """Make a folder where there is none; what stands in the way is an error that says so."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder {path} cannot be made ({error.strerror}): give another place.") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of this layout; one of a later layout, or one that is damaged, is an error that says so."""
    try:
        kept = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"There is no {path.name} in {path.parent}: it is not such a folder.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from None
    if not isinstance(kept, dict) or not isinstance(kept.get("format"), int):
        raise InputError(f"{path} was not written by fedminimax.")
    if kept["format"] > FORMAT:
        raise InputError(f"{path} was written by fedminimax {kept.get('version')}, which is later than this {__version__}.")
    return kept


def write_json(path: Path, contents: Mapping[str, Any]) -> None:
    """Write a file of this layout at once."""
    write_atomically(path, (json.dumps(contents, indent=2, default=_plain) + "\n").encode())


def write_atomically(path: Path, contents: bytes) -> None:
    """Write a file so that it is there whole, or as it was before, whenever the machine stops."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()


def write_environment(folder: Path) -> None:
    """Write down what a run depends on beside its inputs: versions, the machine, and the command that began it."""
    packages = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint", "scikit-learn")
    versions = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    jax = sys.modules.get("jax")
    contents = {
        "format": FORMAT,
        "version": __version__,
        "python": platform.python_version(),
        "packages": versions,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "devices": [] if jax is None else [str(device) for device in jax.devices()],
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    write_json(folder / ENVIRONMENT, contents)


def log(folder: Path, sentence: str) -> None:
    """Add a line to the folder's log, with the time."""
    with (folder / LOG).open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {sentence}\n")


def _plain(value: Any) -> Any:
    """Return a number or an array as JSON can hold it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, Path)):
        return value.tolist() if isinstance(value, np.ndarray) else str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
