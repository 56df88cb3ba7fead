"""The demonstration: twenty unlike clients, and a model that serves the worst-off of them too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from fedminimax import metrics, models
from fedminimax.algorithms import DRFA, Algorithm, FedAvg, ScaffPD
from fedminimax.data import datasets
from fedminimax.data.federation import Federation
from fedminimax.data.silos import silos
from fedminimax.problems import RobustProblem, robust_model
from fedminimax.problems.base import by_client
from fedminimax.report import report
from fedminimax.result import Result
from fedminimax.run import run
from fedminimax.runfolder import RunFolder

CLIENTS, ALPHA, RIDGE = 20, 0.05, 1e-3
AVERAGE, WORST = SHOWN = "client_accuracy/mean", "client_accuracy/worst20"
LEADER, USUAL, POOLED = "SCAFF-PD", "FedAvg", "pooled (not federated)"


@dataclass(frozen=True)
class Outcome:
    """What the demonstration found.

    Attributes:
        results: for each method its runs, one a seed; those of all methods have the same seeds.
        pooled: what a model of all rows in one place gets, by the names of the metrics.
        page: where the report is; None: it was interrupted before the end.
    """

    results: dict[str, list[Result]]
    pooled: dict[str, float]
    page: Path | None


def methods() -> dict[str, Algorithm]:
    """Return the methods, with the step sizes that ``fedminimax fair`` finds for them on this very division of the digits."""
    common: dict[str, Any] = {"local_steps": 20, "batch_size": 32}
    return {
        LEADER: ScaffPD(tau=0.704, sigma=0.1, **common),
        USUAL: FedAvg(lr_x=0.0519, **common),
        "DRFA": DRFA(lr_x=0.0352, lr_w=0.05, **common),
    }


def task(data: str = "digits", split: int = 0) -> tuple[RobustProblem, Federation]:
    """Return a linear classifier's problem and its clients: Dirichlet(0.05) over twenty, some of which lose most examples."""
    federation = silos(datasets.load(data), CLIENTS, ALPHA, seed=split)
    classes = len(federation.classes or [])
    return robust_model(models.Linear(classes), federation.train, classes, ridge=RIDGE), federation


def demo(
    folder: Path,
    data: str = "digits",
    rounds: int = 100,
    seeds: int = 5,
    split: int = 0,
    console: Console | None = None,
) -> Outcome:
    """Run all methods with several seeds, print a table, and write the report. What was interrupted goes on."""
    console = console or Console()
    problem, federation = task(data, split)
    _introduce(data, federation, console)
    judges: list[metrics.Metric] = [metrics.ClientAccuracy(federation.test, each=True), metrics.ClientWeights(each=True)]
    results: dict[str, list[Result]] = {name: [] for name in methods()}
    pooled = in_one_place(federation)
    for seed in range(seeds):
        for name, method in methods().items():
            try:
                result = run(
                    problem,
                    federation.train,
                    method,
                    rounds=rounds,
                    seed=seed,
                    eval_every=max(1, rounds // 20),
                    metrics=judges,
                    progress=WORST,
                    folder=RunFolder(folder / "runs" / name / f"seed-{seed}", label=name, on=dict.fromkeys(SHOWN, "test")),
                )
            except KeyboardInterrupt:  # before its first round
                return _interrupted(results, pooled, f"before {name}, seed {seed}", console)
            if result.interrupted:
                where = f"in {name}, seed {seed}, after {result.rounds} of {rounds} rounds"
                return _interrupted(results, pooled, where, console)
            results[name].append(result)
    console.print(_table(results, pooled))
    console.print(_verdict(results, pooled), highlight=False)
    page = report(folder, title="Fair to the worst client", metric=WORST)
    console.print(f"Report: {page}", soft_wrap=True)
    return Outcome(results, pooled, page)


def _interrupted(results: dict[str, list[Result]], pooled: dict[str, float], where: str, console: Console) -> Outcome:
    """Say that nothing is compared yet, and how it goes on: runs of different lengths would say nothing."""
    console.print(f"Interrupted {where}: the same command goes on from there.", highlight=False)
    return Outcome(results, pooled, None)


def in_one_place(federation: Federation) -> dict[str, float]:
    """Return what the same model gets if all rows are pooled, for the average client and for the worst fifth of them.

    It minimises what FedAvg does, the mean of the clients' squared losses, but exactly.
    """
    from sklearn.linear_model import RidgeClassifier

    train, test = federation.train, federation.test
    flat = lambda clients: np.asarray(clients.fields["inputs"]).reshape(clients.total, -1)
    sizes = np.asarray(train.sizes)
    pooled = RidgeClassifier(alpha=RIDGE * train.count)
    pooled.fit(flat(train), np.asarray(train.fields["labels"]), sample_weight=np.repeat(1 / sizes, sizes))
    right = pooled.predict(flat(test)) == np.asarray(test.fields["labels"])
    each = metrics.summary(by_client(jnp.asarray(right, float), test))
    return {AVERAGE: float(each["mean"]), WORST: float(each["worst20"])}


def _introduce(data: str, federation: Federation, console: Console) -> None:
    train = federation.train
    console.print(
        f"[bold]Fair to the worst client[/bold]: {train.total} images of {data} on {train.count} clients that hold "
        f"{train.smallest} to {train.largest} each, mostly of few classes.\n"
        f"FedAvg trains a model that is good on average. SCAFF-PD and DRFA train it (the min player) against weights on the "
        "clients (the max player), so that nobody is left behind."
    )


def _ends(results: list[Result], metric: str) -> np.ndarray:
    return np.array([result.history[metric][-1] for result in results])


def _table(results: dict[str, list[Result]], pooled: dict[str, float]) -> Table:
    runs = len(results[LEADER])
    table = Table(title=f"Test accuracy: mean and standard deviation over {runs} seed{'s' * (runs > 1)}")
    for column in ("method", "average client", "worst fifth", "floats up", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, runs_of in results.items():
        shown = [f"{100 * _ends(runs_of, m).mean():.1f} ± {100 * _ends(runs_of, m).std():.1f}%" for m in SHOWN]
        up, seconds = runs_of[0].history["floats_up"][-1], sum(r.seconds + r.compile_seconds for r in runs_of)
        table.add_row(name, *shown, f"{up:,.0f}", f"{seconds:.1f}")
    table.add_row(POOLED, *(f"{pooled[m]:.1%}" for m in SHOWN), "", "", style="dim")
    return table


def _verdict(results: dict[str, list[Result]], pooled: dict[str, float]) -> str:
    lead = 100 * (_ends(results[LEADER], WORST) - _ends(results[USUAL], WORST))
    beside = 100 * (_ends(results[LEADER], WORST).mean() - pooled[WORST])
    compared = "as much as" if abs(beside) < 0.5 else f"{abs(beside):.0f} points {'above' if beside > 0 else 'below'}"
    return (
        f"The worst fifth of the clients gets {lead.min():.0f} to {lead.max():.0f} points more from {LEADER} than from "
        f"{USUAL}, seed by seed: {compared} what pooling all rows would give them with the same model and loss."
    )
