"""Measures of optimality against closed forms: for quadratics everything has one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.players import Point
from fedminimax.problems import base

P = np.array([1.0, 2, 3, 4, 5]) / 15


@pytest.fixture
def task(x64):
    return fm.problems.quadratic(5, weights=P, examples=3, noise=0.5, seed=6)


@pytest.fixture
def means(task):
    return {k: sum(p * np.asarray(c[k]).mean(axis=0) for p, c in zip(P, task.clients, strict=True)) for k in "ABCab"}


@pytest.fixture
def z(x64):
    rng = np.random.default_rng(1)
    return Point(jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=3)))


def f(m, x, y):
    return x @ m["A"] @ x / 2 + x @ m["B"] @ y - y @ m["C"] @ y / 2 + m["a"] @ x + m["b"] @ y


def best_y(m, x):
    return np.linalg.solve(m["C"], m["B"].T @ x + m["b"])


def best_x(m, y):
    return np.linalg.solve(m["A"], -(m["B"] @ y + m["a"]))


def measure(metric, task, z, problem=None):
    return jax.jit(lambda z: metric(problem or task.problem, task.clients, z))(z)


def test_value_and_gradients(task, means, z):
    np.testing.assert_allclose(measure(metrics.Value(), task, z), f(means, z.x, z.y), rtol=1e-12)
    norms = measure(metrics.GradientNorms(), task, z)
    np.testing.assert_allclose(norms["x"], np.linalg.norm(means["A"] @ z.x + means["B"] @ z.y + means["a"]), rtol=1e-12)
    np.testing.assert_allclose(norms["y"], np.linalg.norm(means["B"].T @ z.x - means["C"] @ z.y + means["b"]), rtol=1e-12)


def test_the_objective_in_chunks_is_the_same(task, means, z, monkeypatch):
    monkeypatch.setattr(base, "CHUNK", 4)
    np.testing.assert_allclose(measure(metrics.Value(), task, z), f(means, z.x, z.y), rtol=1e-12)
    g = metrics.gradient(task.problem, task.clients, z)
    np.testing.assert_allclose(g.x, means["A"] @ z.x + means["B"] @ z.y + means["a"], rtol=1e-11)


@pytest.mark.parametrize("exact", [True, False])
def test_phi_and_its_gradient(task, means, z, exact):
    problem = task.problem if exact else task.problem.replace(best_response=None)
    got = measure(metrics.Phi(tol=1e-11), task, z, problem)
    y = best_y(means, z.x)
    np.testing.assert_allclose(got["value"], f(means, z.x, y), rtol=1e-9)
    np.testing.assert_allclose(got["grad"], np.linalg.norm(means["A"] @ z.x + means["B"] @ y + means["a"]), rtol=1e-8)


def test_duality_gap(task, means, z):
    gap = measure(metrics.DualityGap(tol=1e-11), task, z)
    expected = f(means, z.x, best_y(means, z.x)) - f(means, best_x(means, z.y), z.y)
    np.testing.assert_allclose(gap, expected, rtol=1e-9)
    at_saddle = measure(metrics.DualityGap(tol=1e-12), task, jax.tree.map(jnp.asarray, task.solution))
    assert abs(float(at_saddle)) < 1e-10


def test_moreau_gradient(task, means, z):
    """Phi is a quadratic with Hessian H = A + B C^-1 B': x+ solves (H + 2l) u = 2l x - h."""
    l = 3.0
    H = means["A"] + means["B"] @ np.linalg.solve(means["C"], means["B"].T)
    h = means["a"] + means["B"] @ np.linalg.solve(means["C"], means["b"])
    near = np.linalg.solve(H + 2 * l * np.eye(4), 2 * l * np.asarray(z.x) - h)
    got = measure(metrics.MoreauGradient(l, tol=1e-11), task, z)
    np.testing.assert_allclose(got, 2 * l * np.linalg.norm(z.x - near), rtol=1e-7)


def test_projected_stationarity(task, means, z):
    l, radius = 4.0, 0.3
    problem = task.problem.replace(y_set=fm.sets.L2Ball(radius))
    y = radius * z.y / np.linalg.norm(z.y)
    got = measure(metrics.Stationarity(l), task, Point(z.x, y), problem)
    step = y + (means["B"].T @ z.x - means["C"] @ y + means["b"]) / l
    step = step * min(1.0, radius / np.linalg.norm(step))
    np.testing.assert_allclose(got["y"], l * np.linalg.norm(step - y), rtol=1e-10)
    np.testing.assert_allclose(got["x"], np.linalg.norm(means["A"] @ z.x + means["B"] @ y + means["a"]), rtol=1e-10)


def test_phi_with_a_constraint_matches_a_generic_solver(task, means, z):
    from scipy.optimize import minimize

    radius = 0.4
    problem = task.problem.replace(y_set=fm.sets.L2Ball(radius), best_response=None)
    got = measure(metrics.Phi(tol=1e-10), task, z, problem)
    inside = {"type": "ineq", "fun": lambda y: radius**2 - y @ y}
    best = minimize(lambda y: -f(means, np.asarray(z.x), y), np.zeros(3), constraints=[inside], tol=1e-14)
    np.testing.assert_allclose(got["value"], -best.fun, rtol=1e-7)


def test_distance(task, z):
    got = measure(metrics.Distance(Point(z.x + 3.0, z.y - 4.0)), task, z)
    np.testing.assert_allclose([got["x"], got["y"], got["total"]], [6.0, 4 * np.sqrt(3), np.sqrt(36 + 48)], rtol=1e-12)


def test_metrics_without_a_name_of_their_own_say_so():
    with pytest.raises(fm.InputError, match="Two metrics are called 'value'"):
        metrics.named([metrics.Value(), metrics.Value()])
    with pytest.raises(fm.InputError, match="is not a metric"):
        metrics.named([3])
