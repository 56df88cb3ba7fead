"""The model card: what a model is, what it was trained on and for, how good it is, and where it is not. Markdown.

It is made from a summary as :meth:`fedminimax.fairness.Comparison.summary_dict` returns it. Whatever part a summary lacks, the
card lacks too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedminimax.saved.numbers import TITLES, first_of, score_of, with_interval
from fedminimax.saved.weaknesses import weaknesses

if TYPE_CHECKING:
    from fedminimax.data.encoder import Encoder

_PARTS = {"average": "average of sites", "worst20": "worst 20% of sites", "worst": "worst site", "all": "all rows"}
AVERAGES = ("FedAvg", "FedProx", "Scaffold")
"""The methods that minimise an average over sites."""
_MOST_SITES = 50
_MOST_COLUMNS = 60


def model_card(summary: Mapping[str, Any], spec: Mapping[str, Any], encoder: Encoder | None = None) -> str:
    """Return the card of a model.

    Args:
        summary: what was measured, as JSON can hold it; may be empty.
        spec: what ``model.json`` has.
        encoder: how rows become inputs, if the model has one.
    """
    label = "inputs" if encoder is None else encoder.label
    title = "Model card" if encoder is None else f"Model card: {label}"
    parts = [
        ("What it is", _what(summary, spec, encoder)),
        ("Data", _data(summary)),
        ("What was optimised", _optimised(summary, spec)),
        ("How good it is", _tables(summary)),
        ("Known weaknesses", _bullets(weaknesses(summary, spec))),
        ("How to use it", _use(spec, encoder)),
        ("How to reproduce it", _reproduce(summary, spec)),
    ]
    body = [f"## {heading}\n\n{text}" for heading, text in parts if text]
    return "\n\n".join([f"# {_escaped(title)}", *body]) + "\n"


def _what(summary: Mapping[str, Any], spec: Mapping[str, Any], encoder: Encoder | None) -> str:
    classes, network = spec["classes"], spec["network"]["name"]
    target = "a quantity" if classes is None else _either(classes)
    of = "inputs" if encoder is None else f"{len(encoder.columns)} columns of a table"
    what = target if encoder is None else f"`{encoder.label}` ({target})"
    lines = [f"A model ({network}) that predicts {what} from {of}, trained by {spec['method']}."]
    if sites := summary.get("sites"):
        held = "" if encoder is None else f" (values of `{encoder.client}`)"
        lines.append(
            f"It is for rows of the {len(sites)} sites below{held}, whose rows it was trained and tested on; on rows of other "
            "sites it has not been tested."
        )
    if spec["threshold"] is not None:
        positive = classes[spec["positive"]]
        lines.append(
            f"It predicts {positive!r} where the probability of it is {spec['threshold']:.3g} or more"
            + ("; the threshold was found on training rows." if summary.get("threshold") is not None else ".")
        )
    elif classes is not None:
        lines.append("It predicts the likeliest class.")
    if classes is not None and spec["loss"] == "squared":
        lines.append("Its probabilities are scores fitted by squares, clipped at zero and normalised: they are rough.")
    return " ".join(lines)


def _data(summary: Mapping[str, Any]) -> str:
    sites, blocks = summary.get("sites") or [], []
    if sites:
        total = {key: sum(row.get(key) or 0 for row in sites) for key in ("train", "test")}
        blocks.append(f"{len(sites)} sites, {total['train']:,} training and {total['test']:,} test rows.")
    if stayed := (summary.get("asked") or {}).get("federation"):
        blocks.append(str(stayed))
    if shares := summary.get("class_shares"):
        listed = ", ".join(f"{_escaped(name)} {100 * share:.1f}%" for name, share in shares.items() if share is not None)
        blocks.append(f"Classes among the training rows: {listed}.")
    if sites:
        blocks.append(_sites(sites, summary.get("positive")))
    if left := summary.get("left_out"):
        blocks.append("Left out: " + ", ".join(f"{_escaped(name)} ({count} rows)" for name, count in left.items()) + ".")
    if columns := [c for c in summary.get("columns") or [] if not c.get("used") and c.get("role") not in ("label", "client")]:
        named = (f"{_escaped(c['name'])} ({_escaped(c.get('note') or c.get('role') or '')})" for c in columns[:_MOST_COLUMNS])
        blocks.append("Columns that are no inputs: " + ", ".join(named) + ".")
    if reading := summary.get("reading"):
        blocks.append(_bullets(reading))
    return "\n\n".join(blocks)


def _sites(sites: Sequence[Mapping[str, Any]], positive: str | None) -> str:
    """Return the table of sites: their rows, and of each class how many."""
    classes = list(sites[0].get("classes") or {})
    head = ["site", "training rows", "test rows", *(f"rows with {name}" for name in classes)]
    counted = positive is not None and not classes and any(row.get("test_positive") is not None for row in sites)
    if counted:
        head.append(f"test rows with {positive}")
    rows = []
    for row in sites[:_MOST_SITES]:
        counts = [row["classes"].get(name, 0) for name in classes] if classes else []
        rows.append(
            [row.get("site"), row.get("train"), row.get("test"), *counts, *([row.get("test_positive")] if counted else [])]
        )
    more = f"\n\nand {len(sites) - _MOST_SITES} sites more; `metrics.json` has them all." if len(sites) > _MOST_SITES else ""
    return _table(head, rows) + more


def _optimised(summary: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    asked, blocks = summary.get("asked") or {}, []
    loss = "half the squared error" if spec["loss"] == "squared" else "the cross-entropy"
    ridge = f", plus {asked['ridge']:g}/2 times the squared norm of the weights" if asked.get("ridge") else ""
    text = f"The loss f_i of a site is the mean of {loss} over its training rows{ridge}."
    if penalty := asked.get("penalty"):
        text += (
            " Settings are compared by the training objective max_w sum_i w_i f_i(x) - psi(w), the loss under the "
            f"worst weights w on sites, with the penalty psi = {penalty}."
        )
    if spec["method"].partition(":")[0] in AVERAGES:
        text += f" {spec['method']} itself minimises the average of the f_i."
    blocks.append(text)
    settings = {**{k: v for k, v in asked.items() if k not in ("loss", "ridge", "penalty")}, **spec["settings"]}
    if settings:
        blocks.append(_table(["setting", "value"], [[key, _shown(value)] for key, value in settings.items()]))
    tuning = (summary.get("tuning") or {}).get(summary.get("winner", spec["method"])) or {}
    blocks += [_escaped(text) for text in (tuning.get("sentence"), summary.get("rule")) if text]
    return "\n\n".join(blocks)


def _tables(summary: Mapping[str, Any]) -> str:
    scores, first = summary.get("scores") or {}, first_of(summary)
    if not scores or first is None:
        return ""
    baselines, kept = summary.get("baselines") or {}, summary.get("winner")
    mark = lambda name: f"**{name}** (this model)" if name == kept else f"{name} (baseline)" if name in baselines else name
    blocks = [
        _escaped(text) for text in [(summary.get("first") or {}).get("sentence"), *(summary.get("verdicts") or [])] if text
    ]
    head = [f"test {TITLES.get(first, first)}", *_PARTS.values()]
    blocks.append(
        _table(
            head, [[mark(name), *(with_interval(score_of(summary, name, first, p), first) for p in _PARTS)] for name in scores]
        )
    )
    others = [measure for measure in next(iter(scores.values())) if measure != first]
    if others:
        rows = [[mark(name), *(with_interval(score_of(summary, name, m, "all"), m) for m in others)] for name in scores]
        blocks.append(_table(["over all test rows", *(TITLES.get(m, m) for m in others)], rows))
    blocks.append("In brackets: 95% intervals over test rows; after ±: the standard deviation over seeds.")
    if baselines:
        blocks.append(_bullets(f"{name}: {note}" for name, note in baselines.items()))
    return "\n\n".join(blocks)


def _use(spec: Mapping[str, Any], encoder: Encoder | None) -> str:
    if encoder is None:
        shape = ", ".join(["n", *map(str, spec["inputs"])])
        return f"In Python `fedminimax.load_model(folder).predict(inputs)`, with inputs of the shape [{shape}]."
    rows = []
    for column in encoder.columns[:_MOST_COLUMNS]:
        values = encoder.encoding.categories.get(column)
        if values is not None:
            shown = ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")
            rows.append([column, f"one of {shown}"])
        elif column in encoder.encoding.scales:
            mean, deviation = encoder.encoding.scales[column]
            rows.append([column, f"a number; in training {mean:.4g} on average (deviation {deviation:.4g})"])
        else:
            rows.append([column, "a number, or missing"])
    return (
        "`fedminimax predict FOLDER new.csv --out scores.csv`, or in Python `fedminimax.load_model(folder).predict(frame)`. "
        "New rows need these columns:\n\n" + _table(["column", "values"], rows)
    )


def _reproduce(summary: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    blocks = []
    if command := summary.get("command"):
        blocks.append(f"```sh\n{command}\n```")
    if (run := summary.get("winning_run")) is not None:
        blocks.append(f"The model is that of the run with seed {run}.")
    blocks.append("Versions: " + ", ".join(f"{name} {version}" for name, version in spec["versions"].items()) + ".")
    return "\n\n".join(blocks)


# -- Markdown ------------------------------------------------------------------------------------------------------------


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    line = lambda cells: "| " + " | ".join(_escaped("–" if cell is None else cell) for cell in cells) + " |"
    return "\n".join([line(head), "|" + " --- |" * len(head), *(line(row) for row in rows)])


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(line)}" for line in lines)


def _escaped(text: object) -> str:
    """Return a text in which a table's bars and line ends do no harm."""
    return str(text).replace("|", "\\|").replace("\n", " ").replace("\r", " ")


def _either(names: Sequence[str]) -> str:
    shown = [str(name) for name in names]
    if len(shown) > 8:
        return f"one of {len(shown)} classes"
    return " or ".join([", ".join(shown[:-1]), shown[-1]])


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "–" if value is None else str(value)
