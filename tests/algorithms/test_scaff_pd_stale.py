"""SCAFF-PD with silos that are away: its box by hand, the identity with ScaffPD, its fixed point, and the exact solution."""

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.algorithms.scaff_pd_stale import ScaffPDStaleState

N, DIM, K, RHO = 5, 4, 3, 0.2
HALF = fm.Availability(0.5)  # of those that report, half send their variate, and of these half their update


@pytest.fixture
def task(x64):
    return fm.problems.robust_regression(N, DIM, 8, rho=RHO, sigma=0.5, seed=2)


def go(task, method, rounds, problem=None, **options):
    options = {"eval_every": rounds, **options}
    return fm.run(problem or task.problem, task.clients, method, rounds=rounds, seed=7, **options)


def close(a, b, tol=1e-12):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tol, atol=tol)


@pytest.mark.parametrize("penalty", [fm.ChiSquare(RHO), fm.QFair(1.0)], ids=repr)
def test_with_everybody_there_it_is_scaff_pd(task, penalty):
    """On the simplex, and where weights do not sum to one; on minibatches, and with the steps of Condition 5.1."""
    problem = task.problem.replace(penalty=penalty, x_set=fm.sets.L2Ball(0.3))
    settings = {"theta": 0.9, "mu_x": 0.4, "local_steps": K, "batch_size": 4, "report_size": 6}
    stale, full = (go(task, kind(0.1, 0.3, **settings), 8, problem) for kind in (fm.ScaffPDStale, fm.ScaffPD))
    close(stale.x, full.x)
    close(stale.w, full.w)
    for part in ("losses", "growth", "ratio"):
        close(getattr(stale.state, part), getattr(full.state, part))


def losses_and_gradients(task, x):
    """The clients' losses and gradients at one point, or each at its own, in NumPy."""
    rows = [(np.asarray(c["inputs"]), np.asarray(c["labels"]), u) for c, u in zip(task.clients, x, strict=True)]
    losses = np.array([np.mean((a @ u - b) ** 2) + 0.05 * u @ u for a, b, u in rows])
    return losses, np.array([2 * a.T @ (a @ u - b) / len(b) + 0.1 * u for a, b, u in rows])


def chi_prox(w, s, sigma):
    """Shift, then project on the simplex by sorting."""
    v = (w + sigma * s + sigma * RHO) / (1 + sigma * RHO * N)
    u = np.sort(v)[::-1]
    k = np.flatnonzero(u - (np.cumsum(u) - 1) / np.arange(1, N + 1) > 0)[-1]
    return np.maximum(v - (np.cumsum(u)[k] - 1) / (k + 1), 0)


def test_it_is_its_box(task):
    """From who answered which of the three requests: at first there are clients that were never heard, and nights of nobody."""
    tau, sigma, theta, lr, rounds = 0.1, 0.3, 0.9, 0.02, 14
    method = fm.ScaffPDStale(tau, sigma, theta, lr_x=lr, local_steps=K)
    nights = fm.Availability(0.5, wave=fm.Wave(1.0, period=8, phase=0.0))
    result = go(task, method, rounds, record=True, availability=nights)
    x, w, v, f, known = np.zeros(DIM), np.full(N, 1 / N), np.zeros((N, DIM)), np.zeros(N), np.zeros(N, bool)
    first, second, third = (np.asarray(answers) for answers in result.trace.answers)
    began = False
    for reports, changes, updates in zip(first, second, third, strict=True):
        if not reports.any():
            continue
        now, c = losses_and_gradients(task, [x] * N)
        new = np.where(reports, now, f)
        s = new + (theta if began else 0) * (new - np.where(known, f, new))
        known, f, began = known | reports, new, True
        s[~known] = s[known].mean()
        w = chi_prox(w, s, sigma)
        v[changes] = w[changes, None] * c[changes]
        u = np.tile(x, (N, 1))
        for _ in range(K):
            u = u - lr * (losses_and_gradients(task, u)[1] - c + v.sum(axis=0))
        if w[updates].sum() > 0:
            x = x - tau * np.average(x - u[updates], axis=0, weights=w[updates]) / (lr * K)
    assert 0 < first[0].sum() < N
    assert not first[6].any()
    assert first.sum() > second.sum() > third.sum() > 0
    close(result.x, x)
    close(result.w, w)
    close(result.client_states, v)
    close(result.state.x_variate, v.sum(axis=0))
    close(result.state.losses, f)
    assert (result.state.known == known).all()
    assert (result.costs["floats_up_x"] == DIM * (second.sum(axis=1) + third.sum(axis=1))).all(), "a change, and an update"


def test_the_solution_is_a_fixed_point_whoever_answers(task):
    x, w = task.solution
    losses, gradients = losses_and_gradients(task, [x] * N)
    own = np.asarray(w)[:, None] * gradients
    one = np.ones(())
    state = ScaffPDStaleState(x, w, own.sum(axis=0), losses, np.ones(N, bool), one, one)
    result = go(task, fm.ScaffPDStale(0.3, 1.0, local_steps=K), 20, start=fm.Snapshot(state, own), availability=HALF)
    assert result.costs["replies"].sum() > 0
    close(result.x, x, 1e-11)
    close(result.w, w, 1e-11)
    close(result.client_states, own, 1e-11)


@pytest.mark.parametrize("availability", [HALF, fm.Availability(0.5, vanish=0.0)], ids=["three draws", "one draw"])
def test_half_of_the_silos_are_enough_for_the_exact_solution(x64, availability):
    """Linearly, where ScaffPD stops at a distance."""
    task = fm.problems.robust_regression()
    conditions = {"availability": availability, "metrics": fm.metrics.Distance(task.solution), "eval_every": 10}
    stale, full = (
        go(task, kind(0.2, 0.3, local_steps=10), 400, **conditions).history for kind in (fm.ScaffPDStale, fm.ScaffPD)
    )
    assert stale["distance/x"][-1] < 1e-12
    assert stale["distance/y"][-1] < 1e-12
    assert full["distance/x"][-10:].min() > 1e-2
    way = np.log(stale["distance/x"])
    way = way[(way > np.log(1e-12)) & (np.arange(len(way)) > 0)]
    assert np.corrcoef(np.arange(len(way)), way)[0, 1] < -0.98, "the logarithm falls by about the same amount every round"
