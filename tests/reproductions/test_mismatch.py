"""The saddle that plain averaging of unequal work leads to, against the linear system."""

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.players import Point
from fedminimax.problems.quadratic import reweighted_distance, saddle


def test_the_distance_is_zero_at_the_saddle_of_the_reweighted_objective_alone(x64):
    task = fm.problems.quadratic(3, examples=2, noise=0.5, weights=[0.2, 0.3, 0.5])
    steps, p = (2, 5, 3), np.array([0.2, 0.3, 0.5])
    there = saddle(task.clients, p * steps / (p @ steps))
    away = lambda z, *given: float(reweighted_distance(task.problem, task.clients, z, *given))
    np.testing.assert_allclose(away(there, steps), 0, atol=1e-12)
    np.testing.assert_allclose(away(task.solution), 0, atol=1e-12)
    moved = Point(there.x + np.array([3.0, 0, 0, 0]), there.y + np.array([0, 4.0, 0]))
    np.testing.assert_allclose(away(moved, steps), 5, rtol=1e-12)
    with pytest.raises(fm.InputError, match="steps has 2 numbers, but there are 3 clients"):
        away(there, (1, 2))
