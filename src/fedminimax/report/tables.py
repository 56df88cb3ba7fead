"""Tables to print, to read by programs and to paste into a paper."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedminimax.folders import Record
from fedminimax.report.evidence import BEST, NOISE, SAME, Evidence, columns
from fedminimax.report.words import quantity

if TYPE_CHECKING:
    from rich.table import Table

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {c: f"\\{c}" for c in "&%$#_{}"}


def rich_table(records: Iterable[Record], metric: str | None = None) -> Table:
    """Return a table for the terminal: every method's standing on one metric, and below it what a reader must know.

    Args:
        records: the runs; those of one label are seeds of one thing.
        metric: which metric; by default the first that can be better or worse.
    """
    from rich.markup import escape
    from rich.table import Table

    evidence = Evidence.of(records)
    chosen = evidence.metric(metric)
    better = f", {evidence.better[chosen]} is better" if chosen in evidence.better else ""
    table = Table(title=escape(f"{evidence.called(chosen)} at round {evidence.round}{better}"), title_justify="left")
    for name in ("method", "mean ± spread", "seeds", "more than noise?"):
        table.add_column(name, overflow="fold")
    for row in evidence.rows(chosen):
        shown = quantity(row.mean, row.spread) if row.values else "–"
        style = "bold" if row.verdict == BEST else None
        table.add_row(escape(row.label), shown, str(len(row.values)), escape(row.sentence), style=style)
    if evidence.notes:
        table.caption = escape("\n".join(evidence.notes))
        table.caption_justify = "left"
    return table


def comma_separated(evidence: Evidence) -> str:
    """Return one row a method and metric, as :func:`~fedminimax.report.summary` has them; what is not there is empty."""
    found = columns(evidence)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found)
    writer.writerows([["" if value != value else value for value in row] for row in zip(*found.values(), strict=True)])
    return text.getvalue()


def latex(evidence: Evidence, metrics: Sequence[str] | None = None) -> str:
    r"""Return a table for LaTeX, one row a method, with ``\usepackage{booktabs}``: the best bold, what is near it marked.

    Args:
        evidence: the runs, compared.
        metrics: which metrics; by default all that can be better or worse.
    """
    names = list(metrics or [name for name in evidence.metrics if name in evidence.better] or evidence.metrics)
    arrows = {"higher": r" $\uparrow$", "lower": r" $\downarrow$"}
    head = [tex(evidence.called(name)) + arrows.get(evidence.better.get(name, ""), "") for name in names]
    cells: dict[str, list[str]] = {label: [] for label in evidence.labels}
    for name in names:
        for row in evidence.rows(name):
            shown = _math(quantity(row.mean, row.spread)) if row.values else "--"
            if row.verdict == BEST:
                shown = rf"\textbf{{\boldmath {shown}}}"
            elif row.verdict in (NOISE, SAME):
                shown += r"$^{\approx}$"
            cells[row.label].append(shown)
    rows = "\n".join(rf"{tex(label)} & {' & '.join(own)} \\" for label, own in cells.items())
    seeds = sorted({len(runs) for runs in evidence.counted.values() if runs})
    over = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}" if seeds else "no"
    notes = "".join(f"% {note}\n" for note in evidence.notes)
    return rf"""% Needs \usepackage{{booktabs}}.
{notes}\begin{{table}}
\centering
\caption{{Mean and standard deviation over {over} seeds at round {evidence.round}. Bold: best; $\approx$: not told apart from it
by a paired $t$-test over seeds (two-sided, level 0.05, Bonferroni).}}
\begin{{tabular}}{{l{"c" * len(names)}}}
\toprule
Method & {" & ".join(head)} \\
\midrule
{rows}
\bottomrule
\end{{tabular}}
\end{{table}}
"""


def tex(text: str) -> str:
    """Return a text as LaTeX shows it."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def _math(shown: str) -> str:
    shown = shown.replace("±", r"\pm")
    shown = re.sub(r"e(-?[0-9]+)", r" \\cdot 10^{\1}", shown)
    return f"${shown}$" if shown != "not finite" else shown
