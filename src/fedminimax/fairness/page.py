"""A comparison as one page of HTML that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from fedminimax._version import __version__
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.sheets import (
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
from fedminimax.report.page import document

_CAPTIONS = {
    "intervals": "Average and worst 20% of sites, with 95% intervals over test rows.",
    "clients": "Every site's own number.",
    "scatter": "The worst 20% of sites against the average (filled) and the best 20% (hollow).",
    "rounds_worst20": "Over rounds: the worst 20% of sites.",
    "rounds_mean": "Over rounds: the average of sites.",
    "weights": "The weights on sites over rounds.",
    "trade_off": "Over rounds, under several penalties.",
}
_WIDE = 6
"""In tables with more columns an interval goes below its number."""


def render(
    found: Comparison,
    title: str,
    figures: Sequence[Path],
    command: str = "",
    more: Iterable[Sheet] = (),
    weaknesses: Sequence[str] = (),
    use: str = "",
) -> str:
    """Return the page.

    Args:
        found: the comparison.
        title: its heading.
        figures: PNG files to show.
        command: what was typed.
        more: further tables, such as the trade-off between penalties.
        weaknesses: what the model that is kept is known to be bad at.
        use: how to use that model.
    """
    federation = found.federation
    answers = "".join(f'<p class="answer">{escape(text)}</p>' for text in sentences(found))
    noted = "".join(f"<li>{escape(note)}</li>" for note in [*(weaknesses or found.notes), *federation.notes])
    body = f"""<header class="top">
<h1>{escape(title)}</h1>
<p class="meta">{escape(_what(found))}</p>
</header>
<main>
<p>{escape(found.choice.sentence)}</p>
{answers}
{f'<div class="notes"><h2>Known weaknesses</h2><ul>{noted}</ul></div>' if noted else ""}
{f"<h2>The model</h2><p>{escape(use)}</p>" if use else ""}
{_table(first_sheet(found))}
<p class="caption">{escape("; ".join(baseline_notes(found)))}.</p>
{_table(other_sheet(found))}
{_table(worst_sheet(found))}
{"".join(_table(sheet) for sheet in (*group_sheets(found), *more))}
{_pictures(figures)}
{_data(found)}
{_made(found, command)}
</main>
<footer>Written by fedminimax {__version__}. This page is complete: it loads nothing from anywhere.</footer>"""
    return document(title, body, ())


def _what(found: Comparison) -> str:
    federation = found.federation
    what = f"{len(federation.classes)} classes" if federation.classes else "a quantity"
    return (
        f"{federation.train.count} sites, {federation.train.total} training and {federation.test.total} test rows, "
        f"{len(federation.features)} features, {what}; penalty {found.asked['penalty']}, loss {found.asked['loss']}, "
        f"{found.asked['rounds']} rounds"
    )


def _table(sheet: Sheet, level: str = "h2") -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in sheet.columns)
    wide = len(sheet.columns) > _WIDE
    shown = lambda text: escape(text).replace(" (", "<br>(") if wide else escape(text)
    rows = []
    for k, row in enumerate(sheet.rows):
        first, *others = row
        kind = lambda c, text, k=k: "number best" if (k, c) in sheet.best else "number" if len(text) < 40 else "words"
        cells = "".join(f'<td class="{kind(c, text)}">{shown(text)}</td>' for c, text in enumerate(others, start=1))
        line = ' style="border-top: 3px double var(--line)"' if k in sheet.apart and k else ""
        rows.append(f'<tr{line}><th scope="row">{escape(first)}</th>{cells}</tr>')
    caption = f'<p class="caption">{escape(sheet.caption)}</p>' if sheet.caption else ""
    return (
        f'<{level}>{escape(sheet.title)}</{level}>\n<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table></div>{caption}\n"
    )


def _pictures(figures: Sequence[Path]) -> str:
    if not figures:
        return ""
    shown = []
    for path in figures:
        data = base64.b64encode(path.read_bytes()).decode()
        caption = next((text for name, text in _CAPTIONS.items() if path.stem.startswith(name)), path.stem)
        if path.stem.startswith("weights_"):
            caption = f"{path.stem.removeprefix('weights_')}: {caption[0].lower()}{caption[1:]}"
        image = f'<img src="data:image/png;base64,{data}" alt="{escape(caption)}">'
        shown.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")
    style = "grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr))"
    return f'<h2>Figures</h2>\n<div class="grid" style="{style}">{"".join(shown)}</div>\n'


def _data(found: Comparison) -> str:
    federation = found.federation
    columns = column_sheet(federation)
    parts = ["<h2>Data</h2>\n", "" if columns is None else _table(columns, "h3"), _table(label_sheet(federation), "h3")]
    if federation.dropped:
        left = ", ".join(f"{name} ({count} rows)" for name, count in federation.dropped.items())
        parts.append(f"<p>Left out: {escape(left)}.</p>\n")
    return "".join(parts)


def _made(found: Comparison, command: str) -> str:
    tried = "".join(f"<li>{escape(one.sentence(name))}</li>" for name, one in found.tuned.items())
    searched = f"<h3>Step sizes</h3><ul>{tried}</ul>" if tried else ""
    asked = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in found.asked.items())
    typed = f"<pre>{escape(command)}</pre>" if command else ""
    return f"<h2>How this was made</h2>\n{typed}<dl>{asked}</dl>\n{searched}\n"
