"""How good predictions are for whom: any score of scikit-learn by client, and the worst client's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score

from fedminimax.errors import InputError
from fedminimax.sklearn.sites import Sites

Score = Callable[[Any, Any], float]


def client_scores(y_true: Any, y_pred: Any, clients: Any = None, score: Score = accuracy_score) -> pd.Series[float]:
    """Return a score on each client's rows, by the client's name.

    Args:
        y_true: the labels.
        y_pred: what was predicted.
        clients: whose row each is; None: all are one client's.
        score: a function of both, such as those of ``sklearn.metrics``.
    """
    labels, predicted = np.asarray(y_true), np.asarray(y_pred)
    if len(labels) != len(predicted):
        raise InputError(f"y_true has {len(labels)} rows and y_pred {len(predicted)}: give the predictions for these rows.")
    sites = Sites.of(clients, len(labels))
    values = [float(score(labels[own], predicted[own])) for own in (sites.owner == k for k in range(len(sites.names)))]
    return pd.Series(values, index=pd.Index(sites.names, name="client"), name=getattr(score, "__name__", "score"))


def worst_client_score(
    y_true: Any, y_pred: Any, clients: Any = None, score: Score = accuracy_score, higher_is_better: bool = True
) -> float:
    """Return the score of the client for whom it is worst: with ``make_scorer``, what a grid search can choose by.

    >>> worst_client_score([0, 1, 1, 0], [0, 1, 0, 0], clients=["a", "a", "b", "b"])
    0.5

    Args:
        y_true: the labels.
        y_pred: what was predicted.
        clients: whose row each is; None: all are one client's.
        score: a function of both, such as those of ``sklearn.metrics``.
        higher_is_better: whether a large score is a good one; False for errors.
    """
    scores = client_scores(y_true, y_pred, clients, score)
    return float(scores.min() if higher_is_better else scores.max())
