"""What a fair study has come to, in a folder: the same study goes on from there, and does not train again.

In the folder are ``told.fmx`` (what the sites told before training), ``tuned.fmx`` (the step sizes that were found), for each
method and seed a run's folder with its checkpoints, and beside it ``NAME-SEED.fmx``, what came of the run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedminimax import wire
from fedminimax._version import __version__
from fedminimax.errors import InputError
from fedminimax.fairness.tuning import Tuned
from fedminimax.fedfair import asking
from fedminimax.fedfair.question import Question
from fedminimax.folders import make_folder, write_atomically
from fedminimax.result import Result
from fedminimax.sweep import Sweep

TOLD, TUNED, HELLO, TRAINING = "told.fmx", "tuned.fmx", "hello.fmx", "training"


class Kept:
    """The folder of a study.

    Args:
        folder: where.
        question: what is agreed on.
        sites: the sites' names.
    """

    def __init__(self, folder: Path, question: Question, sites: Sequence[str]):
        asked = [question.to_settings(), sorted(sites), __version__]
        self.folder = folder
        self._key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    @property
    def told(self) -> dict[str, dict[str, Any]]:
        """What the sites told before training, by question and site; empty: this study has not come so far."""
        found = _read(self.folder / TOLD)
        return found["told"] if isinstance(found, dict) and found.get("study") == self._key else {}

    def is_of(self, told: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether the study is of the rows that the sites tell of now."""
        return _rows(self.told) == _rows(told)

    def begin(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Begin the study; what is there of another one, or of other rows, goes."""
        if (self.folder / TOLD).exists():
            shutil.rmtree(self.folder)
        make_folder(self.folder)
        write_atomically(self.folder / TOLD, wire.encode({"study": self._key, "told": told}))

    @property
    def tuned(self) -> dict[str, Tuned] | None:
        """The step sizes that were found; None: they were not searched yet."""
        found = _read(self.folder / TUNED)
        return None if found is None else {name: _tuned(one) for name, one in found.items()}

    def keep_tuned(self, tuned: Mapping[str, Tuned]) -> None:
        """Keep the step sizes that were found."""
        plain = {
            name: {
                "grids": list(one.grids),
                "searches": [{field.name: getattr(search, field.name) for field in fields(Sweep)} for search in one.searches],
                "settings": one.settings,
                "edges": one.edges,
            }
            for name, one in tuned.items()
        }
        write_atomically(self.folder / TUNED, wire.encode(plain))

    def run(self, method: str, seed: int) -> Path:
        """Where a run is kept while it goes."""
        return self.folder / f"{method.replace(':', '_')}-{seed}"

    def result(self, method: str, seed: int) -> Result | None:
        """Return what came of a run; None: it is not over."""
        path = self.run(method, seed).with_suffix(".fmx")
        return Result.load(path) if path.exists() else None

    def keep_result(self, method: str, result: Result) -> None:
        """Keep what came of a run."""
        result.save(self.run(method, result.seed).with_suffix(".fmx"))


def _rows(told: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return what was told of the rows, for comparison."""
    return wire.encode({kind: dict(sorted(told[kind].items())) for kind in (asking.SKETCH, asking.SUMMARY)})


def _tuned(kept: Mapping[str, Any]) -> Tuned:
    searches = tuple(Sweep(**search) for search in kept["searches"])
    return Tuned(tuple(kept["grids"]), searches, kept["settings"], kept["edges"])


def _read(path: Path) -> Any:
    """Return what a file holds; None: it is not there, or not as it was written."""
    try:
        return wire.decode(path.read_bytes())
    except (OSError, InputError):
        return None
