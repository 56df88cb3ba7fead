"""What scores of a network mean: probabilities of classes, or a quantity in the label's units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedminimax.fairness.outputs import Floats, clipped, softmax
from fedminimax.problems.robust_model import SQUARED


def probabilities(scores: Floats, loss: str) -> Floats:
    r"""Return the probabilities of classes that scores :math:`s` mean, [n, C].

    A network that was trained with cross-entropy means :math:`p_c = e^{s_c} / \sum_k e^{s_k}`. One that was fitted to one-hot
    labels by squares estimates probabilities roughly: :math:`p_c = s_c^+ / \sum_k s_k^+`, clipped at zero and normalised, and
    all classes alike where no score is above zero.
    """
    return clipped(scores) if loss == SQUARED else softmax(scores)


def quantity(scores: Floats, scale: Sequence[float] | None) -> Floats:
    """Return predictions in the label's units, mean + deviation * score, [n]."""
    mean, deviation = (0.0, 1.0) if scale is None else scale
    return mean + deviation * scores[:, 0]


def classes_of(shares: Floats, positive: int | None, threshold: float | None) -> npt.NDArray[np.intp]:
    """Return the number of each row's class: the likeliest, or of two the positive one from its threshold on."""
    if threshold is None or positive is None:
        return shares.argmax(axis=1)
    return np.where(shares[:, positive] >= threshold, positive, 1 - positive)
