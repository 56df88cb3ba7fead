"""Measures over nodes, and of the worst case over clients, by hand in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.network import Network
from fedminimax.penalties import ChiSquare
from fedminimax.players import Point


def test_how_far_nodes_are_from_agreeing(x64):
    task = fm.problems.personalized_quadratic(Network.ring(3), 0.5, dim_x=2, dim_y=1)
    x, y = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 8.0]]), np.array([[0.0], [6.0], [3.0]])
    got = metrics.Consensus()(task.problem, task.clients, Point(jnp.asarray(x), jnp.asarray(y)))
    spread = lambda v: np.sqrt(((v - v.mean(axis=0)) ** 2).sum(axis=1).mean())
    np.testing.assert_allclose([got["x"], got["y"]], [spread(x), spread(y)], rtol=1e-14)
    with pytest.raises(fm.InputError, match="PersonalizedProblem"):
        metrics.Consensus()(fm.problems.quadratic(2).problem, task.clients, task.problem.start)


def test_the_worst_case_is_at_the_best_weights(x64):
    """sum_i w_i f_i - rho/(2N) sum (N w_i - 1)^2 at w = P(1/N + f / (rho N)), here inside the simplex."""
    data = fm.ClientData.from_owner({"a": np.array([1.0, 2.0, 4.0])}, np.arange(3))
    problem = fm.RobustProblem(lambda x, batch: jnp.mean(batch["a"]) * x, 0.5, ChiSquare(5.0))
    losses = 0.5 * np.array([1.0, 2.0, 4.0])
    w = 1 / 3 + (losses - losses.mean()) / 15
    assert w.min() > 0
    expected = w @ losses - 5 / 6 * np.sum((3 * w - 1) ** 2)
    bound, data = problem.bind(data)
    np.testing.assert_allclose(metrics.WorstCase()(bound, data, bound.start), expected, rtol=1e-14)
    task = fm.problems.quadratic(2)
    with pytest.raises(fm.InputError, match="use Phi"):
        metrics.WorstCase()(task.problem, task.clients, task.problem.start)


def test_a_summary_has_the_mean_and_the_variance_over_groups():
    got = metrics.summary(jnp.asarray([1.0, 2.0, 6.0]))
    np.testing.assert_allclose([got["mean"], got["variance"]], [3.0, 14 / 3], rtol=1e-6)


def test_the_weights_entropy_is_one_when_equal_and_zero_on_one_client(x64):
    data = fm.ClientData.from_owner({"a": np.ones(4)}, np.arange(4))
    problem, clients = fm.RobustProblem(lambda x, batch: x * jnp.mean(batch["a"]), 0.5, ChiSquare(5.0)).bind(data)
    entropy = lambda w: metrics.ClientWeights(each=True)(problem, clients, Point(problem.x0, jnp.asarray(w)))
    equal, one, two = entropy([0.5] * 4), entropy([0.0, 1.0, 0.0, 0.0]), entropy([0.0, 0.5, 0.5, 0.0])
    np.testing.assert_allclose([equal["entropy"], one["entropy"], two["entropy"]], [1.0, 0.0, 0.5], atol=1e-15)
    assert two["each"].tolist() == [0.0, 0.5, 0.5, 0.0]
    assert float(one["largest"]) == 1.0
