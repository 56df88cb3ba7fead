"""Estimators with scikit-learn's conventions: ``fit(X, y, clients=sites)``, ``predict``, pipelines, grid searches.

:class:`FairClassifier` and :class:`FairRegressor` train one model that is good for the worst-off client, :class:`AUCClassifier`
one that ranks positive above negative rows. No step size is asked for. Inside of this package ``sklearn`` is scikit-learn.
"""

from fedminimax.sklearn.auc import AUCClassifier
from fedminimax.sklearn.fair import FairClassifier, FairRegressor
from fedminimax.sklearn.scoring import client_scores, worst_client_score

__all__ = ["AUCClassifier", "FairClassifier", "FairRegressor", "client_scores", "worst_client_score"]
