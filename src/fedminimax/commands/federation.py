"""``fedminimax federation``: a federation of real sites, prepared, tried on one machine, and run."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedminimax.errors import InputError
from fedminimax.flare.agreement import FEDERATION_FILE, SITE_FILE, Agreement, SiteFile
from fedminimax.flare.job import write_job
from fedminimax.flare.kits import RUN, project_file
from fedminimax.folders import make_folder

if TYPE_CHECKING:
    from fedminimax.flare.kits import Kits

KITS, JOB = "kits", "federation"
SERVER, ADMIN = "server", "admin"
"""In a federation's folder: those of the server's operator, and of whoever has the admin kit."""


def need_flare() -> None:
    """Say how to get FLARE where it is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError('A federation is carried by NVIDIA FLARE: pip install "fedminimax[federation]".')


def init(
    folder: Path,
    sites: Sequence[str],
    name: str = "trial",
    host: str = "localhost",
    port: int = 28002,
    rounds: int = 50,
    console: Console | None = None,
) -> Agreement:
    """Write what a federation starts from: agreement, study, project file, and for each party a folder with a README.

    Args:
        folder: where to write.
        sites: the sites' names.
        name: of the project.
        host: of the server.
        port: of the server.
        rounds: how many communication rounds.
        console: where to print.
    """
    few = len(sites) - 1 or 1
    known: dict[str, Any] = {"name": name, "host": host, "port": port, "rounds": rounds, "min_replies": few}
    known |= {"sites": json.dumps(list(sites)), "eval_every": max(1, rounds // 10)}
    agreed = {FEDERATION_FILE: _template(FEDERATION_FILE).format(**known), "study.py": _template("study.py")}
    own = {site: f'name = "{site}"\ndata = "rows.npz"  # or "data.py:load"\n' for site in sites}
    agreement = write_parties(folder, agreed, own)
    if console is not None:
        console.print(
            f"Wrote {folder}. Its README.md says who does what; {SERVER}, {ADMIN} and each of sites have one of their own.",
            highlight=False,
        )
    return agreement


def write_parties(folder: Path, agreed: Mapping[str, str], sites: Mapping[str, str]) -> Agreement:
    """Write a federation's folder: what all agree on, the project file, and for each party a folder with a README.

    Args:
        folder: where to write.
        agreed: the files that everybody has, by name.
        sites: by name the text of the site's own ``site.toml``.
    """
    if (folder / FEDERATION_FILE).exists():
        raise InputError(f"{folder / FEDERATION_FILE} is there already: name another folder.")
    Agreement.check(agreed[FEDERATION_FILE])  # before folders are made with the sites' names
    _write(folder, agreed)
    agreement = Agreement.read(folder / FEDERATION_FILE)
    project_file(agreement)
    kind = "fair" if agreement.is_fair else "own"
    known = {"name": agreement.name, "host": agreement.server.host, "port": agreement.server.port}
    known |= {"admin": agreement.server.admin, "files": " and ".join(f"`{file}`" for file in agreed)}
    readme = lambda party, **more: {"README.md": _template(f"{party}.md").format(**known, **more)}
    _write(folder, readme("project"))
    _write(folder / SERVER, readme("server", run=_template(f"run_{kind}.md").strip()))
    _write(folder / ADMIN, readme("admin"))
    for site, text in sites.items():
        told = _template(f"leaves_{kind}.md").strip()
        _write(folder / "sites" / site, {**agreed, SITE_FILE: text, **readme("site", site=site, leaves=told)})
    return agreement


def _write(folder: Path, files: Mapping[str, str]) -> None:
    make_folder(folder)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _template(name: str) -> str:
    return (resources.files("fedminimax.flare") / "templates" / name).read_text(encoding="utf-8")


def check(folder: Path, console: Console | None = None) -> None:
    """Load a site's rows as its worker would, and say what will be run on them and what the server will be told."""
    from fedminimax.flare.study import study_of

    console = console or Console()
    site = SiteFile.read(folder / SITE_FILE)
    if site.agreement.is_fair:
        _check_fair(site, console)
        return
    study, rows = study_of(site.agreement), site.rows()
    count = len(next(iter(rows.values())))
    say = lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False)
    say(f"{site.name} has {count:,} rows: " + ", ".join(f"{key} {list(v.shape[1:])} {v.dtype}" for key, v in rows.items()))
    for name, source in site.held_out.items():
        say(f"  and {len(next(iter(site.rows(source).values()))):,} rows held out as {name!r}")
    code = site.folder / site.agreement.study.function.partition(":")[0]
    digest = f", sha256 {hashlib.sha256(code.read_bytes()).hexdigest()[:16]}" if code.is_file() else ""
    say(f"On them is run: {site.agreement.study.function}{digest}: {study.algorithm!r}")
    between = hasattr(study.problem, "network")
    sends = (
        "sealed for the site's neighbours what the method sends each round" if between else "what the method sends each round"
    )
    say(f"The server is told how many rows there are and their shapes, {sends}, and the metrics' parts.")
    say(f"The study's fingerprint, which must be the server's too: {site.agreement.fingerprint}")


def _check_fair(site: SiteFile, console: Console) -> None:
    """Show what a site of a fair study tells the server before training, as it will leave."""
    from fedminimax.fedfair.asking import Trouble
    from fedminimax.fedfair.sketch import sketch
    from fedminimax.flare.fair import fair_worker, question_of

    say = lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False)
    worker, table = fair_worker(site), site.table()
    try:
        told = sketch(table, question_of(site.agreement), worker.least)
    except Trouble as trouble:
        raise InputError(f"{site.name} {trouble}.") from None
    say(f"{site.name} has {told['rows']:,} rows. Before training the server is told, of each column:")
    for column, seen in told["columns"].items():
        counted = f"{seen['missing']:,} missing, {seen['distinct']:,} different, {seen['odd']:,} texts among numbers or dates"
        say(f"  {column}: {seen['role']} ({counted})")
    say(f"  {site.agreement.study.settings['label']}, which is predicted: {told['label']['classes'] or 'a quantity'}")
    say(
        "then of the training rows each number's count, mean and squared deviations, and the categories that at least "
        f"{worker.least} rows have; how many rows of each class there are; what the methods send each round; and of each model "
        "numbers about all test rows together, with histograms of scores (docs/fair_federation.md has the list)."
    )
    say(f"The study's fingerprint, which must be the server's too: {site.agreement.fingerprint}")


def make_kits(folder: Path, console: Console | None = None) -> Kits:
    """Return the kits of a federation's parties, with its files as they are now.

    They are made where there are none, and anew, by the same authority, where the parties, the server's host or its port have
    changed since; what was begun with the kits before is then gone on with if the sites are the same.
    """
    folder = folder.resolve()  # processes run elsewhere
    need_flare()
    from fedminimax.flare.kits import Kits

    agreement = Agreement.read(folder / FEDERATION_FILE)
    made = sorted((folder / KITS / agreement.name).glob("prod_*"))
    before = Kits(agreement, made[-1]) if made else None
    kits = before if before is not None and before.are_of_now else Kits.provisioned(agreement, folder / KITS)
    kits.furnish()
    for site in agreement.sites:
        own = folder / "sites" / site
        for path in own.iterdir() if own.is_dir() else ():
            if path.is_file() and path.name not in (FEDERATION_FILE, "study.py", "README.md"):
                shutil.copy(path, kits.site(site) / "local" / "fedminimax" / path.name)
    if before is not None and before is not kits:
        kits.take_over(before)
        (console or Console()).print(
            f"The parties, or where the server is, have changed since {before.folder.name} was made: these kits are new, and "
            "each party needs its own.",
            highlight=False,
        )
    (console or Console()).print(f"The kits of {len(agreement.sites)} sites are in {kits.folder}.", highlight=False)
    return kits


def submit(kit: Path, console: Console | None = None) -> str:
    """Submit the job with an admin's kit; a run that was begun is gone on with from its newest checkpoint."""
    kit = kit.resolve()
    need_flare()
    from fedminimax.flare.trial import submit as send

    if not (kit / "startup" / "fed_admin.json").is_file():
        raise InputError(f"{kit} is no kit of an admin: give the folder with startup/fed_admin.json in it.")
    job = write_job(kit / "transfer" / JOB, RUN)
    try:
        id = send(kit.resolve(), kit.name, job, timeout=10.0)
    except ConnectionError as error:
        raise InputError(
            f"The job was not submitted, as {error}: start the kits of the server and of the coordinator."
        ) from None
    (console or Console()).print(f"The server has taken the job {id}.", highlight=False)
    return id
