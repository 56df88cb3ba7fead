"""``fedminimax fair``: from a table or a data set to the fairness table, its figures, and what was noticed on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from fedminimax import plots
from fedminimax.data import datasets, published, tabular
from fedminimax.data.federation import Federation
from fedminimax.data.silos import silos
from fedminimax.errors import InputError
from fedminimax.fairness import Comparison, contest
from fedminimax.penalties import ChiSquare

_TABLE_ENDINGS = (".csv", ".tsv", ".parquet", ".pq")


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    data: str = "digits"
    label: str | None = None
    client: str | None = None
    clients: int = 20
    alpha: float = 0.05
    methods: list[str] = field(default_factory=lambda: ["ScaffPD", "FedAvg", "DRFA"])
    rhos: list[float] = field(default_factory=lambda: [0.1])
    rounds: int = 200
    local_steps: int = 20
    batch_size: int | None = 32
    loss: str = "squared"
    ridge: float = 1e-3
    ignore: list[str] = field(default_factory=list)
    test_share: float = 0.25
    min_rows: int = 20
    seeds: int = 1
    seed: int = 0


def fair(request: Request, folder: Path, console: Console | None = None) -> Comparison:
    """Train, print the fairness table, and write tables and figures into a folder."""
    console = console or Console()
    if not request.rhos:
        raise InputError("--rho needs a number, such as 0.1.")
    federation = load(request)
    _describe(federation, request, console)
    found = _compare(federation, request, request.methods, request.rhos[0], console)
    console.print(_grid(found))
    folder.mkdir(parents=True, exist_ok=True)
    found.table().to_csv(folder / "table.csv", index_label="method")
    found.clients().to_csv(folder / "clients.csv", index_label="client")
    files = [folder / "table.csv", folder / "clients.csv", *found.figures(folder)]
    if len(request.rhos) > 1:
        files += _trade_off(federation, request, found, folder, console)
    console.print("Written: " + ", ".join(str(path) for path in files), soft_wrap=True)
    return found


def load(request: Request) -> Federation:
    """Return the federation: a user's table, a published table, a file of features, or an image data set."""
    name = request.data
    split = {"test_share": request.test_share, "min_rows": request.min_rows, "seed": request.seed, "ignore": request.ignore}
    if name.lower().endswith(_TABLE_ENDINGS):
        if request.label is None or request.client is None:
            raise InputError(f"{name} is a table: say which column to predict (--label) and which names the client (--client).")
        return tabular.federate(tabular.read_table(name, request.label, request.client), **split)  # type: ignore[arg-type]
    if name.replace("-", "_") in published.TABLES:
        if request.label is not None:
            raise InputError(f"--label is for a table of your own; {name} has a label of its own.")
        return tabular.federate(published.load_table(name, client=request.client), **split)  # type: ignore[arg-type]
    for option, value in (("--label", request.label), ("--client", request.client)):
        if value is not None:
            raise InputError(f"{option} is for tables (.csv, .tsv, .parquet); {name} is divided by --clients and --alpha.")
    if not name.lower().endswith(".npz") and name.replace("-", "_") not in datasets.DATASETS:
        known = ", ".join([*datasets.DATASETS, *published.TABLES])
        raise InputError(f"There is no data {name!r}: give a .csv, .tsv, .parquet or .npz file, or one of {known}.")
    return silos(datasets.load(name), request.clients, request.alpha, seed=request.seed)


def _describe(federation: Federation, request: Request, console: Console) -> None:
    train, test = federation.train, federation.test
    what = f"{len(federation.classes)} classes" if federation.classes else "a quantity"
    console.print(
        f"[bold]{Path(request.data).name}[/bold]: {train.count} clients with {train.smallest} to {train.largest} training "
        f"examples each, {train.total} in all; {test.total} for testing; {len(federation.features)} features, {what} "
        "to predict."
    )
    if federation.missing:
        most = sorted(federation.missing.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{column} {count}" for column, count in most[:5])
        more = f" and {len(most) - 5} columns more" if len(most) > 5 else ""
        console.print(
            f"Missing values: {listed}{more}. A missing number becomes the mean, and is marked; a missing category is one."
        )
    if federation.dropped:
        listed = ", ".join(f"{name} ({count})" for name, count in list(federation.dropped.items())[:6])
        more = f" and {len(federation.dropped) - 6} more" if len(federation.dropped) > 6 else ""
        console.print(f"Left out, with fewer than {request.min_rows} rows or nothing to learn from: {listed}{more}.")


def _compare(
    federation: Federation, request: Request, methods: list[str], rho: float, console: Console, title: str = "Step sizes"
) -> Comparison:
    console.print(f"[bold]{title}[/bold] (searched on the training data with rho = {rho:g}; the same budget for all)")
    return contest(
        federation,
        methods,
        penalty=ChiSquare(rho),
        rounds=request.rounds,
        local_steps=request.local_steps,
        batch_size=request.batch_size,
        loss=request.loss,
        ridge=request.ridge,
        seeds=request.seeds,
        tell=lambda line: console.print(f"  {line}", highlight=False),
        busy=console.status,
    )


def _grid(found: Comparison) -> Grid:
    table = found.table()
    share = found.higher_is_better
    grid = Grid(title=f"Test {found.label} over all {found.federation.train.count} clients")
    grid.add_column("method")
    for column in ("average", "worst 20%", "best 20%", "worst client", "variance", "entropy of w"):
        grid.add_column(column, justify="right")
    best = table["worst20"].max() if share else table["worst20"].min()
    show = (lambda v: f"{100 * v:.2f}%") if share else (lambda v: f"{v:.4g}")
    for method, row in table.iterrows():
        worst = show(row["worst20"])
        spread = f"{1e4 * row['variance']:.1f}" if share else f"{row['variance']:.4g}"
        grid.add_row(
            str(method),
            show(row["mean"]),
            f"[bold green]{worst}[/bold green]" if row["worst20"] == best else worst,
            show(row["best20"]),
            show(row["worst"]),
            spread,
            f"{row['w_entropy']:.3f}",
        )
    grid.caption = "variance in squared percentage points; w: the weights on clients" if share else "in the label's own units"
    return grid


def _trade_off(federation: Federation, request: Request, found: Comparison, folder: Path, console: Console) -> list[Path]:
    """Run the first method for every rho, and draw average and worst-20% over rounds beside the second method (Figure 3)."""
    first, *others = list(found.results)
    curves = {f"{first}, rho = {request.rhos[0]:g}": found.results[first]}
    for rho in request.rhos[1:]:
        again = _compare(federation, request, [first], rho, console, title="Trade-off")
        curves[f"{first}, rho = {rho:g}"] = again.results[first]
    curves |= {name: found.results[name] for name in others[:1]}
    metric = "client_accuracy" if found.higher_is_better else "client_error"
    paths = []
    for part, title in (("mean", "average"), ("worst20", "worst 20%")):
        ax = plots.bands(curves, f"{metric}/{part}", label=f"test {found.label}, {title}", dashed=others[:1])
        path = folder / f"rho_{part}.png"
        ax.figure.savefig(path, dpi=150)  # type: ignore[union-attr]
        paths.append(path)
    return paths
