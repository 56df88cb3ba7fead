"""Convergence to exact solutions: linear systems and the WGAN's known answer, never a recorded number."""

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


def test_theory_steps_are_the_papers():
    method = fm.FessGDA.from_theory(L=2.0, mu=0.5, local_steps=4)
    eta_x, eta_y = method.lr_x * method.server_lr_x, method.lr_y * method.server_lr_y
    np.testing.assert_allclose([eta_x, eta_y / eta_x, method.p], [1 / (1000 * 4 * 2), 1 / 256, 4.0])
    np.testing.assert_allclose(method.beta, eta_y * 4 * 0.5 / 80000)
    assert method.lr_x <= 1 / (2 * 2 * np.sqrt(2 * 7 * 3))
    concave = fm.FessGDA.from_theory(L=2.0, epsilon=0.1, diameter=3.0, local_steps=4)
    np.testing.assert_allclose(concave.beta, eta_y * 4 * 0.01 / (80000 * 3))
    both = fm.FessGDA.from_theory(L=2.0, mu=0.5, mu_x=1.0, local_steps=4)
    np.testing.assert_allclose(both.lr_y * both.server_lr_y, 1 / (4 * 2 * 4))
    np.testing.assert_allclose(both.lr_x * both.server_lr_x, 1 / (4 * 2 * 4) * 0.25 / (64 * 4))
    assert both.p == 0
    with pytest.raises(fm.InputError, match="needs mu, or epsilon"):
        fm.FessGDA.from_theory(L=2.0)
