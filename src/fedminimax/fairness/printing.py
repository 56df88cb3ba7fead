"""Tables of a comparison in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedminimax.data.federation import Federation
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.sheets import (
    MOST_ROWS,
    Sheet,
    baseline_notes,
    column_sheet,
    first_sheet,
    group_sheets,
    label_sheet,
    other_sheet,
    sentences,
    worst_sheet,
)


def print_sheet(sheet: Sheet, console: Console, most: int | None = None) -> None:
    """Print a table, or as much of it as ``most`` rows are."""
    grid = Table(title=escape(sheet.title), title_justify="left", caption_justify="left")
    for k, column in enumerate(sheet.columns):
        words = any(len(row[k]) > 30 for row in sheet.rows)
        grid.add_column(escape(column), justify="left" if k == 0 or words else "right", overflow="fold")
    shown = sheet.rows if most is None else sheet.rows[:most]
    for k, row in enumerate(shown):
        marked = (("bold green", text) if (k, c) in sheet.best else ("", text) for c, text in enumerate(row))
        grid.add_row(*(Text(text, style) for style, text in marked), end_section=k + 1 in sheet.apart)
    left = len(sheet.rows) - len(shown)
    caption = " ".join([*([f"{left} more are in the report."] if left else []), sheet.caption]).strip()
    if caption:
        grid.caption = escape(caption)
    console.print(grid)


def print_found(found: Comparison, console: Console) -> None:
    """Print all that a comparison found: the first table, the other scores, the worst sites, groups, and what it means."""
    console.print(found.choice.sentence, highlight=False, markup=False)
    print_sheet(first_sheet(found), console)
    for note in baseline_notes(found):
        console.print(f"  {note}", highlight=False, markup=False, style="dim")
    for sheet in (other_sheet(found), worst_sheet(found), *group_sheets(found)):
        print_sheet(sheet, console)
    for note in found.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
    for text in sentences(found):
        console.print(text, highlight=False, markup=False, style="bold")


def print_federation(federation: Federation, name: str, min_rows: int, console: Console) -> None:
    """Say before training what the columns were taken for, who has what, and what was left out.

    Args:
        federation: the clients' data.
        name: what to call it.
        min_rows: clients with fewer were left out.
        console: where to print.
    """
    train, test = federation.train, federation.test
    what = f"{len(federation.classes)} classes" if federation.classes else "a quantity"
    console.print(
        f"[bold]{name}[/bold]: {train.count} clients with {train.smallest} to {train.largest} training "
        f"examples each, {train.total} in all; {test.total} for testing; {len(federation.features)} features, {what} "
        "to predict."
    )
    for sheet in (column_sheet(federation), label_sheet(federation)):
        if sheet is not None:
            print_sheet(sheet, console, MOST_ROWS)
    for note in federation.notes:
        console.print(note, highlight=False, markup=False)
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
        console.print(f"Left out, with fewer than {min_rows} rows or nothing to learn from: {listed}{more}.")
