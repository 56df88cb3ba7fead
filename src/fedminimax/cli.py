"""The command line: ``fedminimax demo``, ``report``, ``compare``, ``watch`` ... (``fedminimax --help`` has them all)."""

from __future__ import annotations

import inspect
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fedminimax import __version__
from fedminimax.commands.federation_group import federation_app
from fedminimax.errors import InputError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated minimax optimization: train a model against an adversary while the data stays on the clients.",
)
app.add_typer(federation_app, name="federation")
_DEBUG = "--debug"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedminimax {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the whole traceback of an error.")] = False,
) -> None:
    """Take the options that come before a command."""


@app.command("init")
def init_command(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("spec.toml"),
    data: Annotated[str, typer.Option(help="fashion_mnist, or digits, which needs no file.")] = "fashion_mnist",
) -> None:
    """Write a commented file to start an experiment from: three methods over three seeds."""
    from fedminimax.commands.experiment import write_spec

    write_spec(path, data)


@app.command("run")
def run_command(
    spec: Annotated[Path, typer.Argument(help="The file of the experiment; `fedminimax init` writes one.")],
    set_: Annotated[
        list[str], typer.Option("--set", help="A key to set otherwise, such as methods.FessGDA.beta=0.1; may be given again.")
    ] = [],  # noqa: B006  (typer reads it, and nobody changes it)
    seeds: Annotated[int | None, typer.Option(help="How many runs each method has, in place of the file's seeds.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write; by default runs/ and the file's name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and run nothing.")] = False,
) -> None:
    """Run the experiment of a file; a folder that has its beginning is gone on with."""
    changes = [*set_, *([] if seeds is None else [f"seeds={seeds}"])]
    from fedminimax.commands.launch import enter

    enter(spec, changes, out)  # before JAX is used
    from fedminimax.cache import keep_programs
    from fedminimax.commands.experiment import run_file

    keep_programs()
    if not run_file(spec, changes, out, dry_run):
        raise typer.Exit(1)


@app.command("launch", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def launch_command(
    context: typer.Context,
    what: Annotated[
        Path, typer.Argument(help="A spec (.toml), the folder of an experiment, or a script (.py); what follows is passed on.")
    ],
    processes: Annotated[int, typer.Option(help="How many processes to start on this machine.")] = 2,
    patience: Annotated[float, typer.Option(help="After so many seconds of silence a process is taken for lost.")] = 30.0,
) -> None:
    """Start an experiment or a script in many processes on this machine: a trial of what runs on many."""
    from fedminimax.commands.launch import launch

    if code := launch([str(what), *context.args], processes, patience):
        raise typer.Exit(code)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(help="The folder of an experiment, or of one of its runs.")],
    rounds: Annotated[int | None, typer.Option(help="How many rounds the runs are to have in all.")] = None,
) -> None:
    """Go on with an experiment that was interrupted, or give it more rounds."""
    from fedminimax.commands.launch import enter

    enter(folder)  # before JAX is used
    from fedminimax.cache import keep_programs
    from fedminimax.commands.experiment import resume_folder

    keep_programs()
    if not resume_folder(folder, rounds):
        raise typer.Exit(1)


@app.command("reproduce")
def reproduce_command(
    item: Annotated[str | None, typer.Argument(help="What to reproduce, such as scaff-pd/figure-2.")] = None,
    all_: Annotated[bool, typer.Option("--list", help="Show what can be reproduced.")] = False,
    scale: Annotated[str, typer.Option(help="small (minutes), paper (as printed), or smoke (seconds).")] = "small",
    out: Annotated[Path | None, typer.Option(help="The folder; by default runs/, the item and the scale.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with what the folder has.")] = False,
) -> None:
    """Run a figure or table of a paper again, and say whether its claim held."""
    from fedminimax.cache import keep_programs
    from fedminimax.commands.reproduce import carry_out, show_items

    if all_ or item is None:
        show_items()
        return
    keep_programs()
    if not carry_out(item, scale, out, resume):
        raise typer.Exit(1)


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Where to write the runs, the figures and the report.")] = Path("fedminimax-demo"),
    data: Annotated[str, typer.Option(help="The dataset: digits needs no file; see `fedminimax list`.")] = "digits",
    rounds: Annotated[int, typer.Option(help="How many communication rounds.")] = 100,
    seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 5,
    split: Annotated[int, typer.Option(help="The seed of the division of the data among the clients.")] = 0,
) -> None:
    """Train a model that serves the worst-off client too, three ways, and end in a report."""
    from fedminimax.cache import keep_programs
    from fedminimax.commands.demo import demo

    if rounds < 5:
        raise InputError(f"--rounds is {rounds}, but the demonstration needs at least 5.")
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}: give at least 1.")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out is {out}, which is a file: give a folder.")
    keep_programs()
    if demo(out, data, rounds, seeds, split).page is None:
        raise typer.Exit(1)


@app.command("fair")
def fair_command(
    data: Annotated[
        str, typer.Option(help="A table of your own (.csv, .tsv, .parquet), features (.npz), or a name of `fedminimax list`.")
    ] = "digits",
    label: Annotated[str, typer.Option(help="The column of a table to predict.")] = "",
    client: Annotated[str, typer.Option(help="The column of a table that says who holds a row.")] = "",
    task: Annotated[str, typer.Option(help="classification or regression, where a label of numbers may be either.")] = "",
    positive: Annotated[
        str, typer.Option("--label-positive", help="Of two classes the one that is looked for; default: the rarer.")
    ] = "",
    exclude: Annotated[
        list[str], typer.Option("--exclude", "--ignore", help="Columns to leave out, with commas; may be given again.")
    ] = [],  # noqa: B006  (typer reads it, and nobody changes it)
    include: Annotated[
        list[str], typer.Option(help="Columns to use that would be left out, such as a date; may be given again.")
    ] = [],  # noqa: B006
    group: Annotated[str, typer.Option(help="A sensitive column: rates by its values are shown.")] = "",
    clients: Annotated[int, typer.Option(help="How many clients an image or feature data set is divided among.")] = 20,
    alpha: Annotated[float, typer.Option(help="The Dirichlet concentration: the smaller, the less alike they are.")] = 0.05,
    methods: Annotated[
        str, typer.Option(help="Methods, with commas; the first is compared with the others. FedAvg:size weighs by size.")
    ] = "ScaffPD,FedAvg,FedAvg:size,DRFA",
    penalty: Annotated[
        list[str], typer.Option(help="chi2:0.1, agnostic, cvar:0.3 or qfair:1; several, given again, draw the trade-off.")
    ] = [],  # noqa: B006
    rho: Annotated[str, typer.Option(help="0.1 is --penalty chi2:0.1; several, with commas, draw the trade-off.")] = "",
    weights: Annotated[str, typer.Option(help="equal or size: the p_i of FedAvg and its kin, and of the average.")] = "equal",
    set_: Annotated[
        list[str],
        typer.Option("--set", help="Step sizes not to search, as ScaffPD.tau=0.3,sigma=0.1; may be given again."),
    ] = [],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="How many communication rounds.")] = 200,
    local_steps: Annotated[int, typer.Option(help="Local steps a round, K.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Examples a local step; 0: all of a client's.")] = 32,
    loss: Annotated[str, typer.Option(help="entropy or squared; default: entropy for classes, squared for a quantity.")] = "",
    ridge: Annotated[float, typer.Option(help="l2 regularisation of the model.")] = 1e-3,
    hidden: Annotated[str, typer.Option(help="Widths of hidden layers, such as 32,16; default: a linear model.")] = "",
    test_share: Annotated[float, typer.Option(help="The share of each client's rows that is kept for testing.")] = 0.25,
    min_rows: Annotated[int, typer.Option(help="Clients with fewer rows are left out.")] = 20,
    seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 1,
    seed: Annotated[int, typer.Option(help="The seed of the division into clients, training and test data.")] = 0,
    federation: Annotated[
        str,
        typer.Option(
            help="Among sites that keep their rows: inprocess, trial (FLARE on this machine), or a federation's folder."
        ),
    ] = "",
    site: Annotated[
        list[str], typer.Option(help="A site of that federation and its own table, as north=north.csv; given again for each.")
    ] = [],  # noqa: B006
    least: Annotated[
        int,
        typer.Option(help="A category, class or group that fewer rows of a site have does not leave it; 0: the default, 5."),
    ] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the tables, the figures and the page.")] = Path("fedminimax-fair"),
) -> None:
    """Train models that are fair to the worst client, by several methods, on your table or on a data set."""
    import shlex

    from fedminimax.cache import keep_programs
    from fedminimax.commands.fair import Request, fair

    listed = lambda *texts: [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if penalty and rho:
        raise InputError("--rho is short for --penalty chi2: give one of the two.")
    request = Request(
        data=data,
        label=label or None,
        client=client or None,
        task=task or None,
        positive=positive or None,
        include=listed(*include),
        exclude=listed(*exclude),
        group=group or None,
        clients=clients,
        alpha=alpha,
        methods=listed(methods),
        penalties=list(penalty) or [f"chi2:{_number('--rho', part)}" for part in listed(rho or "0.1")],
        weights=weights,
        settings=list(set_),
        rounds=rounds,
        local_steps=local_steps,
        batch_size=batch_size or None,
        loss=loss or None,
        ridge=ridge,
        hidden=[int(_number("--hidden", part)) for part in listed(hidden)],
        test_share=test_share,
        min_rows=min_rows,
        seeds=seeds,
        seed=seed,
        federation=federation or None,
        sites=list(site),
        least=least or None,
        command=shlex.join(["fedminimax", *sys.argv[1:]]),
    )
    keep_programs()
    if federation:
        from fedminimax.commands.fair_sites import fair_among_sites

        fair_among_sites(request, out)
    else:
        fair(request, out)


@app.command("predict")
def predict_command(
    model: Annotated[Path, typer.Argument(help="The folder of a model, such as fedminimax-fair/model.")],
    rows: Annotated[Path, typer.Argument(help="A file of rows (.csv, .tsv, .parquet) with the columns of the training table.")],
    out: Annotated[Path, typer.Option(help="The file to write: .csv or .parquet.")] = Path("scores.csv"),
    keep: Annotated[
        list[str], typer.Option(help="A column of the rows to write beside the predictions, such as an id; may be given again.")
    ] = [],  # noqa: B006  (typer reads it, and nobody changes it)
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at what is unlike the training rows, such as a new category or other units.")
    ] = False,
) -> None:
    """Score new rows with a saved model; where the file has the label too, say how good the predictions are."""
    from fedminimax.commands.predict import predict

    predict(model, rows, out, keep, strict)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} has {text!r}, which is not a number.") from None


@app.command("report")
def report_command(
    folders: Annotated[list[Path], typer.Argument(help="The folder of a run, an experiment or a sweep; or several.")],
    out: Annotated[Path | None, typer.Option(help="The page (.html) or a folder for it; default: report.html there.")] = None,
    metric: Annotated[str, typer.Option(help="The metric that the page opens with.")] = "",
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "",
    better: Annotated[str, typer.Option(help="Which way --metric is better, lower or higher, where it is not known.")] = "",
    only_page: Annotated[
        bool, typer.Option("--only-page", help="Write no figures (PNG, PDF) and tables (CSV, LaTeX).")
    ] = False,
) -> None:
    """Write one page that says who is best and whether that is more than noise, with curves, tables and the spec."""
    from fedminimax.commands.report import write_report

    write_report(folders, out, metric or None, title or None, better or None, only_page)


@app.command("compare")
def compare_command(
    folders: Annotated[list[Path], typer.Argument(help="Two or more folders of runs or experiments.")],
    out: Annotated[Path, typer.Option(help="The page (.html), or a folder for it.")] = Path("compare.html"),
    metric: Annotated[str, typer.Option(help="The metric that the page opens with.")] = "",
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "",
    better: Annotated[str, typer.Option(help="Which way --metric is better, lower or higher, where it is not known.")] = "",
    only_page: Annotated[
        bool, typer.Option("--only-page", help="Write no figures (PNG, PDF) and tables (CSV, LaTeX).")
    ] = False,
) -> None:
    """Put several folders of runs on one page; what is called alike in two of them is told apart by the folder's name."""
    from fedminimax.commands.report import write_report

    if len(folders) < 2:
        raise InputError("compare needs two folders or more: for one, use `fedminimax report`.")
    write_report(folders, out, metric or None, title or None, better or None, only_page)


@app.command("watch")
def watch_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a running experiment, or of a run.")],
    port: Annotated[int, typer.Option(help="The port of the page on 127.0.0.1; 0: a free one.")] = 0,
    terminal: Annotated[bool, typer.Option("--terminal", help="Show it here; so it is where there is no browser.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Serve the page, but do not open it.")] = False,
    every: Annotated[float, typer.Option(help="Look again after so many seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show how it stands now, and leave.")] = False,
) -> None:
    """Show an experiment while it runs, as a live page on this machine or in the terminal."""
    from fedminimax.report.watch import watch

    if every <= 0:
        raise InputError(f"--every is {every}, but must be more than 0 seconds.")
    watch(
        folder,
        port=port,
        terminal=True if terminal else False if no_browser else None,
        browser=not no_browser,
        every=every,
        once=once,
    )


@app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(help="A method of yours, package.module:Name; a class, or an instance of one.")],
    set_: Annotated[
        list[str], typer.Option("--set", help="A hyper-parameter of a class, such as lr_x=0.02; may be given again.")
    ] = [],  # noqa: B006  (typer reads it, and nobody changes it)
    only: Annotated[list[str], typer.Option(help="The name of a check to run; may be given again.")] = [],  # noqa: B006
) -> None:
    """Run the contract suite on a method of your own, with a verdict on each of its claims."""
    from fedminimax.commands.check import check

    if not check(name, set_, only):
        raise typer.Exit(1)


@app.command("list")
def list_command() -> None:
    """List the methods, problems, metrics, data sets, tables, partitions, models, sets and penalties, with a line each."""
    from rich.console import Console
    from rich.table import Table

    from fedminimax.algorithms import ALGORITHMS
    from fedminimax.data.datasets import DATASETS
    from fedminimax.data.partition import PARTITIONS
    from fedminimax.data.published import TABLES
    from fedminimax.metrics import METRICS
    from fedminimax.models import MODELS
    from fedminimax.penalties import PENALTIES
    from fedminimax.problems import PROBLEMS
    from fedminimax.sets import SETS

    groups: dict[str, dict[str, Any]] = {
        "Methods": dict(sorted(ALGORITHMS.items())),
        "Problems": PROBLEMS,
        "Metrics": dict(sorted(METRICS.items())),
        "Datasets": DATASETS,
        "Tables": TABLES,
        "Partitions": PARTITIONS,
        "Models": MODELS,
        "Sets": SETS,
        "Penalties": PENALTIES,
    }
    console = Console()
    for title, entries in groups.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, entry in entries.items():
            table.add_row(name, _first_line(entry))
        console.print(table)
        console.print()


def _first_line(entry: Any) -> str:
    return (inspect.getdoc(entry) or "").split("\n")[0]


def _sentence(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning as the sentence that it is, without the line of code that it came from."""
    return f"{_who()}Warning: {message}\n"


def _who() -> str:
    """Return which of several processes speaks, where it is not the one that speaks for all."""
    from fedminimax import distributed

    number = max(distributed.place().process, distributed.dealt().process)
    return f"Process {number}: " if number else ""


def main() -> None:
    """Run the command line. Wrong input is one sentence, not a traceback, unless ``--debug`` is given."""
    arguments = sys.argv[1:]
    # --debug is welcome anywhere on the line, not only before the command.
    debug = _DEBUG in arguments
    before = warnings.formatwarning
    try:
        if not debug:
            warnings.formatwarning = _sentence
        app(args=[a for a in arguments if a != _DEBUG])
    except InputError as error:
        if debug:
            raise
        from rich.console import Console
        from rich.markup import escape

        Console(stderr=True).print(f"[bold red]{_who()}Error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    finally:
        warnings.formatwarning = before
