"""``fedminimax fair --federation``: among sites that keep their rows, in this process, on this machine or on real hosts."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from fedminimax.commands.fair import Request, check, check_folder
from fedminimax.commands.federation import KITS, make_kits, need_flare, submit, write_parties
from fedminimax.commands.federation_trial import interruptible, shown
from fedminimax.engines.federated.inprocess import InProcess
from fedminimax.errors import InputError
from fedminimax.fedfair.keeping import TRAINING
from fedminimax.fedfair.question import Question
from fedminimax.fedfair.site import LEAST, FairSite
from fedminimax.fedfair.study import conduct_fair
from fedminimax.fedfair.tables import table_of
from fedminimax.fedfair.writing import MODEL, PAGE
from fedminimax.flare.agreement import FAIR, FEDERATION_FILE, SITE_FILE, Agreement
from fedminimax.saved.folder import check_target

INPROCESS, TRIAL = "inprocess", "trial"
_HOST, _PORT = "localhost", 28002


def fair_among_sites(request: Request, folder: Path, console: Console | None = None) -> None:
    """Train among sites that keep their rows; what there is in the end is as of ``fedminimax fair``.

    Args:
        request: what was asked for; its ``federation`` is "inprocess", "trial", or the folder of a federation.
        folder: where tables, figures, model and page go.
        console: where to print.
    """
    console = console or Console()
    place = str(request.federation)
    if place not in (INPROCESS, TRIAL):
        agreed = Path(place) / FEDERATION_FILE
        (_submit if agreed.exists() else _write_down)(Path(place), request, console)
        return
    question, sites = question_of(request), _sites(request.sites)
    for site, source in sites.items():
        if not source:
            raise InputError(f"--site {site} has no data: write --site {site}=PATH, such as --site {site}={site}.csv.")
    check_folder(folder)
    check_target(folder / MODEL)
    (_in_process if place == INPROCESS else _trial)(question, sites, request, folder, console)


def question_of(request: Request) -> Question:
    """Return what the parties agree on, or say what of the request is not for sites that keep their rows."""
    check(request)
    others = {"--client": request.client, "--data": request.data if request.data != Request().data else None}
    for option, value in others.items():
        if value:
            raise InputError(f"{option} is for a table in one place: give each site its own, --site NAME=PATH.")
    if len(request.penalties) > 1:
        raise InputError("Among sites there is one --penalty at a time: give one, and run it again for another.")
    if not request.label:
        raise InputError("Say which column of the sites' tables is to be predicted: --label.")
    return Question(
        label=request.label,
        task=request.task,
        positive=request.positive,
        include=tuple(request.include),
        exclude=tuple(request.exclude),
        group=request.group,
        methods=tuple(request.methods),
        penalty=request.penalties[0],
        weights=request.weights,
        settings=tuple(request.settings),
        rounds=request.rounds,
        local_steps=request.local_steps,
        batch_size=request.batch_size,
        loss=request.loss,
        ridge=request.ridge,
        hidden=tuple(request.hidden),
        test_share=request.test_share,
        min_rows=request.min_rows,
        seeds=request.seeds,
        seed=request.seed,
    )


def _sites(given: list[str]) -> dict[str, str]:
    """Return the sites' data by name, from texts such as "north=north.csv"; "" where none is named."""
    found: dict[str, str] = {}
    for one in given:
        name, _, source = one.partition("=")
        if name.strip() in found:
            raise InputError(f"--site names {name.strip()!r} twice: give each site a name of its own.")
        found[name.strip()] = source.strip()
    if len(found) < 2:
        raise InputError("A federation has two sites or more: --site north=north.csv --site south=south.csv.")
    return found


def _in_process(question: Question, sites: Mapping[str, str], request: Request, folder: Path, console: Console) -> None:
    """Let the sites be objects of this process, which tell each other nothing but bytes. Nobody is away, or late."""
    least = LEAST if request.least is None else request.least
    made = {}
    for name, source in sites.items():
        table, state = table_of(source, Path.cwd(), {}), folder / TRAINING / "sites" / name
        made[name] = FairSite(name, table, question, least=least, folder=state)
    there, few = InProcess(made), len(made)
    conduct_fair(there, question, folder, console, command=request.command, timeout=math.inf, min_replies=few)


def _trial(question: Question, sites: Mapping[str, str], request: Request, folder: Path, console: Console) -> None:
    """Bring up a whole federation on this machine, let it run the study, and fetch what came of it."""
    need_flare()
    from fedminimax.flare.fair import FOUND, SAID
    from fedminimax.flare.trial import Trial, free_port

    work = folder / "federation"
    if not _is_of(work, question, sites, request.least):  # otherwise the study that is there goes on
        if work.exists():
            shutil.rmtree(work)
        write_federation(work, question, sites, request.least, port=free_port())
    begun = time.monotonic()
    with interruptible(), Trial(make_kits(work, console)) as trial:
        console.print(f"{len(sites)} sites, a server and a coordinator run; submitting the job.", highlight=False)
        trial.submit()
        with Live(console=console, refresh_per_second=4) as live:
            for _ in trial.watch(timeout=24 * 3600.0):
                live.update(shown(trial, begun))
        outcome = trial.outcome() or {}
    said = trial.run / SAID
    if outcome.get("status") != "finished":
        why = str(outcome.get("why")).rstrip(".")
        raise InputError(f"{why}. What is trained is kept: the same command goes on.")
    console.print(said.read_text(encoding="utf-8"), highlight=False, markup=False, soft_wrap=True)
    shutil.copytree(trial.run / FOUND, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(TRAINING))
    console.print(f"All is down again. [bold]The page to send: {folder / PAGE}[/bold]", highlight=False, soft_wrap=True)


def _is_of(work: Path, question: Question, sites: Mapping[str, str], least: int | None) -> bool:
    """Tell whether a folder has the federation of this very study, with kits."""
    if not (work / FEDERATION_FILE).exists():
        return False
    text = _agreed(question, list(sites), _HOST, Agreement.read(work / FEDERATION_FILE).server.port)
    wanted = {work / FEDERATION_FILE: text}
    wanted |= {work / "sites" / site / SITE_FILE: _site_file(site, source, least) for site, source in sites.items()}
    return all(path.exists() and path.read_text(encoding="utf-8") == text for path, text in wanted.items())


def write_federation(
    folder: Path, question: Question, sites: Mapping[str, str], least: int | None = None, host: str = _HOST, port: int = _PORT
) -> Agreement:
    """Write what a fair study starts from: what all agree on, and for each site a folder with its own ``site.toml``.

    Args:
        folder: where to write.
        question: what is agreed on.
        sites: by name the site's data; "": it says so itself.
        least: for the sites' configuration; None: the default.
        host: of the server.
        port: of the server.
    """
    own = {site: _site_file(site, source, least) for site, source in sites.items()}
    return write_parties(folder, {FEDERATION_FILE: _agreed(question, list(sites), host, port)}, own)


def _agreed(question: Question, sites: Sequence[str], host: str, port: int) -> str:
    """Return what all parties of a fair study agree on."""
    settings = {k: v for k, v in question.to_settings().items() if k != "rounds"}
    return "\n".join(
        [
            "# What all parties agree on. Everybody has this file, byte for byte.",
            'name = "fair"',
            f"sites = {json.dumps(sorted(sites))}",
            "",
            "[server]",
            f'host = "{host}"  # a name that every site can reach, and that the server\'s certificate is made for',
            f"port = {port}",
            "",
            "[study]",
            f'function = "{FAIR}"',
            f"rounds = {question.rounds}",
            "timeout = 300.0    # seconds that a site is waited for, once; it also trains a model of its own in this time",
            f"min_replies = {max(1, len(sites) - 1)}    # a round counts with at least so many sites",
            "",
            "[study.settings]   # what is predicted, and how; what is not here is as `fedminimax fair` has it by default",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()),
            "",
        ]
    )


def _site_file(site: str, source: str, least: int | None) -> str:
    path = source if not source or ":" in source else str(Path(source).resolve())
    lines = [
        "# This file stays at its site.",
        f"name = {json.dumps(site)}",
        f'data = {json.dumps(path or "rows.csv", ensure_ascii=False)}  # a .csv, .tsv, .parquet or .npz, or "data.py:load"',
        "",
        "[config]",
        f"least = {LEAST if least is None else least}  # a category, class or group that fewer rows have is not named outside",
        "",
    ]
    return "\n".join(lines)


def _write_down(folder: Path, request: Request, console: Console) -> None:
    """Write what a federation on real hosts starts from, and say what comes next."""
    agreement = write_federation(folder, question_of(request), _sites(request.sites), request.least)
    console.print(
        f"Wrote {folder / FEDERATION_FILE} for {len(agreement.sites)} sites, and for each a folder in {folder / 'sites'}. "
        "Next: put the server's host into the first; let each site say in its site.toml where its rows are, and look at what "
        f"will leave (fedminimax federation check FOLDER); make the kits (fedminimax federation kits {folder}), start them, "
        f"and run this again: fedminimax fair --federation {folder}",
        highlight=False,
        soft_wrap=True,
    )


def _submit(folder: Path, request: Request, console: Console) -> None:
    """Start the study of a federation whose parties run."""
    agreement = Agreement.read(folder / FEDERATION_FILE)
    if not agreement.is_fair:
        raise InputError(f"{folder / FEDERATION_FILE} describes another study: start it with `fedminimax federation submit`.")
    if request.sites or request.label:
        raise InputError(
            f"What is asked of these sites is in {folder / FEDERATION_FILE}, as all agreed: leave other options out."
        )
    made = sorted((folder / KITS / agreement.name).glob("prod_*"))
    if not made:
        raise InputError(f"There are no kits in {folder / KITS}: make them first, fedminimax federation kits {folder}.")
    submit(made[-1] / agreement.server.admin, console)
    console.print("What comes of it is in run/fair of the server's kit: the page, the tables and the model.", highlight=False)
