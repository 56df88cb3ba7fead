"""What a model says of rows: probabilities of classes, or a quantity in the label's units."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
import numpy.typing as npt

from fedminimax.data.clients import ClientData
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.players import Tree
from fedminimax.problems.robust import RobustProblem
from fedminimax.problems.robust_model import SQUARED

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Outputs:
    """A model's predictions for rows, in their flat order.

    Attributes:
        probabilities: of each class, [n, C]; of a quantity its predicted value, [n, 1], in the label's units.
        margin: of two classes, how much the positive one's score is above the other's, [n]: what rows are ranked by. It has no
            ties where probabilities are rounded or clipped. None otherwise.
    """

    probabilities: Floats
    margin: Floats | None = None


def outputs(
    problem: RobustProblem, x: Tree, data: ClientData, federation: Federation, loss: str, positive: int | None
) -> Outputs:
    """Return what the model x predicts for all rows of some clients."""
    scores = np.asarray(jax.jit(problem.predict)(x, data.fields["inputs"]), np.float64)  # type: ignore[arg-type]
    return from_scores(scores.reshape(data.total, -1), federation, loss, positive)


def from_scores(scores: Floats, federation: Federation, loss: str, positive: int | None) -> Outputs:
    """Return predictions made of a model's scores, [n, C], or of a quantity's, [n, 1], which are standardised."""
    if federation.task != CLASSIFICATION:
        mean, scale = federation.target_scale or (0.0, 1.0)
        return Outputs(mean + scale * scores)
    margin = None if positive is None else scores[:, positive] - scores[:, 1 - positive]
    return Outputs(clipped(scores) if loss == SQUARED else softmax(scores), margin)


def softmax(scores: Floats) -> Floats:
    """Return p_c = exp(s_c) / sum_k exp(s_k), which a model that was trained with cross-entropy means by its scores."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def clipped(scores: Floats) -> Floats:
    """Return max(s_c, 0) / sum_k max(s_k, 0): a model fitted to one-hot labels by squares estimates probabilities, roughly.

    Where no score is above zero all classes are equally likely.
    """
    above = np.maximum(scores, 0.0)
    total = above.sum(axis=1, keepdims=True)
    return np.where(total > 0, above / np.where(total > 0, total, 1.0), 1.0 / scores.shape[1])


def labels_of(data: ClientData, federation: Federation) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
    """Return the labels of rows: class numbers, or a quantity in its units."""
    labels = np.asarray(data.fields["labels"])
    if federation.task == CLASSIFICATION:
        return labels.astype(np.int64)
    mean, scale = federation.target_scale or (0.0, 1.0)
    return (mean + scale * labels.astype(np.float64)).reshape(-1)
