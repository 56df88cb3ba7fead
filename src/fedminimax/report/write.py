"""``fedminimax.report``: from folders or results to a page, figures and tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedminimax.errors import InputError
from fedminimax.folders import FIGURES, make_folder, write_atomically
from fedminimax.report.evidence import Evidence
from fedminimax.report.material import gather

PAGE = "report.html"


def report(
    what: Any,
    out: str | os.PathLike[str] | None = None,
    title: str | None = None,
    *,
    metric: str | None = None,
    better: Mapping[str, str] | None = None,
    only_page: bool = False,
) -> Path:
    """Write one page that answers who is best and whether that is more than noise, with everything that it rests on.

    The page is complete in itself: it opens from disk without a network. Beside it go ``figures/`` (PNG and PDF), ``table.csv``
    and ``table.tex``; where the page has a name of its own, their names begin with it.

    Args:
        what: a folder of a run, an experiment or a sweep, or several; results, by label or not; the outcome of
            :func:`fedminimax.compare` or :func:`fedminimax.sweep`.
        out: the page (.html), or a folder for it; by default ``report.html`` in the folder, or in the one where Python was
            started for results and for several folders.
        title: its heading.
        metric: the metric that it opens with; by default the first that can be better or worse.
        better: which way metrics are better, "lower" or "higher", where they do not say so themselves.
        only_page: write no figures and tables.

    Returns:
        Where the page is.
    """
    material = gather(what, better)
    evidence = Evidence.of(material.records)
    chosen = evidence.metric(metric)
    page = _place(out, [source.path for source in material.sources])
    from fedminimax.report.page import render

    make_folder(page.parent)
    write_atomically(page, render(material, evidence, chosen, title).encode())
    if not only_page:
        from fedminimax.report import figures, tables

        own = page.name == PAGE
        named = lambda kind: page.with_name(f"table.{kind}" if own else f"{page.stem}.{kind}")
        figures.draw(evidence, chosen, page.with_name(FIGURES if own else f"{page.stem}_{FIGURES}"))
        write_atomically(named("csv"), tables.comma_separated(evidence).encode())
        write_atomically(named("tex"), tables.latex(evidence).encode())
    return page


def _place(out: str | os.PathLike[str] | None, sources: list[Path]) -> Path:
    if out is None:
        return sources[0] / PAGE if len(sources) == 1 else Path(PAGE)
    place = Path(out)
    if place.suffix.lower() in (".html", ".htm") and not place.is_dir():
        return place
    if place.is_file():
        raise InputError(f"out is {place}, which is a file that is no page: give a folder, or a name that ends in .html.")
    return place / PAGE
