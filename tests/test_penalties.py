"""Penalties on the clients' weights: maximisers and proximal steps against generic solvers and optimality conditions."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import fedminimax as fm
from fedminimax import penalties
from fedminimax.penalties import Agnostic, ChiSquare, CVaR, Penalty, QFair

ALL = [
    ChiSquare(0.0),
    ChiSquare(0.05),
    ChiSquare(10.0),
    Agnostic(),
    CVaR(0.3),
    CVaR(1.0),
    QFair(0.2),
    QFair(1.0),
    QFair(5.0),
]
each = pytest.mark.parametrize("penalty", ALL, ids=repr)


@pytest.fixture(autouse=True)
def _double(x64):
    return None


def hard(rng, rows, n):
    """Losses of every kind that is hard: ties, zeros, huge and tiny values, one that leads."""
    noise = rng.normal(size=(rows, n))
    lead = np.abs(noise)
    lead[:, 0] += 50
    return np.concatenate(
        [
            noise,
            np.abs(noise),
            rng.integers(0, 3, size=(rows, n)) * 0.5,  # ties
            np.zeros((2, n)),
            np.repeat(np.abs(noise[:, :1]), n, axis=1),
            1e6 * np.abs(noise),
            1e6 + np.abs(noise),
            1e-8 * np.abs(noise),
            lead,
        ]
    )


def in_set(penalty, w, tol=1e-12):
    return bool(penalty.set(len(w)).contains(jnp.asarray(w), tol=tol))


def gradient(penalty, w):
    return np.asarray(jax.grad(lambda w: penalty.value(w))(jnp.asarray(w)))


@each
def test_prox_satisfies_its_optimality_condition_on_thousands_of_inputs(penalty):
    """u = prox is optimal over W if and only if u = P_W(u - step * gradient at u): checked relative to the gradient's size."""
    rng = np.random.default_rng(0)
    prox = jax.jit(jax.vmap(penalty.prox))
    for n in (1, 2, 30):
        slopes = hard(rng, 60, n)
        w = np.asarray(jax.vmap(penalty.set(n).project)(jnp.asarray(rng.dirichlet(np.full(n, 0.3), size=len(slopes)))))
        sigma = 10.0 ** rng.uniform(-3, 3, size=len(slopes))
        u = np.asarray(prox(w, slopes, sigma))
        assert np.isfinite(u).all()
        # The gradient's terms, times sigma: what is left of them must lie in W's normal cone.
        slope_of_psi = np.asarray(jax.vmap(jax.grad(penalty.value))(jnp.asarray(u)))
        left = -(sigma[:, None] * (slope_of_psi - slopes) + (u - w))
        size = np.abs(sigma[:, None] * slopes).max(axis=1) + np.abs(sigma[:, None] * slope_of_psi).max(axis=1) + 1
        step = 1 / (1 + size)  # short enough for the test to be exact in floating point
        moved = np.asarray(jax.vmap(penalty.set(n).project)(jnp.asarray(u + step[:, None] * left)))
        assert np.abs(moved - u).max() <= 1e-12 * max(1.0, np.abs(u).max()), n
        assert np.asarray(jax.vmap(lambda v, n=n: penalty.set(n).contains(v, tol=1e-12))(jnp.asarray(u))).all()


@each
def test_prox_agrees_with_a_generic_solver(penalty):
    rng = np.random.default_rng(1)
    n = 5

    @jax.jit
    def value(u, w, s, sigma):
        return penalty.value(u) - s @ u + jnp.sum((u - w) ** 2) / (2 * sigma)

    for _ in range(25):
        w = rng.dirichlet(np.ones(n))
        w = np.asarray(penalty.set(n).project(jnp.asarray(w)))
        s, sigma = rng.uniform(0, 2, size=n), 10.0 ** rng.uniform(-1, 1)
        found = _minimise(penalty, value, w, (w, s, sigma))
        exact = np.asarray(penalty.prox(jnp.asarray(w), jnp.asarray(s), sigma))
        assert float(value(exact, w, s, sigma)) <= float(value(found, w, s, sigma)) + 1e-12
        np.testing.assert_allclose(exact, found, atol=2e-4)


@each
def test_the_maximiser_agrees_with_a_generic_solver_and_beats_every_other_point(penalty):
    rng = np.random.default_rng(2)
    n = 6
    for losses in hard(rng, 3, n):
        if isinstance(penalty, QFair) and losses.max() > 1e3:
            continue  # the objective itself overflows a comparison there
        w = np.asarray(penalty.maximize(jnp.asarray(losses)))
        assert in_set(penalty, w)
        value = jax.vmap(lambda w, losses=losses: losses @ w - penalty.value(w))
        best = float(value(jnp.asarray(w)[None])[0])
        others = jax.vmap(penalty.set(n).project)(jnp.asarray(rng.dirichlet(np.full(n, 0.5), size=50)))
        assert float(value(others).max()) <= best + 1e-9 * max(1.0, abs(best))
        # a tiny proximal step from the maximiser stays there
        again = np.asarray(penalty.prox(jnp.asarray(w), jnp.asarray(losses), 1e-3))
        np.testing.assert_allclose(again, w, atol=1e-9 * max(1.0, np.abs(w).max()))


def _minimise(penalty, value, start, rest):
    slope = jax.grad(value)
    n = len(start)
    free = isinstance(penalty, QFair)
    cap = 1 / (penalty.alpha * n) if isinstance(penalty, CVaR) else None
    constraints = [] if free else [{"type": "eq", "fun": lambda u: u.sum() - 1, "jac": lambda u: np.ones(n)}]
    out = scipy.optimize.minimize(
        lambda u: float(value(u, *rest)),
        np.maximum(start, 1e-3) if free else start,
        jac=lambda u: np.asarray(slope(u, *rest)),
        bounds=[(0, cap)] * n,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 2000},
    )
    u = np.asarray(penalty.set(n).project(jnp.asarray(out.x)))
    return u


def test_strong_concavity_is_the_least_curvature():
    rng = np.random.default_rng(3)
    n = 6
    for penalty in ALL:
        mu = penalty.strong_concavity(n)
        for _ in range(20):
            a, b = rng.dirichlet(np.ones(n), size=2)
            a, b = (np.asarray(penalty.set(n).project(jnp.asarray(v))) for v in (a, b))
            below = float(penalty.value(jnp.asarray(a))) + gradient(penalty, a) @ (b - a) + mu / 2 * np.sum((b - a) ** 2)
            assert float(penalty.value(jnp.asarray(b))) >= below - 1e-12
    assert ChiSquare(0.3).strong_concavity(6) == pytest.approx(1.8)
    hessian = jax.hessian(ChiSquare(0.3).value)(jnp.full(6, 1 / 6))
    np.testing.assert_allclose(hessian, 1.8 * np.eye(6), atol=1e-12)


def test_limits_of_the_penalties():
    losses = jnp.array([0.3, 0.1, 0.7, 0.2])
    np.testing.assert_allclose(ChiSquare(1e9).maximize(losses), 0.25, atol=1e-8)
    np.testing.assert_array_equal(ChiSquare(0.0).maximize(losses), Agnostic().maximize(losses))
    np.testing.assert_allclose(CVaR(1.0).maximize(losses), 0.25)
    np.testing.assert_array_equal(CVaR(0.25).maximize(losses), Agnostic().maximize(losses))
    step = (jnp.full(4, 0.25), losses, 0.5)
    np.testing.assert_allclose(ChiSquare(0.0).prox(*step), Agnostic().prox(*step))
    np.testing.assert_allclose(CVaR(1.0).prox(*step), 0.25)


def test_q_fair_is_the_sum_of_powers():
    """max_w <f, w> - sum w^(1+1/q) is, but for a constant, sum f^(1+q)."""
    for q in (0.5, 1.0, 3.0):
        penalty = QFair(q)
        best = lambda f, penalty=penalty: f @ penalty.maximize(f) - penalty.value(penalty.maximize(f))
        f, g = jnp.array([0.3, 1.2, 0.7]), jnp.array([2.0, 0.1, 0.4])
        np.testing.assert_allclose(best(f) / best(g), jnp.sum(f ** (1 + q)) / jnp.sum(g ** (1 + q)))


def test_bad_parameters_are_refused():
    for make in (lambda: ChiSquare(-1), lambda: CVaR(0), lambda: CVaR(1.5), lambda: QFair(0), lambda: ChiSquare(float("nan"))):
        with pytest.raises(fm.InputError, match="must be"):
            make()


def test_a_penalty_of_ones_own_runs_everywhere():
    """Entropy around equal weights: nothing but the five methods."""

    class Entropy(Penalty):
        def value(self, w):
            return 0.1 * jnp.sum(jax.scipy.special.xlogy(w, w * w.shape[0]))

        def set(self, count):
            return fm.sets.Simplex(count)

        def strong_concavity(self, count):
            return 0.1

        def maximize(self, losses):
            return jax.nn.softmax(losses / 0.1)

        def prox(self, w, slope, sigma):
            # mirror-like inner loop: projected gradient to convergence
            step = 0.5 * sigma / (1 + sigma)
            slope_of = lambda u: 0.1 * (jnp.log(jnp.maximum(u, 1e-12) * w.shape[0]) + 1) - slope + (u - w) / sigma
            body = lambda _, u: fm.sets.Simplex().project(u - step * 0.2 * slope_of(u))
            return jax.lax.fori_loop(0, 2000, body, jnp.full_like(w, 1 / w.shape[0]))

    task = fm.problems.robust_regression(4, 3, 20, sigma=0.5)
    problem = task.problem.replace(penalty=Entropy())
    result = fm.run(problem, task.clients, fm.ScaffPD(0.1, 0.5, local_steps=2), rounds=150, metrics=fm.metrics.Phi())
    losses = problem.losses(jnp.asarray(result.x), task.clients)
    np.testing.assert_allclose(result.w, Entropy().maximize(losses), atol=1e-4)
    assert result.final()["phi/grad"] < 1e-4


def test_doctest():
    with jax.enable_x64(False):
        assert doctest.testmod(penalties).failed == 0
