"""Several methods on one problem, at equal cost: their curves over seeds, a table, and a figure."""

from __future__ import annotations

import functools
import os
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax import plots
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.execution import Engine
from fedminimax.engines.program import rehearse
from fedminimax.errors import InputError
from fedminimax.folders import Record
from fedminimax.inputs import check_input
from fedminimax.metrics import Metric
from fedminimax.metrics import named as named_metrics
from fedminimax.plan import SIMULATOR, engine_of
from fedminimax.problems.forms import AnyProblem
from fedminimax.result import Result
from fedminimax.run import run
from fedminimax.runfolder import RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fedminimax.report.evidence import Evidence

_WIDTH = 78
"""How many letters of a note below a figure go into a line."""
_CLOSE = 0.05
"""How far two uploads may be apart and still count as equal."""


@dataclass(frozen=True)
class Curves:
    """The outcome of :func:`compare`.

    Means are over runs that are alike: one that Ctrl-C ended is left out where others are finished, and runs of different
    lengths are compared at the round that all have reached. :attr:`notes` says so, and so do figures and tables.

    Attributes:
        results: for each method its results, one a seed.
        algorithms: the methods as they were run, their cohorts matched.
        rounds: how many rounds were asked for.
        seeds: which seeds were.
    """

    results: dict[str, list[Result]]
    algorithms: dict[str, Algorithm]
    rounds: int = 0
    seeds: tuple[int, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What a reader must know: runs that were not begun, not finished, or are shorter than others."""
        from fedminimax.report.caveats import uneven

        begun = {(name, result.seed) for name, results in self.results.items() for result in results}
        missing = [f"{name}, seed {seed}" for name in self.algorithms for seed in self.seeds if (name, seed) not in begun]
        told = [f"These runs were not begun: {'; '.join(missing)}."] if missing else []
        return [*told, *uneven(self._evidence()[0])]

    def plot(self, metric: str, against: str = "round", ax: Axes | None = None, **options: Any) -> Axes:
        """Draw a metric against "round", "floats_up", "grad_evals" or any other cost, with a band over seeds.

        Args:
            metric: its name in the histories.
            against: what goes on the x-axis.
            ax: where to draw; by default a new figure.
            options: passed to :func:`fedminimax.plots.bands`.
        """
        _, compared = self._evidence()
        part = {name: runs or self.results[name] for name, runs in compared.items()}
        shown = {name if compared[name] else f"{name} (unfinished)": runs for name, runs in part.items()}
        ax = plots.bands(shown, metric, against=against, ax=ax, **options)
        if notes := self.notes:
            said = "\n".join(line for note in notes for line in textwrap.wrap(note, _WIDTH))
            ax.annotate(said, (0, 0), (0, -34), "axes fraction", "offset points", va="top", fontsize=7)
        return ax

    def table(self, metric: str) -> pd.DataFrame:
        """Return one row a method: the metric (mean and spread over seeds) and the round and seeds it is of, and costs.

        Where runs are not alike, a warning says how, and ``attrs["notes"]`` has it too.
        """
        from fedminimax.frames import Table

        evidence, compared = self._evidence()
        rows = []
        for name, results in compared.items():
            ends = [max(0, int(np.searchsorted(r.history["round"], evidence.round, side="right")) - 1) for r in results]
            last = np.array([plots.values_of(r, metric)[k] for r, k in zip(results, ends, strict=True)])
            sums = [r.costs["grad_evals"][: evidence.round].sum() if r.costs else 0.0 for r in results]
            one = next((r for r in results if r.costs), None)
            rows.append(
                {
                    "method": name,
                    metric: last.mean() if results else np.nan,
                    "spread": last.std() if results else np.nan,
                    "seeds": len(results),
                    "round": evidence.round,
                    "cohort": getattr(self.algorithms[name], "cohort_size", None) or "all",
                    "floats up a round": 0.0 if one is None else float(np.mean(one.costs["floats_up"])),
                    "gradients": float(np.mean(sums)) if results else np.nan,
                }
            )
        table = Table(rows).set_index("method")
        if notes := self.notes:
            table.attrs["notes"] = notes
            warnings.warn(" ".join(notes), stacklevel=2)
        return table

    def _evidence(self) -> tuple[Evidence, dict[str, list[Result]]]:
        """Return the runs as a report compares them, and for each method the results that are."""
        from fedminimax.report.evidence import Evidence

        record = lambda name, result: Record.of(result, name, wanted=max(self.rounds, result.rounds))
        pairs = [(record(name, result), result) for name, results in self.results.items() for result in results]
        evidence = Evidence.of(record for record, _ in pairs)
        result_of = {id(record): result for record, result in pairs}
        return evidence, {name: [result_of[id(record)] for record in runs] for name, runs in evidence.counted.items()}

    def frame(self) -> pd.DataFrame:
        """Return all histories as one table with the columns "method" and "seed"."""
        import pandas as pd

        parts = [r.frame().assign(method=name, seed=r.seed) for name, results in self.results.items() for r in results]
        return pd.concat(parts, ignore_index=True)


def compare(
    problem: AnyProblem,
    clients: ClientSource,
    methods: Mapping[str, Algorithm] | Sequence[Algorithm],
    *,
    rounds: int,
    seeds: Iterable[int] = (0,),
    match_upload: bool | str | int = False,
    metrics: Iterable[Metric] | Mapping[str, Metric] | Metric = (),
    engine: str | Engine = SIMULATOR,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Curves:
    """Run several methods on one problem with the same seeds.

    Args:
        problem: what to solve.
        clients: the clients' data.
        methods: algorithms, by name or with their class names.
        rounds: how many rounds each.
        seeds: each gives every method one run.
        match_upload: compare at equal floats up a round: each method's cohort is made larger or smaller until it uploads
            what the first method does (True), what a named one does, or a given number of floats. What a method uploads is
            read off its own messages.
        metrics: as for :func:`fedminimax.run`.
        engine: as for :func:`fedminimax.run`. One that keeps clients' states in files gets a folder in it for each run.
        folder: where to keep the runs, each in a folder "method/seed-0" of its own; called again after an interruption, those
            that are complete are read, and the others go on.
        options: passed to :func:`fedminimax.run`.
    """
    if "seed" in options:
        raise InputError("compare runs every method with several seeds: give seeds=(0, 1, 2), not seed.")
    if isinstance(methods, Algorithm) or not isinstance(methods, (Mapping, Sequence)):
        raise InputError("methods must be a list of algorithms, or a dict of algorithms by name.")
    if isinstance(seeds, (int, np.integer, str)):
        raise InputError(f"seeds must be several, such as range(3) or (0, 1, 2), not {seeds!r}.")
    judged = named_metrics(metrics)  # once: an iterator would be used up by the first run
    carrier = engine_of(engine)
    named = dict(methods) if isinstance(methods, Mapping) else {type(m).__name__: m for m in methods}
    if not named:
        raise InputError("There is nothing to compare: give at least one algorithm.")
    if not isinstance(methods, Mapping) and len(named) < len(list(methods)):
        raise InputError("Two methods have the same name: give them as a dict with names of your own.")
    if match_upload is not False:
        floats = budget(problem, clients, named, match_upload)
        named = {name: at_upload(problem, clients, method, floats) for name, method in named.items()}
    found = Curves({name: [] for name in named}, named, rounds, tuple(seeds))
    for seed in found.seeds:
        for name, method in named.items():
            apart = getattr(carrier, "apart", lambda name: carrier)(f"{name}-{seed}")
            if folder is not None:
                options["folder"] = RunFolder(Path(folder) / name / f"seed-{seed}", label=name)
            try:
                result = run(problem, clients, method, rounds=rounds, seed=seed, metrics=judged, engine=apart, **options)
            except KeyboardInterrupt:  # before its first round
                return _interrupted(found, f"before {name}, seed {seed}", folder)
            found.results[name].append(result)
            if result.interrupted:
                return _interrupted(found, f"in {name}, seed {seed}, after {result.rounds} of {rounds} rounds", folder)
    return found


def _interrupted(found: Curves, where: str, folder: str | os.PathLike[str] | None) -> Curves:
    """Return what there is when Ctrl-C ends a comparison, and say so."""
    done = {name: results for name, results in found.results.items() if results}
    if not done:
        raise KeyboardInterrupt
    how = "the same call goes on from there" if folder is not None else "with folder=... the same call would go on from there"
    warnings.warn(f"compare was interrupted {where}: {how}.", stacklevel=3)
    return replace(found, results=done)


def upload(problem: AnyProblem, clients: ClientSource, algorithm: Algorithm) -> int:
    """Return how many floats a round of a method sends up when everybody answers.

    Nothing is run, but for methods that ask only a part of a cohort (DeltaFL): of those one round is, with the seed 0.
    """
    bound, data = check_input(problem, clients, algorithm, 0)
    messages = rehearse(bound, algorithm, data).messages
    if any(message.part for message in messages):
        return int(run(problem, clients, algorithm, rounds=1, progress=False).costs["floats_up"][0])
    return sum(message.places * sum(message.up.values()) for message in messages)


def at_upload(problem: AnyProblem, clients: ClientSource, algorithm: Algorithm, floats: int) -> Algorithm:
    """Return the algorithm with the cohort whose upload is nearest to so many floats a round."""
    name = type(algorithm).__name__
    now = upload(problem, clients, algorithm)
    if now == floats:
        return algorithm
    if not hasattr(algorithm, "cohort_size"):
        raise InputError(f"{name} has no cohort_size to match {floats} floats a round with: it uploads {now}.")
    of = functools.cache(lambda size: upload(problem, clients, algorithm.replace(cohort_size=size)))
    cohort = algorithm.cohort_size or clients.count
    size = max(1, round(cohort * floats / now))  # what a round uploads is in proportion to its cohort, or nearly
    if size > clients.count:
        raise InputError(
            f"{name} needs a cohort of {size} to upload {floats} floats a round, but there are {clients.count} clients: "
            "match a method that uploads less."
        )
    best = min((s for s in (size, size - 1, size + 1) if 1 <= s <= clients.count), key=lambda s: abs(of(s) - floats))
    if abs(of(best) - floats) > _CLOSE * floats:
        warnings.warn(
            f"{name} uploads {of(best)} floats a round with a cohort of {best}, not {floats}: no cohort comes nearer.",
            stacklevel=3,
        )
    return algorithm.replace(cohort_size=best)


def budget(problem: AnyProblem, clients: ClientSource, methods: Mapping[str, Algorithm], wanted: bool | str | int) -> int:
    """Return how many floats a round of every method is to send up: as the first, as one that is named, or as given."""
    if wanted is True:
        wanted = next(iter(methods))
    if not isinstance(wanted, str):
        if not isinstance(wanted, (int, float, np.number)) or not wanted >= 1:
            raise InputError(f"match_upload must be True, a method's name, or floats a round, not {wanted!r}.")
        return int(wanted)
    if wanted not in methods:
        raise InputError(f"match_upload names {wanted!r}, but the methods are {', '.join(methods)}.")
    return upload(problem, clients, methods[wanted])
