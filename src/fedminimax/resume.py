"""``resume``: go on with a run that was stopped, as if it had never been."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.errors import InputError
from fedminimax.folders import Record, read_json
from fedminimax.problems.forms import AnyProblem
from fedminimax.result import Result
from fedminimax.run import run
from fedminimax.runfolder import IDENTITY, remembered


def resume(
    folder: str | os.PathLike[str],
    problem: AnyProblem | None = None,
    clients: ClientSource | None = None,
    algorithm: Algorithm | None = None,
    *,
    rounds: int | None = None,
    **options: Any,
) -> Result:
    """Go on with the run in a folder from its newest whole checkpoint; the result is that of a run that was never stopped.

    The seed, the interval of evaluations and whether a trace is recorded are the folder's. In the process that began the run
    all else is known too. Elsewhere give what ``run`` was given (problem, clients, method, metrics, ...), or call ``run``
    itself with the same folder, which does the same; what differs is refused by name. A folder that an experiment wrote needs
    nothing: its spec says it all.

    Args:
        folder: the run's folder.
        problem: what to solve.
        clients: the clients' data.
        algorithm: the method with its hyper-parameters.
        rounds: how many rounds in all; by default as many as were asked for.
        options: what else :func:`fedminimax.run` takes.
    """
    path = Path(folder)
    kept = read_json(path / IDENTITY)
    given = {"problem": problem, "clients": clients, "algorithm": algorithm}
    known = _known(path) | {name: value for name, value in given.items() if value is not None} | options
    missing = [name for name in given if known.get(name) is None]
    if missing:
        raise InputError(
            f"The run in {path} was begun in another process: give resume its {', '.join(missing)} too, as run was given them."
        )
    if rounds is None:
        rounds = Record.read(path).wanted
    if rounds < kept["first"]:
        raise InputError(f"The run in {path} began with round {kept['first']}: ask for more than {rounds} rounds in all.")
    of_folder = {"folder": path, "seed": kept["identity"]["seed"], "record": kept["identity"]["record"]}
    return run(**{**of_folder, **known, "eval_every": kept["eval_every"], "rounds": rounds - kept["first"]})


def _known(path: Path) -> dict[str, Any]:
    """Return what the run in a folder was given: as this process remembers it, or as the experiment's spec says."""
    if (found := remembered(path)) is not None:
        return found
    try:
        rebuild = importlib.import_module("fedminimax.experiments").rebuild
    except (ImportError, AttributeError):
        return {}
    return rebuild(path) or {}
