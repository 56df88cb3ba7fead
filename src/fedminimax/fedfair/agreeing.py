"""What the server finds out before training: who takes part, what the columns are, and how rows become inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedminimax.data.clients import ClientData
from fedminimax.data.encoder import Encoder
from fedminimax.data.encoding import by_size
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.data.labels import find_positive
from fedminimax.data.schema import used_in
from fedminimax.engines.federated.messages import Refused
from fedminimax.engines.federated.transport import MALFORMED, Failure, Transport
from fedminimax.errors import InputError
from fedminimax.fedfair import asking
from fedminimax.fedfair.asking import Asking, Some, counts, number, table, whole
from fedminimax.fedfair.question import Question
from fedminimax.fedfair.sketch import Agreed, Sketch, agree, fold, read_sketch
from fedminimax.fedfair.summary import Summary, encoding_of, read_summary, target_of

SITE = "site"
"""What an encoder calls the column that says who holds a row: there is none."""
_MISSING = "(missing label)"
_MOST_LOSS = 1e12  # before training, of standardised inputs


@dataclass(frozen=True)
class Known:
    """What the server knows of sites that are ready to train.

    Attributes:
        transport: to those that take part, in the order of the clients' numbers.
        federation: sizes, classes and features; its rows have zeros as inputs, and as many labels of each class as there are.
        losses: every site's loss at the start.
        told: what the sites told, by question and site, as it came.
    """

    transport: Transport
    federation: Federation
    losses: npt.NDArray[np.float64]
    told: Mapping[str, Mapping[str, Any]]

    def among(self, sites: Sequence[str]) -> Federation:
        """Return what is known of some of the sites."""
        whole, numbers = self.federation, [self.federation.names.index(site) for site in sites]
        return replace(
            whole,
            train=_part(whole.train, numbers),
            test=_part(whole.test, numbers),
            names=list(sites),
            class_counts=None if whole.class_counts is None else whole.class_counts[numbers],
            target_means=None if whole.target_means is None else [whole.target_means[k] for k in numbers],
        )


class _Ready(NamedTuple):
    """What a site tells when its rows are inputs."""

    sizes: tuple[int, int]
    classes: npt.NDArray[np.int64] | None  # [2, C]: training and test rows
    loss: float
    missing: dict[str, int]


def settle(
    transport: Transport,
    question: Question,
    timeout: float = 60.0,
    before: Mapping[str, Mapping[str, Any]] | None = None,
) -> Known:
    """Find out what the sites have, agree on how rows become inputs, and let every site make its own.

    Args:
        transport: to all sites.
        question: what is agreed on.
        timeout: seconds for a question.
        before: what the sites told in an earlier run of the study, which stands in for those that do not answer now.
    """
    everywhere = Asking(transport, timeout, before)
    sketches = everywhere.all(asking.SKETCH, read_sketch)
    taking, dropped = _taking_part(sketches, question)
    some = Some(transport, taking)
    asked, sketches = everywhere.among(some), {site: sketches[site] for site in taking}
    agreed = agree(sketches, question)
    schema = agreed.schema
    told = {
        "task": agreed.task, "classes": agreed.classes, "numeric": schema.numeric, "categorical": schema.categorical,
        "dates": schema.dates,
    }  # fmt: skip
    read = lambda _, said: read_summary(schema.numeric, schema.categorical, agreed.task, said)
    summaries = asked.all(asking.SUMMARY, read, agreed=told)
    encoder, notes = _encoder(agreed, summaries, question)
    positive = _positive(sketches, agreed, question)
    width = None if encoder.classes is None else len(encoder.classes)
    known = lambda site: (summaries[site].report.rows, sketches[site].rows - summaries[site].unlabelled)
    inputs = lambda site, said: _read_ready(said, width, *known(site))
    ready = asked.all(asking.PREPARE, inputs, encoder=encoder.to_dict(), positive=positive)
    unlabelled = sum(one.unlabelled for one in summaries.values())
    dropped |= {_MISSING: unlabelled} if unlabelled else {}
    federation = _federation(agreed, encoder, summaries, ready, positive, dropped, [*agreed.notes, *schema.notes, *notes])
    return Known(some, federation, np.array([one.loss for one in ready.values()]), asked.told)


def _taking_part(sketches: Mapping[str, Sketch], question: Question) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the sites with enough rows, in order, and how many rows the others have."""
    rows = {site: one.rows - one.label.missing for site, one in sketches.items()}
    least = max(question.min_rows, 2)
    taking = tuple(sorted((site for site, count in rows.items() if count >= least), key=by_size))
    if len(taking) < 2:
        few = ", ".join(f"{site} ({count})" for site, count in rows.items() if count < least)
        raise InputError(
            f"Of the {len(rows)} sites, {len(taking)} have {least} rows or more ({few} {'has' if len(rows) == 2 else 'have'} "
            "fewer): lower --min-rows, or let more sites take part."
        )
    return taking, {site: count for site, count in rows.items() if count < least}


def _encoder(agreed: Agreed, summaries: Mapping[str, Summary], question: Question) -> tuple[Encoder, list[str]]:
    encoding, notes = encoding_of(summaries, agreed.schema.dates)
    if not encoding.features:
        raise InputError("The sites have no column left to learn from: none varies beside the label.")
    if agreed.task == CLASSIFICATION:
        return Encoder(encoding, question.label, SITE, agreed.task, agreed.classes, None), notes
    scale = target_of(summaries)
    if scale is None:
        raise InputError(f"The label {question.label!r} is the same in all training rows: choose another column.")
    return Encoder(encoding, question.label, SITE, agreed.task, None, scale), notes


def _positive(sketches: Mapping[str, Sketch], agreed: Agreed, question: Question) -> int | None:
    """Return the number of the positive class, by the rows of the classes that the sites named."""
    totals = dict.fromkeys(map(fold, agreed.classes), 0)
    for one in sketches.values():
        for name, count in one.label.classes.items():
            if fold(name) in totals:
                totals[fold(name)] += count
    return find_positive(question.positive, agreed.classes, list(totals.values()), question.label, agreed.task)


def _read_ready(said: Any, classes: int | None, trained: int, rows: int) -> _Ready:
    """Return what a site tells of its inputs, if it goes with what it told before: its training rows, and all of its rows."""
    said = table(said)
    try:
        train, test = (whole(size) for size in said["rows"])
        counted = None if classes is None else counts(said["classes"], (2, classes))
        missing = {column: whole(count) for column, count in table(said["missing"]).items()}
        found = _Ready((train, test), counted, number(said["loss"], _MOST_LOSS), missing)
    except (LookupError, TypeError, ValueError):
        raise Refused(Failure(MALFORMED, "what it says of its inputs cannot be read")) from None
    if (
        min(found.sizes) < 1
        or (train, train + test) != (trained, rows)
        or (counted is not None and counted.sum(axis=1).tolist() != [train, test])
    ):
        raise Refused(Failure(MALFORMED, "its rows do not add up"))
    return found


def _federation(
    agreed: Agreed,
    encoder: Encoder,
    summaries: Mapping[str, Summary],
    ready: Mapping[str, _Ready],
    positive: int | None,
    dropped: dict[str, int],
    notes: list[str],
) -> Federation:
    missing: dict[str, int] = {}
    for one in ready.values():
        for column, count in one.missing.items():
            missing[column] = missing.get(column, 0) + count
    used = {*encoder.encoding.numeric, *encoder.encoding.categories}
    classes = [one.classes for one in ready.values() if one.classes is not None]
    targets = [(one.target.n, one.target.mean) for one in summaries.values() if one.target is not None]
    return Federation(
        train=_counted(ready, 0, len(encoder.features)),
        test=_counted(ready, 1, len(encoder.features)),
        names=list(ready),
        features=encoder.features,
        classes=encoder.classes,
        task=agreed.task,
        target_scale=encoder.target_scale,
        missing=missing,
        dropped=dropped,
        encoder=encoder,
        positive=positive,
        columns=used_in(agreed.schema, used),
        notes=notes,
        class_counts=np.array([own.sum(axis=0) for own in classes]) if classes else None,
        target_means=[mean for _, mean in targets] if targets else None,
    )


def _counted(ready: Mapping[str, _Ready], part: int, width: int) -> ClientData:
    """Return clients with as many rows of each class as the sites have, and inputs of zeros: all that is known here."""
    made: Sequence[npt.NDArray[Any]] = [
        np.zeros(one.sizes[part], np.float32)
        if one.classes is None
        else np.repeat(np.arange(one.classes.shape[1], dtype=np.int32), one.classes[part])
        for one in ready.values()
    ]
    return _without_inputs(made, width)


def _part(data: ClientData, numbers: Sequence[int]) -> ClientData:
    """Return some of the clients, of whom nothing but the labels is known."""
    labels, ends = np.asarray(data.fields["labels"]), np.cumsum(np.asarray(data.sizes))
    own = [labels[ends[k] - int(data.sizes[k]) : ends[k]] for k in numbers]
    return _without_inputs(own, data.fields["inputs"].shape[1])


def _without_inputs(labels: Sequence[npt.NDArray[Any]], width: int) -> ClientData:
    sizes = [len(own) for own in labels]
    starts, rows = np.cumsum([0, *sizes[:-1]]), sum(sizes)
    fields = {"inputs": np.broadcast_to(np.zeros((1, width), np.float32), (rows, width)), "labels": np.concatenate(labels)}
    return ClientData(fields, starts.astype(np.int32), np.asarray(sizes, np.int32), min(sizes), max(sizes))
