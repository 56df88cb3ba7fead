"""A run's folder while the run goes: who writes it, whose it is, where it goes on, and its record, kept current."""

from __future__ import annotations

import json
import os
import socket
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedminimax import checkpoint, checks, folders, wire
from fedminimax._version import __version__
from fedminimax.checkpoint import Checkpoint
from fedminimax.checkpointing import Checkpoints, interval
from fedminimax.engines.execution import Snapshot
from fedminimax.engines.mesh import Mesh
from fedminimax.engines.rows import SavedStates
from fedminimax.errors import InputError
from fedminimax.folders import IDENTITY, log, read_json, write_atomically, write_json
from fedminimax.identity import differences, identity
from fedminimax.inputs import beginning
from fedminimax.observers import Observer
from fedminimax.outline import outline
from fedminimax.plan import Plan
from fedminimax.recorder import Label, Recorder, say
from fedminimax.result import Result

LOCK, SPEC, STATES = "lock", "spec.toml", "client_states"


@dataclass(frozen=True)
class RunFolder:
    """Where a run is kept: ``run(..., folder=RunFolder("runs/name", label="FESS-GDA, p = 1"))``. A path alone does as well.

    Args:
        path: the folder; it is made.
        label: what tables and legends call the run; by default the method's name.
        keep: how many checkpoints are kept.
        spec: the text of the spec.toml that describes the run; by default one is written of what can be said.
        on: what data metrics are taken on, "train", "validation" or "test", by their names in the history.
        notes: anything else to keep in run.json.
    """

    path: str | os.PathLike[str]
    label: str | None = None
    keep: int = 3
    spec: str | None = None
    on: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)) or not str(self.path):
            raise InputError(f"folder must be a path such as 'runs/name', not {self.path!r}.")
        checks.integer("keep", self.keep)

    @classmethod
    def of(cls, folder: str | os.PathLike[str] | RunFolder) -> RunFolder:
        """Return a folder that was given as a path, or as what it is."""
        return folder if isinstance(folder, RunFolder) else cls(folder)

    @contextmanager
    def open(self, plan: Plan, checkpoint_every: int | str | None) -> Iterator[Kept]:
        """Open the folder for a run: nobody else writes it meanwhile. A run that is there is gone on with.

        Args:
            plan: the run.
            checkpoint_every: as for :func:`fedminimax.run`.
        """
        interval(checkpoint_every)  # says what is wrong with it
        wire.take_apart(plan.algorithm.init(plan.problem))  # a state that could not be saved is better known now
        path = Path(self.path)
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file, but a run needs a folder: name another.")
        folders.make_folder(path)
        with locked(path):
            plan = _where_it_began(plan, path)
            found = self._found(plan, path)
            plan = self._begun(plan, path) if found is None else _resumed(plan, path, found)
            each_round = getattr(plan.engine, "saves_each_round", False)
            checkpoints = Checkpoints(path, 1 if each_round else checkpoint_every, self.keep)
            checkpoints.at_start = plan.start is not None or each_round  # which may not be had again
            layout = None if found is None else found.facts["layout"]
            recorder = Recorder(path, plan, Label(self.label or plan.method, dict(self.on), dict(self.notes)), layout)
            try:
                yield Kept(plan, [checkpoints, recorder])
            except BaseException as error:
                recorder.failed(error)
                raise
            finally:
                checkpoints.close()
                recorder.close()

    def _found(self, plan: Plan, path: Path) -> Checkpoint | None:
        """Return the checkpoint to go on from; None: the run begins. A folder of another run is refused."""
        if (path / IDENTITY).exists():
            _refuse(plan, path, read_json(path / IDENTITY))
            for unfinished in path.glob(".*.part"):
                unfinished.unlink(missing_ok=True)
            return checkpoint.newest(path, lambda sentence: say(path, sentence))
        if (path / folders.RUN).exists() or any((path / checkpoint.CHECKPOINTS).glob("*")):
            raise InputError(f"{path} holds a run that run(folder=...) did not begin, and cannot go on with: name another.")
        return None

    def _begun(self, plan: Plan, path: Path) -> Plan:
        """Make the folder ready for a run from its start, and return the run."""
        plan = _beside(plan, path)
        if (path / IDENTITY).exists():
            if plan.start is None and read_json(path / IDENTITY)["identity"]["start"] is not None:
                raise InputError(f"The run in {path} has no checkpoint: give the start= that it began from.")
            log(path, "No checkpoint is there: the run begins anew")
            checkpoint.clear(path, None)
            _remove_states(path)
            return replace(plan, eval_every=read_json(path / IDENTITY)["eval_every"])
        where = getattr(plan.engine, "client_store", None)
        kept = {
            "format": folders.FORMAT,
            "version": __version__,
            "first": plan.first,
            "eval_every": plan.every,
            "client_store": None if where in (None, "device", "host") else str(Path(where).resolve()),
            "identity": identity(plan),
        }
        folders.write_environment(path)
        if self.spec is not None or not (path / SPEC).exists():
            write_atomically(path / SPEC, (outline(plan) if self.spec is None else self.spec).encode())
        write_json(path / IDENTITY, kept)
        log(path, f"{plan.method} begins, rounds {plan.first} to {plan.last}, seed {plan.seed} (fedminimax {__version__})")
        return plan


@dataclass(frozen=True)
class Kept:
    """A run whose folder is open.

    Attributes:
        plan: the run, from where it has come to.
        observers: what writes the folder.
    """

    plan: Plan
    observers: list[Observer]


_REMEMBERED: OrderedDict[Path, dict[str, Any]] = OrderedDict()
_MOST_REMEMBERED = 32


def remember(folder: str | os.PathLike[str] | RunFolder, given: dict[str, Any]) -> None:
    """Remember what a run in a folder was given, so that this process need not be told again."""
    _REMEMBERED[Path(RunFolder.of(folder).path).resolve()] = given
    while len(_REMEMBERED) > _MOST_REMEMBERED:
        _REMEMBERED.popitem(last=False)


def remembered(folder: Path) -> dict[str, Any] | None:
    """Return what a run in a folder was given; None: it was not begun in this process, or too long ago."""
    return _REMEMBERED.get(folder.resolve())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Have a folder to oneself; the system lets go of it when the process ends, however it ends."""
    with (path / LOCK).open("a+") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # a system without such locks
            pass
        except OSError:
            file.seek(0)
            whose = file.read().strip() or "another process"
            raise InputError(
                f"{path} is being written by {whose}: wait until it is over, stop it, or name another folder."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
        file.truncate(0)


def _where_it_began(plan: Plan, path: Path) -> Plan:
    """Return a run that is to go on and does not say where it started, with its first round as the folder has it."""
    if plan.start is not None or not (path / IDENTITY).exists():
        return plan
    first = read_json(path / IDENTITY)["first"]
    return replace(plan, first=first, last=first + plan.last)


def _refuse(plan: Plan, path: Path, there: Mapping[str, Any]) -> None:
    """Raise an error unless the folder's run is the one at hand."""
    here = json.loads(json.dumps(identity(plan)))
    if plan.start is None:  # its checkpoints say where it has come to
        here["start"] = there["identity"]["start"]
    said = differences(there["identity"], here)
    if plan.eval_every not in (None, there["eval_every"]):
        said.append(f"eval_every is {there['eval_every']} in the folder and {plan.eval_every} here")
    if said:
        written = "" if there["version"] == __version__ else f" (fedminimax {there['version']} wrote it, this is {__version__})"
        raise InputError(f"{path} holds another run{written}: {'; '.join(said)}. Name another folder, or run what it holds.")


def _beside(plan: Plan, path: Path) -> Plan:
    """Return a run whose clients' states, where they are large, live in files of its folder."""
    beside = getattr(plan.engine, "beside", None)
    if beside is None:
        return plan
    return replace(plan, engine=beside(path / STATES, plan.problem, plan.clients, plan.algorithm))


def _remove_states(path: Path) -> None:
    """Remove the files of clients' states that the folder's run wrote, when no checkpoint leads back to them."""
    if (where := read_json(path / IDENTITY)["client_store"]) is None:
        return
    for found in [Path(where) / "states.npy", Path(where) / "written.npy", *Path(where).glob("undo-*.log")]:
        found.unlink(missing_ok=True)


def _resumed(plan: Plan, path: Path, found: Checkpoint) -> Plan:
    """Return a run that goes on from a checkpoint."""
    plan = replace(_beside(plan, path), eval_every=found.facts["eval_every"])
    rounds, layout = found.result.rounds, found.facts["layout"]
    if rounds > plan.last:
        raise InputError(
            f"The run in {path} has come to round {rounds}, beyond the {plan.last} that are asked for: ask for at least "
            f"{rounds}, or name another folder."
        )
    if found.version != __version__ or found.packages != checkpoint.versions():
        wrote = ", ".join(f"{name} {version}" for name, version in {"fedminimax": found.version, **found.packages}.items())
        now = ", ".join(f"{name} {version}" for name, version in {"fedminimax": __version__, **checkpoint.versions()}.items())
        say(path, f"The checkpoint was written by {wrote}, and this is {now}: what comes next may round differently")
    checkpoint.clear(path, found.name)
    result = found.with_states(lambda: plan.algorithm.init_client(plan.problem))
    own: Any = result.client_states
    if isinstance(own, SavedStates) and not isinstance(plan.engine, Mesh):  # of which each process reads its own
        own = own.read(plan.algorithm.init_client(plan.problem))
    start = Snapshot(result.state, own, rounds)
    if rounds < plan.last:
        result = _on_schedule(plan, result)
    log(path, f"Going on after {rounds} of {plan.last} rounds (fedminimax {__version__})")
    return replace(
        plan,
        start=beginning(plan.algorithm, plan.problem, plan.clients.count, start),
        before=result,
        resumed=rounds,
        engine=plan.engine.like(layout) if hasattr(plan.engine, "like") else plan.engine,
    )


def _on_schedule(plan: Plan, result: Result) -> Result:
    """Return a result without the evaluation that was made only because the run ended there."""
    rounds = result.history["round"]
    due = (rounds <= plan.first) | ((rounds - plan.first) % plan.every == 0)
    return replace(result, history={name: values[due] for name, values in result.history.items()})
