"""How good a model's predictions are, where the label is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.data.labels import read_label
from fedminimax.errors import InputError
from fedminimax.metrics.auc import auc_score
from fedminimax.saved.outputs import Floats, classes_of, probabilities, quantity

if TYPE_CHECKING:
    from fedminimax.saved.model import Model


def judge(model: Model, frame: pd.DataFrame, scores: Floats) -> dict[str, float]:
    """Return what is measured of predictions, by name; what does not exist for these rows is left out.

    Args:
        model: that made the predictions.
        frame: the rows, with the label's column.
        scores: the network's outputs for them.
    """
    label = None if model.encoder is None else model.encoder.label
    if label is None or label not in frame.columns:
        column = "label" if label is None else f"column {label!r}"
        raise InputError(f"The rows have no {column}, which says what is true: give rows with it, or use predict.")
    read = read_label(frame[label], model.task)
    if read.missing.all():
        raise InputError(f"The column {label!r} has no label in any row: there is nothing to compare predictions with.")
    labels, scores = read.values[~read.missing], scores[~read.missing]
    if model.classes is None:
        error = quantity(scores, model.spec["target_scale"]) - labels
        return {"rows": float(len(labels)), "rmse": float(np.sqrt(np.mean(error**2))), "mae": float(np.mean(np.abs(error)))}
    return _classes(model, numbers_of(labels, model.classes, label), scores)


def numbers_of(labels: Sequence[str] | npt.NDArray[Any], classes: Sequence[str], column: str) -> npt.NDArray[np.intp]:
    """Return the class number of each label; one that differs in capitals or spaces alone is the same.

    Args:
        labels: texts.
        classes: the classes' names.
        column: the label's name, for messages.
    """
    fold = lambda name: " ".join(str(name).casefold().split())
    codes, distinct = pd.factorize(np.asarray(labels, object))
    known = {fold(name): number for number, name in enumerate(classes)} | {name: number for number, name in enumerate(classes)}
    for text in distinct:
        if text not in known and fold(text) not in known:
            raise InputError(f"The label {text!r} of column {column!r} is none of the model's classes: {', '.join(classes)}.")
    return np.array([known.get(text, known.get(fold(text))) for text in distinct], np.intp)[codes]


def _classes(model: Model, labels: npt.NDArray[np.intp], scores: Floats) -> dict[str, float]:
    positive = model.spec["positive"]
    called = classes_of(probabilities(scores, model.spec["loss"]), positive, model.threshold)
    right = called == labels
    found = {
        "rows": float(len(labels)),
        "accuracy": float(right.mean()),
        "balanced accuracy": float(np.mean([right[labels == c].mean() for c in np.unique(labels)])),
    }
    if positive is None:
        return found
    are, said = labels == positive, called == positive
    if are.any() and not are.all():
        # Ranked by the difference of the scores: probabilities that are clipped or rounded have ties.
        found["auc"] = auc_score(scores[:, positive] - scores[:, 1 - positive], are)
    if are.any():
        found["recall"] = float(said[are].mean())
    if said.any():
        found["precision"] = float(are[said].mean())
    return found
