"""``fedminimax fair``: from a table or a data set to honest tables, figures and a page, and what was noticed on the way."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from fedminimax import plots
from fedminimax.data import datasets, published, tabular
from fedminimax.data.federation import CLASSIFICATION, REGRESSION, Federation
from fedminimax.data.silos import silos
from fedminimax.errors import InputError
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.contests import checked, contest
from fedminimax.fairness.printing import print_federation, print_found, print_sheet
from fedminimax.fairness.sheets import Sheet, trade_off_sheet
from fedminimax.fairness.words import EQUAL, check_choice, penalty_of, penalty_text, settings_of
from fedminimax.fedfair.writing import MODEL, write
from fedminimax.models import MLP
from fedminimax.penalties import Penalty
from fedminimax.problems.robust_model import ENTROPY, SQUARED
from fedminimax.saved.folder import check_target

_TABLE_ENDINGS = (".csv", ".tsv", ".parquet", ".pq")


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    data: str = "digits"
    label: str | None = None
    client: str | None = None
    task: str | None = None
    positive: str | None = None
    include: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    group: str | None = None
    clients: int = 20
    alpha: float = 0.05
    methods: list[str] = field(default_factory=lambda: ["ScaffPD", "FedAvg", "FedAvg:size", "DRFA"])
    penalties: list[str] = field(default_factory=lambda: ["chi2:0.1"])
    weights: str = EQUAL
    settings: list[str] = field(default_factory=list)
    rounds: int = 200
    local_steps: int = 20
    batch_size: int | None = 32
    loss: str | None = None
    ridge: float = 1e-3
    hidden: list[int] = field(default_factory=list)
    test_share: float = 0.25
    min_rows: int = 20
    seeds: int = 1
    seed: int = 0
    federation: str | None = None
    sites: list[str] = field(default_factory=list)
    least: int | None = None
    command: str = ""


def fair(request: Request, folder: Path, console: Console | None = None) -> Comparison:
    """Train, print the tables, and write tables, figures and the page into a folder."""
    console = console or Console()
    penalties = check(request)
    check_folder(folder)
    check_target(folder / MODEL)
    for option, value in (("--site", request.sites), ("--least", request.least)):
        if value:
            raise InputError(f"{option} is for sites that keep their rows: say --federation trial, or --federation inprocess.")
    federation = load(request)
    print_federation(federation, Path(request.data).name, request.min_rows, console)
    found = _compare(federation, request, request.methods, penalties[0], console)
    print_found(found, console)
    folder.mkdir(parents=True, exist_ok=True)
    more, drawn = list[Sheet](), list[Path]()
    if len(penalties) > 1:
        sheet, drawn = _trade_off(federation, request, found, penalties, folder, console)
        more = [sheet]
    write(found, folder, Path(request.data).name, request.command, console, more, drawn)
    return found


def check(request: Request) -> list[Penalty]:
    """Return the penalties, or say what is misspelt: before any data is read."""
    checked(request.methods, request.rounds, request.seeds, request.weights)
    settings_of(request.settings, request.methods)
    if request.loss is not None:
        check_choice("--loss", request.loss, (ENTROPY, SQUARED))
    if request.task is not None:
        check_choice("--task", request.task, (CLASSIFICATION, REGRESSION))
        if request.task == REGRESSION and request.loss == ENTROPY:
            raise InputError("--loss entropy is for classes: a regression has the squared loss.")
    for option, value, least in (("--local-steps", request.local_steps, 1), ("--batch-size", request.batch_size or 0, 0)):
        if value < least:
            raise InputError(f"{option} is {value}: give at least {least}.")
    if any(width < 1 for width in request.hidden):
        raise InputError(f"--hidden is {','.join(map(str, request.hidden))}: give widths of at least 1, such as 32,16.")
    if request.ridge < 0:
        raise InputError(f"--ridge is {request.ridge}: it must not be negative.")
    if not request.penalties:
        raise InputError("--penalty needs one, such as chi2:0.1.")
    return [penalty_of(text) for text in request.penalties]


def check_folder(folder: Path) -> None:
    """Raise an :class:`InputError` unless files can be written into a folder, or into one that can be made there."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out is {folder}, which is a file: give a folder.")
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise InputError(f"--out is {folder}, but {place} is a file: give a folder elsewhere.")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise InputError(f"--out is {folder}, where nothing can be written ({error.strerror}): give another folder.") from None


def load(request: Request) -> Federation:
    """Return the federation: a user's table, a published table, a file of features, or an image data set."""
    name = request.data
    if name.lower().endswith(_TABLE_ENDINGS):
        if request.label is None or request.client is None:
            raise InputError(f"{name} is a table: say which column to predict (--label) and which names the client (--client).")
        return _federate(tabular.read_table(name, request.label, request.client, request.task, request.positive), request)
    if name.replace("-", "_") in published.TABLES:
        for option, value in (("--label", request.label), ("--task", request.task)):
            if value is not None:
                what = option.removeprefix("--")
                raise InputError(f"{option} is for a table of your own; {name} has a {what} of its own.")
        table = published.load_table(name, client=request.client)
        return _federate(replace(table, positive=request.positive) if request.positive else table, request)
    columns: dict[str, str | list[str] | None] = {
        "--label": request.label,
        "--client": request.client,
        "--task": request.task,
        "--group": request.group,
    }
    columns |= {"--label-positive": request.positive, "--include": request.include, "--exclude": request.exclude}
    for option, asked in columns.items():
        if asked:
            raise InputError(f"{option} is for tables (.csv, .tsv, .parquet); {name} is divided by --clients and --alpha.")
    if not name.lower().endswith(".npz") and name.replace("-", "_") not in datasets.DATASETS:
        known = ", ".join([*datasets.DATASETS, *published.TABLES])
        raise InputError(f"There is no data {name!r}: give a .csv, .tsv, .parquet or .npz file, or one of {known}.")
    return silos(datasets.load(name), request.clients, request.alpha, seed=request.seed)


def _federate(table: tabular.Table, request: Request) -> Federation:
    return tabular.federate(
        table,
        test_share=request.test_share,
        min_rows=request.min_rows,
        seed=request.seed,
        include=request.include,
        exclude=request.exclude,
        group=request.group,
    )


def _compare(
    federation: Federation, request: Request, methods: list[str], penalty: Penalty, console: Console, **options: object
) -> Comparison:
    title = f"searched on the training data with the penalty {penalty_text(penalty)}; the same budget for all"
    console.print(f"[bold]Step sizes[/bold] ({title})", highlight=False)
    settings = settings_of(request.settings, request.methods)
    return contest(
        federation,
        methods,
        penalty=penalty,
        rounds=request.rounds,
        local_steps=request.local_steps,
        batch_size=request.batch_size,
        loss=request.loss,
        ridge=request.ridge,
        model=_network(request, federation),
        weights=request.weights,
        seeds=request.seeds,
        settings={name: values for name, values in settings.items() if name in methods},
        tell=lambda line: console.print(f"  {line}", highlight=False, markup=False),
        busy=console.status,
        **options,  # type: ignore[arg-type]
    )


def _network(request: Request, federation: Federation) -> MLP | None:
    """Return the network with hidden layers that was asked for; None: a linear model."""
    return MLP(tuple(request.hidden), len(federation.classes or [1])) if request.hidden else None


def _trade_off(
    federation: Federation, request: Request, found: Comparison, penalties: list[Penalty], folder: Path, console: Console
) -> tuple[Sheet, list[Path]]:
    """Run the first method under every penalty, and draw average and worst-20% over rounds beside the second (Figure 3)."""
    first, *others = list(found.results)
    all_found = {penalty_text(penalties[0]): found}
    for penalty in penalties[1:]:
        all_found[penalty_text(penalty)] = _compare(federation, request, [first], penalty, console, baselines=())
    curves = {f"{first}, {text}": one.results[first] for text, one in all_found.items()}
    curves |= {name: found.results[name] for name in others[:1]}
    sheet = trade_off_sheet(all_found)
    print_sheet(sheet, console)
    history = found.results[first][0].history
    metric = next(name for name in ("client_accuracy", "client_error", "client_loss") if f"{name}/mean" in history)
    paths = []
    for part, title in (("mean", "average"), ("worst20", "worst 20%")):
        ax = plots.bands(curves, f"{metric}/{part}", label=f"test {metric.removeprefix('client_')}, {title}", dashed=others[:1])
        path = folder / f"trade_off_{part}.png"
        ax.figure.savefig(path, dpi=150)  # type: ignore[union-attr]
        paths.append(path)
    return sheet, paths
