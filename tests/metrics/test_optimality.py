"""Measures of optimality against closed forms: for quadratics everything has one."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.metrics.proximal import proximal_point
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
    got = measure(metrics.MoreauGradient(l, tol=1e-12), task, z)
    np.testing.assert_allclose(got["grad"], 2 * l * np.linalg.norm(z.x - near), rtol=1e-6)
    assert abs(got["grad"] - 2 * l * np.linalg.norm(z.x - near)) <= got["error"]
    assert 0 <= got["gap"] < 1e-10
    np.testing.assert_allclose(got["error"], np.sqrt(8 * l * got["gap"]), rtol=1e-12)


def test_the_gap_bounds_the_error_also_where_the_inner_problem_is_not_solved(task, means, z):
    """With too few steps in u a time, the residual that is left must be in the gap."""
    l, x = 0.2, np.asarray(z.x)
    value = lambda u: f(means, u, best_y(means, u)) + l * np.sum((u - x) ** 2)
    H = means["A"] + means["B"] @ np.linalg.solve(means["C"], means["B"].T)
    h = means["a"] + means["B"] @ np.linalg.solve(means["C"], means["b"])
    least = value(np.linalg.solve(H + 2 * l * np.eye(4), 2 * l * x - h))
    solve = lambda x, y: proximal_point(task.problem, task.clients, x, y, l, 1e-12, 40, inner_steps=5)
    near = jax.jit(solve)(z.x, z.y)
    up = best_y(means, np.asarray(near.u))
    alone = f(means, near.u, up) - f(means, near.u, near.y)  # what the max player could still gain
    above = value(np.asarray(near.u)) - least
    assert alone < above <= near.gap < np.inf


# -- the envelope of a maximum with kinks --------------------------------------------------------------------------------


def linear_maximum(count, dim, seed=0, x_set=None):
    """max_j a_j'x + b_j over two clients that hold unlike halves of the slopes."""
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(count, dim)), rng.normal(size=count)
    apart = rng.normal(size=(count, dim))
    clients = fm.ClientData.equal({"A": np.stack([A + apart, A - apart]), "b": np.stack([b, b])}, 2)
    losses = lambda x, batch: jnp.mean(batch["A"] @ x + batch["b"], axis=0)
    return fm.problems.pointwise_maximum(losses, jnp.zeros(dim), count, x_set=x_set), clients, A, b


def envelope_by_dual_qp(A, b, x, l):
    """2l ||x - x+|| from max_y y'(Ax + b) - ||A'y||^2 / 4l on the simplex, by a generic solver, and that point's own gap."""
    from scipy.optimize import minimize

    Q, c = A @ A.T / (2 * l), A @ x + b
    best = minimize(
        lambda y: y @ Q @ y / 2 - c @ y,
        np.full(len(b), 1 / len(b)),
        jac=lambda y: Q @ y - c,
        bounds=[(0, None)] * len(b),
        constraints=[{"type": "eq", "fun": lambda y: y.sum() - 1, "jac": np.ones_like}],
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 500},
    )
    u = x - A.T @ best.x / (2 * l)
    return 2 * l * np.linalg.norm(x - u), (A @ u + b).max() - best.x @ (A @ u + b)


@pytest.mark.parametrize(("count", "dim", "exact"), [(12, 4, True), (6, 9, False)])
def test_the_envelope_of_a_maximum_of_linear_functions(x64, count, dim, exact):
    """Phi has kinks, at which descent on Phi stands still too early. Several centers and l at once, by vmap."""
    problem, clients, A, b = linear_maximum(count, dim)
    problem = problem if exact else problem.replace(best_response=None)  # then the gap is the bounded set's
    xs = np.random.default_rng(1).normal(size=(4, dim))
    ls = np.linalg.norm(A, 2) * np.array([1.0, 1.0, 0.2, 0.05])
    at = lambda x, l: metrics.MoreauGradient(l)(problem, clients, Point(x, problem.y0))
    got = jax.jit(jax.vmap(at))(xs, ls)
    for k in range(4):
        reference, gap = envelope_by_dual_qp(A, b, xs[k], ls[k])
        assert abs(gap) < 1e-7, "the reference is not solved"
        assert 0 <= got["gap"][k] < 1e-7
        np.testing.assert_allclose(got["grad"][k], reference, rtol=1e-6)
        assert abs(got["grad"][k] - reference) <= got["error"][k] + np.sqrt(8 * ls[k] * abs(gap))


def test_the_envelope_in_float32_and_on_a_set():
    """In float32 the default tolerance is what the arithmetic allows; with X a ball the problem is solved on X."""
    from scipy.optimize import minimize

    problem, clients, A, b = linear_maximum(5, 3, seed=3, x_set=fm.sets.L2Ball(0.5))
    x, l = np.array([0.3, -0.2, 0.1], np.float32), 0.3
    got = jax.jit(lambda x: metrics.MoreauGradient(l)(problem, clients, Point(x, problem.y0)))(x)
    below = {"type": "ineq", "fun": lambda v: v[3] - A @ v[:3] - b}
    inside = {"type": "ineq", "fun": lambda v: 0.25 - v[:3] @ v[:3]}
    best = minimize(lambda v: v[3] + l * np.sum((v[:3] - x) ** 2), np.zeros(4), constraints=[below, inside], tol=1e-12)
    assert 0.25 - best.x[:3] @ best.x[:3] < 1e-6, "the ball must bind"
    assert got["grad"].dtype == np.float32
    np.testing.assert_allclose(got["grad"], 2 * l * np.linalg.norm(best.x[:3] - x), rtol=1e-3)
    assert 0 <= got["gap"] < 1e-4


def test_the_envelope_of_fair_classification_matches_a_generic_solver(x64):
    """After some training the classes' losses are equal: x+ is on a kink. min t + l ||u - x||^2 with F_c(u) <= t, by SLSQP."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [14, 8, 5])
    fields = {"inputs": rng.normal(size=(27, 2)) + labels[:, None], "labels": labels.astype(np.int32)}
    order = rng.permutation(27)
    clients = fm.ClientData.equal({k: v[order] for k, v in fields.items()}, 3)
    problem = fm.problems.fair_classification(fm.models.Logistic(3), clients, 3)
    flat, unflatten = jax.flatten_util.ravel_pytree(problem.x0)
    owner = np.asarray(clients.fields["labels"])

    @jax.jit
    def classes(v):
        scores = jax.nn.log_softmax(problem.predict(unflatten(v), jnp.asarray(clients.fields["inputs"])))
        chosen = -scores[jnp.arange(27), owner]
        return jnp.stack([jnp.mean(chosen[owner == c]) for c in range(3)])

    slopes, x = jax.jit(jax.jacobian(classes)), np.asarray(flat)
    for _ in range(60):  # train on the worst class
        x = x - 0.05 * np.asarray(slopes(x))[int(np.argmax(classes(x)))]
    envelope = jax.jit(lambda x, l: metrics.MoreauGradient(l)(problem, clients, Point(unflatten(x), problem.y0)))
    for l in (10.0, 2.0):
        below = {
            "type": "ineq",
            "fun": lambda v: v[-1] - np.asarray(classes(v[:-1])),
            "jac": lambda v: np.hstack([-np.asarray(slopes(v[:-1])), np.ones((3, 1))]),
        }
        best = minimize(
            lambda v, l=l: v[-1] + l * np.sum((v[:-1] - x) ** 2),
            np.append(x, float(jnp.max(classes(x)))),
            jac=lambda v, l=l: np.append(2 * l * (v[:-1] - x), 1.0),
            constraints=[below],
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 500},
        )
        equal = np.sort(np.asarray(classes(best.x[:-1])))
        assert equal[2] - equal[1] < 1e-7, "x+ must be on a kink"
        got = envelope(x, l)
        assert 0 <= got["gap"] < 1e-7
        np.testing.assert_allclose(got["grad"], 2 * l * np.linalg.norm(best.x[:-1] - x), rtol=1e-4)


def test_an_envelope_that_was_not_solved_is_not_a_number(x64):
    """Too few steps, or l below the weak convexity (then nothing bounds the minimum): NaN, with the gap beside it."""
    problem, clients, A, _ = linear_maximum(12, 4)
    x, l = np.random.default_rng(1).normal(size=4), 0.05 * np.linalg.norm(A, 2)
    short = metrics.MoreauGradient(l, max_steps=12)(problem, clients, Point(x, problem.y0))
    assert np.isnan(short["grad"])
    assert 1e-8 < short["gap"] < np.inf
    assert metrics.MoreauGradient(l, tol=10.0, max_steps=12)(problem, clients, Point(x, problem.y0))["grad"] > 0
    task = fm.problems.maximum_of_quadratics(3, dim_x=3, active=2, inactive=1, seed=1)
    weak, start = task.info["weak_convexity"], task.problem.start
    envelope = jax.jit(lambda l: metrics.MoreauGradient(l)(task.problem, task.clients, start))
    enough, little = envelope(1.01 * weak), envelope(0.4 * weak)
    assert np.isfinite(enough["grad"])
    assert enough["gap"] < 1e-7
    assert np.isnan(little["grad"])
    assert np.isinf(little["gap"])


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
