"""What problems made from problems cannot be made of."""

import pytest

import fedminimax as fm

TASK = fm.problems.quadratic(1)


@pytest.mark.parametrize(("epsilon", "diameter"), [(0.0, 1.0), (-1.0, 1.0), (0.1, 0.0), (0.1, float("inf")), (0.1, None)])
def test_a_regularised_problem_needs_an_accuracy_and_a_bounded_set(epsilon, diameter):
    with pytest.raises(fm.InputError, match="regularized needs"):
        fm.problems.regularized(TASK.problem, epsilon, diameter)


@pytest.mark.parametrize("smoothness", [0.0, -1.0])
def test_a_translated_problem_needs_a_smoothness(smoothness):
    with pytest.raises(fm.InputError, match="smoothness"):
        fm.problems.translated(TASK.problem, TASK.problem.start, smoothness)
