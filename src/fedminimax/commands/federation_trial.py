"""``fedminimax federation up``: a whole federation on this machine, from kits to the report, and down again."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from fedminimax.commands.federation import RUN, init, make_kits, need_flare
from fedminimax.errors import InputError
from fedminimax.flare import labels
from fedminimax.flare.agreement import FEDERATION_FILE, LOG_FILE, SITE_FILE, SiteFile
from fedminimax.flare.job import FINISHED, STOPPED
from fedminimax.flare.kits import FILES

if TYPE_CHECKING:
    from fedminimax.flare.trial import Trial

_COLOURS = {"answered": "green", "slow": "yellow", "gone": "red", "starting": "dim"}
_CONTROL_C = 130
"""How a program ends that was interrupted."""


def up(folder: Path, sites: int, rounds: int, timeout: float, console: Console | None = None) -> Path:
    """Run a whole federation on this machine, show how its sites stand, and end in a report; return the report.

    Ctrl-C, or a request to terminate, ends it after the round that is under way: all processes are taken down, and the same
    command goes on from there.

    Args:
        folder: of the federation; where there is none, one on the digits is written.
        sites: how many sites a new one has.
        rounds: how many rounds a new one has.
        timeout: seconds that the run may take.
        console: where to print.
    """
    folder = folder.resolve()  # processes run elsewhere
    need_flare()
    from fedminimax.flare.trial import Trial, free_port
    from fedminimax.report import report

    console = console or Console()
    if not (folder / FEDERATION_FILE).exists():
        names = [f"site-{k + 1}" for k in range(sites)]
        init(folder, names, port=free_port(), rounds=rounds)
        bring_digits(folder, names)
    kits = make_kits(folder, console)
    for site in kits.agreement.sites:
        SiteFile.read(kits.site(site) / "local" / "fedminimax" / SITE_FILE).check_sources()
    with interruptible(), Trial(kits) as trial:
        _conduct(trial, timeout, console)
        outcome = trial.outcome() or {}
    if outcome.get("status") != FINISHED:
        ended = "stopped" if outcome.get("status") == STOPPED else "failed"
        for line in look_into(trial):
            console.print(line, highlight=False, soft_wrap=True)
        raise InputError(f"The run {ended}: {str(outcome.get('why')).rstrip('.')}. It goes on with the same command.")
    target = folder / RUN
    shutil.copytree(trial.run, target, dirs_exist_ok=True)
    fair = kits.agreement.is_fair  # whose page the run itself has written
    page = target / "fair" / "report.html" if fair else Path(report(target, target / "report.html"))
    console.print(f"All is down again. Report: {page}", highlight=False, soft_wrap=True)
    return page


@contextmanager
def interruptible() -> Iterator[None]:
    """Take a request to terminate, or the end of the terminal, as Ctrl-C. (Only the main thread is ever interrupted.)"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [signal.SIGTERM, signal.SIGHUP]
    before = [signal.signal(number, signal.default_int_handler) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)


def _conduct(trial: Trial, timeout: float, console: Console) -> None:
    """Submit the job, and show how it goes until it is over; when interrupted, let the run end with a checkpoint."""
    port = trial.kits.agreement.server.port
    console.print(f"{len(trial.sites)} sites, a coordinator and a server on port {port} start.", highlight=False)
    begun = time.monotonic()
    try:
        with Live(shown(trial, begun), console=console, refresh_per_second=4) as live:
            trial.submit()
            for _ in trial.watch(timeout):
                live.update(shown(trial, begun))
    except KeyboardInterrupt:
        console.print("Interrupted: the run ends after its round, and all processes with it.", highlight=False)
        trial.halt()
        trial.stop()
        told = trial.progress()
        how = f"after round {told['round']} of {told['rounds']}" if told else "before its first round"
        console.print(f"All is down. The run was stopped {how}; the same command goes on.", highlight=False)
        raise SystemExit(_CONTROL_C) from None


def shown(trial: Trial, begun: float) -> Group:
    """Return how far the run is, and how each site stands, as it is shown."""
    told, standing = trial.progress(), trial.standing()
    title = f"round {told['round']} of {told['rounds']}" if told else "waiting for the sites"
    numbers = "".join(f", {name} {value:.3g}" for name, value in _chosen(told.get("numbers", {})))
    title += f", {time.monotonic() - begun:.0f} s{numbers}"
    table = Table("site", "stands", "answered", "failed", "why")
    for site in trial.sites:
        known = standing.get(site, {"stands": "starting", "answered": 0, "failed": 0, "why": ""})
        stands = known["stands"] or "starting"
        colour = _COLOURS.get(stands, "magenta")
        table.add_row(site, f"[{colour}]{stands}[/{colour}]", str(known["answered"]), str(known["failed"]), known["why"])
    return Group(title, table, *look_into(trial))


def look_into(trial: Trial) -> list[str]:
    """Return where to look for why workers do not start: a site tells the server no more than that."""
    at = lambda site: trial.kits.site(site) / "local" / FILES / LOG_FILE
    standing = trial.standing()
    return [f"{site} does not start: see {at(site)}" for site in trial.sites if _does_not_start(standing.get(site))]


def _does_not_start(known: dict[str, Any] | None) -> bool:
    return known is not None and known["why"] == labels.NOT_STARTING


def _chosen(numbers: dict[str, float]) -> list[tuple[str, float]]:
    """Return the few numbers that a line has room for: the worst site's first."""
    return sorted(numbers.items(), key=lambda item: not item[0].endswith("worst"))[:2]


def bring_digits(folder: Path, sites: Sequence[str]) -> None:
    """Divide the digits among the sites, unalike, and write each one's rows into its folder."""
    from fedminimax.data import datasets
    from fedminimax.data.silos import silos

    train = silos(datasets.load("digits"), len(sites), 0.3, seed=0).train
    for k, site in enumerate(sites):
        fields: Any = train[k]
        inputs, labels = np.asarray(fields["inputs"], np.float32), np.asarray(fields["labels"], np.int32)
        np.savez(folder / "sites" / site / "rows.npz", inputs=inputs, labels=labels)
