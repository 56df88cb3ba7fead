"""Carrying an experiment out: every run in a folder of its own, all of them with the same seeds, and nothing lost."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax import folders
from fedminimax.crew import Crew, Missing, gathered
from fedminimax.engines.layout import AUTO
from fedminimax.engines.mesh.watch import Lost
from fedminimax.errors import InputError
from fedminimax.experiments.checks import settings_of
from fedminimax.experiments.describe import plain
from fedminimax.experiments.home import EXPERIMENT, Away, Home, home_of
from fedminimax.experiments.outcome import Outcome, outcome_of
from fedminimax.experiments.plan import Method
from fedminimax.experiments.prepare import Ready
from fedminimax.experiments.progress import Bar
from fedminimax.experiments.spec import Spec
from fedminimax.experiments.together import Dealt, Together, Which
from fedminimax.folders import DIVERGED, FINISHED, INTERRUPTED, STOPPED, Record
from fedminimax.identity import hyper_parameters
from fedminimax.observers import Observer, StopWhen
from fedminimax.plan import SIMULATOR
from fedminimax.result import Result
from fedminimax.run import run
from fedminimax.runfolder import RunFolder, locked
from fedminimax.sweep import Sweep, sweep

if TYPE_CHECKING:
    from fedminimax.experiments.experiment import Experiment

ENDED = (FINISHED, STOPPED, DIVERGED)
"""How a run stands that is over."""


def execute(
    experiment: Experiment,
    out: Path,
    *,
    progress: bool | None = None,
    report: bool = True,
    only: Which | None = None,
    longer: bool = False,
) -> Outcome:
    """Carry an experiment out, or go on with it, and return what came of it.

    Args:
        experiment: what to run.
        out: the folder.
        progress: show a progress bar; None: on a terminal only.
        report: write the report at the end.
        only: the label and the seed of the one run to carry out; None: all.
        longer: whether it is the experiment that the folder has, with more rounds.
    """
    with gathered(out) as crew:
        ready = experiment.ready
        together, dealt = Together(ready.plan.engine), Dealt(crew, _runs(ready, only))
        if not together.leads:
            together.follow(lambda which: _one_of(ready, Home(out), which))
            return outcome_of(out) if (out / EXPERIMENT).is_file() else Outcome(out, [], FINISHED)
        if not crew.leads:
            _share(ready, Away(out, crew), crew, dealt, only)
            return outcome_of(out)
        home = Home(out)
        with together.leading():
            home.admit(experiment, longer)
            with locked(out), Bar(_work(ready, only), progress) as bar:
                home.begin(experiment, list(ready.methods), ready.plan.spec.chosen_seeds)
                crew.begin()
                _lead(_Runs(ready, home, bar, dealt, together), only)
        if report and any(folders.runs_in(out)):
            _report(home)
        return outcome_of(out)


def _lead(runs: _Runs, only: Which | None) -> None:
    """Carry out this process's runs, wait for those of the others, and write down how the experiment stands."""
    home, status = runs.home, INTERRUPTED
    try:
        runs.go(only)
        runs.others()
        if not list(unfinished(home)):  # such as others than the one that was asked for
            status = FINISHED
    except KeyboardInterrupt:
        runs.dealt.settle()
    finally:
        runs.dealt.merge(home)
        home.write(status=status)
        home.log(f"The experiment is {status}" + (f", {len(home.known['failed'])} runs failed" if home.known["failed"] else ""))


def _share(ready: Ready, home: Away, crew: Crew, dealt: Dealt, only: Which | None) -> None:
    """Carry out the share of a process that does not lead, and wait for process 0 to end."""
    crew.begin()
    try:
        with Bar({}, False) as bar:
            _Runs(ready, home, bar, dealt, Together(SIMULATOR)).go(only)
        crew.say(done=True)
        crew.wait(lambda: "ended" in crew.facts(0) or None, 0)
    except KeyboardInterrupt:
        crew.say(ended="interrupted")


def _runs(ready: Ready, only: Which | None) -> list[Which]:
    """Return the runs that are carried out one by one."""
    seeds = ready.plan.spec.chosen_seeds
    every = [(label, seed) for label, method in ready.methods.items() if not method.swept for seed in seeds]
    return [which for which in every if only in (None, which)]


def unfinished(home: Home) -> Iterator[Path]:
    """Find the runs of an experiment that have neither come to their end nor failed."""
    failed = home.known["failed"]
    for wanted in home.known["wanted"]:
        label, seed = wanted["label"], wanted["seed"]
        path = home.run(label, seed)
        over = (path / folders.RUN).is_file() and Record.read(path).status in ENDED
        if not over and f"{label}/seed-{seed}" not in failed and f"{label}/sweep" not in failed:
            yield path


def resume(folder: Path, rounds: int | None = None, *, progress: bool | None = None, report: bool = True) -> Outcome:
    """Go on with the experiment of a folder, or with the one of its runs whose folder is given.

    Args:
        folder: the folder of an experiment, or of a run in one.
        rounds: how many rounds its runs are to have in all; None: as its spec says.
        progress: show a progress bar.
        report: write the report at the end.
    """
    home, only = home_of(folder)
    experiment = home.experiment()
    before = experiment.ready.plan.spec.rounds
    if rounds is None or rounds == before:
        return execute(experiment, home.path, progress=progress, report=report, only=only)
    if rounds < before:
        raise InputError(f"--rounds is {rounds}, but the experiment has {before}: ask for more, or for none to finish it.")
    if only is not None:
        raise InputError(f"--rounds is for all runs of an experiment alike: give {home.path}.")
    if experiment.ready.plan.swept:
        label = experiment.ready.plan.swept[0].label
        raise InputError(
            f"The settings of {label} were compared after {before} rounds: run the experiment anew with rounds = {rounds}, in "
            "another folder."
        )
    # Evaluated as before, or the curves of the new rounds would not go on those of the old.
    longer = home.experiment([f"rounds={rounds}", f"eval_every={experiment.ready.eval_every}"])
    return execute(longer, home.path, progress=progress, report=report, longer=True)


def _work(ready: Ready, only: Which | None) -> dict[str, int]:
    """Return the rounds of each method's runs, all together."""
    spec = ready.plan.spec
    rounds = lambda method: settings_of(method, spec.search.samples) * spec.rounds * len(spec.chosen_seeds)
    if only is not None:
        return {only[0]: spec.rounds}
    return {label: rounds(method) for label, method in ready.methods.items()}


class _Runs:
    """The runs of an experiment, as one process carries them out.

    Args:
        ready: what is run.
        home: the experiment's folder.
        bar: how far they are.
        dealt: which of them this process carries out alone.
        together: which processes carry each of them out together.
    """

    def __init__(self, ready: Ready, home: Home, bar: Bar, dealt: Dealt, together: Together):
        self.ready, self.home, self.bar, self.dealt, self.together = ready, home, bar, dealt, together
        self.spec = ready.plan.spec

    def go(self, only: Which | None) -> None:
        """Carry them out: one by one, or where several settings are tried, as a sweep whose winner's runs are kept."""
        for label, method in self.ready.methods.items():
            if only is not None and label != only[0]:
                continue
            if self.dealt.over:
                raise KeyboardInterrupt
            if method.swept:
                self._guarded(f"{label}/sweep", functools.partial(self._sweep, label, method))
                continue
            for seed in self.spec.chosen_seeds if only is None else [only[1]]:
                if self.dealt.mine((label, seed)):
                    self._guarded(f"{label}/seed-{seed}", functools.partial(self._one, (label, seed)))

    def others(self) -> None:
        """Wait for what other processes carry out."""
        for label, _ in self.dealt.wait(self.home):
            self.bar.done(label, self.spec.rounds)

    def _guarded(self, name: str, carry_out: Callable[[], None]) -> None:
        """Carry something out; an error is written down, and does not keep the others from being run."""
        try:
            carry_out()
            self.home.tried(name)
        except Lost:  # and with it all that processes do together
            raise
        except Missing as error:
            self.home.lost(str(error))
        except Exception as error:
            self.home.tried(name, str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}")

    def _one(self, which: Which) -> None:
        (label, seed), rounds = which, self.spec.rounds
        path = self.home.run(label, seed)
        record = Record.read(path) if (path / folders.RUN).is_file() else None
        if record is not None and record.status in ENDED and record.rounds >= rounds:
            self.bar.done(label, rounds)
            return
        self.together.next(which)
        if _one_of(self.ready, self.home, which, [self.bar.watcher(label, seed)]).interrupted:
            raise KeyboardInterrupt
        record = Record.read(path)
        if record.status == FINISHED and _diverged(record):
            replace(record, status=DIVERGED).write(path)
            self.home.log(f"{label}, seed {seed} diverged: a metric is not finite at the end")

    def _sweep(self, label: str, method: Method) -> None:
        """Try all settings, choose the best of them, and keep its runs as runs like any others."""
        spec, plan = self.spec, self.ready.plan
        drawn = {**method.ranges}
        if not drawn and settings_of(method, spec.search.samples) < settings_of(method, None):  # some combinations of many
            drawn = {**method.lists}
        lists = {name: values for name, values in method.lists.items() if name not in drawn}
        with self.bar.paused():
            found = sweep(
                self.ready.problem,
                self.ready.clients,
                method.algorithm,
                rounds=spec.rounds,
                grid=lists or None,
                search=drawn or None,
                samples=spec.search.samples if drawn else None,
                search_seed=spec.search.seed,
                halving=plan.halving,
                seeds=spec.chosen_seeds,
                eval_every=self.ready.eval_every,
                metrics=self.ready.metrics,
                select=spec.search.select,
                better=spec.search.better,
                strategy=getattr(plan.engine, "strategy", AUTO),
                devices=getattr(plan.engine, "devices", None),
                guard=plan.guard,
                privacy=plan.privacy,
                availability=plan.availability,
                folder=self.home.sweep(label),
                progress=self.bar.shown,
            )
        if found.interrupted:
            raise KeyboardInterrupt
        if not isinstance(self.home, Away):
            self._keep(label, method, found)
        self.bar.done(label, settings_of(method, spec.search.samples) * spec.rounds * len(found.seeds))

    def _keep(self, label: str, method: Method, found: Sweep) -> None:
        """Write the runs of the setting that is best."""
        found = _without_given_up(found, given_up(self.spec))
        best, by = found.chosen, str(self.spec.search.select)
        assert best is not None
        setting = found.settings[best]
        winner = method.algorithm.replace(**setting)
        for place, seed in enumerate(found.seeds):
            history = {name: v if name == "round" else v[best, place] for name, v in found.history.items()}
            Record(
                label=label,
                method=found.method,
                settings=repr(winner),
                seed=seed,
                rounds=int(found.rounds_run[best, place]),
                wanted=self.spec.rounds,
                status=DIVERGED if found.diverged[best, place] else FINISHED,
                history=history,
                costs=found.costs,
                better=found.better,
                on={name: on for name, on in self.ready.on.items() if name in history},
                hyper=hyper_parameters(winner),
                notes={"from": "sweep", "setting": best},
                data=folders.data_checksum(self.home.sweep(label) / folders.PLAN),
            ).write(self.home.run(label, seed))
        selected = {"metric": by, "on": self.ready.on.get(by, "train")}
        shown = {name: plain(value, (name,)) for name, value in setting.items()}
        self.home.write(
            selected_by={**self.home.known["selected_by"], label: selected},
            chosen={**self.home.known["chosen"], label: {"setting": shown, **selected}},
        )
        self.home.log(f"{label}: {shown} is the best of {len(found.settings)} settings by {by}")


def _one_of(ready: Ready, home: Home, which: Which, observers: Sequence[Observer] = ()) -> Result:
    """Carry one run out, in its folder."""
    given = _inputs(ready, home.run(*which), *which)
    stop = given_up(ready.plan.spec)
    observers = [*observers, *([stop] if stop else [])]
    rounds, every = ready.plan.spec.rounds, ready.eval_every
    return run(**given, rounds=rounds, seed=which[1], eval_every=every, progress=False, observers=observers)


def given_up(spec: Spec) -> StopWhen | None:
    """Return what ends the runs that an experiment gives up; None where there is no such rule."""
    return None if spec.stop is None else StopWhen(**spec.stop.model_dump())


def _without_given_up(found: Sweep, stop: StopWhen | None) -> Sweep:
    """Return a sweep in which a setting of which a run would have been given up has no number at its end: it is not chosen."""
    if stop is None:
        return found
    if stop.metric not in found.history:
        raise InputError(f"stop.metric is {stop.metric!r}, but there are {', '.join(found.better)}: name one of them.")
    curves = np.asarray(found.history[stop.metric], float)
    counts = [k for k, round in enumerate(found.history["round"]) if round >= stop.after]
    out = np.array([[any(stop.passed(stop.after, run[k]) for k in counts) for run in runs] for runs in curves]).any(axis=1)
    by = str(found.selected_by)
    values = np.array(found.history[by], float)
    values[out, :, -1] = np.nan
    return replace(found, history={**found.history, by: values})


def _inputs(ready: Ready, path: Path, label: str, seed: int) -> dict[str, Any]:
    """Return what a run is given, but for its rounds."""
    engine = ready.plan.engine
    return {
        "problem": ready.problem,
        "clients": ready.clients,
        "algorithm": ready.methods[label].algorithm,
        "metrics": ready.metrics,
        "engine": getattr(engine, "apart", lambda name: engine)(f"{label}-{seed}"),
        "guard": ready.plan.guard,
        "privacy": ready.plan.privacy,
        "availability": ready.plan.availability,
        "folder": RunFolder(path, label=label, on=ready.on),
        "checkpoint_every": ready.plan.spec.checkpoint_every,
    }


def inputs_of(home: Home, which: tuple[str, int]) -> dict[str, Any]:
    """Return what one run of an experiment is given, from the experiment's spec.

    Args:
        home: the experiment's folder.
        which: the run's label and seed.
    """
    return _inputs(home.experiment().ready, home.run(*which), *which)


def _diverged(record: Record) -> bool:
    """Tell whether a number that was finite at the start is not at the end."""
    values = [record.history[name] for name in record.metrics]
    return any(np.isfinite(v[0]) and not np.isfinite(v[-1]) for v in values if len(v))


def _report(home: Home) -> None:
    """Write the report; what goes wrong with it, and Ctrl-C, is a warning, since the runs are there."""
    from fedminimax.report import report

    try:
        report(home.path)
    except (Exception, KeyboardInterrupt) as error:
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        warnings.warn(
            f"The report was not written ({why}); the runs are in {home.path}, and fedminimax report {home.path} writes it.",
            stacklevel=2,
        )
