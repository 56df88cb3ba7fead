"""The commands of ``fedminimax federation``, as typer reads them; what they do is in :mod:`fedminimax.commands.federation`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedminimax.errors import InputError

federation_app = typer.Typer(no_args_is_help=True, help="A federation of real sites, carried by NVIDIA FLARE.")


@federation_app.command("init")
def federation_init_command(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")] = Path("federation"),
    sites: Annotated[str, typer.Option(help="The sites' names, with commas.")] = "site-1,site-2,site-3",
    name: Annotated[str, typer.Option(help="What to call the project.")] = "trial",
    host: Annotated[str, typer.Option(help="The server's host name, which every site can reach.")] = "localhost",
    port: Annotated[int, typer.Option(help="The server's port.")] = 28002,
    rounds: Annotated[int, typer.Option(help="How many communication rounds.")] = 50,
) -> None:
    """Write what a federation starts from: agreement, study, project file, and a folder with a README for each party."""
    from rich.console import Console

    from fedminimax.commands.federation import init

    init(folder, [part.strip() for part in sites.split(",") if part.strip()], name, host, port, rounds, Console())


@federation_app.command("check")
def federation_check_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a site, with its site.toml.")] = Path(),
) -> None:
    """Load a site's rows, and say what will be run on them and what the server will be told."""
    from fedminimax.commands.federation import check

    check(folder)


@federation_app.command("kits")
def federation_kits_command(
    folder: Annotated[Path, typer.Argument(help="The folder of the federation, with its federation.toml.")] = Path(),
) -> None:
    """Make a kit with keys and certificates for each party."""
    from fedminimax.commands.federation import make_kits

    make_kits(folder)


@federation_app.command("up")
def federation_up_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a federation; a new one is written there.")] = Path(
        "federation"
    ),
    sites: Annotated[int, typer.Option(help="How many sites a new one has.")] = 3,
    rounds: Annotated[int, typer.Option(help="How many rounds a new one has.")] = 50,
    timeout: Annotated[float, typer.Option(help="Seconds that the run may take.")] = 3600.0,
) -> None:
    """Run a whole federation on this machine, every party a process, and end in a report; what was stopped goes on."""
    from fedminimax.commands.federation_trial import up

    if sites < 1:
        raise InputError(f"--sites is {sites}: give at least 1.")
    up(folder, sites, rounds, timeout)


@federation_app.command("submit")
def federation_submit_command(kit: Annotated[Path, typer.Argument(help="The admin's kit.")]) -> None:
    """Start the run on a server that is up, with an admin's kit."""
    from fedminimax.commands.federation import submit

    submit(kit)


@federation_app.command("resume")
def federation_resume_command(kit: Annotated[Path, typer.Argument(help="The admin's kit.")]) -> None:
    """Go on with a run from its newest checkpoint, after the server or the job went down."""
    from fedminimax.commands.federation import submit

    submit(kit)
