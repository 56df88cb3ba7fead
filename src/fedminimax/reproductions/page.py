"""An item's page: the claim, the verdict, our figure and numbers, and what differs from the paper."""

from __future__ import annotations

import base64
import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedminimax._version import __version__
from fedminimax.report.evidence import Evidence
from fedminimax.report.figures import draw_curves
from fedminimax.report.page import document, table
from fedminimax.report.words import quantity
from fedminimax.reproductions.expectations import BEYOND

if TYPE_CHECKING:
    from fedminimax.reproductions.conduct import Reproduction

_ACROSS = 3
"""Panels side by side in the figure."""


def figure(made: Reproduction, path: Path) -> None:
    """Draw every metric that the item shows, in every panel: mean over seeds, and from the least to the greatest."""
    from matplotlib.figure import Figure

    cells = [(panel, metric) for metric in made.item.shows for panel in made.outcomes]
    across = min(_ACROSS, len(made.outcomes) if len(made.outcomes) > 1 else len(cells))  # a metric begins a row
    down = math.ceil(len(cells) / across)
    axes = Figure(figsize=(4.6 * across, 3.4 * down), layout="constrained").subplots(down, across, squeeze=False)
    for k, (panel, metric) in enumerate(cells):
        ax = axes[k // across][k % across]
        draw_curves(ax, Evidence.of(made.records[panel]), metric, made.item.against)
        if len(made.outcomes) > 1:
            ax.set_title(panel, fontsize=10)
    for k in range(len(cells), across * down):
        axes[k // across][k % across].set_axis_off()
    axes[0][0].get_figure().savefig(path, dpi=130)


def render(made: Reproduction, picture: Path) -> str:
    """Return the page."""
    item = made.item
    image = base64.b64encode(picture.read_bytes()).decode()
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
<figure><img src="data:image/png;base64,{image}" alt="{escape(item.title)}"></figure>
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


def _numbers(made: Reproduction) -> str:
    lines = []
    for panel, records in made.records.items():
        evidence = Evidence.of(records)
        for label in evidence.labels:
            cells = ""
            for metric in made.item.shows:
                row = next((row for row in evidence.rows(metric) if row.label == label), None)
                cells += f'<td class="number">{quantity(row.mean, row.spread) if row and row.values else "–"}</td>'
            lines.append(f'<tr><th scope="row">{escape(label)}</th><td>{escape(panel)}</td>{cells}</tr>')
    return table(["Method", "Panel", *made.item.shows], lines, "Numbers at the end")
