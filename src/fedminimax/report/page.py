"""The report as one page of HTML that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from fedminimax._version import __version__
from fedminimax.report import payload, privacy
from fedminimax.report.evidence import BEST, LEVEL, NOISE, SAME, Evidence, Row
from fedminimax.report.material import Material
from fedminimax.report.words import listed, number, quantity

MOST_PICTURES, MOST_BYTES = 24, 2_000_000
"""How many pictures of runs go into a page, and how large they may be together."""
COSTS = {"floats_up": "floats up", "grad_evals": "gradient evaluations", "waited": "simulated seconds", "epsilon": "epsilon"}
CLOSED = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""What the page may load: nothing but what is in it, and the browser sees to that."""


def asset(name: str) -> str:
    """Return the text of a file that comes with this package."""
    return (resources.files("fedminimax.report") / "assets" / name).read_text(encoding="utf-8")


def plotly() -> str:
    """Return plotly.js."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def document(title: str, body: str, scripts: Iterable[str], policy: str = CLOSED) -> str:
    """Return a whole page."""
    tags = "".join(f"<script>{script}</script>\n" for script in scripts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="fedminimax {__version__}">
<title>{escape(title)}</title>
<style>
{asset("page.css")}</style>
</head>
<body>
{body}
{tags}</body>
</html>
"""


def render(material: Material, evidence: Evidence, metric: str, title: str | None = None) -> str:
    """Return the report.

    Args:
        material: what it is made from.
        evidence: the runs, compared.
        metric: the metric that it opens with.
        title: its heading; by default what was compared.
    """
    data = {
        "labels": evidence.labels,
        "titles": {name: evidence.called(name) for name in evidence.metrics},
        "clients": payload.clients(evidence),
        "weights": payload.weights(evidence),
        "sweeps": payload.sweeps(material),
        **payload.curves(evidence),
    }
    heading = title or material.name
    sections = [
        _results(evidence),
        privacy.section(evidence),
        _curves(data),
        _clients(data, evidence, metric),
        _weights(data),
        _sweeps(data),
        _pictures(material),
        _made(material, evidence),
    ]
    answers = "".join(
        f'<p class="answer" role="status"{_for(name, metric)}>{escape(evidence.headline(name))}</p>'
        for name in evidence.metrics
    )
    body = f"""<header class="top">
<h1>{escape(heading)}</h1>
<p class="meta">{escape(_what(evidence))}</p>
</header>
<main>
{_switch(evidence, metric)}
{answers}
{_notes(material, evidence)}
<noscript><p class="notes">The charts need JavaScript; the answer and the tables do not.</p></noscript>
{"".join(sections)}
</main>
<footer>Written by fedminimax {__version__}. This page is complete: it loads nothing from anywhere.</footer>"""
    held = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return document(heading, body, [plotly(), asset("page.js"), f"FM.start({held});"])


def picker(name: str, title: str, options: Mapping[str, str], chosen: str = "") -> str:
    """Return a list to choose from, with its label."""
    entries = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(text)}</option>'
        for value, text in options.items()
    )
    return f'<label class="pick">{escape(title)} <select name="{name}">{entries}</select></label>'


def choices(name: str, title: str, options: Mapping[str, str]) -> str:
    """Return buttons of which one is down, the first to begin with."""
    buttons = "".join(
        f'<label><input type="radio" name="{name}" value="{escape(value)}"{"" if k else " checked"}>'
        f"<span>{escape(text)}</span></label>"
        for k, (value, text) in enumerate(options.items())
    )
    return f'<fieldset><legend>{escape(title)}</legend><span class="choices">{buttons}</span></fieldset>'


def curve_switches(axes: Mapping[str, str]) -> str:
    """Return the switches of the curves."""
    against = choices("against", "Against", axes) if len(axes) > 1 else ""
    return f"""<div class="bar">
{against}
{choices("scale", "Vertical", {"linear": "linear", "log": "log"})}
{choices("across", "Horizontal", {"linear": "linear", "log": "log"})}
{choices("band", "Band", {"range": "least to greatest", "interval": "95% of the mean", "none": "none"})}
</div>"""


def table(head: Sequence[str], rows: Iterable[str], name: str) -> str:
    """Return a table that scrolls in a box of its own."""
    columns = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table>
<thead><tr>{columns}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>"""


def _for(name: str, metric: str) -> str:
    return f' data-metric="{escape(name)}"{"" if name == metric else " hidden"}'


def _key(evidence: Evidence, label: str) -> str:
    return f'<svg class="key" aria-hidden="true" data-style="{evidence.labels.index(label)}"></svg>'


def _what(evidence: Evidence) -> str:
    runs = [record for own in evidence.counted.values() for record in own]
    told = lambda count, name: f"{count} {name}{'' if count == 1 else 's'}"
    seeds = told(len({record.seed for record in runs}), "seed")
    return f"{told(len(evidence.labels), 'method')}, {seeds}, {told(len(runs), 'run')}, compared at round {evidence.round}"


def _switch(evidence: Evidence, metric: str) -> str:
    shown = {name: evidence.called(name) for name in evidence.metrics}
    return f'<div class="sticky bar">{picker("metric", "Metric", shown, metric)}</div>' if evidence.metrics else ""


def _notes(material: Material, evidence: Evidence) -> str:
    missing = sum(source.missing for source in material.sources)
    notes = [*material.notes, *([f"{missing} runs of the experiment have not begun."] if missing else []), *evidence.notes]
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section class="notes" aria-labelledby="notes"><h2 id="notes">Before you believe it</h2><ul>{items}</ul></section>'


def _results(evidence: Evidence) -> str:
    costs = [name for name in COSTS if any(_cost(evidence, label, name) > 0 for label in evidence.labels)]
    parts = []
    for metric in evidence.metrics:
        head = ["Method", "Mean ± spread", "Seeds", "Behind the best", "Is it more than noise?", *(COSTS[c] for c in costs)]
        rows = (_row(evidence, row, costs) for row in evidence.rows(metric))
        parts.append(f'<div data-metric="{escape(metric)}" hidden>{table(head, rows, f"{metric} at the end")}</div>')
    every = _every(evidence) if len(evidence.metrics) > 1 else ""
    return f"""<section aria-labelledby="results"><h2 id="results">At round {evidence.round}</h2>
{"".join(parts)}
<p class="caption">The spread is the standard deviation over seeds; the best is in bold. A method is behind by more than noise
where a paired t-test over the seeds that both have says so (two-sided, at {LEVEL}, its p times the number of methods that the
best is compared with). With fewer than three seeds in common nothing is said. In brackets: a 95% interval.</p>
{every}</section>"""


def _row(evidence: Evidence, row: Row, costs: list[str]) -> str:
    behind = "" if row.behind is None else number(row.behind)
    if row.interval is not None:
        behind += f" [{number(row.interval[0])}, {number(row.interval[1])}]"
    cells = [
        f'<td class="number">{quantity(row.mean, row.spread) if row.values else "–"}</td>',
        f'<td class="number">{len(row.values)}</td>',
        f'<td class="number">{behind or "–"}</td>',
        f'<td class="words">{escape(row.sentence)}</td>',
        *(f'<td class="number">{_count(_cost(evidence, row.label, name))}</td>' for name in costs),
    ]
    start = ' class="best"' if row.verdict == BEST else ""
    return f'<tr{start}><th scope="row">{_key(evidence, row.label)}{escape(row.label)}</th>{"".join(cells)}</tr>'


def _every(evidence: Evidence) -> str:
    """Return all metrics of all methods in one table, with more rows than columns."""
    cells: dict[tuple[str, str], str] = {}
    for metric in evidence.metrics:
        for row in evidence.rows(metric):
            shown = quantity(row.mean, row.spread) if row.values else "–"
            mark = " ≈" if row.verdict in (NOISE, SAME) else ""
            cells[metric, row.label] = f'<td class="number{" best" if row.verdict == BEST else ""}">{shown}{mark}</td>'
    arrows = {"higher": " ↑", "lower": " ↓"}
    called = {m: evidence.called(m) + arrows.get(evidence.better.get(m, ""), "") for m in evidence.metrics}
    start = lambda name: f'<th scope="row">{escape(name).replace("/", "/<wbr>")}</th>'
    if len(called) >= len(evidence.labels):
        head = ["Metric", *evidence.labels]
        lines = [start(name) + "".join(cells[m, label] for label in evidence.labels) for m, name in called.items()]
    else:
        head = ["Method", *called.values()]
        lines = [start(label) + "".join(cells[m, label] for m in called) for label in evidence.labels]
    return f"""<h3>All metrics</h3>{table(head, [f"<tr>{line}</tr>" for line in lines], "All metrics at the end")}
<p class="caption">↑ higher is better, ↓ lower is better; the best in bold, ≈ not told apart from it.</p>"""


def _cost(evidence: Evidence, label: str, name: str) -> float:
    runs = [run for run in evidence.counted[label] if name in run.history]
    return sum(float(run.history[name][evidence.at(run)]) for run in runs) / len(runs) if runs else math.nan


def _count(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e9 else privacy.shown(value)


def _curves(data: dict[str, Any]) -> str:
    if not data["lines"]:
        return ""
    return f"""<section aria-labelledby="curves"><h2 id="curves">Curves</h2>
{curve_switches(data["axes"])}
<div id="curves-chart" class="chart" role="img" aria-label="The selected metric of every method, as in the table above"></div>
<p class="caption" id="curves-caption"></p></section>"""


def _clients(data: dict[str, Any], evidence: Evidence, metric: str) -> str:
    if not data["clients"]:
        return ""
    held = [label for label in evidence.labels if any(label in entry["values"] for entry in data["clients"])]
    ahead = [label for label in evidence.leaders(metric) if label in held] or held
    first, second = ahead[0], ahead[min(1, len(ahead) - 1)]
    names = {str(k): entry["title"] for k, entry in enumerate(data["clients"])}
    labels = {label: label for label in held}
    against = picker("client-second", "beside", labels, second) if len(held) > 1 else ""
    return f"""<section aria-labelledby="clients"><h2 id="clients">Every client</h2>
<div class="bar">{picker("client-metric", "Number", names)}{picker("client-first", "of", labels, first)}{against}</div>
<div id="clients-chart" class="chart low" role="img" aria-label="The number of every client at the end, sorted."></div>
<p class="caption" id="clients-caption"></p></section>"""


def _weights(data: dict[str, Any]) -> str:
    if not data["weights"]:
        return ""
    several = len({entry["metric"] for entry in data["weights"]}) > 1
    names = {
        str(k): f"{entry['label']}, {entry['metric']}" if several else entry["label"] for k, entry in enumerate(data["weights"])
    }
    return f"""<section aria-labelledby="weights"><h2 id="weights">Weights on the clients</h2>
<div class="bar">{picker("weights-of", "Method", names)}</div>
<div id="weights-chart" class="chart low" role="img" aria-label="The weight of every client over rounds."></div>
<p class="caption" id="weights-caption"></p></section>"""


def _sweeps(data: dict[str, Any]) -> str:
    if not data["sweeps"]:
        return ""
    names = {str(k): entry["label"] for k, entry in enumerate(data["sweeps"])}
    lists = "".join(picker(f"sweep-{name}", title, {}) for name, title in (("metric", "Metric"), ("x", "Across"), ("y", "Up")))
    return f"""<section aria-labelledby="sweeps"><h2 id="sweeps">Hyper-parameters that were tried</h2>
<div class="bar">{picker("sweep", "Method", names)}{lists}</div>
<div id="sweeps-chart" class="chart low" role="img" aria-label="The metric for every setting that was tried."></div>
<p class="caption" id="sweeps-caption"></p></section>"""


def _pictures(material: Material) -> str:
    found, room, shown = material.pictures, MOST_BYTES, []
    for record, path in found[:MOST_PICTURES]:
        contents = path.read_bytes()
        room -= len(contents)
        if room < 0:
            break
        said = escape(f"{record.label}, seed {record.seed}: {path.stem.replace('_', ' ')}")
        image = f"data:image/png;base64,{base64.b64encode(contents).decode()}"
        shown.append(f'<figure><img src="{image}" alt="{said}"><figcaption>{said}</figcaption></figure>')
    if not found:
        return ""
    rest = (
        f'<p class="caption">{len(found) - len(shown)} more are in the folders of the runs.</p>'
        if len(shown) < len(found)
        else ""
    )
    return f"""<section aria-labelledby="pictures"><h2 id="pictures">Pictures</h2>
<div class="grid">{"".join(shown)}</div>{rest}</section>"""


def _made(material: Material, evidence: Evidence) -> str:
    """Return how it was made and how it is made again: settings, selection, spec, command and environment."""
    rows = []
    for label in evidence.labels:
        runs = [*evidence.counted[label], *evidence.unfinished[label], *evidence.lost[label]]
        settings = " or ".join(dict.fromkeys(record.settings for record in runs))
        seeds = listed([str(seed) for seed in sorted(record.seed for record in runs)])
        rows.append(
            f'<tr><th scope="row">{escape(label)}</th><td>{escape(settings)}</td><td class="number">{escape(seeds)}</td></tr>'
        )
    parts = [f"<h3>Settings</h3>{table(['Method', 'Settings', 'Seeds'], rows, 'Settings')}"]
    for source in material.sources:
        of = f" of {escape(source.name)}" if len(material.sources) > 1 else ""
        chosen = source.experiment.get("selected_by") or {}
        for label, by in chosen.items():
            told = by if isinstance(by, str) else f"{by.get('metric')} on {by.get('on')} data"
            parts.append(f"<p>The hyper-parameters of {escape(str(label))}{of} were chosen by {escape(told)}.</p>")
        if source.command:
            parts.append(f"<h3>Make it again{of}</h3><pre>{escape(source.command)}</pre>")
        if source.spec:
            parts.append(f"<details><summary>spec.toml{of}</summary><pre>{escape(source.spec)}</pre></details>")
        if kept := source.environment:
            parts.append(f"<details><summary>Environment{of}</summary>{_environment(kept)}</details>")
    return f'<section aria-labelledby="made"><h2 id="made">How it was made</h2>{"".join(parts)}</section>'


def _environment(kept: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in kept.get("packages", {}).items())
    entries = {
        "fedminimax": kept.get("version"),
        "Python": kept.get("python"),
        "Packages": packages,
        "Platform": kept.get("platform"),
        "Cores": kept.get("cores"),
        "Devices": ", ".join(kept.get("devices", [])),
    }
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(str(value))}</dd>' for name, value in entries.items() if value)}</dl>"
