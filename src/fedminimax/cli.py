"""The command line: ``fedminimax demo``, ``fedminimax list``, ``fedminimax --version``."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedminimax import __version__
from fedminimax.errors import InputError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated minimax optimization: train a model against an adversary while the data stays on the clients.",
)
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


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Where to write the figure.")] = Path("fedminimax-demo"),
    data: Annotated[str, typer.Option(help="The dataset: digits needs no file; see `fedminimax list`.")] = "digits",
    rounds: Annotated[int, typer.Option(help="How many communication rounds.")] = 150,
    seed: Annotated[int, typer.Option(help="The seed of the split, the model and all sampling.")] = 0,
) -> None:
    """Train a fair image classifier on ten unlike clients: FESS-GDA against Local SGDA."""
    from fedminimax.demo import demo

    if rounds < 5:
        raise InputError(f"--rounds is {rounds}, but the demonstration needs at least 5.")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out is {out}, which is a file: give a folder.")
    demo(out, data, rounds, seed)


@app.command("list")
def list_command() -> None:
    """List the methods, problems, datasets, partitions, models and sets, with a line each."""
    from fedminimax.algorithms import ALGORITHMS
    from fedminimax.data.datasets import DATASETS
    from fedminimax.data.partition import PARTITIONS
    from fedminimax.models import MODELS
    from fedminimax.problems import PROBLEMS
    from fedminimax.sets import SETS

    groups: dict[str, dict[str, Any]] = {
        "Methods": dict(sorted(ALGORITHMS.items())),
        "Problems": PROBLEMS,
        "Datasets": DATASETS,
        "Partitions": PARTITIONS,
        "Models": MODELS,
        "Sets": SETS,
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


def main() -> None:
    """Run the command line. Wrong input is one sentence, not a traceback, unless ``--debug`` is given."""
    arguments = sys.argv[1:]
    # --debug is welcome anywhere on the line, not only before the command.
    debug = _DEBUG in arguments
    try:
        app(args=[a for a in arguments if a != _DEBUG])
    except InputError as error:
        if debug:
            raise
        Console(stderr=True).print(f"[bold red]Error:[/bold red] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)
