"""``fedminimax report`` and ``compare``: folders to a page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedminimax.errors import InputError
from fedminimax.report import report


def write_report(
    folders: list[Path], out: Path | None, metric: str | None, title: str | None, better: str | None, only_page: bool
) -> Path:
    """Write the page and say where it is.

    Args:
        folders: of runs, experiments or sweeps.
        out: the page, or a folder for it; None: in the folder.
        metric: the metric that the page opens with.
        title: its heading.
        better: which way that metric is better, where nothing says so.
        only_page: write no figures and tables.
    """
    if better is not None and metric is None:
        raise InputError("--better says which way --metric is better: give --metric too.")
    known = {metric: better} if metric is not None and better is not None else None
    page = report(folders, out, title, metric=metric, better=known, only_page=only_page)
    Console().print(f"Written: {page}", highlight=False, markup=False, soft_wrap=True)
    return page
