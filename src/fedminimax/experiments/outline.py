"""What an experiment would run, and what that costs, before anything is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedminimax.compare import upload
from fedminimax.errors import InputError
from fedminimax.experiments.checks import settings_of

if TYPE_CHECKING:
    from fedminimax.experiments.experiment import Experiment


@dataclass(frozen=True)
class Line:
    """What one method of an experiment would run.

    Attributes:
        label: the method's label.
        settings: how many settings of it are tried.
        runs: how many runs that are, over all seeds.
        programs: how many programs are compiled: one, or one for each shape of program that is tried.
        floats_up: the floats that a round sends up; None: only a run tells.
        swept: the hyper-parameters that have several values.
    """

    label: str
    settings: int
    runs: int
    programs: int
    floats_up: int | None
    swept: tuple[str, ...]


@dataclass(frozen=True)
class Outline:
    """What an experiment would run.

    Attributes:
        name: the experiment's name.
        problem: what it solves.
        clients: a line about the clients' data.
        rounds: the rounds of each run.
        seeds: the seeds.
        eval_every: the rounds from one evaluation to the next.
        metrics: the numbers that are taken, and on what data.
        lines: what each method runs.
        parameters: the numbers of both players together.
        memory: an estimate of the bytes needed: the data, held-out data, and a few copies of the players of each run at a time.
    """

    name: str
    problem: str
    clients: str
    rounds: int
    seeds: tuple[int, ...]
    eval_every: int
    metrics: dict[str, str]
    lines: tuple[Line, ...]
    parameters: int
    memory: int

    @property
    def runs(self) -> int:
        """All runs."""
        return sum(line.runs for line in self.lines)


def outline(experiment: Experiment) -> Outline:
    """Return what an experiment would run: its data is read and its problem is made, and nothing is compiled."""
    ready = experiment.ready
    spec, seeds = ready.plan.spec, ready.plan.spec.chosen_seeds
    lines = []
    for label, method in ready.methods.items():
        settings = settings_of(method, spec.search.samples)
        static = {f for f in method.lists if _shapes(method.algorithm, f)}
        programs = int(np.prod([len(method.lists[name]) for name in static], initial=1))
        try:
            floats = upload(ready.problem, ready.clients, method.algorithm)
        except InputError:
            floats = None
        lines.append(Line(label, settings, settings * len(seeds), programs, floats, tuple(method.swept)))
    bound, clients = ready.problem.bind(ready.clients)
    players = sum(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(bound.start))
    held = sum(int(np.asarray(leaf).nbytes) for metric in ready.metrics.values() for leaf in jax.tree.leaves(metric) if not callable(leaf))  # fmt: skip  # noqa: E501
    data = sum(int(leaf.nbytes) for leaf in jax.tree.leaves(clients) if hasattr(leaf, "nbytes"))
    most = max((line.runs if line.swept else 1) for line in lines)
    return Outline(
        name=experiment.name,
        problem=bound.name,
        clients=repr(ready.clients),
        rounds=spec.rounds,
        seeds=tuple(seeds),
        eval_every=ready.eval_every,
        metrics={name: ready.on.get(name, "train") for name in ready.columns},
        lines=tuple(lines),
        parameters=players,
        memory=data + held + most * _COPIES * players * 4,
    )


_COPIES = 8
"""Players, their gradients, a client's own and what is summed, roughly: of every run that is held at once."""


def _shapes(algorithm: Any, name: str) -> bool:
    """Tell whether a hyper-parameter shapes the program."""
    return bool(type(algorithm).__dataclass_fields__[name].metadata.get("static"))
