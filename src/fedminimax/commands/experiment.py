"""``fedminimax run``, ``resume`` and ``init``: an experiment from its file, from its folder, or from nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedminimax import distributed
from fedminimax.crew import Ended
from fedminimax.errors import InputError
from fedminimax.experiments.execute import ENDED, resume
from fedminimax.experiments.experiment import Experiment
from fedminimax.experiments.outcome import Outcome
from fedminimax.experiments.outline import Outline
from fedminimax.folders import RUN, Record, make_folder


def run_file(spec: Path, changes: Sequence[str], out: Path | None, dry_run: bool, console: Console | None = None) -> bool:
    """Run the experiment of a file; return whether every run of it came to its end. Of several processes one prints.

    Args:
        spec: the file.
        changes: keys to set otherwise.
        out: the folder; None: ``runs/`` and the experiment's name.
        dry_run: only say what would be run.
        console: where to print.
    """
    console = console or Console()
    experiment = Experiment.from_toml(spec, changes)
    if dry_run:
        if distributed.leads():
            show_outline(experiment.outline(), console)
        return True
    return _shown(lambda: experiment.run(out), console)


def resume_folder(folder: Path, rounds: int | None, console: Console | None = None) -> bool:
    """Go on with the experiment of a folder, or with one run; return whether every run, or that one, came to its end."""
    all_over = _shown(lambda: resume(folder, rounds), console or Console())
    if not distributed.leads():
        return all_over
    return Record.read(folder).status in ENDED if (folder / RUN).is_file() else all_over


def _shown(carry_out: Callable[[], Outcome], console: Console) -> bool:
    """Carry an experiment out, and let process 0 print what came of it, which also returns how that was."""
    try:
        outcome = carry_out()
    except Ended:
        if distributed.leads():
            raise
        return False  # process 0 has said why it did not go on
    return show_outcome(outcome, console) if distributed.leads() else True


def write_spec(path: Path, data: str, console: Console | None = None) -> None:
    """Write a commented file to start from.

    Args:
        path: where.
        data: "fashion_mnist", or "digits", which needs no file.
        console: where to print.
    """
    console = console or Console()
    if path.is_dir():
        path = path / "spec.toml"
    if path.exists():
        raise InputError(f"{path} is there already: give another name, or remove it.")
    templates = resources.files("fedminimax.experiments") / "templates"
    known = sorted(Path(each.name).stem for each in templates.iterdir() if each.name.endswith(".toml"))
    name = data.replace("-", "_")
    if name not in known:
        raise InputError(f"There is no file to start from for {data!r}: choose one of {', '.join(known)}.")
    make_folder(path.parent)
    path.write_text((templates / f"{name}.toml").read_text(encoding="utf-8"), encoding="utf-8")
    console.print(
        f"Wrote {path}. Change what you like in it, and then:  fedminimax run {path}", highlight=False, soft_wrap=True
    )


def show_outline(outline: Outline, console: Console) -> None:
    """Print what would be run."""
    say = lambda text: console.print(escape(text), highlight=False, soft_wrap=True)
    say(f"{outline.name}: {outline.problem}, {outline.parameters:,} parameters")
    say(outline.clients)
    seeds = ", ".join(map(str, outline.seeds))
    say(f"{outline.rounds} rounds a run, evaluated every {outline.eval_every}; seeds {seeds}")
    by_data = {on: [name for name, where in outline.metrics.items() if where == on] for on in set(outline.metrics.values())}
    for on, names in sorted(by_data.items()):
        say(f"measured on {on} data: {', '.join(names)}")
    table = Table("method", "settings", "runs", "programs", "rounds in all", "floats up a round", "tried")
    for line in outline.lines:
        floats = "?" if line.floats_up is None else f"{line.floats_up:,}"
        numbers = (line.settings, line.runs, line.programs, line.runs * outline.rounds)
        table.add_row(escape(line.label), *(f"{n:,}" for n in numbers), floats, ", ".join(line.swept) or "-")
    console.print(table)
    say(f"{outline.runs} runs, about {_bytes(outline.memory)} of memory. Nothing was run.")


def show_outcome(outcome: Outcome, console: Console) -> bool:
    """Print the table of an experiment and where its report is; return whether every run came to its end."""
    from fedminimax.report import rich_table

    if outcome.records:
        console.print(rich_table(outcome.records))
    for label, setting in outcome.chosen.items():
        shown = ", ".join(f"{name} = {value}" for name, value in setting["setting"].items())
        console.print(escape(f"{label}: {shown}, the best by {setting['metric']} on {setting['on']} data"), highlight=False)
    for what, why in outcome.failed.items():
        console.print(f"[bold red]failed:[/bold red] {escape(what)}: {escape(why)}", highlight=False, soft_wrap=True)
    for says in outcome.lost:
        console.print(f"[bold red]lost:[/bold red] {escape(says)}", highlight=False, soft_wrap=True)
    if outcome.status != "finished":
        console.print(f"Not all runs are over. To go on:  fedminimax resume {outcome.folder}", highlight=False, soft_wrap=True)
    where = f"Report: {outcome.report}" if outcome.report else f"Runs: {outcome.folder}"
    console.print(where, highlight=False, soft_wrap=True)
    return outcome.status == "finished" and not outcome.failed


def _bytes(count: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count = count // 1000
    return f"{count:,} GB"
