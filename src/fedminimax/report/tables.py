"""Tables to print, to read by programs and to paste into a paper."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedminimax.folders import Record
from fedminimax.report.evidence import BEST, LEVEL, NOISE, SAME, Evidence, columns
from fedminimax.report.words import quantity

if TYPE_CHECKING:
    from rich.table import Table

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"} | {
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "–": "--", "≤": r"$\leq$", "≥": r"$\geq$", "×": r"$\times$"
} | {c: f"\\{c}" for c in "&%$#_{}"}  # fmt: skip
_MOST_LETTERS = 64
"""A table of LaTeX with longer lines is made as narrow as the text."""
_CAPITALS = {"gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega"}
"""Greek capitals that do not look like Latin ones, for which alone LaTeX has commands."""


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
    r"""Return a table for LaTeX, with ``\usepackage{booktabs}``: the best bold, what is near it marked.

    There is a row for each method, or for each metric where there are more of them than methods.

    Args:
        evidence: the runs, compared.
        metrics: which metrics; by default all that can be better or worse.
    """
    names = list(metrics or [name for name in evidence.metrics if name in evidence.better] or evidence.metrics)
    arrows = {"higher": r" $\uparrow$", "lower": r" $\downarrow$"}
    called = {name: tex(evidence.called(name)) + arrows.get(evidence.better.get(name, ""), "") for name in names}
    cells: dict[tuple[str, str], str] = {}
    for name in names:
        for row in evidence.rows(name):
            mark = r"^{\approx}" if row.verdict in (NOISE, SAME) else ""
            shown = _math(quantity(row.mean, row.spread), mark) if row.values else "--"
            cells[row.label, name] = rf"\textbf{{\boldmath {shown}}}" if row.verdict == BEST else shown
    labels = {label: tex(label) for label in evidence.labels}
    if len(names) > len(labels):  # so many columns would not fit on a page
        head = ["Metric", *labels.values()]
        lines = [[called[name], *(cells[label, name] for label in labels)] for name in names]
    else:
        head = ["Method", *called.values()]
        lines = [[labels[label], *(cells[label, name] for name in names)] for label in labels]
    rows = "\n".join(rf"{' & '.join(line)} \\" for line in lines)
    seeds = sorted({len(runs) for runs in evidence.counted.values() if runs})
    over = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}" if seeds else "no"
    plural = "" if seeds == [1] else "s"
    notes = "".join(f"% {' '.join(note.split())}\n" for note in evidence.notes)
    letters = lambda cell: len(re.sub(r"\\[a-zA-Z]+ ?|[${}^]", "", cell))
    wide = sum(max(map(letters, column)) + 2 for column in zip(head, *lines, strict=True)) > _MOST_LETTERS
    begin, end = (r"\resizebox{\linewidth}{!}{%" + "\n", "}\n") if wide else ("", "")
    return rf"""% Needs \usepackage{{booktabs{", graphicx" * wide}}}.
{notes}\begin{{table}}
\centering
\caption{{Mean and standard deviation over {over} seed{plural} at round {evidence.round}. Bold: best; $\approx$: not told apart
from it by a paired $t$-test over seeds (two-sided, level {LEVEL}, Bonferroni).}}
{begin}\begin{{tabular}}{{l{"c" * (len(head) - 1)}}}
\toprule
{" & ".join(head)} \\
\midrule
{rows}
\bottomrule
\end{{tabular}}
{end}\end{{table}}
"""


def tex(text: str) -> str:
    """Return a text as LaTeX shows it."""
    return "".join(_SPECIAL.get(letter) or _greek(letter) for letter in " ".join(text.split()))


def _greek(letter: str) -> str:
    """Return a Greek letter as the command that LaTeX has for it, and any other as it is."""
    kind = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(letter, "")) if letter > "~" else None
    if kind is None:
        return letter
    name = "lambda" if kind[2] == "LAMDA" else kind[2].lower()
    if kind[1] == "SMALL":
        return f"$\\{name}$" if name != "omicron" else "o"
    return f"$\\{name.capitalize()}$" if name in _CAPITALS else letter


def _math(shown: str, mark: str) -> str:
    """Return a quantity as a formula, with a mark; "(1.0 ± 0.1)e-7" is a product with a power."""
    if shown == "not finite":
        return shown
    shown = re.sub(r"e(-?[0-9]+)", r" \\cdot 10^{\1}", shown.replace("±", r"\pm"))
    return f"${shown}{'{}' * bool(mark)}{mark}$"
