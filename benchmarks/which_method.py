"""Which method, when: every client-server method on five workloads, tuned alike, at equal upload and at equal gradients.

    python benchmarks/which_method.py run                        # an hour or two; goes on where it was stopped
    python benchmarks/which_method.py run --workloads wgan auc --methods FESS-GDA CD-MAGE
    python benchmarks/which_method.py                            # writes docs/which_method.md and its figures

Every method has as many settings, drawn at random from ranges that say nothing about the outcome, tried on one division of the
data and chosen there on validation data, for each of the two budgets. What is told is of eight other divisions: other examples,
other clients, other initial weights, other cohorts. Every number of the page is in results/which_method.csv.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import fedminimax as fm
from fedminimax.compare import at_upload, upload
from fedminimax.data import datasets, partition
from fedminimax.experiments.material import Pooled
from fedminimax.inputs import check_input
from fedminimax.models import MLP, Linear
from fedminimax.problems.gan import wgan_error

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "benchmarks" / "results" / "which_method.csv"
SETTINGS, TUNING_SEEDS, DIVISIONS = 12, (0, 1), 8
UPLOAD, GRADIENTS = "floats_up", "grad_evals"
BUDGETS = (UPLOAD, GRADIENTS)
EVALUATIONS = 20
TUNING = 100
"""The division on which settings are chosen; those that are told are 0 to 7."""


class Case(NamedTuple):
    """One division of a workload."""

    problem: Any
    clients: Any
    chosen_by: Any
    told: Any


@dataclass(frozen=True, eq=False)
class Workload:
    """What methods are compared on.

    Attributes:
        name: its short name.
        make: its division of a number.
        rounds: of Local SGDA; what these cost is the budget of all.
        settings: of every method: local steps, batch, cohort.
        lr_x: the range of steps of the model, for a method with local steps.
        lr_y: the range of steps of the max player.
        weights: whether the max player is weights on clients, so that the methods for these take part.
    """

    name: str
    make: Callable[[int], Case]
    rounds: int
    settings: dict[str, Any]
    lr_x: tuple[float, float]
    lr_y: tuple[float, float]
    weights: bool = False

    @functools.cache  # noqa: B019
    def case(self, division: int) -> Case:
        """Return a division."""
        return self.make(division)


def drawn(name: str, division: int, train: int, centred: bool) -> Pooled:
    """Return small images of a data set, as many of each class: another division has others."""
    whole, rng = datasets.load(name), np.random.default_rng(division)

    def taken(rows: Mapping[str, Any], *counts: int) -> Iterator[dict[str, Any]]:
        orders = [rng.permutation(np.flatnonzero(rows["labels"] == c)) for c in range(whole.classes)]
        first = 0
        for count in counts:
            each = count // whole.classes
            chosen = rng.permutation(np.concatenate([order[first : first + each] for order in orders]))
            first += each
            inputs = datasets.resized(rows["inputs"][chosen], 10)
            yield {"inputs": 2 * inputs - 1 if centred else inputs, "labels": rows["labels"][chosen]}

    held, kept = taken(whole.train, 2000, train)
    (test,) = taken(whole.test, 2000)
    return Pooled(kept, {"validation": held, "test": test}, whole.classes, "epochs", division, kept["labels"])


def with_positive(pooled: Pooled) -> Pooled:
    """Return the examples with the first class against all others."""
    one = lambda part: {**part, "labels": partition.one_vs_rest(part["labels"], 0)}
    held = {part: one(rows) for part, rows in pooled.held.items()}
    return replace(pooled, train=one(pooled.train), held=held, classes=2)


def wgan(division: int) -> Case:
    task = fm.problems.wgan(penalty=0.005, examples=2000, seed=division)
    return Case(task.problem, task.clients, wgan_error, wgan_error)


def fair_classes(division: int) -> Case:
    pooled = drawn("fashion_mnist", division, 4000, centred=False)
    made = pooled.divide(partition.major_class(pooled.kinds, 10, 0.5, seed=division), 10)
    problem = fm.problems.fair_classification(MLP([32], 10), made.clients, 10, seed=division)
    judge = lambda part: fm.metrics.ClassAccuracy(made.held[part], classes=10)
    return Case(problem, made.clients, judge("validation"), judge("test"))


def fair_clients(division: int) -> Case:
    pooled = drawn("fashion_mnist", division, 6000, centred=False)
    made = pooled.divide(partition.major_class(pooled.kinds, 20, 0.8, seed=division), 20)
    problem = fm.problems.robust_model(
        Linear(10), made.clients, 10, penalty=fm.penalties.ChiSquare(0.1), loss="entropy", seed=division
    )
    judge = lambda part: fm.metrics.On(fm.metrics.ClientAccuracy(), made.apart[part]())
    return Case(problem, made.clients, judge("validation"), judge("test"))


def robust(division: int) -> Case:
    pooled = drawn("mnist", division, 12_000, centred=True)
    made = pooled.divide(partition.by_class(pooled.kinds, 100, seed=division), 100)
    problem = fm.problems.robust_training(MLP([32, 32], 10), made.clients, 10, radius=0.5, seed=division)
    few = lambda part: {key: rows[:250] for key, rows in made.held[part].items()}
    judge = lambda part: fm.metrics.PGD(few(part), radius=0.5, steps=10, restarts=1)
    return Case(problem, made.clients, judge("validation"), judge("test"))


def auc(division: int) -> Case:
    pooled = drawn("mnist", division, 12_000, centred=True)
    made = with_positive(pooled).divide(partition.by_class(pooled.kinds, 100, seed=division), 100)
    problem = fm.problems.auc(MLP([32], 10, initializer="pytorch"), made.clients, seed=division)
    judge = lambda part: fm.metrics.AUC(made.held[part])
    return Case(problem, made.clients, judge("validation"), judge("test"))


WORKLOADS = {
    one.name: one
    for one in [
        Workload("wgan", wgan, 400, {"local_steps": 10, "batch_size": 50}, (1e-3, 0.3), (1e-3, 0.3)),
        Workload("fair-classes", fair_classes, 60, {"local_steps": 10, "batch_size": 20}, (3e-3, 0.3), (1e-4, 0.1)),
        Workload("fair-clients", fair_clients, 60, {"local_steps": 10, "batch_size": 10}, (3e-3, 0.3), (1e-4, 0.1), True),
        Workload("robust", robust, 120, {"local_steps": 12, "batch_size": 10, "cohort_size": 10}, (3e-3, 0.3), (1e-3, 1.0)),
        Workload("auc", auc, 80, {"local_steps": 12, "batch_size": 10, "cohort_size": 10}, (0.03, 2.0), (0.01, 1.0)),
    ]
}


class Contender(NamedTuple):
    """A method: how it is made of a workload's settings, and what is drawn beside its steps."""

    make: Callable[..., Any]
    drawn: Mapping[str, Any] = MappingProxyType({})
    steps: bool = True
    settings: tuple[str, ...] = ("local_steps", "batch_size", "cohort_size")
    fixed: Mapping[str, Any] = MappingProxyType({})


def _around(low: float = 0.5, high: float = 2.0) -> fm.LogUniform:
    return fm.LogUniform(low, high)


_SERVER = {"server_lr_x": _around(), "server_lr_y": _around()}
_SMOOTH = {"p": fm.LogUniform(0.03, 3.0), "beta": fm.Uniform(0.05, 0.9)}
_STAGED = {"theta": fm.LogUniform(1e-3, 1.0), "stage_decay": fm.LogUniform(0.3, 1.0)}
_ONE = ("batch_size", "cohort_size")
METHODS: dict[str, Contender] = {
    "Local SGDA": Contender(fm.LocalSGDA),
    "Local SGDA+": Contender(fm.LocalSGDAPlus, fixed={"snapshot_every": 5}),
    "FSGDA": Contender(fm.FSGDA, _SERVER),
    "FedSGDA+": Contender(fm.FedSGDAPlus, _SERVER, fixed={"snapshot_every": 5}),
    "FedSGDA-M": Contender(fm.FedSGDAM, {"alpha": fm.Uniform(0.1, 1.0), "beta": fm.Uniform(0.1, 1.0)}),
    "Fed-Norm-SGDA, momentum": Contender(fm.FedNormSGDA, _SERVER, fixed={"solver": fm.Momentum(0.9)}),
    "Fed-Norm-SGDA+, momentum": Contender(fm.FedNormSGDAPlus, _SERVER, fixed={"solver": fm.Momentum(0.9), "snapshot_every": 5}),
    "SAGDA": Contender(fm.SAGDA, _SERVER),
    "FESS-GDA": Contender(fm.FessGDA, _SMOOTH),
    "Smoothed-AGDA": Contender(fm.SmoothedAGDA, _SMOOTH, steps=False, settings=("cohort_size",)),
    "Parallel SGDA": Contender(fm.ParallelSGDA, steps=False, settings=("cohort_size",)),
    "CD-MAGE": Contender(fm.CDMAGE),
    "CD-MAGE, one cohort": Contender(fm.CDMAGE, fixed={"same_cohort": True}),
    "CD-MAGE+": Contender(fm.CDMAGEPlus, {"alpha": fm.Uniform(0.1, 1.0)}),
    "Extra Step": Contender(fm.ExtraStepLocalSGD),
    "CODA+": Contender(fm.CODAPlus, _STAGED),
    "CODASCA": Contender(fm.CODASCA, {**_STAGED, **_SERVER}),
    "Catalyst-Scaffold-S": Contender(fm.CatalystScaffoldS, {"theta": fm.LogUniform(1e-3, 1.0)}),
}
_MODEL = ("local_steps", "batch_size")
ON_CLIENTS: dict[str, Contender] = {
    "FedAvg": Contender(fm.FedAvg, {"server_lr_x": _around()}),
    "FedProx": Contender(fm.FedProx, {"mu": fm.LogUniform(1e-3, 1.0)}),
    "SCAFFOLD": Contender(fm.Scaffold, {"server_lr_x": _around()}),
    "q-FFL": Contender(fm.QFedAvg, {"q": fm.LogUniform(0.1, 5.0)}),
    "Delta-FL": Contender(fm.DeltaFL, {"alpha": fm.Uniform(0.2, 0.9)}),
    "AFL": Contender(fm.AFL, settings=_MODEL),
    "DRFA": Contender(fm.DRFA),
    "SCAFF-PD": Contender(fm.ScaffPD, {"sigma": fm.LogUniform(1e-2, 10.0)}, settings=_MODEL),
}
_STAGES = 4
"""Into how many stages the rounds are divided of the methods that have them."""


def contenders(workload: Workload) -> dict[str, Contender]:
    """Return the methods that can solve a workload."""
    return METHODS | ON_CLIENTS if workload.weights else METHODS


def made(workload: Workload, name: str) -> tuple[Any, dict[str, Any]]:
    """Return a method for a workload, and what is to be drawn."""
    one = contenders(workload)[name]
    common = {key: value for key, value in workload.settings.items() if key in one.settings} | dict(one.fixed)
    steps = workload.settings["local_steps"]
    longer = 1 if one.steps else steps  # one step stands for all of a round's
    ranges = {
        "lr_x": fm.LogUniform(*(longer * end for end in workload.lr_x)),
        "lr_y": fm.LogUniform(*(longer * end for end in workload.lr_y)),
    }
    if one.make is fm.ScaffPD:  # whose step on the server is of the length of all local steps, and whose ascent is sigma's
        ranges = {"tau": fm.LogUniform(*(steps * end for end in workload.lr_x))}
        return fm.ScaffPD(0.1, 0.1, mu_x=0.0, **common), ranges | dict(one.drawn)
    if one.make in (fm.AFL, fm.DRFA):
        ranges["lr_w"] = ranges.pop("lr_y")
        return one.make(0.1, lr_w=0.1, **common), ranges | dict(one.drawn)
    if name in ON_CLIENTS:
        del ranges["lr_y"]
        return one.make(0.1, **common), ranges | dict(one.drawn)
    if hasattr(one.make, "restart_every"):
        common["restart_every"] = workload.rounds * steps // _STAGES
    return one.make(0.1, 0.1, **common), ranges | dict(one.drawn)


@functools.cache
def form(workload: Workload, name: str) -> Any:
    """Return the problem in the form that a method is for: of all divisions the same one, whose programs are compiled once."""
    return as_solved(workload.case(TUNING).problem, name)


def as_solved(problem: Any, name: str) -> Any:
    """Return a problem of weights on clients as the minimax problem that it is, for a method that is not for these."""
    return problem.as_minimax() if isinstance(problem, fm.RobustProblem) and name not in ON_CLIENTS else problem


def once(workload: Workload, name: str, method: Any, division: int, rounds: int, every: int) -> Any:
    """Run a method on a division, from its own initial weights."""
    case, problem = workload.case(division), form(workload, name)
    start = method.init(check_input(as_solved(case.problem, name), case.clients, method, 0)[0])
    return fm.run(
        problem, case.clients, method, rounds=rounds, eval_every=every, seed=division, start=start, metrics={"m": case.told},
        progress=False,
    )  # fmt: skip


def costs(workload: Workload, name: str, method: Any) -> dict[str, float]:
    """Return what a round costs."""
    case = workload.case(TUNING)
    done = fm.run(form(workload, name), case.clients, method, rounds=2, progress=False).costs
    return {budget: float(np.mean(done[budget])) for budget in BUDGETS}


def matched(workload: Workload, name: str, method: Any) -> Any:
    """Return a method with the cohort that sends up what Local SGDA's does, where clients are drawn."""
    if "cohort_size" not in workload.settings:
        return method
    case = workload.case(TUNING)
    base, _ = made(workload, "Local SGDA")
    return at_upload(case.problem, case.clients, method, upload(case.problem, case.clients, base))


WHICH = {"fair-classes": "/worst", "fair-clients": "/worst20", "robust": "/loss"}


def at(cost: np.ndarray, value: np.ndarray, budget: float) -> float:
    """Return the value at the last evaluation that the budget allows."""
    inside = np.flatnonzero(np.asarray(cost) <= budget * (1 + 1e-9))
    return float(np.asarray(value)[inside[-1]])


def settled(value: float, better: str) -> float:
    """Return a number that can be compared: a run that went astray is worse than any."""
    return value if math.isfinite(value) else (-math.inf if better == "higher" else math.inf)


def carried_out(workload: Workload, name: str) -> Iterator[dict[str, Any]]:
    """Tune a method and run it on the other divisions, and return the table's rows."""
    began = time.monotonic()
    base = costs(workload, "Local SGDA", made(workload, "Local SGDA")[0])
    budgets = {key: workload.rounds * cost for key, cost in base.items()}
    method, ranges = made(workload, name)
    method = matched(workload, name, method)
    own = costs(workload, name, method)
    rounds = max(math.ceil(budgets[key] / own[key] - 1e-9) for key in BUDGETS)
    rounds = min(rounds, 2 * workload.rounds)
    every = max(1, round(min(rounds, workload.rounds) / EVALUATIONS))
    rounds = -(-rounds // every) * every
    metric = "m" + WHICH.get(workload.name, "")
    case = workload.case(TUNING)
    found = fm.sweep(
        form(workload, name), case.clients, method, rounds=rounds, eval_every=every, search=ranges, samples=SETTINGS,
        seeds=TUNING_SEEDS, metrics={"m": case.chosen_by}, progress=False,
    )  # fmt: skip
    better = found.better.get(metric, "lower")
    chosen = {}
    for key, budget in budgets.items():
        values = found.history[metric]
        ends = [
            [settled(at(found.history[key][s, r], values[s, r], budget), better) for r in range(len(TUNING_SEEDS))]
            for s in range(SETTINGS)
        ]
        mean = np.mean(ends, axis=1)
        chosen[key] = int(np.argmax(mean) if better == "higher" else np.argmin(mean))
    done: dict[int, list[Any]] = {}
    for setting in dict.fromkeys(chosen.values()):
        tuned = method.replace(**found.settings[setting])
        done[setting] = [once(workload, name, tuned, division, rounds, every) for division in range(DIVISIONS)]
    seconds = round(time.monotonic() - began, 1)
    for key, budget in budgets.items():
        drawn = {k: float(f"{v:.4g}") for k, v in found.settings[chosen[key]].items()}
        for division, result in enumerate(done[chosen[key]]):
            history = result.history
            value = at(history[key], history[metric], budget)
            yield {
                "workload": workload.name, "method": name, "budget": key, "division": division,
                "value": f"{value:.6g}", "better": better, "rounds": int(at(history[key], history["round"], budget)),
                "floats_up": int(at(history[key], history[UPLOAD], budget)),
                "grad_evals": int(at(history[key], history[GRADIENTS], budget)),
                "cohort": getattr(method, "cohort_size", None) or "all", "settings": json.dumps(drawn),
                "diverged": f"{float(found.diverged.mean()):.3g}", "seconds": seconds,
            }  # fmt: skip


def read() -> list[dict[str, str]]:
    """Return the table's rows."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def add(rows: list[dict[str, Any]]) -> None:
    """Add rows to the table."""
    new = not TABLE.exists()
    with TABLE.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def run(workloads: list[str], methods: list[str]) -> None:
    """Carry out what the table does not have yet."""
    for name in workloads:
        workload = WORKLOADS[name]
        known = {(row["workload"], row["method"]) for row in read()}
        for method in methods or contenders(workload):
            if (name, method) in known or method not in contenders(workload):
                continue
            rows = list(carried_out(workload, method))
            add(rows)
            ends = {key: [float(row["value"]) for row in rows if row["budget"] == key] for key in BUDGETS}
            shown = ", ".join(f"{key} {np.mean(values):.4g} +- {np.std(values, ddof=1):.2g}" for key, values in ends.items())
            print(f"{name:13} {method:26} {shown}  ({rows[0]['seconds']} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run", "page"], default="page")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--methods", nargs="+", default=[])
    options = parser.parse_args()
    if options.what == "run":
        run(options.workloads, options.methods)
    else:
        import which_page

        which_page.write()


if __name__ == "__main__":
    main()
