"""Convergence to exact solutions: linear systems and the WGAN's known answer, never a recorded number."""

from math import sqrt

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.problems.quadratic import saddle


@pytest.fixture
def task(x64):
    return fm.problems.quadratic(6, heterogeneity=1.0, seed=4)


def distance(result, point):
    return float(np.hypot(np.linalg.norm(result.x - point.x), np.linalg.norm(result.y - point.y)))


def solve(task, algorithm, rounds):
    return fm.run(task.problem, task.clients, algorithm, rounds=rounds, eval_every=rounds)


@pytest.mark.parametrize(
    "method",
    [
        fm.ParallelSGDA(0.1, 0.1),
        fm.SAGDA(0.02, 0.02, local_steps=5),
        fm.SAGDA(0.02, 0.02, local_steps=5, server_lr_x=0.5, server_lr_y=0.7),
        fm.LocalSGDA(0.1, 0.1, local_steps=1),
        fm.FessGDA(0.1, 0.1, local_steps=1, p=0.5, beta=0.5),
        fm.FedNormSGDA(0.1, 0.1, local_steps=1),
        fm.LocalSGDAPlus(0.05, 0.05, local_steps=1, snapshot_every=2),
        fm.SmoothedAGDA(0.1, 0.1, p=0.5, beta=0.5),
        fm.FedSGDAM(0.1, 0.1, alpha=0.3, beta=0.1, local_steps=1),
    ],
    ids=lambda m: f"{type(m).__name__}-{getattr(m, 'local_steps', 1)}",
)
def test_methods_without_drift_reach_the_saddle_with_constant_steps(task, method):
    assert distance(solve(task, method, 1500), task.solution) < 1e-10


@pytest.mark.parametrize("kind", [fm.LocalSGDA, fm.FSGDA, fm.FedNormSGDA, fm.FessGDA])
def test_uncorrected_methods_stop_at_a_distance_that_grows_with_k_lr(task, kind):
    gaps = [distance(solve(task, kind(0.02, 0.02, local_steps=k), 3000), task.solution) for k in (2, 4, 8)]
    assert gaps[0] > 1e-3, "drift must be visible"
    # to first order the drift is proportional to (K - 1) lr
    np.testing.assert_allclose([gaps[1] / gaps[0], gaps[2] / gaps[0]], [3.0, 7.0], rtol=0.35)
    halved = distance(solve(task, kind(0.01, 0.01, local_steps=8), 6000), task.solution)
    np.testing.assert_allclose(halved / gaps[2], 0.5, rtol=0.25)


def test_unequal_steps_move_local_sgda_to_the_reweighted_saddle_and_not_fed_norm_sgda(x64):
    """fed-norm-sgda.txt, Figure 1: tau = (2, 5, ...). The limits are compared as lr -> 0, where drift vanishes."""
    p = np.array([1.0, 1, 2, 2, 3, 3]) / 12
    task = fm.problems.quadratic(6, weights=p, seed=4)
    tau = np.array([2, 5, 2, 5, 2, 5])
    steps = fm.ClientSteps(tuple(tau))
    mismatched = saddle(task.clients, p * tau / (p * tau).sum())
    apart = np.linalg.norm(mismatched.x - task.solution.x)
    assert apart > 0.05

    def limit(kind):
        """Richardson extrapolation of the fixed point to lr = 0."""
        ends = [solve(task, kind(lr, lr, local_steps=steps), int(60 / lr)) for lr in (0.004, 0.002)]
        return [2 * np.asarray(b) - np.asarray(a) for a, b in zip(ends[0].state, ends[1].state, strict=True)]

    naive, normalised = limit(fm.LocalSGDA), limit(fm.FedNormSGDA)
    np.testing.assert_allclose(naive[0], mismatched.x, atol=apart * 2e-3)
    np.testing.assert_allclose(naive[1], mismatched.y, atol=apart * 2e-3)
    np.testing.assert_allclose(normalised[0], task.solution.x, atol=apart * 2e-3)
    np.testing.assert_allclose(normalised[1], task.solution.y, atol=apart * 2e-3)


@pytest.mark.parametrize("solver", [fm.Momentum(0.5), fm.Proximal(0.5)], ids=repr)
def test_normalisation_holds_for_other_solvers(x64, solver):
    task = fm.problems.quadratic(4, seed=4)
    steps = fm.ClientSteps((2, 5, 3, 6))
    end = lambda lr: solve(task, fm.FedNormSGDA(lr, lr, local_steps=steps, solver=solver), int(40 / lr))
    first, second = end(0.004), end(0.002)
    np.testing.assert_allclose(2 * second.x - first.x, task.solution.x, atol=2e-3)
    assert distance(second, task.solution) < 0.6 * distance(first, task.solution)


def test_one_point_concave_maxima_are_found_and_unequal_work_does_not_move_them(x64):
    """NC-1PC (fed-norm-sgda, Theorem 2 and Remark 5): from where Phi is concave and F not, to grad Phi = 0."""
    task = fm.problems.one_point_concave(4, weights=[1, 2, 3, 4], seed=2)
    assert distance(solve(task, fm.FessGDA(0.03, 0.2, local_steps=1, p=0.5, beta=0.5), 1500), task.solution) < 1e-9
    work = {"local_steps": fm.ClientSteps((1, 4, 2, 3)), "snapshot_every": 2}
    normalised = solve(task, fm.FedNormSGDAPlus(0.005, 0.05, **work), 3000)
    naive = solve(task, fm.LocalSGDAPlus(0.005, 0.05, **work), 3000)
    assert distance(normalised, task.solution) < 0.02
    assert distance(naive, task.solution) > 20 * distance(normalised, task.solution)


def test_constrained_saddle_satisfies_the_variational_inequality(task):
    """With y in a small ball the limit must be stationary: x-gradient zero, y fixed by its projected step."""
    problem = task.problem.replace(y_set=fm.sets.L2Ball(0.2))
    result = fm.run(problem, task.clients, fm.ParallelSGDA(0.1, 0.1), rounds=2000, metrics=fm.metrics.Stationarity(2.0))
    assert np.isclose(np.linalg.norm(result.y), 0.2)
    assert result.final()["stationarity/x"] < 1e-10
    assert result.final()["stationarity/y"] < 1e-10


def test_wgan_reaches_its_exact_solution(x64):
    task = fm.problems.wgan(0.01, examples=2000)
    method = fm.FessGDA(0.1, 0.1, p=1.0, beta=0.05, local_steps=10)
    result = solve(task, method, 2000)
    np.testing.assert_allclose(result.x, [0.0, 0.1], atol=1e-9)
    np.testing.assert_allclose(result.y, [0.0, 0.0], atol=1e-9)


def test_smoothing_is_what_makes_the_wgan_converge(x64):
    task = fm.problems.wgan(0.001, examples=2000)
    smooth = solve(task, fm.FessGDA(0.1, 0.1, p=1.0, beta=0.05, local_steps=10, batch_size=100), 1500)
    plain = solve(task, fm.FessGDA(0.1, 0.1, p=0.0, local_steps=10, batch_size=100), 1500)
    error = lambda r: (r.x[0]) ** 2 + (abs(r.x[1]) - 0.1) ** 2
    assert error(smooth) < 1e-6
    assert not error(plain) < 1e-2


def test_theory_steps_converge(x64):
    """The papers' step sizes are conservative: they must decrease the distance, and never diverge."""
    task = fm.problems.quadratic(4, heterogeneity=0.3, seed=5)
    start = float(np.hypot(np.linalg.norm(task.solution.x), np.linalg.norm(task.solution.y)))
    for method, rounds, factor in (
        (fm.ParallelSGDA.from_theory(L=4.0, mu=0.5), 20_000, 0.5),
        (fm.FessGDA.from_theory(L=4.0, mu=0.5, mu_x=0.5, local_steps=2), 100_000, 0.9),
        (fm.FessGDA.from_theory(L=4.0, mu=0.5, local_steps=2), 20_000, 0.999),
        (fm.FedNormSGDA.from_theory(L=4.0, mu=0.5, clients=4, local_steps=3), 100_000, 0.95),
    ):
        assert distance(solve(task, method, rounds), task.solution) < factor * start, method


def fess_by_hand(l, K, beta_of, sigma=0.0, m=1, T=1, delta=1.0, partial=False):
    """Appendices D, F and H written out: (eta_x, eta_y, p, beta, eta_{x,l}, eta_{y,l}), without the terms in O(.)."""
    eta_x = 1 / (1000 * K * l)
    if sigma:
        bound = sqrt(m * delta) / (sigma * sqrt(T * l) * K) if partial else sqrt(m * delta) / (sigma * sqrt(K * T * l))
        eta_x = min(eta_x, bound)
    eta_y, p = eta_x / 256, 2 * l
    beta = beta_of(eta_y, p)
    drift = 1 / (2 * l * sqrt(2 * (2 * K - 1) * (K - 1)))
    lr_x = min(drift, sqrt(beta / (6144 * eta_x * p * l**2 * K**3)))
    return eta_x, eta_y, p, beta, lr_x, min(drift, sqrt(eta_y / (3072 * eta_x * l**2 * K**2)))


def steps_of(method):
    return (
        method.lr_x * method.server_lr_x, method.lr_y * method.server_lr_y, method.p, method.beta, method.lr_x, method.lr_y
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "beta_of"),
    [
        ({"mu": 0.5}, lambda eta_y, p: eta_y * 4 * 0.5 / 80000),  # Theorem 3.1
        ({"epsilon": 0.1, "diameter": 3.0}, lambda eta_y, p: eta_y * 4 * 0.1**2 / (80000 * 3.0)),  # Theorem 3.2
        ({"maximum": True}, lambda eta_y, p: eta_y * 4 * 2.0 / 80000),  # Theorem 3.4, where H.1's constants do not bind
        ({"maximum": True, "gamma": 1e9}, lambda eta_y, p: 1 / (6144 * p * eta_y * 4 * 1e9**2)),
    ],
    ids=["3.1", "3.2", "3.4", "3.4-gamma"],
)
def test_theory_steps_are_the_papers(given, beta_of):
    """Every constant of Theorems 3.1, 3.2 and 3.4: changed, it changes a number that is compared here."""
    l, K = 2.0, 4
    quiet = fm.FessGDA.from_theory(l, **given, local_steps=K)
    np.testing.assert_allclose(steps_of(quiet), fess_by_hand(l, K, beta_of), rtol=1e-12)
    noise = {"sigma": 5000.0, "rounds": 700, "gap": 3.0, "cohort_size": 5}
    for clients in (None, 5, 6):
        loud = fm.FessGDA.from_theory(l, **given, local_steps=K, clients=clients, **noise)
        expected = fess_by_hand(l, K, beta_of, sigma=5000.0, m=5, T=700, delta=3.0, partial=clients == 6)
        assert expected[0] < 0.9 / (1000 * K * l), "the noise must bind"
        np.testing.assert_allclose(steps_of(loud), expected, rtol=1e-12)
    few = {**noise, "sigma": 1e-9}
    np.testing.assert_allclose(steps_of(fm.FessGDA.from_theory(l, **given, local_steps=K, **few)), steps_of(quiet), rtol=1e-12)
    assert (quiet.local_steps, loud.local_steps, loud.cohort_size) == (4, 4, 5)


def test_the_drift_bound_holds_where_it_is_the_smaller_one():
    """With constants that a function can have it never is: the other bound on eta_{x,l} is 0.285 sqrt(beta) / lK."""
    l, K = 2.0, 100
    method = fm.FessGDA.from_theory(l, 4e10, local_steps=K)
    np.testing.assert_allclose(method.lr_x, 1 / (2 * l * sqrt(2 * 199 * 99)), rtol=1e-12)
    one = fm.FessGDA.from_theory(l, 0.5, local_steps=1)  # K = 1: no drift, and no division by zero
    np.testing.assert_allclose(one.lr_x, sqrt(one.beta / (6144 * 1 / 2000 * 4 * 4)), rtol=1e-12)


@pytest.mark.parametrize(("mu_x", "mu"), [(1.0, 0.5), (0.25, 0.5)])
def test_theory_steps_of_theorem_3_5_are_the_papers(mu_x, mu):
    l, K = 2.0, 4
    fast, drift = 1 / (4 * l * K), 1 / (2 * l * sqrt(2 * (2 * K - 1) * (K - 1)))
    slow = fast * min(mu, mu_x) ** 2 / (64 * l**2)
    local_slow, local_fast = min(drift, sqrt(slow / (1536 * fast * l**2 * K**2))), min(drift, sqrt(1 / (1536 * l**2 * K**2)))
    x, y = ((slow, local_slow), (fast, local_fast)) if mu_x >= mu else ((fast, local_fast), (slow, local_slow))
    method = fm.FessGDA.from_theory(l, mu, mu_x=mu_x, local_steps=K)
    np.testing.assert_allclose(steps_of(method), (x[0], y[0], 0.0, 0.0, x[1], y[1]), rtol=1e-12)


def test_theory_asks_for_what_it_needs():
    with pytest.raises(fm.InputError, match="needs mu, or epsilon"):
        fm.FessGDA.from_theory(L=2.0)
    with pytest.raises(fm.InputError, match="leave out mu"):
        fm.FessGDA.from_theory(L=2.0, mu=0.5, maximum=True)
    with pytest.raises(fm.InputError, match="gamma with maximum"):
        fm.FessGDA.from_theory(L=2.0, mu=0.5, gamma=1.0)
