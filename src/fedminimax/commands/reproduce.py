"""``fedminimax reproduce``: an item of a paper, carried out and judged."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedminimax.reproductions import Item, items, reproduce
from fedminimax.reproductions.expectations import BEYOND, CONTRADICTS, HELD
from fedminimax.reproductions.item import SCALES

_COLOURS = {HELD: "green", CONTRADICTS: "red"}


def show_items(console: Console | None = None) -> None:
    """Print what can be reproduced."""
    console = console or Console()
    table = Table("item", "what it shows", "the claim")
    for item in items().values():
        table.add_row(escape("\n".join([item.name, *item.other_names])), escape(item.title), escape(item.claim))
    console.print(table)
    console.print(f"fedminimax reproduce ITEM --scale {'|'.join(SCALES)}", highlight=False)


def carry_out(name: str, scale: str, out: Path | None, resume: bool, console: Console | None = None) -> bool:
    """Carry an item out and print the verdict; return whether all its runs came to their end.

    Args:
        name: the item.
        scale: how large.
        out: the folder.
        resume: go on with what it has.
        console: where to print.
    """
    console = console or Console()
    made = reproduce(name, scale, out, resume=resume)
    say = lambda text: console.print(text, highlight=False, soft_wrap=True)
    if not made.finished:
        for panel, outcomes in made.outcomes.items():
            for what, why in (pair for outcome in outcomes for pair in outcome.failed.items()):
                say(f"[bold red]failed:[/bold red] {escape(f'{panel}: {what}: {why}')}")
        say(f"Not all runs are over. To go on:  fedminimax reproduce {made.item.name} --scale {scale} --resume{_where(out)}")
        return False
    say(escape(f"{made.item.title}. The claim: {made.item.claim}"))
    table = Table("expected", "panel", "verdict", "numbers")
    for finding in made.findings:
        says = finding.says + (BEYOND if finding.beyond else "")
        table.add_row(escape(says), escape(finding.panel), _coloured(finding.verdict), escape(finding.sentence))
    console.print(table)
    say(f"Verdict: [bold]{_coloured(made.verdict)}[/bold]" if made.verdict else made.sentence)
    for text in _differs(made.item, scale):
        say(escape(f"Differs from the paper: {text}"))
    say(f"Page: {made.page}")
    return True


def _coloured(verdict: str) -> str:
    return f"[{_COLOURS.get(verdict.partition(' (')[0], 'yellow')}]{verdict}[/]"


def _differs(item: Item, scale: str) -> list[str]:
    return item.differs.get(scale, [])


def _where(out: Path | None) -> str:
    return "" if out is None else f" --out {out}"
