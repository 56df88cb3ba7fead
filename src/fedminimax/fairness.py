"""Which method serves the worst-off client best? Tune several on a federation with equal budgets, run them, and report.

:func:`contest` is what ``fedminimax fair`` calls: it searches step sizes on the training objective, trains, and returns a
:class:`Comparison` with the table and the figures of a fairness paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import metrics, models, players, plots
from fedminimax.algorithms import ALGORITHMS, Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.errors import InputError
from fedminimax.penalties import ChiSquare, Penalty
from fedminimax.players import Point
from fedminimax.problems.base import over_all
from fedminimax.problems.robust import RobustProblem
from fedminimax.problems.robust_model import SQUARED, robust_model
from fedminimax.result import Result
from fedminimax.run import run
from fedminimax.sweep import Sweep, sweep

if TYPE_CHECKING:
    import pandas as pd

BUDGET = 12
"""How many settings of each method are tried: the same for all."""
_POWER_STEPS = 20


@dataclass(frozen=True)
class Comparison:
    """What :func:`contest` found.

    Attributes:
        federation: the clients' data.
        problem: what was solved.
        settings: the hyper-parameters of each method that were searched, as chosen.
        searches: the search of each method that was tuned.
        results: for each method its runs, one a seed.
        values: for each method the clients' test accuracy (or error), [seeds, N].
        label: what the values are.
        higher_is_better: whether larger values are better.
    """

    federation: Federation
    problem: RobustProblem
    settings: dict[str, dict[str, float]]
    searches: dict[str, Sweep]
    results: dict[str, list[Result]]
    values: dict[str, np.ndarray]
    label: str
    higher_is_better: bool

    def summary(self, method: str) -> dict[str, float]:
        """Return average, worst-20%, best-20% and variance over all clients, as means over seeds."""
        rows = [metrics.summary(jnp.asarray(row), self.higher_is_better) for row in self.values[method]]
        return {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0]}

    def table(self) -> pd.DataFrame:
        """Return one row a method: the summary, its spread over seeds, the weights' entropy, the objective and the settings."""
        import pandas as pd

        rows = {}
        for method, results in self.results.items():
            worst = [float(metrics.summary(jnp.asarray(v), self.higher_is_better)["worst20"]) for v in self.values[method]]
            rows[method] = {
                **self.summary(method),
                "worst20_std": float(np.std(worst)),
                "w_entropy": float(np.mean([r.final()["w/entropy"] for r in results])),
                "train_objective": float(np.mean([r.final()["worst_case"] for r in results])),
                "settings": ", ".join(f"{k}={v:.3g}" for k, v in self.settings[method].items()),
            }
        return pd.DataFrame.from_dict(rows, orient="index")

    def clients(self) -> pd.DataFrame:
        """Return one row a client: its sizes, and its test value by each method (the mean over seeds)."""
        import pandas as pd

        sizes = {"train": np.asarray(self.federation.train.sizes), "test": np.asarray(self.federation.test.sizes)}
        return pd.DataFrame(sizes | {m: v.mean(axis=0) for m, v in self.values.items()}, index=self.federation.names)

    def figures(self, folder: Path) -> list[Path]:
        """Draw everything into a folder, and return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        metric, drawn = self._metric, []
        scale = f"test {self.label}"
        names, pair = self.federation.names, {m: self.values[m].mean(axis=0) for m in list(self.values)[:2]}
        bars = plots.client_bars(pair, names, label=scale, higher_is_better=self.higher_is_better)
        drawn.append(_save(bars, folder, "clients"))
        drawn.append(_save(plots.fairness_scatter({m: self.summary(m) for m in self.values}, label=scale), folder, "scatter"))
        for part, title in (("worst20", "worst 20%"), ("mean", "average")):
            ax = plots.bands(self.results, f"{metric}/{part}", label=f"{scale}, {title}")
            drawn.append(_save(ax, folder, f"rounds_{part}"))
        for method, results in self.results.items():
            if results[0].y is not None:
                drawn.append(_save(plots.weight_history(results[0], names), folder, f"weights_{method}"))
        return drawn

    @property
    def _metric(self) -> str:
        return metrics.ClientAccuracy.name if self.higher_is_better else metrics.ClientError.name


def contest(
    federation: Federation,
    methods: Iterable[str] = ("ScaffPD", "FedAvg", "DRFA"),
    *,
    penalty: Penalty | None = None,
    rounds: int = 200,
    local_steps: int = 20,
    batch_size: int | None = 32,
    loss: str = SQUARED,
    ridge: float = 1e-3,
    model: Any = None,
    seeds: int = 1,
    settings: Mapping[str, Mapping[str, float]] | None = None,
    search_rounds: int | None = None,
    eval_every: int | None = None,
    progress: bool | None = None,
    tell: Callable[[str], None] = lambda line: None,
    busy: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Comparison:
    """Tune methods with equal budgets, train with the best settings, and measure every client on its own test data.

    Args:
        federation: train and test data by client (see :func:`fedminimax.data.silos`, :func:`fedminimax.data.federate`).
        methods: names of methods for a RobustProblem; the first is the one that the others are compared with.
        penalty: psi; by default ChiSquare(0.1).
        rounds: how many rounds each method trains.
        local_steps: K, for all.
        batch_size: examples a local step, for all; None: the full local batch.
        loss: "squared" or "entropy".
        ridge: the l2 regularisation.
        model: a Flax module; by default a linear model, with which the problem is convex.
        seeds: how many runs of each method after the search.
        settings: hyper-parameters of some methods; these are not searched.
        search_rounds: how many rounds a trial of the search has; by default half of ``rounds``.
        eval_every: how often to measure; by default about twenty times.
        progress: show progress bars; by default on a terminal only.
        tell: called with a line about each search.
        busy: a context manager to show while a search is under way, such as rich's ``console.status``.
    """
    chosen = list(dict.fromkeys(methods))
    _check(chosen, rounds, seeds)
    train, classify = federation.train, federation.task == CLASSIFICATION
    classes = len(federation.classes or []) if classify else None
    network = models.Linear(classes or 1) if model is None else model
    problem = robust_model(network, train, classes, penalty=penalty or ChiSquare(0.1), loss=loss, ridge=ridge)
    scale = 1.0 if federation.target_scale is None else federation.target_scale[1]
    test = metrics.ClientAccuracy(federation.test) if classify else metrics.ClientError(federation.test, scale)
    training: dict[str, Any] = {
        "rounds": rounds,
        "eval_every": eval_every or max(1, rounds // 20),
        "metrics": [test, metrics.WorstCase(), metrics.ClientWeights(each=True)],
        "progress": f"{test.name}/worst20" if progress is None else progress,
    }
    given, searches = {name: dict(values) for name, values in (settings or {}).items()}, {}
    length = search_rounds or max(4, rounds // 2)
    curvature, start = smoothness(problem, train), float(jnp.mean(problem.losses(problem.x0, train)))
    common: dict[str, Any] = {"local_steps": local_steps, "batch_size": batch_size}
    # The data are arguments: built into a program they would be folded as constants, for seconds.
    each = jax.jit(lambda test, x: test.values(problem, None, Point(x, None)))
    results: dict[str, list[Result]] = {}
    values: dict[str, np.ndarray] = {}
    for name in chosen:
        if name not in given:
            grid = search_space(name, curvature, start, train.count, local_steps)
            with busy(f"{name}: {BUDGET} settings for {length} rounds"):
                found = search(problem, train, name, grid, rounds=length, **common)
            searches[name] = found
            given[name] = found.settings[found.best(metrics.WorstCase.name, last=2)]
            at = ", ".join(f"{k} = {v:.3g}" for k, v in given[name].items())
            tell(f"{name}: {at}, the best of {len(found.settings)} on the training objective after {length} rounds")
        method = make(name, {**given[name], **common})
        results[name] = [run(problem, train, method, seed=seed, **training) for seed in range(seeds)]
        values[name] = np.array([np.asarray(each(test, r.x)) for r in results[name]])
        if any(result.interrupted for result in results[name]):
            tell(f"Interrupted: {name} after {results[name][-1].rounds} rounds; what follows is what there is.")
            chosen = list(results)
            break
    label = "accuracy" if classify else "error"
    return Comparison(federation, problem, {m: given[m] for m in chosen}, searches, results, values, label, classify)


def search(
    problem: RobustProblem,
    clients: ClientData,
    name: str,
    grid: Mapping[str, Sequence[float]],
    *,
    rounds: int,
    local_steps: int,
    batch_size: int | None,
) -> Sweep:
    """Run every combination of a grid side by side, and measure the training objective max_w sum_i w_i f_i(x) - psi(w)."""
    first = {key: values[0] for key, values in grid.items()}
    method = make(name, {**first, "local_steps": local_steps, "batch_size": batch_size})
    every = max(d for d in range(1, max(1, rounds // 4) + 1) if rounds % d == 0)
    return sweep(problem, clients, method, rounds=rounds, grid=grid, eval_every=every, metrics=metrics.WorstCase())


def make(name: str, settings: Mapping[str, Any]) -> Algorithm:
    """Return a method by name. ScaffPD's tau, where only ``lr_x`` is given, is K lr_x: plain averaging."""
    settings = dict(settings)
    if name == "ScaffPD" and "tau" not in settings:
        settings["tau"] = settings.pop("lr_x") * settings["local_steps"]
    return ALGORITHMS[name](**settings)


def search_space(name: str, curvature: float, loss: float, count: int, steps: int) -> dict[str, list[float]]:
    """Return a grid of :data:`BUDGET` settings in the problem's own units.

    Step sizes of the model are in units of 1 / L, those of the weights in units of 1 / (N f): with one such step a client whose
    loss is the mean f above the others' doubles its weight.

    Args:
        name: the method.
        curvature: L, the smoothness of the average loss.
        loss: f, the mean loss at the start.
        count: N.
        steps: K.
    """
    rates = [v / curvature for v in (0.01, 0.03, 0.1, 0.4)]
    weigh = [v / (count * max(loss, 1e-12)) for v in (0.1, 1.0, 10.0)]
    if name == "ScaffPD":
        return {"tau": [steps * r for r in rates], "sigma": weigh}
    if name == "AFL":
        return {"lr_x": rates, "lr_w": weigh}
    if name == "DRFA":
        return {"lr_x": rates, "lr_w": [v / steps for v in weigh]}
    if name == "QFedAvg":
        return {"lr_x": rates, "q": [0.2, 1.0, 5.0]}
    if name == "DeltaFL":
        return {"lr_x": rates, "alpha": [0.2, 0.5, 0.8]}
    if name == "FedProx":
        return {"lr_x": rates, "mu": [v * curvature for v in (0.001, 0.01, 0.1)]}
    return {"lr_x": (np.geomspace(0.003, 1.0, BUDGET) / curvature).tolist()}


def smoothness(problem: RobustProblem, clients: ClientData) -> float:
    """Return the largest eigenvalue of the average loss's Hessian at the start, by power iteration over all clients."""
    weights = jnp.asarray(problem.client_weights(clients), float)
    slope = lambda x, data: over_all(problem.loss, (x,), data, weights, jax.grad)
    # The point is an argument: XLA on CPUs multiplies by constants wrongly.
    product = jax.jit(lambda x, v, data: jax.jvp(lambda x: slope(x, data), (x,), (v,))[1])
    leaves, structure = jax.tree.flatten(problem.x0)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    v = jax.tree.unflatten(structure, [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)])
    largest = 0.0
    for _ in range(_POWER_STEPS):
        length = float(players.norm(v))
        if length == 0:
            break
        v = product(problem.x0, players.scale(v, 1.0 / length), clients)
        largest = float(players.norm(v))
    return max(largest, 1e-12)


def _check(methods: list[str], rounds: int, seeds: int) -> None:
    known = [name for name, cls in ALGORITHMS.items() if issubclass(getattr(cls, "solves", object), RobustProblem)]
    for name in methods:
        if name not in known:
            raise InputError(f"There is no method {name!r} for weights on clients: choose among {', '.join(sorted(known))}.")
    if not methods:
        raise InputError("Name at least one method.")
    if rounds < 1 or seeds < 1:
        raise InputError("rounds and seeds must be at least 1.")


def _save(ax: Any, folder: Path, name: str) -> Path:
    path = folder / f"{name}.png"
    ax.figure.savefig(path, dpi=150)
    return path
