"""The tables of a comparison as texts in rows and columns: one source for the terminal and for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fedminimax.data import columns
from fedminimax.data.federation import Federation
from fedminimax.fairness.baselines import LOCAL, MAJORITY, NOTES, POOLED
from fedminimax.fairness.bootstrap import Number
from fedminimax.fairness.comparison import RULE, Comparison
from fedminimax.fairness.groups import FEW, Rates
from fedminimax.fairness.measures import PARTS, Measure
from fedminimax.fairness.words import SIZE

MOST_ROWS = 25
"""More columns than this are for the page, not for the terminal."""
_TITLES = {MAJORITY: "majority (no model)", POOLED: "pooled (not federated)", LOCAL: "local (each alone)"}


@dataclass(frozen=True)
class Sheet:
    """A table of texts.

    Attributes:
        title: above it.
        columns: the head.
        rows: each as long as the head.
        caption: below it.
        best: the places (row, column) of what is best among methods.
        apart: before which rows to draw a line.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    caption: str = ""
    best: set[tuple[int, int]] = field(default_factory=set)
    apart: set[int] = field(default_factory=set)


def with_interval(number: Number, measure: Measure) -> str:
    """Return "66.0% (58.8–72.9)", and where there are several seeds their standard deviation."""
    value, low, high, spread = number
    if not math.isfinite(value):
        return "–"
    plain = (lambda v: f"{100 * v:.1f}") if measure.percent else measure.show
    dash = " to " if low < 0 else "–"  # a minus sign beside a dash is hard to read
    text = f"{measure.show(value)} ({plain(low)}{dash}{plain(high)})" if math.isfinite(low) else measure.show(value)
    return text if not math.isfinite(spread) else f"{text} ±{plain(spread)}"


def first_sheet(found: Comparison) -> Sheet:
    """Return the measure that comes first, by method and baseline."""
    measure = found.choice.measure
    titles = dict(PARTS)
    if found.asked.get("weights") == SIZE:
        titles["average"] = "average by size"
    rows = [[_called(found, name), *(_cell(found, name, measure, part) for part in PARTS)] for name in found.scores]
    best = set()
    for column, part in enumerate(PARTS, start=1):
        values = [found.number(name, measure.name, part).value for name in found.results]
        if np.isfinite(values).any() and np.nanmax(values) > np.nanmin(values):
            best.add((int(np.nanargmax(values) if measure.higher_is_better else np.nanargmin(values)), column))
    told = "In brackets 95% intervals over test rows"
    if found.asked.get("seeds", 1) > 1:
        told += f"; after ± the standard deviation over {found.asked['seeds']} seeds"
    unit = _unit(found.federation, measure)
    sites = found.federation.test.count
    title = f"Test {measure.title}{unit} of {sites} sites, {'higher' if measure.higher_is_better else 'lower'} is better"
    return Sheet(title, ["", *titles.values()], rows, f"{told}.", best, {len(found.results)})


def other_sheet(found: Comparison) -> Sheet:
    """Return the other measures, over all test rows."""
    others = [m for m in found.measures if m is not found.choice.measure]
    rows = [[_called(found, name), *(_cell(found, name, m, "all") for m in others)] for name in found.scores]
    told = []
    names, positive = found.federation.classes, found.rows.positive
    if positive is not None and names is not None:
        told.append(f"Recall and precision are of {names[positive]!r}.")
        if found.choice.rare:
            edges = [
                f"{name} {scored.thresholds[0]:.3f}"
                for name, scored in found.scores.items()
                if scored.thresholds and name != MAJORITY
            ]
            told.append(
                f"Called {names[positive]!r} from the probability on that has the greatest balanced accuracy over the training "
                f"rows, found by sums of the sites' histograms: {', '.join(edges)}."
            )
    title = f"Other scores over all {len(found.rows)} test rows"
    return Sheet(title, ["", *(m.title for m in others)], rows, " ".join(told), apart={len(found.results)})


def worst_sheet(found: Comparison, count: int = 5) -> Sheet:
    """Return the sites that the model to keep serves worst, by name."""
    measure, kept = found.choice.measure, found.winner
    others = [name for name in found.scores if name not in (kept, MAJORITY)]
    with_positive = found.rows.positive is not None
    rows = []
    for site in found.worst_sites(count):
        own = with_interval(Number(site[kept], site["low"], site["high"]), measure)
        counts = [str(site["test_rows"]), *([str(site["positive_rows"])] if with_positive else [])]
        rows.append([site["site"], *counts, own, *(measure.show(site[name]) for name in others)])
    head = ["site", "test rows", *(["positive"] if with_positive else []), kept, *others]
    return Sheet(f"The sites that {kept} serves worst: test {measure.title}", head, rows)


def group_sheets(found: Comparison) -> list[Sheet]:
    """Return the rates of the model to keep by group, and the largest gaps of all."""
    if not found.rates:
        return []
    kept, share = found.winner, found.measures[0]
    rates = found.rates[kept]
    rows = [
        [name, str(yes), str(no), with_interval(tpr, share), with_interval(fpr, share)]
        for name, (yes, no), tpr, fpr in zip(rates.names, rates.counts, rates.tpr, rates.fpr, strict=True)
    ]
    head = ["group", "positive", "negative", "TPR", "FPR"]
    told = "TPR: of those who are positive, how many are called; FPR: of those who are not, how many."
    gaps = [
        [_called(found, name), *(with_interval(one.gaps[rate], share) for rate in ("TPR", "FPR"))]
        for name, one in found.rates.items()
    ]
    return [
        Sheet(f"Rates by group, {kept}", head, rows, f"{told}{_too_few(rates)}"),
        Sheet("Largest gap between groups", ["", "of TPR", "of FPR"], gaps, apart={len(found.results)}),
    ]


def _too_few(rates: Rates) -> str:
    said = [f"{', '.join(names)} for the {rate}" for rate, names in rates.few.items() if names]
    return f" Fewer than {FEW} test rows, so left out of the gap: {'; '.join(said)}." if said else ""


def column_sheet(federation: Federation) -> Sheet | None:
    """Return what each column was taken for; None: the data are no table."""
    if not federation.columns:
        return None
    return Sheet("Columns", ["column", "taken for", "used", "missing", "note"], columns.rows(federation))


def label_sheet(federation: Federation) -> Sheet:
    """Return what is to be predicted at each site: the rows of each class, or the quantity's range."""
    label = "the label" if federation.encoder is None else federation.encoder.label
    told = "Training and test rows together."
    return Sheet(f"What is predicted: {label}", columns.label_header(federation), columns.label_rows(federation), told)


def trade_off_sheet(found: dict[str, Comparison]) -> Sheet:
    """Return the first method's numbers under several penalties."""
    one = next(iter(found.values()))
    name, measure = next(iter(one.results)), one.choice.measure
    rows = [[text, *(_cell(c, name, measure, part) for part in PARTS)] for text, c in found.items()]
    return Sheet(f"{name} under several penalties: test {measure.title}", ["penalty", *PARTS.values()], rows)


def sentences(found: Comparison) -> list[str]:
    """Return what is said after the tables: the verdicts, the winner and its rule."""
    first, kept = found.choice.measure, found.winner
    rule = f"{RULE.format(measure=first.title)} It is {kept}'s ({first.show(found.training(kept))})."
    return [*(one.sentence for one in found.leads), rule]


def baseline_notes(found: Comparison) -> Iterable[str]:
    """Return what the baselines are."""
    return (f"{name}: {NOTES[name]}" for name in found.baselines)


def _called(found: Comparison, name: str) -> str:
    return name if name in found.results else _TITLES[name]


def _cell(found: Comparison, name: str, measure: Measure, part: str) -> str:
    return with_interval(found.number(name, measure.name, part), measure)


def _unit(federation: Federation, measure: Measure) -> str:
    label = None if federation.encoder is None else federation.encoder.label
    return f" of {label}" if label and not measure.percent else ""
