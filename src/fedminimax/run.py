"""``run``: one algorithm on one problem, to one Result."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.execution import Engine, Snapshot
from fedminimax.engines.mesh import Mesh, MeshExecution
from fedminimax.errors import InputError
from fedminimax.federation.availability import Availability
from fedminimax.federation.guard import Guard
from fedminimax.federation.privacy import Privacy
from fedminimax.federation.trace import Trace
from fedminimax.loop import Loop
from fedminimax.metrics import Metric
from fedminimax.observers import checked
from fedminimax.plan import SIMULATOR, Plan, planned
from fedminimax.players import Tree
from fedminimax.problems.forms import AnyProblem
from fedminimax.progress import ProgressBar
from fedminimax.result import Result
from fedminimax.runfolder import RunFolder, remember


def run(
    problem: AnyProblem,
    clients: ClientSource,
    algorithm: Algorithm,
    *,
    rounds: int,
    seed: int = 0,
    eval_every: int | None = None,
    metrics: Iterable[Metric] | Mapping[str, Metric] | Metric = (),
    engine: str | Engine = SIMULATOR,
    guard: Guard | None = None,
    availability: Availability | None = None,
    privacy: Privacy | None = None,
    trace: Trace | None = None,
    record: bool = False,
    start: Result | Snapshot | Tree | None = None,
    progress: bool | str | None = None,
    observers: Any = (),
    folder: str | os.PathLike[str] | RunFolder | None = None,
    checkpoint_every: int | str | None = None,
) -> Result:
    """Run an algorithm for some rounds, and return what came of it.

    The same seed gives the same run whatever the engine and its settings, to rounding.

    Args:
        problem: what to solve.
        clients: the clients' data.
        algorithm: the method with its hyper-parameters.
        rounds: how many communication rounds; with ``start`` this many more.
        seed: of all randomness.
        eval_every: evaluate the metrics every so many rounds (and before the first and after the last); by default about
            fifty times.
        metrics: functions of (problem, clients, state), by name or with a ``name`` of their own (see
            :mod:`fedminimax.metrics`).
        engine: "simulator" (compiled), "isolated" (every client a worker, every exchange bytes), "mesh" (the clients dealt
            out over many processes, see :mod:`fedminimax.distributed`), or an engine with settings of its own,
            such as ``Simulator(strategy="map", devices=1, client_store="folder")``.
        guard: what replies must pass; by default non-finite ones are dropped.
        availability: who answers; by default everybody.
        privacy: clip every message of a client, and add noise to it; epsilon is then in the history.
        trace: a record of cohorts and local steps to replay.
        record: keep a trace of this run in the result.
        start: what to start from. A result is continued exactly, from its last round and with its seed; other hyper-parameters
            or data than it was made with are said in a warning, and another number of clients is an error. A
            ``Snapshot(state, client_states, round)`` gives an algorithm's state, the clients' own where they have any, and
            the number of the next round, which schedules, traces and randomness go by; a state alone is taken at round 0. A
            dict gives some fields of the state but the players by name, such as ``{"z": z0}`` of FessGDA.
        progress: show a progress bar, with the metric of this name or the first; by default on a terminal only.
        observers: what else watches the run (see :mod:`fedminimax.observers`).
        folder: where to keep the run: its record while it goes, and checkpoints. If the folder has the beginning of this very
            run, that is continued, up to ``rounds`` in all; if it has another run, this one is refused (see
            :func:`fedminimax.resume`).
        checkpoint_every: how many rounds, or how much time ("30s", "5min"), are lost at most when the machine goes down; by
            default a minute.
    """
    given: dict[str, Any] = {"problem": problem, "clients": clients, "algorithm": algorithm, "engine": engine, "guard": guard}
    given |= {"availability": availability, "privacy": privacy, "trace": trace, "start": start}
    plan = planned(**given, rounds=rounds, seed=seed, eval_every=eval_every, metrics=metrics, record=record)
    watching = checked(observers)
    if folder is None and checkpoint_every is not None:
        raise InputError("checkpoint_every needs a folder to keep checkpoints in: give folder='runs/name'.")
    if isinstance(mesh := plan.engine, Mesh):
        plan = replace(plan, clients=mesh.known(plan.clients, plan.metrics, plan.problem))
        given["clients"] = clients = plan.clients  # of the others' examples nothing is kept, unless the caller does
        if not mesh.leads:
            return _follow(plan)
    metric, shown = (progress, None) if isinstance(progress, str) else (None, progress)
    observed = [ProgressBar(metric, shown), *watching]
    if folder is None:
        with _leading(plan):
            return _carry_out(plan, observed)
    given |= {"metrics": plan.metrics, "observers": watching, "progress": progress}
    with _leading(plan), RunFolder.of(folder).open(plan, checkpoint_every) as kept:
        remember(folder, given | {"folder": folder, "checkpoint_every": checkpoint_every})
        return _carry_out(kept.plan, [*observed, *kept.observers])


def _leading(plan: Plan) -> AbstractContextManager[None]:
    """Let the other processes of a mesh know when a run fails in this one."""
    return plan.engine.leading() if isinstance(plan.engine, Mesh) else nullcontext()


def _follow(plan: Plan) -> Result:
    """Carry a run out as process 0 says, which alone has the folder and the observers."""
    assert isinstance(plan.engine, Mesh)
    with plan.engine.following(), plan.open() as execution:
        assert isinstance(execution, MeshExecution)
        return Result.of_record(execution.follow(plan.metrics))


def _carry_out(plan: Plan, observers: list[Any]) -> Result:
    with plan.open() as execution:
        result = Loop(plan, execution, observers).go()
        execution.ended(result.record)
    if result.costs and (refused := int(result.costs["dropped"][plan.now :].sum())):
        warnings.warn(
            f"The guard refused {refused} of {int(result.costs['replies'][plan.now :].sum())} replies (costs['dropped'] says "
            "when): a client is broken, or the step sizes are too large.",
            stacklevel=3,
        )
    return result
