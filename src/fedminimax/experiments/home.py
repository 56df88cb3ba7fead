"""The folder of an experiment: what it is, how it stands, and whether another one may go on in it."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedminimax import folders
from fedminimax._version import __version__
from fedminimax.crew import PROCESSES, Crew
from fedminimax.errors import InputError
from fedminimax.experiments.kinds import find_file
from fedminimax.experiments.mistakes import dotted
from fedminimax.runfolder import LOCK

if TYPE_CHECKING:
    from fedminimax.experiments.experiment import Experiment

EXPERIMENT, SPEC, RUNS, SWEEPS = "experiment.json", "spec.toml", "runs", "sweeps"


class Home:
    """The folder of an experiment.

    Args:
        path: where it is.
    """

    def __init__(self, path: Path):
        self.path = path
        self.known: dict[str, Any] = {}

    def run(self, label: str, seed: int) -> Path:
        """Return the folder of one run."""
        return self.path / RUNS / label / f"seed-{seed}"

    def sweep(self, label: str) -> Path:
        """Return the folder of a method's settings."""
        return self.path / SWEEPS / label

    def admit(self, experiment: Experiment, longer: bool = False) -> None:
        """Raise an :class:`InputError` unless the folder is new, or has this experiment.

        Args:
            experiment: what is to be run.
            longer: whether it is the folder's experiment with more rounds.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: give a folder.")
        if (self.path / EXPERIMENT).exists():
            if not longer:
                self.check(experiment)
        elif self.path.is_dir() and any(path.name not in (LOCK, PROCESSES) for path in self.path.iterdir()):
            raise InputError(f"{self.path} has other files in it: give a new folder with --out (out= in Python).")
        folders.make_folder(self.path)

    def begin(self, experiment: Experiment, labels: list[str], seeds: list[int]) -> None:
        """Write down what is to be run.

        Args:
            experiment: what is run.
            labels: of its methods.
            seeds: of its runs.
        """
        if (self.path / EXPERIMENT).exists():
            self.known = folders.read_json(self.path / EXPERIMENT)
        text = experiment.text
        for name in own_files(text or ""):
            found = find_file(name, experiment.folders)
            if found is not None and found != (self.path / name).resolve():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, self.path / name)
        if text is not None:
            folders.write_atomically(self.path / SPEC, text.encode())
        if not self.known:
            folders.write_environment(self.path)
        self.write(
            name=experiment.name,
            labels=labels,
            seeds=seeds,
            wanted=[{"label": label, "seed": seed} for label in labels for seed in seeds],
            status=folders.RUNNING,
            selected_by=self.known.get("selected_by", {}),
            chosen=self.known.get("chosen", {}),
            failed=self.known.get("failed", {}),
            lost=[],
            command=self.known.get("command", shlex.join(["fedminimax", *sys.argv[1:]])),
            beside=[str(folder) for folder in experiment.folders],
        )

    def check(self, experiment: Experiment) -> None:
        """Raise an :class:`InputError`, with what differs, if the folder has another experiment than this."""
        if experiment.text is None or not (self.path / SPEC).is_file():
            known = folders.read_json(self.path / EXPERIMENT)  # objects of Python's: each run knows its own
            spec = experiment.ready.plan.spec
            now = {"labels": list(spec.methods), "seeds": spec.chosen_seeds}
            found = list(differences({name: known[name] for name in now}, now))
        else:
            found = list(differences(self.experiment().tables, experiment.tables))
        for name in own_files(experiment.text or ""):
            source = find_file(name, experiment.folders)
            kept = self.path / name
            if source is not None and kept.is_file() and kept.read_bytes() != source.read_bytes():
                found.append(f"{name} has other contents")
        if found:
            more = "fedminimax resume goes on with more rounds. " if [f for f in found if f.startswith("rounds ")] else ""
            raise InputError(
                f"{self.path} has another experiment: {'; '.join(found)}. {more}Give another folder with --out (out= in "
                "Python), or undo the change."
            )

    def experiment(self, changes: list[str] | None = None) -> Experiment:
        """Return the experiment that the folder has, with some keys changed."""
        from fedminimax.experiments.experiment import Experiment

        if not (self.path / SPEC).is_file():
            raise InputError(
                f"{self.path} was begun in Python, with objects that a file cannot describe: run the script again, to go on."
            )
        beside = folders.read_json(self.path / EXPERIMENT).get("beside", [])
        return Experiment.from_toml(self.path / SPEC, changes or [], beside)

    def write(self, **more: Any) -> None:
        """Write down how the experiment stands."""
        self.known |= more | {"format": folders.FORMAT, "version": __version__}
        folders.write_json(self.path / EXPERIMENT, self.known)

    def tried(self, what: str, why: str | None = None) -> None:
        """Write down that something was carried out.

        Args:
            what: a run or a sweep, "label/seed-k" or "label/sweep".
            why: it failed; None: it did not.
        """
        failed = {name: said for name, said in self.known["failed"].items() if name != what}
        if why is not None:
            failed[what] = why
            self.log(f"{what} failed: {' '.join(why.split())[:300]}")
        if failed != self.known["failed"]:
            self.write(failed=failed)

    def lost(self, says: str) -> None:
        """Write down that a process is gone, once."""
        if says not in self.known["lost"]:
            self.write(lost=[*self.known["lost"], says])
            self.log(says)

    def log(self, says: str) -> None:
        """Add a line to the log."""
        folders.log(self.path, says)


class Away(Home):
    """The folder of an experiment as a process has it that does not lead: what it has to say, process 0 writes down.

    Args:
        path: where it is.
        crew: the processes that share it.
    """

    def __init__(self, path: Path, crew: Crew):
        super().__init__(path)
        self._crew, self._tried, self._said = crew, dict[str, str | None](), list[str]()

    def tried(self, what: str, why: str | None = None) -> None:
        """Say that a run was carried out. Of a sweep all know, and process 0 has what comes of it."""
        if not what.endswith("/sweep"):
            self._tried[what] = why
            self._crew.say(tried=self._tried)

    def lost(self, says: str) -> None:
        """Leave it to process 0, which misses the same one."""

    def log(self, says: str) -> None:
        """Say something for the log."""
        self._said.append(says)
        self._crew.say(said=self._said)


def own_files(text: str) -> list[str]:
    """Return the files of Python that a spec names, ``file.py:Name``."""
    return sorted({found for found in re.findall(r"[\"']([^\"']+\.py):[^\"']+[\"']", text) if not Path(found).is_absolute()})


def home_of(path: Path) -> tuple[Home, tuple[str, int] | None]:
    """Return the experiment that a folder is of, or is a run of; and which run, where it is one.

    Args:
        path: the folder of an experiment, or that of one of its runs.
    """
    if not path.is_dir():
        raise InputError(f"There is no folder {path}: give the folder of an experiment or of one of its runs.")
    if (found := find_home(path)) is not None:
        return found
    raise InputError(
        f"{path} is not the folder of an experiment, nor of a run in one: a run that Python began is continued there, with "
        "fm.resume(folder, problem, clients, algorithm)."
    )


def find_home(path: Path) -> tuple[Home, tuple[str, int] | None] | None:
    """Return the same; None where the folder is of no experiment."""
    place = path.resolve()
    if (place / EXPERIMENT).is_file():
        return Home(path), None
    for above in place.parents:
        if (above / EXPERIMENT).is_file():
            inside = place.relative_to(above).parts
            if len(inside) == 3 and inside[0] == RUNS and (number := re.fullmatch(r"seed-(\d+)", inside[2])):
                return Home(above), (inside[1], int(number[1]))
    return None


def differences(before: Any, now: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Say where two trees of tables differ."""
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*before, *(k for k in now if k not in before)]:
            if key not in now:
                yield f"{dotted((*path, key))} was there, and is not"
            elif key not in before:
                yield f"{dotted((*path, key))} is new"
            else:
                yield from differences(before[key], now[key], (*path, key))
        return
    yield f"{dotted(path)} was {before!r}, and is {now!r}"
