"""What watches a run: small objects that are told how it goes, and may ask it to stop.

An observer has any of four methods, each given the :class:`Watched` run:

- ``on_start(run)``: before the first round, with the metrics of the start;
- ``on_rounds(run)``: after some rounds, as often as the engine comes back;
- ``on_evaluation(run)``: when the metrics have been taken, also at the start;
- ``on_end(run)``: at the end, also of a run that was interrupted.

One that has to be told at a certain round says so by a method ``wants(run)``, which returns the number of that round, or None.
A run that was stopped and goes on (``run.resumed``) tells ``on_start``, with the metrics that were taken last, and not again
what it told before; ``run.history()`` has all of it.

An observer that raises ends the run. Nothing is lost: the result is that of the rounds that were run, and says why it ended.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from fedminimax import checks
from fedminimax.engines.execution import Snapshot
from fedminimax.engines.rows import Part
from fedminimax.errors import InputError
from fedminimax.result import Result

MOMENTS = ("on_start", "on_rounds", "on_evaluation", "on_end")


class Telling(Protocol):
    """Whoever keeps the record of a run."""

    @property
    def seconds(self) -> float:
        """The wall time of its rounds so far."""
        ...

    def result(self, whole: bool = True) -> Result:
        """Return what has come of it so far."""
        ...

    def history(self) -> dict[str, np.ndarray]:
        """Return its evaluations so far."""
        ...


class Watched:
    """A run, as its observers see it.

    Attributes:
        method: the algorithm's name.
        settings: the algorithm with its hyper-parameters, as text.
        seed: the seed.
        first: the round at which it began; above 0 where an earlier run is continued.
        last: the round at which it will be over.
        eval_every: how many rounds apart its evaluations are.
        round: how many rounds have been run.
        evaluation: the newest metrics, by name: numbers, and an array where a metric returns one.
        evaluated: after how many rounds they were taken.
        costs: what the run has cost up to the newest evaluation: "floats_up", "grad_evals", ...
        stopped: why it was asked to stop; None: it was not.
        resumed: the round from which a run that had been stopped goes on; None: it has begun with ``first``.
    """

    def __init__(
        self,
        method: str,
        settings: str,
        seed: int,
        first: int,
        last: int,
        execution: Any,
        told: Telling | None = None,
    ):
        self.method, self.settings, self.seed, self.first, self.last = method, settings, seed, first, last
        self.round = self.evaluated = first
        self.eval_every = 1
        self.evaluation: dict[str, Any] = {}
        self.costs: dict[str, float] = {}
        self.stopped: str | None = None
        self.resumed: int | None = None
        self._execution, self._told = execution, told

    @property
    def state(self) -> Any:
        """The algorithm's state."""
        return self._execution.state

    @property
    def numbers(self) -> dict[str, float]:
        """The newest metrics that are numbers, by name."""
        return {name: value for name, value in self.evaluation.items() if np.ndim(value) == 0}

    def snapshot(self) -> Snapshot:
        """Return all that the run goes on from."""
        return self._execution.snapshot()

    def keep(self, folder: Path) -> Callable[[], list[Part]] | None:
        """Have clients' states that a snapshot lacks written into a checkpoint's folder (see :class:`Execution`)."""
        return self._execution.keep(folder)

    def result(self, whole: bool = True) -> Result:
        """Return what has come of the run so far, as if it ended now.

        Args:
            whole: whether a recorded trace has the local steps that the seed alone would draw again, which takes time.
        """
        assert self._told is not None
        return self._told.result(whole)

    def history(self) -> dict[str, np.ndarray]:
        """Return the evaluations so far, as :class:`fedminimax.Result` has them."""
        assert self._told is not None
        return self._told.history()

    @property
    def seconds(self) -> float:
        """The wall time of all calls but the first, and of the runs before that are continued."""
        return 0.0 if self._told is None else self._told.seconds

    @property
    def layout(self) -> dict[str, Any]:
        """How the engine carries out the run: on how many devices, and what else its rounding depends on."""
        return self._execution.layout

    def stop(self, reason: str) -> None:
        """Ask the run to end now, and say why."""
        self.stopped = self.stopped or reason


class Observer:
    """The base of the observers here. One of your own need not derive from it: it needs the methods that it cares for."""

    def on_start(self, run: Watched) -> None:
        """Do nothing before the first round."""

    def on_rounds(self, run: Watched) -> None:
        """Do nothing after some rounds."""

    def on_evaluation(self, run: Watched) -> None:
        """Do nothing with the metrics."""

    def on_end(self, run: Watched) -> None:
        """Do nothing at the end."""


def checked(observers: Any) -> list[Any]:
    """Return observers as a list, or say what is wrong with one of them."""
    found = list(observers) if isinstance(observers, Iterable) else [observers]
    for observer in found:
        if isinstance(observer, type):
            raise InputError(f"{observer.__name__} is a class: give an observer, such as {observer.__name__}(...).")
        if not any(callable(getattr(observer, moment, None)) for moment in MOMENTS):
            raise InputError(f"{type(observer).__name__} is no observer: it has none of the methods {', '.join(MOMENTS)}.")
    return found


def tell(observers: Iterable[Any], moment: str, run: Watched) -> None:
    """Tell all observers; one that raises ends the run, with its name in the reason."""
    for observer in observers:
        try:
            if (method := getattr(observer, moment, None)) is not None:
                method(run)
        except Exception as error:  # whatever it is, the run's state is worth more
            run.stop(f"The observer {type(observer).__name__} raised {type(error).__name__}: {error}")


def wanted(observers: Iterable[Any], run: Watched) -> list[int]:
    """Return the rounds to come at which observers have to be told."""
    asked = [observer.wants(run) for observer in observers if hasattr(observer, "wants")]
    return [round for round in asked if round is not None and round > run.round]


class StopWhen(Observer):
    """Stops a run when a metric is good enough, or has not become better for a while.

    Args:
        metric: its name in the history.
        below: stop when it is below this.
        above: stop when it is above this.
        after: look at neither before so many rounds.
        patience: stop when so many evaluations in a row have not brought a better value; which way is better must be said.
        better: "lower" or "higher", for ``patience``.
    """

    def __init__(
        self,
        metric: str,
        *,
        below: float | None = None,
        above: float | None = None,
        after: int = 0,
        patience: int | None = None,
        better: str | None = None,
    ):
        if below is None and above is None and patience is None:
            raise InputError("StopWhen needs below=, above= or patience=: it would never stop a run.")
        if patience is not None:
            checks.integer("patience", patience)
            if better not in ("lower", "higher"):
                raise InputError(f"StopWhen with patience needs better='lower' or better='higher', not {better!r}.")
        self.metric, self.below, self.above, self.after, self.patience = metric, below, above, after, patience
        self._sign = -1.0 if better == "higher" else 1.0

    def on_start(self, run: Watched) -> None:
        """Look whether there is such a metric, and forget earlier runs."""
        if self.metric not in run.numbers:
            known = ", ".join(run.numbers) or "no metric"
            raise InputError(f"there is no {self.metric!r} to watch: this run has {known}")
        self._best, self._since = math.inf, 0
        if run.resumed is not None:  # as it was when the run was stopped
            past = run.history()
            for round, value in zip(past["round"], past[self.metric], strict=True):
                if round >= run.first:
                    self._judge(run, int(round), float(value))

    def on_evaluation(self, run: Watched) -> None:
        """Stop the run if it is time."""
        if self.metric in run.numbers:
            self._judge(run, run.round, run.numbers[self.metric])

    def passed(self, round: int, value: float) -> bool:
        """Tell whether the metric has passed one of the levels, at a round from which on they count."""
        low, high = self.below is not None and value < self.below, self.above is not None and value > self.above
        return round >= self.after and (low or high)

    def _judge(self, run: Watched, round: int, value: float) -> None:
        if self.passed(round, value):
            side = "below" if self.below is not None and value < self.below else "above"
            run.stop(f"{self.metric} = {value:.6g} is {side} {self.below if side == 'below' else self.above:g}")
        if self.patience is None or round == run.first:
            return
        better = self._sign * value < self._best
        self._best, self._since = (self._sign * value, 0) if better else (self._best, self._since + 1)
        if self._since >= self.patience:
            run.stop(f"{self.metric} has not become better for {self._since} evaluations")


class LogCSV(Observer):
    """Writes a row for every evaluation to a CSV file, at once: what was written survives whatever happens to the run.

    The columns are numbers; a metric's arrays, such as one number for each client, are left to the result.

    Args:
        path: the file; a run that continues an earlier one adds to it.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def on_start(self, run: Watched) -> None:
        """Open the file, and write the names of the columns unless they are there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        going_on = (run.first > 0 or run.resumed is not None) and self.path.exists()
        self._columns = ["round", *run.numbers, *run.costs]
        if going_on:
            with self.path.open(newline="") as before:
                self._columns, *rows = [*csv.reader(before)] or [self._columns]
            if run.resumed is not None:  # rows of rounds after the checkpoint will come again
                self._rewrite([row for row in rows if int(row[0]) <= run.evaluated])
        self._file = self.path.open("a" if going_on else "w", newline="")
        if not going_on:
            csv.writer(self._file).writerow(self._columns)

    def _rewrite(self, rows: list[list[str]]) -> None:
        whole = self.path.with_name(f".{self.path.name}.part")
        with whole.open("w", newline="") as file:
            csv.writer(file).writerows([self._columns, *rows])
        os.replace(whole, self.path)

    def on_evaluation(self, run: Watched) -> None:
        """Write a row. The one at the start of a run that goes on was written by the run before."""
        if self._file is None or (run.round == run.first and run.first > 0 and run.resumed is None):
            return
        row: Mapping[str, Any] = {"round": run.evaluated, **run.numbers, **run.costs}
        csv.writer(self._file).writerow([row.get(name, "") for name in self._columns])
        self._file.flush()

    def on_end(self, run: Watched) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard(Observer):
    """Writes metrics and costs for TensorBoard (needs tensorboardX: the extra ``track``); a metric's arrays as histograms.

    Args:
        folder: where the event files go.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._writer = _wanted("tensorboardX", "TensorBoard").SummaryWriter(str(self.folder))

    def on_evaluation(self, run: Watched) -> None:
        """Write the newest numbers."""
        for name, value in {**run.evaluation, **run.costs}.items():
            write = self._writer.add_scalar if np.ndim(value) == 0 else self._writer.add_histogram
            write(name, value, run.evaluated)

    def on_end(self, run: Watched) -> None:
        """Write out what is waiting."""
        self._writer.flush()


class MLflow(Observer):
    """Logs settings, metrics that are numbers, and costs to MLflow (the extra ``track``), as one run.

    Args:
        experiment: the experiment's name; None: the one that is set.
        tracking_uri: where MLflow keeps its runs; None: as it is set up.
    """

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None):
        self._mlflow = _wanted("mlflow", "MLflow")
        self.experiment, self.tracking_uri = experiment, tracking_uri

    def on_start(self, run: Watched) -> None:
        """Begin a run, with the settings as its parameters."""
        if self.tracking_uri is not None:
            self._mlflow.set_tracking_uri(self.tracking_uri)
        if self.experiment is not None:
            self._mlflow.set_experiment(self.experiment)
        self._mlflow.start_run(run_name=run.method)
        self._mlflow.log_params({"method": run.method, "settings": run.settings[:500], "seed": run.seed})

    def on_evaluation(self, run: Watched) -> None:
        """Log the newest numbers."""
        numbers = {**run.numbers, **run.costs}
        self._mlflow.log_metrics({name.replace("%", ""): float(v) for name, v in numbers.items()}, step=run.evaluated)

    def on_end(self, run: Watched) -> None:
        """End the run."""
        self._mlflow.end_run()


def _wanted(package: str, observer: str) -> Any:
    """Import a package of the extra ``track``, or say how to get it."""
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(f"{observer} needs {package}: pip install 'fedminimax[track]'.") from None
