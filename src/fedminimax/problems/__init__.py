"""Problems: the forms, and tasks ready to use."""

from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.fair_classification import fair_classification
from fedminimax.problems.gan import wgan
from fedminimax.problems.quadratic import quadratic
from fedminimax.problems.task import Task
from fedminimax.problems.variants import regularized, translated

PROBLEMS = {"quadratic": quadratic, "wgan": wgan, "fair_classification": fair_classification}
"""The tasks ready to use, by name."""

__all__ = [
    "PROBLEMS",
    "MinimaxProblem",
    "Task",
    "fair_classification",
    "quadratic",
    "regularized",
    "translated",
    "wgan",
]
