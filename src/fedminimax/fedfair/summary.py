"""Means, deviations, categories and classes from what sites tell of their training rows; and rows as inputs.

What leaves a site: of each numeric column how many values there are, their mean and the sum of their squared deviations; of
each categorical column the names of the categories that at least ``least`` training rows have. Of a numeric column with fewer
values than that nothing leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.data.clients import ClientData
from fedminimax.data.encoder import Encoder
from fedminimax.data.encoding import Encoding, Moments, Report, Rows, combine, inputs, report, rows_of
from fedminimax.data.federation import CLASSIFICATION, REGRESSION
from fedminimax.data.labels import read_label
from fedminimax.data.new_rows import FAR
from fedminimax.data.schema import MOST_CATEGORIES
from fedminimax.data.tabular import tested_rows
from fedminimax.data.values import MISSING, as_texts
from fedminimax.engines.federated.messages import Refused
from fedminimax.engines.federated.transport import MALFORMED, Failure
from fedminimax.fedfair.asking import Trouble, number, table, texts, whole
from fedminimax.fedfair.question import Question
from fedminimax.fedfair.sketch import fold

LABEL = "label"
_ENOUGH = 100  # values, before their deviation says something


@dataclass(frozen=True)
class Held:
    """A site's rows that have a label which all know, divided into training and test rows.

    Attributes:
        rows: the features as numbers and texts.
        labels: class numbers, or a quantity.
        tested: which rows are for testing.
        groups: the values of the sensitive column; None: there is none.
        unlabelled: how many rows have no label, or a class that is not known to all.
    """

    rows: Rows
    labels: npt.NDArray[Any]
    tested: npt.NDArray[np.bool_]
    groups: npt.NDArray[Any] | None
    unlabelled: int


# -- at a site -----------------------------------------------------------------------------------------------------------


def hold(frame: pd.DataFrame, question: Question, agreed: Mapping[str, Any], name: str) -> Held:
    """Return a site's rows as they are agreed on.

    Args:
        frame: its table.
        question: what is agreed on.
        agreed: the task, the classes, and which columns are numbers, categories and dates.
        name: the site's, on which the division into training and test rows depends.
    """
    numeric, categorical, dates = agreed["numeric"], agreed["categorical"], agreed["dates"]
    for column in (*numeric, *categorical):
        if column not in frame.columns:
            raise Trouble("no column", column)
    read = read_label(frame[question.label], agreed["task"])
    if agreed["task"] == CLASSIFICATION:
        known = {fold(one): k for k, one in enumerate(agreed["classes"])}
        labels = np.array([-1 if lost else known.get(fold(str(v)), -1) for v, lost in zip(*read[:2], strict=True)], np.int32)
        there = labels >= 0
    else:
        labels, there = read.values, ~read.missing
    if there.sum() < 2:
        raise Trouble("few")
    labels = labels[there]
    classes = labels if agreed["task"] == CLASSIFICATION else np.zeros(len(labels), np.intp)
    tested = tested_rows(classes, question.test_share, question.seed, name)
    rows = rows_of(frame, numeric, categorical, dates).part(there)
    groups = None if question.group is None else as_texts(frame[question.group])[there]
    return Held(rows, labels, tested, groups, int((~there).sum()))


def summary(held: Held, task: str, least: int) -> dict[str, Any]:
    """Return what a site tells of its training rows."""
    rows = held.rows.part(~held.tested)
    for column, values in rows.numbers.items():
        if np.isinf(values).any():
            raise Trouble("infinite", column)
    found = report(rows)
    target = report(Rows(rows.count, {LABEL: held.labels[~held.tested]}, {})) if task == REGRESSION else None
    moments = {column: list(_enough(own, least)) for column, own in found.moments.items()}
    return {
        "rows": rows.count,
        "moments": moments,
        "categories": {column: _common(values, least) for column, values in rows.texts.items()},
        "label": None if target is None else list(_enough(target.moments[LABEL], least)),
        "unlabelled": held.unlabelled,
    }


def _enough(moments: Moments, least: int) -> Moments:
    return moments if moments.n >= least else Moments(0, 0.0, 0.0)


def _common(values: npt.NDArray[Any], least: int) -> list[str]:
    """Return the categories that enough rows have."""
    names, sizes = np.unique(values.astype(str), return_counts=True)
    return [str(name) for name, size in zip(names, sizes, strict=True) if size >= least]


def client_data(held: Held, encoder: Encoder) -> tuple[ClientData, ClientData]:
    """Return a site's training and test rows as the data of one client."""
    scale = encoder.target_scale

    def data(where: npt.NDArray[np.bool_]) -> ClientData:
        labels = held.labels[where]
        if scale is not None:
            labels = ((labels - scale[0]) / scale[1]).astype(np.float32)
        made = inputs(held.rows.part(where), encoder.encoding, np.float32)
        return ClientData.from_list([{"inputs": made, "labels": labels}])

    return data(~held.tested), data(held.tested)


def missing_of(held: Held) -> dict[str, int]:
    """Return how many values of each column a site lacks, of those that lack any."""
    counts = {column: int(np.isnan(values).sum()) for column, values in held.rows.numbers.items()}
    counts |= {column: int((values == MISSING).sum()) for column, values in held.rows.texts.items()}
    return {column: count for column, count in counts.items() if count}


# -- at the server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """What a site told of its training rows.

    Attributes:
        report: the features'.
        target: of a quantity to predict, its moments.
        unlabelled: how many rows could not be used.
    """

    report: Report
    target: Moments | None
    unlabelled: int


def read_summary(numeric: Sequence[str], categorical: Sequence[str], task: str, told: Any) -> Summary:
    """Return a site's summary, checked."""
    told = table(told)
    try:
        rows = whole(told["rows"])
        sums, values = table(told["moments"]), table(told["categories"])
        moments = {column: _moments(sums[column], rows) for column in numeric}
        categories = {column: frozenset(texts(values[column])) for column in categorical}
        target = _moments(told["label"], rows) if task == REGRESSION else None
        return Summary(Report(rows, moments, categories), target, whole(told["unlabelled"]))
    except (LookupError, TypeError, ValueError):
        raise Refused(Failure(MALFORMED, "a summary that is none")) from None


def _moments(told: Any, rows: int) -> Moments:
    n, mean, squares = told
    found = Moments(whole(n), number(mean), number(squares))
    if found.n > rows or found.squares < 0:
        raise Refused(Failure(MALFORMED, "sums that cannot be"))
    return found


def encoding_of(summaries: Mapping[str, Summary], dates: Mapping[str, str]) -> tuple[Encoding, list[str]]:
    """Return how rows become inputs, and what is noticed: columns left out, other units, other categories."""
    made = combine([one.report for one in summaries.values()])
    crowded = [column for column, values in made.categories.items() if len(values) > MOST_CATEGORIES]
    kept = {column: values for column, values in made.categories.items() if column not in crowded}
    notes = [f"{column}: the sites have more than {MOST_CATEGORIES} categories together: left out." for column in crowded]
    forms = {column: form for column, form in dates.items() if column in made.numeric}
    notes += [note for column in made.scales if column not in dates for note in _units(column, summaries)]
    notes += [note for column in kept for note in _spellings(column, summaries)]
    return Encoding(made.scales, made.gaps, kept, forms), notes


def _units(column: str, summaries: Mapping[str, Summary]) -> list[str]:
    """Ask whether a column is in the same units at a site as at the others, where its mean is far from theirs."""
    found = []
    for site, own in summaries.items():
        others = [one.report for name, one in summaries.items() if name != site]
        here = own.report.moments[column]
        if not here.n or not any(one.moments[column].n for one in others):
            continue
        scale = combine([Report(one.rows, {column: one.moments[column]}, {}) for one in others]).scales.get(column)
        if scale is None:
            continue
        mean, spread = scale
        deviation = float(np.sqrt(here.squares / here.n))
        if 0 <= here.mean <= 1 and 0 <= mean <= 1:
            continue  # a share: a rare yes is no matter of units
        unlike = here.n >= _ENOUGH and deviation > 0 and not 1 / FAR <= deviation / spread <= FAR
        if unlike or abs(here.mean - mean) > FAR * max(spread, deviation):
            found.append(
                f"{column}: at {site} the mean is {here.mean:.4g} (deviation {deviation:.4g}), at the others {mean:.4g} "
                f"({spread:.4g}): are these the same units?"
            )
    return found


def _spellings(column: str, summaries: Mapping[str, Summary]) -> list[str]:
    """Ask whether a column's categories are spelt alike, where a site has none that another has."""
    found = []
    for site, own in summaries.items():
        here = own.report.categories[column] - {MISSING}
        sets = (one.report.categories[column] for name, one in summaries.items() if name != site)
        others = frozenset[str]().union(*sets) - {MISSING}
        if here and others and not here & others:
            found.append(f"{column}: {site} has no category that another site has: are they spelt alike?")
    return found


def target_of(summaries: Mapping[str, Summary]) -> tuple[float, float] | None:
    """Return mean and deviation of a quantity to predict; None: it does not vary."""
    reports = [Report(one.report.rows, {LABEL: one.target}, {}) for one in summaries.values() if one.target is not None]
    return combine(reports).scales.get(LABEL)
