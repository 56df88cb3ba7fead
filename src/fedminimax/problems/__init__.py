"""Problems: the forms, and tasks ready to use."""

from fedminimax.problems.auc import auc
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.fair_classification import fair_classification
from fedminimax.problems.gan import gan, wgan
from fedminimax.problems.linearize import linearize, tangent_features
from fedminimax.problems.one_point_concave import one_point_concave
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.problems.personalized_quadratic import personalized_quadratic
from fedminimax.problems.personalized_training import personalized_training
from fedminimax.problems.pointwise_maximum import maximum_of_quadratics, pointwise_maximum
from fedminimax.problems.quadratic import quadratic
from fedminimax.problems.robust import RobustProblem
from fedminimax.problems.robust_model import robust_model
from fedminimax.problems.robust_regression import robust_regression
from fedminimax.problems.robust_training import robust_training
from fedminimax.problems.task import Task
from fedminimax.problems.two_sided_pl import two_sided_pl
from fedminimax.problems.variants import regularized, translated

PROBLEMS = {
    "quadratic": quadratic,
    "one_point_concave": one_point_concave,
    "personalized_quadratic": personalized_quadratic,
    "personalized_training": personalized_training,
    "wgan": wgan,
    "fair_classification": fair_classification,
    "pointwise_maximum": pointwise_maximum,
    "maximum_of_quadratics": maximum_of_quadratics,
    "two_sided_pl": two_sided_pl,
    "robust_regression": robust_regression,
    "robust_model": robust_model,
    "auc": auc,
    "robust_training": robust_training,
    "gan": gan,
}
"""The tasks ready to use, by name."""

__all__ = [
    "PROBLEMS",
    "MinimaxProblem",
    "PersonalizedProblem",
    "RobustProblem",
    "Task",
    "auc",
    "fair_classification",
    "gan",
    "linearize",
    "maximum_of_quadratics",
    "one_point_concave",
    "personalized_quadratic",
    "personalized_training",
    "pointwise_maximum",
    "quadratic",
    "regularized",
    "robust_model",
    "robust_regression",
    "robust_training",
    "tangent_features",
    "translated",
    "two_sided_pl",
    "wgan",
]
