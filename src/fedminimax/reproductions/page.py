"""An item's page: the claim, the verdict, our figure and numbers, and what differs from the paper."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax._version import __version__
from fedminimax.checkpoint import newest
from fedminimax.experiments.home import Home
from fedminimax.problems.base import MinimaxProblem
from fedminimax.report.evidence import Evidence
from fedminimax.report.figures import COLOURS, DASHES, MARKERS, draw_curves
from fedminimax.report.page import document, table
from fedminimax.report.words import quantity
from fedminimax.reproductions.expectations import BEYOND, numbers

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

    from fedminimax.experiments.experiment import Experiment
    from fedminimax.reproductions.conduct import Reproduction
    from fedminimax.reproductions.item import Across

FIGURE = "figure.png"
"""Our figure, in an item's folder."""
_ACROSS = 3
"""Panels side by side in the figure."""
NONE = "–"
"""In place of a number that there is not."""
_WITHIN = 4
"""So many methods fit into a legend among the curves."""
_SAMPLES = 16
"""Images of each generator."""


def figure(made: Reproduction, path: Path) -> None:
    """Draw every metric that the item shows, in every panel: mean over seeds, and from the least to the greatest."""
    from matplotlib.figure import Figure

    if made.item.across is not None:
        _figure_across(made, made.item.across, path)
        return
    cells = [(panel, metric) for metric in made.item.shows for panel in made.outcomes]
    labels = list(dict.fromkeys(record.label for records in made.records.values() for record in records))
    across = columns(len(made.outcomes) if len(made.outcomes) > 1 else len(cells))
    down = math.ceil(len(cells) / across)
    apart = len(labels) > _WITHIN
    drawn = Figure(figsize=(4.6 * across, 3.4 * down), layout="constrained")
    axes = drawn.subplots(down, across, squeeze=False)
    curves: dict[str, Line2D] = {}
    for k, (panel, metric) in enumerate(cells):
        ax = axes[k // across][k % across]
        draw_curves(ax, Evidence.of(made.records[panel]), metric, made.item.against, labels, legend=not apart)
        curves = {str(line.get_label()): line for line in ax.get_lines()} | curves
        if len(made.outcomes) > 1:
            ax.set_title(panel, fontsize=10)
    for k in range(len(cells), across * down):
        axes[k // across][k % across].set_axis_off()
    if apart:  # so many would cover the curves
        drawn.legend(
            curves.values(), curves, loc="outside lower center", ncols=2 * across, frameon=False, fontsize=8, handlelength=3.2
        )
    drawn.savefig(path, dpi=130)


def columns(panels: int) -> int:
    """Return how many panels stand side by side: four stand two by two, so that every metric begins a row."""
    return 2 if panels == _ACROSS + 1 else min(panels, _ACROSS)


def _figure_across(made: Reproduction, across: Across, path: Path) -> None:
    """Draw what came out against what panels differ in: a row for each number, a column for each group of panels."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    drawn: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for one in made.item.expected(made.scale):
        if one.slope is not None:
            by_panel = {panel: [*values.values()] for panel, values in numbers(one, made.records).items()}
            drawn.setdefault((one.what, str(one.group)), {})[one.method] = by_panel
    for metric, group in () if drawn else itertools.product(made.item.shows, across.groups):
        cell = drawn.setdefault((metric, group), {})
        for panel in (panel for panel in across.groups[group] if panel in made.records):
            for row in Evidence.of(made.records[panel]).rows(metric):
                cell.setdefault(row.label, {})[panel] = [*row.values.values()]
    groups, rows = list(across.groups), list(dict.fromkeys(what for what, _ in drawn))
    cells = [(what, group) for what in rows for group in groups if (what, group) in drawn]
    wide = len(groups) if len(cells) == len(rows) * len(groups) else min(_ACROSS, len(cells))  # no place stays empty
    down = math.ceil(len(cells) / wide)
    axes = Figure(figsize=(4.6 * wide, 3.4 * down), layout="constrained").subplots(
        down, wide, squeeze=False, sharey="row" if wide == len(groups) and not across.log else "none"
    )
    for ax in axes.flat[len(cells) :]:
        ax.set_visible(False)
    labels = list(dict.fromkeys(label for cell in drawn.values() for label in cell))
    for (what, group), cell in drawn.items():
        ax = axes.flat[cells.index((what, group))]
        for label, by_panel in cell.items():
            k = labels.index(label)
            there = [(across.groups[group][panel], values) for panel, values in by_panel.items() if values]
            if there:
                x = [number for number, _ in there]
                ax.plot(
                    x, [sum(v) / len(v) for _, v in there], label=label, color=COLOURS[k % len(COLOURS)], linewidth=1.8,
                    linestyle=DASHES[k % len(DASHES)], marker=MARKERS[k % len(MARKERS)], markersize=5,
                )  # fmt: skip
                least, most = [min(v) for _, v in there], [max(v) for _, v in there]
                ax.fill_between(x, least, most, color=COLOURS[k % len(COLOURS)], alpha=0.15, linewidth=0)
        if across.log:
            ax.set_xscale("log")
            ax.set_yscale("log")
            places = sorted(across.groups[group].values())
            ax.set_xticks(places, [f"{place:.3g}" for place in places])
            ax.minorticks_off()
            if ax.get_lines():
                ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set(xlabel=across.name, ylabel=what)
        ax.set_title(group, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
        if ax.get_lines():  # a level that no run has reached has none
            ax.legend(frameon=False, fontsize=8, handlelength=3.2)
    axes[0][0].get_figure().savefig(path, dpi=130)


def samples(made: Reproduction, experiments: dict[str, Experiment]) -> list[Path]:
    """Draw what generators make at the end of the runs with the first seed, a row for each method, with the same noise."""
    import jax
    from matplotlib.figure import Figure

    from fedminimax.plots import sample_grid

    drawn: list[Path] = []
    for panel, outcomes in made.outcomes.items():
        problem = experiments[panel].ready.problem
        if not isinstance(problem, MinimaxProblem) or problem.generate is None:
            continue
        first: dict[str, Path] = {}
        for record in outcomes[0].records:
            first.setdefault(record.label, Home(outcomes[0].folder).run(record.label, record.seed))
        kept = {label: newest(folder) for label, folder in first.items()}
        made_by = {
            label: _images(problem.generate(k.result.x, jax.random.key(0), _SAMPLES))
            for label, k in kept.items()
            if k is not None
        }
        if not made_by:
            continue
        axes = Figure(figsize=(9, 0.62 * len(made_by)), layout="constrained").subplots(len(made_by), 1, squeeze=False)[:, 0]
        for ax, (label, images) in zip(axes, made_by.items(), strict=True):
            sample_grid(images, _SAMPLES, ax=ax)
            ax.set_title(label, fontsize=8, loc="left", x=-0.32, y=0.3)
        drawn.append(made.folder / f"samples-{len(drawn)}.png")
        axes[0].get_figure().savefig(drawn[-1], dpi=130)
    return drawn


def _images(made: Any) -> np.ndarray:
    """Return what a generator made as images: vectors of a square length are such, row after row."""
    images = np.asarray(made)
    side = math.isqrt(images.shape[1])
    return images.reshape(-1, side, side) if images.ndim == 2 and side**2 == images.shape[1] else images


def render(made: Reproduction, pictures: Sequence[Path]) -> str:
    """Return the page, with our figure first, and then what else was drawn."""
    item = made.item
    images = [base64.b64encode(picture.read_bytes()).decode() for picture in pictures]
    shown = [f'<figure><img src="data:image/png;base64,{image}" alt="{escape(item.title)}"></figure>' for image in images]
    rows = [
        f'<tr><th scope="row">{escape(f.says)}{BEYOND if f.beyond else ""}</th><td>{escape(f.panel)}</td>'
        f"<td><strong>{escape(f.verdict)}</strong></td>"
        f'<td class="words">{escape(f.sentence)}</td></tr>'
        for f in made.findings
    ]
    differs = "".join(f"<li>{escape(text)}</li>" for text in item.differs.get(made.scale, []))
    found = "".join(f"<p>{escape(text)}</p>" for text in item.found)
    reports = "".join(
        f'<li><a href="{escape(outcome.report.relative_to(made.folder).as_posix())}">{escape(panel)}'
        f"{f', division {k}' if len(outcomes) > 1 else ''}</a></li>"
        for panel, outcomes in made.outcomes.items()
        for k, outcome in enumerate(outcomes)
        if outcome.report is not None
    )
    body = f"""<header class="top">
<h1>{escape(item.title)}</h1>
<p class="meta">{escape(item.name)}, scale {escape(made.scale)}</p>
</header>
<main>
<p>The claim: {escape(item.claim)}</p>
<p class="answer">{escape(made.sentence)}</p>
{"".join(shown)}
<h2>What was compared</h2>
{table(["Expected", "Panel", "Verdict", "Numbers"], rows, "What was compared")}
<p class="caption">Leads are over the seeds that both sides have, with Student's intervals that together are wrong with a
chance of 5% at most (Bonferroni over all comparisons of this page). Positive: as expected.</p>
{found}
{f'<div class="notes"><h2>What differs from the paper</h2><ul>{differs}</ul></div>' if differs else ""}
<h2>At the end of the runs</h2>
{_numbers(made)}
<h2>The runs</h2><ul>{reports}</ul>
<pre>fedminimax reproduce {escape(item.name)} --scale {escape(made.scale)}</pre>
</main>
<footer>Written by fedminimax {__version__}. This page loads nothing from anywhere.</footer>"""
    return document(item.title, body, ())


def end(numbers: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of the table of what methods have at the end, with a column for what the paper prints."""
    known = {(one["panel"], one["method"], one["metric"]): one for one in numbers}
    metrics = list(dict.fromkeys(metric for _, _, metric in known))
    printed = {one["metric"] for one in numbers if one["printed"] is not None}
    head = ["Method", "Panel", *(title for metric in metrics for title in (metric, "in the paper")[: 1 + (metric in printed)])]
    lines = []
    for panel, method in dict.fromkeys((panel, method) for panel, method, _ in known):
        cells = [method, panel]
        for metric in metrics:
            one = known.get((panel, method, metric))
            cells.append(_quantity(one))
            if metric in printed:
                cells.append(f"{one['printed']:g}" if one and one["printed"] is not None else NONE)
        lines.append(cells)
    return head, lines


def _quantity(one: Mapping[str, Any] | None) -> str:
    if one is None or one["mean"] is None:
        return NONE
    return quantity(one["mean"], math.nan if one["spread"] is None else one["spread"])


def _numbers(made: Reproduction) -> str:
    head, lines = end(made.numbers)
    rows = [
        f'<tr><th scope="row">{escape(method)}</th><td>{escape(panel)}</td>'
        + "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for method, panel, *cells in lines
    ]
    return table(head, rows, "Numbers at the end")
