"""What the columns are, settled by what sites tell of theirs: names, kinds and counts, and no value but the classes' names.

A site's sketch holds for each column whether it looks like numbers, categories or dates, how many values are missing, how many
are different, and how many are texts among numbers; of the label the names of the classes that at least ``least`` of its rows
have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedminimax.data.columns import CATEGORY, CONSTANT, DATE, ID, LABEL, NUMBER
from fedminimax.data.encoding import by_size
from fedminimax.data.federation import CLASSIFICATION, REGRESSION
from fedminimax.data.labels import MOST_CLASSES, read_label
from fedminimax.data.schema import MOST_CATEGORIES, Look, Schema, look_at, settle
from fedminimax.data.values import ISO, as_days, as_numbers, is_number, read_numbers, texts_of
from fedminimax.engines.federated.messages import Refused
from fedminimax.engines.federated.transport import MALFORMED, Failure
from fedminimax.errors import InputError, nearest
from fedminimax.fedfair.asking import Trouble, table, text, whole
from fedminimax.fedfair.question import Question

_NEARLY, _ENOUGH = 0.95, 20  # as in fedminimax.data.schema: so many different texts, in so many rows, are identifiers
_ROLES = (NUMBER, CATEGORY, DATE, ID, CONSTANT)
_KINDS = (NUMBER, CATEGORY, DATE)
_FORM = re.compile(r"%Y([/.])%m\1%d|%d([/.-])%m\2%Y|%m([/.-])%d\3%Y")
"""How dates are written, beside ISO 8601, where texts are recognised as dates."""
_WORDS = {NUMBER: "numbers", CATEGORY: "texts", DATE: "dates"}


class Seen(NamedTuple):
    """What a column looks like at a site: its role and kind there, and counts of rows, missing, different and odd values."""

    role: str
    kind: str
    rows: int
    missing: int
    distinct: int
    odd: int
    form: str


class Labels(NamedTuple):
    """What a label looks like at a site: whether it is numbers, counts, and the classes that enough rows have."""

    numeric: bool
    missing: int
    distinct: int
    classes: dict[str, int]


class Sketch(NamedTuple):
    """What a site tells of its table."""

    rows: int
    columns: dict[str, Seen]
    label: Labels


@dataclass(frozen=True)
class Agreed:
    """What the columns are, at all sites.

    Attributes:
        schema: the columns' roles.
        task: "classification" or "regression".
        classes: the classes' names; none for a quantity.
        notes: what a reader should know, in sentences.
    """

    schema: Schema
    task: str
    classes: list[str]
    notes: list[str] = field(default_factory=list)


# -- at a site -----------------------------------------------------------------------------------------------------------


def sketch(frame: pd.DataFrame, question: Question, least: int) -> dict[str, Any]:
    """Return what a site tells of its table.

    Args:
        frame: its rows.
        question: what is agreed on.
        least: a class that fewer rows have is not named.
    """
    names = [str(column) for column in frame.columns]
    for column in names:
        if names.count(column) > 1:
            raise Trouble("twice", column)
    if not len(frame):
        raise Trouble("empty")
    if question.label not in names:
        raise Trouble("no label", question.label)
    if question.group is not None and question.group not in names:
        raise Trouble("no group", question.group)
    columns = {}
    for column in names:
        if column == question.label:
            continue
        try:
            columns[column] = _seen(frame[column], column in question.exclude)._asdict()
        except InputError:
            raise Trouble("type", column) from None
    return {"rows": len(frame), "columns": columns, "label": _labels(frame[question.label], least)._asdict()}


def _seen(values: pd.Series[Any], unwanted: bool) -> Seen:
    look = look_at(values, "", unwanted)
    missing, odd = round(look.missing * len(values)), 0
    if not is_number(values) and not unwanted and look.kind in (NUMBER, DATE):
        lacking = int((texts_of(values).codes < 0).sum())
        read = as_numbers(values) if look.kind == NUMBER else as_days(values, look.form)
        odd = int(np.isnan(read).sum()) - lacking
    return Seen(look.role, look.kind, len(values), missing, look.distinct, odd, look.form)


def _labels(values: pd.Series[Any], least: int) -> Labels:
    numeric = is_number(values) or read_numbers(texts_of(values)).fits
    read = read_label(values, CLASSIFICATION)
    names, sizes = np.unique(read.values[~read.missing].astype(str), return_counts=True)
    if not len(names):
        raise Trouble("no labels", str(values.name))
    classes = {str(name): int(n) for name, n in zip(names, sizes, strict=True) if n >= least}
    return Labels(numeric, int(read.missing.sum()), len(names), classes if len(names) <= MOST_CLASSES else {})


# -- at the server -------------------------------------------------------------------------------------------------------


def read_sketch(_: str, told: Any) -> Sketch:
    """Return a site's sketch, checked."""
    told = table(told)
    try:
        rows, said = whole(told["rows"]), table(told["label"])
        columns = {name: _read_seen(table(seen), rows) for name, seen in table(told["columns"]).items()}
        classes = {name: whole(n) for name, n in table(said["classes"]).items()}
        label = Labels(said["numeric"], whole(said["missing"]), whole(said["distinct"]), classes)
    except LookupError:
        raise Refused(Failure(MALFORMED, "a sketch that is none")) from None
    if type(label.numeric) is not bool or not rows or label.missing + max(sum(classes.values()), label.distinct) > rows:
        raise Refused(Failure(MALFORMED, "a label that cannot be"))
    return Sketch(rows, columns, label)


def _read_seen(said: dict[str, Any], rows: int) -> Seen:
    role, kind, form = (text(said[key]) for key in ("role", "kind", "form"))
    counted, missing, distinct, odd = (whole(said[key]) for key in ("rows", "missing", "distinct", "odd"))
    if role not in _ROLES or kind not in _KINDS or not (form in ("", ISO) or _FORM.fullmatch(form)):
        raise Refused(Failure(MALFORMED, "a column that is none"))
    if counted != rows or max(missing, distinct, odd) > rows:
        raise Refused(Failure(MALFORMED, "counts of a column that cannot be"))
    return Seen(role, kind, rows, missing, distinct, odd, form)


def agree(sketches: Mapping[str, Sketch], question: Question) -> Agreed:
    """Return what the columns are at all sites, or say which site has another table than the others."""
    _same_columns(sketches, question)
    first = next(iter(sketches.values()))
    notes: list[str] = []
    looks: dict[str, Look] = {}
    for column in first.columns:
        seen = {site: one.columns[column] for site, one in sketches.items() if column in one.columns}
        if len(seen) < len(sketches):
            continue  # it is excluded, or it would have been an error
        looks[column] = _look(column, seen, question)
        odd = {site: one.odd for site, one in seen.items() if one.odd}
        if odd and column not in question.exclude:
            told = ", ".join(f"{count} at {site}" for site, count in odd.items())
            notes.append(f"{column}: texts among {_WORDS[looks[column].kind]} read as missing ({told}).")
    task, classes, said = _target({site: one.label for site, one in sketches.items()}, question)
    missing = sum(one.label.missing for one in sketches.values())
    looks[question.label] = Look(LABEL, CATEGORY, _share(missing, sketches), len(classes), said, said)
    for column in (*question.include, *question.exclude):
        if column not in looks and column not in question.exclude:
            raise InputError(f"The sites have no column {column!r}{nearest(column, looks)}: leave it out of --include.")
    schema = settle(looks, "the sites' tables", set(question.include), set(question.exclude))
    return Agreed(schema, task, classes, notes)


def _same_columns(sketches: Mapping[str, Sketch], question: Question) -> None:
    """Raise an :class:`InputError` that names a site which lacks a column that others have."""
    everywhere = dict.fromkeys(column for one in sketches.values() for column in one.columns)
    for column in everywhere:
        lacking = [site for site, one in sketches.items() if column not in one.columns]
        if lacking and column not in question.exclude:
            there = next(site for site, one in sketches.items() if column in one.columns)
            hint = nearest(column, sketches[lacking[0]].columns)
            raise InputError(
                f"{', '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} no column {column!r}{hint}, which {there} has: "
                f"add it there, or leave it out with --exclude {column}."
            )


def _look(column: str, seen: Mapping[str, Seen], question: Question) -> Look:
    """Return what a column looks like, given what it looks like at each site."""
    rows, missing = sum(one.rows for one in seen.values()), sum(one.missing for one in seen.values())
    known = {site: one for site, one in seen.items() if one.distinct}
    share, unwanted = missing / rows, column in question.exclude
    if not known:
        return Look(CONSTANT, CATEGORY, share, 0, "missing in every row")
    kinds = {one.kind: site for site, one in known.items()}
    if len(kinds) > 1 and not unwanted:
        (one, there), (other, elsewhere) = list(kinds.items())[:2]
        raise InputError(
            f"The column {column!r} has {_WORDS[one]} at {there} and {_WORDS[other]} at {elsewhere}: write it alike at both, "
            f"or leave it out with --exclude {column}."
        )
    kind, distinct = next(iter(kinds)), sum(one.distinct for one in known.values())
    values, most = rows - missing, max(one.distinct for one in known.values())
    look = Look(kind, kind, share, most, form=_form(column, known, question) if kind == DATE else "")
    if kind == DATE:
        return look._replace(note="left out unless it is included")
    named = sum(one.rows - one.missing for one in known.values() if one.role == ID)
    if 2 * named > values or (kind == CATEGORY and values >= _ENOUGH and distinct >= _NEARLY * values):
        return look._replace(role=ID, note="a different value in nearly every row")
    if look.crowded:
        return look._replace(note=f"more than {MOST_CATEGORIES} categories")
    if kind == CATEGORY and most == 1 and not missing and column not in question.include:
        return look._replace(role=CONSTANT, note="one value at each site: it tells who holds a row")
    return look


def _form(column: str, known: Mapping[str, Seen], question: Question) -> str:
    forms = {one.form or ISO: site for site, one in known.items()}
    if len(forms) > 1 and column in question.include:
        (one, there), (other, elsewhere) = list(forms.items())[:2]
        raise InputError(
            f"The dates of {column!r} are written as {one} at {there} and as {other} at {elsewhere}: write them alike."
        )
    return next(iter(forms))


def _share(missing: int, sketches: Mapping[str, Sketch]) -> float:
    return missing / sum(one.rows for one in sketches.values())


def _target(labels: Mapping[str, Labels], question: Question) -> tuple[str, list[str], str]:
    """Return the task, the classes' names, and which spellings are one class."""
    numeric = [site for site, one in labels.items() if one.numeric]
    if 0 < len(numeric) < len(labels):
        other = next(site for site, one in labels.items() if not one.numeric)
        raise InputError(
            f"The label {question.label!r} has numbers at {numeric[0]} and texts at {other}: write the classes alike at both."
        )
    most, classes, said = max(one.distinct for one in labels.values()), *_classes([one.classes for one in labels.values()])
    task = question.task or _guessed(bool(numeric), most, classes, question.label)
    if task == REGRESSION:
        if not numeric:
            raise InputError(f"The label {question.label!r} is not numeric: make the task classification.")
        return task, [], ""
    if most > MOST_CLASSES:
        raise InputError(f"The label {question.label!r} has {most} different values at a site: choose another column.")
    if len(classes) < 2:
        raise InputError(
            f"The sites name {len(classes)} class{'es' if not classes else ''} of the label {question.label!r}, since a class "
            "that few rows of a site have is not named: choose another column, or lower `least` in the sites' configuration."
        )
    return task, classes, said


def _guessed(numeric: bool, most: int, classes: Sequence[str], label: str) -> str:
    if len(classes) <= 2 and most <= 2:
        return CLASSIFICATION
    if numeric and most > MOST_CLASSES:
        return REGRESSION
    if numeric:
        raise InputError(
            f"The label {label!r} has up to {most} different numbers at a site, which may be classes or a quantity: say --task "
            "classification or --task regression."
        )
    return CLASSIFICATION


def fold(name: str) -> str:
    """Return a class's name without what may differ between spellings: capitals and spaces."""
    return " ".join(name.casefold().split())


def _classes(named: Sequence[Mapping[str, int]]) -> tuple[list[str], str]:
    """Return the classes by the spelling that most rows have, and which spellings are one class."""
    totals: dict[str, int] = {}
    for own in named:
        for name, count in own.items():
            totals[name] = totals.get(name, 0) + count
    spellings: dict[str, list[str]] = {}
    for name in sorted(totals, key=lambda name: -totals[name]):
        spellings.setdefault(fold(name), []).append(name)
    several = [" and ".join(map(repr, names)) for names in spellings.values() if len(names) > 1]
    said = "; ".join(f"{names} are one class" for names in several)
    return sorted((names[0] for names in spellings.values()), key=by_size), said
