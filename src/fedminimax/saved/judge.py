"""How good a model's predictions are, where the label is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.data.encoding import as_numbers, as_texts
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
    known = frame[label].notna().to_numpy()
    if not known.any():
        raise InputError(f"The column {label!r} is empty in every row: there is nothing to compare predictions with.")
    labels, scores = frame[label][known], scores[known]
    if model.classes is None:
        try:
            error = quantity(scores, model.spec["target_scale"]) - as_numbers(labels)
        except (TypeError, ValueError):
            raise InputError(f"The column {label!r} has text in it, where the model predicts numbers.") from None
        return {"rows": float(len(labels)), "rmse": float(np.sqrt(np.mean(error**2))), "mae": float(np.mean(np.abs(error)))}
    return _classes(model, numbers_of(labels, model.classes), scores)


def numbers_of(labels: pd.Series, classes: list[str]) -> npt.NDArray[np.intp]:  # type: ignore[type-arg]
    """Return the class number of each label."""
    texts = pd.Series(as_texts(labels), dtype=object)
    numbers = pd.Index(classes, dtype=object).get_indexer(pd.Index(texts))
    if (numbers < 0).any():
        odd = texts[numbers < 0].iloc[0]
        raise InputError(f"The label {odd!r} of column {labels.name!r} is none of the model's classes: {', '.join(classes)}.")
    return numbers


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
