"""What a report is made from: runs, sweeps, specs and pictures, found in folders or given as results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from fedminimax import folders
from fedminimax.errors import InputError
from fedminimax.folders import Record
from fedminimax.report.words import listed

if TYPE_CHECKING:
    from fedminimax.result import Result
    from fedminimax.sweep import Sweep

SWEEP, SWEEPS, EXPERIMENT, SPEC = "sweep.json", "sweeps", "experiment.json", "spec.toml"
OWN = "report_"
"""How the names of pictures begin that a report wrote itself: these do not go into the next one."""


@dataclass(frozen=True)
class Source:
    """One folder that was given, and what is known of it beside its runs.

    Attributes:
        path: the folder.
        name: what tells it from the others that were given.
        experiment: what ``experiment.json`` says; empty where there is none.
        spec: the text of ``spec.toml``; empty where there is none.
        environment: what ``environment.json`` says, of the folder or of its first run.
        missing: how many runs its experiment wants that have not begun.
    """

    path: Path
    name: str
    experiment: dict[str, Any]
    spec: str
    environment: dict[str, Any]
    missing: int

    @property
    def command(self) -> str:
        """The command that began it, as far as it is known."""
        found = str(self.experiment.get("command") or self.environment.get("command") or "")
        return f"python {found}" if found.split(" ")[0].endswith(".py") else found


@dataclass(frozen=True)
class Material:
    """Everything that goes into a report.

    Attributes:
        records: the runs; those with the same label are seeds of one thing.
        sweeps: searches of hyper-parameters, by label.
        sources: the folders they came from; none for results in memory.
        notes: what a reader must know of how they were found.
    """

    records: list[Record]
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        """The labels, in order."""
        return list(dict.fromkeys(record.label for record in self.records))

    @property
    def pictures(self) -> list[tuple[Record, Path]]:
        """The pictures that runs left in their folders."""
        return [
            (record, path)
            for record in self.records
            if record.folder is not None
            for path in sorted((record.folder / folders.FIGURES).glob("*.png"))
            if not path.name.startswith(OWN)
        ]

    @property
    def name(self) -> str:
        """What it is called where nobody gave a title."""
        if self.sources:
            return " and ".join(str(source.experiment.get("name") or source.name) for source in self.sources)
        return listed(self.labels)


def gather(what: Any, better: Mapping[str, str] | None = None) -> Material:
    """Find what a report is to be made from.

    Args:
        what: a folder or several (of runs, experiments or sweeps); a result, a record or several; those by label; the outcome
            of :func:`fedminimax.compare` or :func:`fedminimax.sweep`.
        better: which way metrics are better, where they do not say so themselves.
    """
    if isinstance(what, (str, os.PathLike)):
        found = _from_folders([Path(what)])
    elif isinstance(what, Sequence) and what and all(isinstance(one, (str, os.PathLike)) for one in what):
        found = _from_folders([Path(one) for one in what])
    else:
        found = _from_memory(what)
    if not found.records and not found.sweeps:
        why = found.notes[0] if found.notes else "No run was found."
        raise InputError(f"There is nothing to report. {why} Give the folder of a run, or results.")
    return replace(found, records=[_directed(record, dict(better or {})) for record in found.records])


def _from_folders(paths: Sequence[Path]) -> Material:
    names = _names(paths)
    sources, notes = [], []
    sweeps: dict[str, Sweep] = {}
    by_source: list[list[Record]] = []
    for path, name in zip(paths, names, strict=True):
        records: list[Record] = []
        for folder in folders.runs_in(path):
            try:
                records.append(Record.read(folder))
            except InputError as error:
                if folder == path:
                    raise
                notes.append(f"{error} It is left out.")
        experiment: dict[str, Any] = folders.read_json(path / EXPERIMENT) if (path / EXPERIMENT).exists() else {}
        searched = _sweeps(path)
        if not records and not searched and not notes:
            raise InputError(f"There is no run in {path}: give the folder of a run or of an experiment.")
        sweeps |= {label if len(paths) == 1 else f"{label} ({name})": sweep for label, sweep in searched.items()}
        if not records:
            records = [one for label, sweep in searched.items() for one in _winner(label, sweep)]
        spec = (path / SPEC).read_text() if (path / SPEC).exists() else ""
        places = [path, *(record.folder for record in records if record.folder is not None)]
        environment = next((kept for place in places if (kept := _environment(place))), {})
        failed = experiment.get("failed") or {}
        notes += [f"{what} failed: {' '.join(str(why).split())}" for what, why in failed.items()]
        wanted = len(experiment.get("labels") or []) * len(experiment.get("seeds") or [])
        order = {str(label): k for k, label in enumerate(experiment.get("labels") or [])}
        records.sort(key=lambda record: order.get(record.label, len(order)))  # as the spec has them
        by_source.append(_told_apart(records, path))
        sources.append(Source(path, name, experiment, spec, environment, max(0, wanted - len(records))))
    shared = _repeated(label for records in by_source for label in {record.label for record in records})
    labelled = [
        record.labelled(f"{record.label} ({source.name})") if record.label in shared else record
        for records, source in zip(by_source, sources, strict=True)
        for record in records
    ]
    return Material(labelled, sweeps, sources, notes)


def _from_memory(what: Any) -> Material:
    held = getattr(what, "results", what)  # of Curves
    asked = int(getattr(what, "rounds", 0))
    wanted = lambda result: max(asked, result.rounds)
    if _is_sweep(held):
        return Material(_winner(held.method, held), {held.method: held})
    if _is_run(held):
        held = [held]
    pairs: list[tuple[str | None, Any]]
    if isinstance(held, Mapping):
        sweeps = {str(label): one for label, one in held.items() if _is_sweep(one)}
        pairs = [
            (str(label), one)
            for label, given in held.items()
            if label not in sweeps
            for one in ([given] if _is_run(given) else given)
        ]
    elif isinstance(held, Iterable):
        sweeps, pairs = {}, [(None, one) for one in held]
    else:
        raise InputError(f"A report is made of folders or results, not of {type(what).__name__}.")
    records = []
    for label, one in pairs:
        if not _is_run(one):
            raise InputError(f"A report is made of folders or results, not of {type(one).__name__}.")
        record = one if isinstance(one, Record) else Record.of(one, wanted=wanted(one))
        records.append(record if label is None else record.labelled(label))
    if isinstance(what, _loaded("compare", "Curves")):  # which has one problem and one set of clients
        records = [replace(record, data="that of compare") for record in records]
    return Material(_told_apart(records, None), sweeps)


def _is_run(one: Any) -> TypeGuard[Result | Record]:
    return isinstance(one, (Record, _loaded("result", "Result")))


def _is_sweep(one: Any) -> TypeGuard[Sweep]:
    return isinstance(one, _loaded("sweep", "Sweep"))


def _loaded(module: str, name: str) -> Any:
    """Return a class of a module that loads JAX; where nobody has loaded it, there is no instance to ask about."""
    found = sys.modules.get(f"fedminimax.{module}")
    return () if found is None else getattr(found, name)


def _sweeps(path: Path) -> dict[str, Sweep]:
    places = sorted(path.rglob(SWEEP))
    if not places:
        return {}
    from fedminimax.sweep import Sweep

    return {(place.parent.name if place.parent != path else path.name): Sweep.load(place.parent) for place in places}


def winner(sweep: Sweep) -> int | None:
    """Return which setting was chosen; None where no metric was named for it, or all diverged."""
    with suppress(InputError):
        return sweep.chosen
    return None


def _winner(label: str, sweep: Sweep) -> list[Record]:
    """Return the runs of a sweep's chosen setting; none where nothing says which it is."""
    directed = [name for name in sweep.better if sweep.history[name].ndim == 3]
    chosen = winner(sweep)
    if chosen is None:
        with suppress(InputError, IndexError):
            chosen = sweep.best(directed[0])
    if chosen is None:
        return []
    setting = sweep.settings[chosen]
    rounds = int(sweep.history["round"][-1])
    return [
        Record(
            label=label,
            method=sweep.method,
            settings=f"{sweep.method}({', '.join(f'{k}={v}' for k, v in setting.items())}, ...)",
            seed=seed,
            rounds=rounds,
            wanted=rounds,
            status=folders.FINISHED,
            history={n: v if n == "round" else v[chosen, k] for n, v in sweep.history.items()},
            costs=sweep.costs,
            better=dict(sweep.better),
            hyper=dict(setting),
            notes={"from": "sweep"},
        )
        for k, seed in enumerate(sweep.seeds)
    ]


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / folders.ENVIRONMENT
    return folders.read_json(path) if path.exists() else {}


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        twice = next(path for path, own in zip(paths, parts, strict=True) if parts.count(own) > 1)
        raise InputError(f"{twice} is given twice: give every folder once.")
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(own[-length:]) for own in parts]
        if len(set(names)) == len(names):
            break
    return names


def _told_apart(records: list[Record], root: Path | None) -> list[Record]:
    """Give runs of the same label and seed labels of their own, by their folders, or by number where there are none."""
    unclear = {label for label, _ in _repeated((record.label, record.seed) for record in records)}
    if not unclear:
        return records
    times: dict[tuple[str, int], int] = {}

    def own(record: Record) -> Record:
        if record.label not in unclear:
            return record
        if root is not None and record.folder is not None:
            place = record.folder.relative_to(root)
            place = place.parent if place.name == f"seed-{record.seed}" else place
            return record.labelled(f"{record.label} ({place.as_posix()})")
        times[record.label, record.seed] = nth = times.get((record.label, record.seed), 0) + 1
        return record.labelled(f"{record.label} ({nth})" if nth > 1 else record.label)

    return [own(record) for record in records]


def _directed(record: Record, given: dict[str, str]) -> Record:
    """Return a record that knows which way its metrics are better: as it says, as given, or as the library's metrics say."""
    wrong = next((word for word in given.values() if word not in ("lower", "higher")), None)
    if wrong is not None:
        raise InputError(f"better is {wrong!r}: it must be 'lower' or 'higher'.")
    known = record.better | {name: word for name, word in given.items() if name in record.history}
    unknown = [name for name in (*record.metrics, *record.arrays) if name not in known]
    if unknown and not record.better:  # a record that says it of some metrics has nothing to say of the others
        from fedminimax.metrics import METRICS, direction

        ours = {getattr(cls, "name", name): cls for name, cls in METRICS.items()}
        for name in unknown:
            with suppress(InputError):
                if (word := direction(ours, name)) is not None:
                    known[name] = word
    for name in record.arrays:  # every client's number is better as their mean is
        if name not in known and (word := known.get(f"{name.rpartition('/')[0]}/mean")):
            known[name] = word
    return replace(record, better=known)


def _repeated(items: Iterable[Any]) -> set[Any]:
    seen: set[Any] = set()
    return {item for item in items if item in seen or seen.add(item)}  # type: ignore[func-returns-value]
