"""A comparison as files: tables, figures, the model to keep with its card, and the page to send."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedminimax import folders
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.page import render
from fedminimax.fairness.sheets import Sheet
from fedminimax.saved.folder import load_model, save_model

MODEL, PAGE = "model", "report.html"
"""In the folder that is written: the model's own folder, and the page."""


def write(
    found: Comparison,
    folder: Path,
    name: str,
    command: str,
    console: Console,
    more: Sequence[Sheet] = (),
    drawn: Sequence[Path] = (),
    shown: Path | None = None,
) -> Path:
    """Write all of a comparison into a folder, say what was written, and return the page.

    Args:
        found: the comparison.
        folder: where to write.
        name: what the data is called.
        command: what was typed.
        console: where to print.
        more: further tables for the page.
        drawn: further figures, which are in the folder already.
        shown: the folder that the reader will find it all in, where that is another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = [*found.figures(folder), *drawn]
    place = shown or folder
    weaknesses, use = _keep(found, folder / MODEL, place / MODEL, command)
    encoder = found.federation.encoder
    title = f"{name}: {'a class by site' if encoder is None else f'{encoder.label} by {encoder.client}'}"
    page = folder / PAGE
    page.write_text(render(found, title, figures, command, more, weaknesses, use), encoding="utf-8")
    found.table().to_csv(folder / "table.csv", index_label="method")
    found.clients().to_csv(folder / "clients.csv", index_label="client")
    folders.write_json(folder / "summary.json", found.summary_dict())
    written = ["table.csv", "clients.csv", "summary.json", *(path.name for path in figures)]
    console.print("Written: " + ", ".join(str(place / name) for name in written), soft_wrap=True, highlight=False)
    console.print(f"[bold]The page to send: {place / PAGE}[/bold]\n{use}", soft_wrap=True, highlight=False)
    return page


def _keep(found: Comparison, folder: Path, shown: Path, command: str) -> tuple[list[str], str]:
    """Write the model to keep, with its card; return what it is bad at, and how to use it."""
    federation = found.federation
    save_model(
        folder,
        network=found.network,
        x=found.kept.x,
        encoder=federation.encoder,
        method=found.winner,
        settings=found.settings[found.winner],
        summary=found.summary_dict() | {"command": command},
        loss=found.asked["loss"],
        threshold=found.threshold,
        positive=federation.positive,
        federation=federation,
    )
    python = f"fm.load_model({str(shown)!r}).predict(...)"
    how = python if federation.encoder is None else f"fedminimax predict {shown} new.csv --out scores.csv"
    use = f"The model and its card are in {shown} (trained by {found.winner}). To use it: {how}"
    return load_model(folder).weaknesses, use
