"""The nonconvex-concave problem: its one stationary point, and the measure, against formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.metrics.base import gradient
from fedminimax.metrics.epsilon import stationarity_squared
from fedminimax.players import Point
from fedminimax.problems.nonconvex_concave import nonconvex_concave


def test_its_solution_is_stationary_a_minimum_of_phi_and_yet_f_is_concave_in_x_there(x64):
    task = nonconvex_concave(3, concavity=0.1, examples=2, noise=1.0)
    g = gradient(task.problem, task.clients, Point(jnp.zeros(4), jnp.zeros(4)))
    np.testing.assert_allclose(np.concatenate([g.x, g.y]), 0, atol=1e-14)
    u = np.random.default_rng(1).normal(size=4)
    at = lambda x, y: gradient(task.problem, task.clients, Point(jnp.asarray(x), jnp.asarray(y)))
    assert float(u @ at(1e-4 * u, np.zeros(4)).x) < 0  # downhill is away from the solution as long as y does nothing
    B = np.asarray(task.clients.fields["B"][0])
    np.testing.assert_allclose(np.linalg.svd(B)[1], [2, 5 / 3, 4 / 3, 1])
    x, y = 0.3 * u, np.array([0.1, -0.4, 0.2, 0.3])
    np.testing.assert_allclose(at(x, y).x, -0.5 * x / (1 + x**2) ** 2 + B.T @ y, atol=1e-14)
    np.testing.assert_allclose(at(x, y).y, B @ x - 0.1 * y, atol=1e-14)


def test_the_measure_is_that_of_f_without_the_regularisation(x64):
    task = nonconvex_concave(2, concavity=0.3)
    x, y = jnp.array([0.1, 0.0, -0.2, 0.3]), jnp.array([0.5, -0.5, 0.1, 0.2])
    g = gradient(task.problem, task.clients, Point(x, y))
    expected = float(jnp.sum(g.x**2) + jnp.sum((g.y + 0.3 * y) ** 2))  # within the ball nothing is projected
    found = float(stationarity_squared(task.problem, task.clients, Point(x, y), 0.3, 2.5, 0.5))
    np.testing.assert_allclose(found, expected / 0.25, rtol=1e-12)
    with pytest.raises(fm.InputError, match="at least one client, example and dimension"):
        nonconvex_concave(0)


def test_smoothed_steps_get_there_and_the_same_steps_without_do_not(x64):
    task = nonconvex_concave(2, concavity=0.01, heterogeneity=0.0)
    run = lambda p: fm.run(
        task.problem, task.clients, fm.FessGDA(0.03, 0.03, p=p, beta=0.02, local_steps=10), rounds=600,
        metrics=fm.metrics.Distance(task.solution), progress=False,
    )  # fmt: skip
    assert run(4.0).final()["distance/total"] < 1e-3
    assert run(0.0).final()["distance/total"] > 0.1
