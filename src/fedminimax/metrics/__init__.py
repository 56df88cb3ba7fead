"""What to measure: optimality (stationarity, gaps, distances), quality (loss and accuracy over all clients and classes, the
area under the ROC curve), robustness (the worst perturbation) and generated images (the Inception score).

A metric is any function ``metric(problem, clients, state)`` that returns a number, an array (one number for each client) or a
dict of these, in JAX; one with a fourth argument ``context`` is also told the round and the costs. Those here are small
dataclasses, so that the data they carry is passed to the compiled program and not built into it. All are taken over *all*
clients, never over a sampled cohort. Those that can be good or bad say which way is ``better``; what they need to be evaluated,
clients' parts or all data in one place, is what they say in ``needs`` (see :mod:`fedminimax.metrics.parts`).
"""

from fedminimax import players
from fedminimax.metrics.adversarial import PGD, PlainAscent, RobustLoss
from fedminimax.metrics.auc import AUC, auc_score
from fedminimax.metrics.base import (
    HIGHER,
    LOWER,
    Metric,
    On,
    Problem,
    direction,
    evaluate,
    gradient,
    maximize_y,
    minimize_x,
    named,
    objective,
    point,
    predictions,
)
from fedminimax.metrics.generative import Classifier, InceptionScore, train_classifier
from fedminimax.metrics.optimality import (
    Distance,
    DualityGap,
    GradientNorms,
    MoreauGradient,
    Phi,
    Stationarity,
    Value,
    WorstCase,
)
from fedminimax.metrics.parts import METRICS, PARTS, STATE, TOGETHER, Context, Part, Whose, metric_class
from fedminimax.metrics.personalized import Consensus, GlobalAccuracy, NodeAccuracy, NodeLoss, PersonalizedGap, Residual
from fedminimax.metrics.quality import (
    ClassAccuracy,
    ClassLoss,
    ClientAccuracy,
    ClientError,
    ClientLoss,
    ClientWeights,
    summary,
)

__all__ = [
    "AUC",
    "HIGHER",
    "LOWER",
    "METRICS",
    "PARTS",
    "PGD",
    "STATE",
    "TOGETHER",
    "ClassAccuracy",
    "ClassLoss",
    "Classifier",
    "ClientAccuracy",
    "ClientError",
    "ClientLoss",
    "ClientWeights",
    "Consensus",
    "Context",
    "Distance",
    "DualityGap",
    "GlobalAccuracy",
    "GradientNorms",
    "InceptionScore",
    "Metric",
    "MoreauGradient",
    "NodeAccuracy",
    "NodeLoss",
    "On",
    "Part",
    "PersonalizedGap",
    "Phi",
    "PlainAscent",
    "Problem",
    "Residual",
    "RobustLoss",
    "Stationarity",
    "Value",
    "Whose",
    "WorstCase",
    "auc_score",
    "direction",
    "evaluate",
    "gradient",
    "maximize_y",
    "metric_class",
    "minimize_x",
    "named",
    "objective",
    "players",
    "point",
    "predictions",
    "summary",
    "train_classifier",
]
