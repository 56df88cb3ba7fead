"""The demonstration: an image classifier that is fair to the worst class, on ten unlike clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedminimax import metrics, models
from fedminimax.algorithms import Algorithm, FessGDA, LocalSGDA
from fedminimax.data import ClientData, datasets, partition
from fedminimax.problems import MinimaxProblem, fair_classification
from fedminimax.result import Result
from fedminimax.run import run

CLIENTS, ALPHA = 10, 0.3
AVERAGE, WORST = "accuracy/mean", "accuracy/worst"


@dataclass(frozen=True)
class Outcome:
    """What the demonstration found: a result a method, and where the figure is."""

    results: dict[str, Result]
    figure: Path


def methods() -> dict[str, Algorithm]:
    """Return the two methods of the demonstration, with step sizes that suit both and every dataset."""
    common: dict[str, Any] = {"lr_x": 0.1, "lr_y": 0.001, "local_steps": 10, "batch_size": 20}
    return {"Local SGDA": LocalSGDA(**common), "FESS-GDA": FessGDA(**common, p=0.1, beta=0.9)}


def task(data: str = "digits", seed: int = 0) -> tuple[MinimaxProblem, ClientData, datasets.Dataset]:
    """Return the problem, the clients' data (split by Dirichlet(0.3) over ten clients) and the dataset."""
    images = datasets.load(data)
    owner = partition.dirichlet(images.train["labels"], CLIENTS, ALPHA, seed=seed)
    clients = ClientData.from_owner(images.train, owner, CLIENTS)
    return fair_classification(models.MLP((64,), images.classes), clients, images.classes, seed=seed), clients, images


def demo(folder: Path, data: str = "digits", rounds: int = 150, seed: int = 0, console: Console | None = None) -> Outcome:
    """Run both methods, print a table of average and worst-class accuracy, and save a figure."""
    console = console or Console()
    problem, clients, images = task(data, seed)
    console.print(
        f"[bold]Fair classification of {images.name}[/bold]: {clients.total} images on {clients.count} clients that hold "
        f"{clients.smallest} to {clients.largest} each, mostly of few classes.\n"
        "The model (min player) is trained against weights on the classes (max player), so that no class is left behind."
    )
    judge = metrics.ClassAccuracy(images.test, images.classes)
    results = {
        name: run(problem, clients, method, rounds=rounds, seed=seed, eval_every=5, metrics=judge, progress=WORST)
        for name, method in methods().items()
    }
    console.print(_table(results))
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(results, folder / "demo.png")
    console.print(f"Figure: {figure}")
    return Outcome(results, figure)


def _table(results: dict[str, Result]) -> Table:
    table = Table(title="Test accuracy (mean of the last five evaluations)")
    for column in ("method", "average over classes", "worst class", "rounds", "floats up", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, result in results.items():
        average, worst = (f"{result.history[m][-5:].mean():.1%}" for m in (AVERAGE, WORST))
        up, seconds = result.history["floats_up"][-1], result.seconds
        table.add_row(name, average, worst, str(result.rounds), f"{up:,.0f}", f"{seconds:.1f}")
    return table


def draw(results: dict[str, Result], path: Path) -> Path:
    """Draw average and worst-class accuracy against rounds, and save it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for ax, metric, title in zip(
        figure.subplots(1, 2, sharey=True), (AVERAGE, WORST), ("average over classes", "worst class"), strict=True
    ):
        for name, result in results.items():
            ax.plot(result.history["round"], 100 * result.history[metric], label=name, linewidth=2)
        ax.set(title=title, xlabel="communication round", ylim=(0, 100))
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("test accuracy (%)")
    figure.axes[1].legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=150)
    return path
