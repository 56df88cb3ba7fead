"""CD-MA, CD-MAGE, CD-MAGE+ and their rivals: identities, exact solutions, and each box written out in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.problems.quadratic import client_means, saddle

LOCAL = {"lr_x": 0.03, "lr_y": 0.05, "local_steps": 4, "batch_size": 3, "cohort_size": 4}
FULL = {"lr_x": 0.02, "lr_y": 0.02, "local_steps": 5}


@pytest.fixture
def task(x64):
    return fm.problems.quadratic(6, examples=8, noise=0.4, seed=1)


def go(task, algorithm, rounds=5, **options):
    fixed = {"seed": 7, "engine": fm.Simulator("vmap", 1), "eval_every": rounds}
    return fm.run(task.problem, task.clients, algorithm, rounds=rounds, **{**fixed, **options})


def same(a, b, tolerance=1e-12):
    for p, q in zip(jax.tree.leaves((a.x, a.y)), jax.tree.leaves((b.x, b.y)), strict=True):
        np.testing.assert_allclose(p, q, rtol=tolerance, atol=tolerance)


def differ(a, b):
    assert np.abs(a.x - b.x).max() > 1e-5


def distance(task, result):
    return float(np.hypot(np.linalg.norm(result.x - task.solution.x), np.linalg.norm(result.y - task.solution.y)))


def gradients(task, x, y):
    """Return every client's full gradient at (x, y), [N, dim], from the matrices."""
    m = client_means(task.clients)
    gx = np.einsum("nij,j->ni", m["A"], x) + np.einsum("nij,j->ni", m["B"], y) + m["a"]
    gy = np.einsum("nji,j->ni", m["B"], x) - np.einsum("nij,j->ni", m["C"], y) + m["b"]
    return gx, gy


# -- identities --------------------------------------------------------------------------------------------------------


def test_cd_ma_is_local_sgda_where_p_is_uniform(task):
    same(go(task, fm.CDMA(**LOCAL)), go(task, fm.LocalSGDA(**LOCAL)))


def test_cd_mage_with_one_step_is_parallel_sgda_on_the_first_cohort(task):
    one = {**LOCAL, "local_steps": 1}
    recorded = go(task, fm.CDMAGE(**one), record=True)
    first = fm.Trace(cohorts=recorded.trace.cohorts[:1])
    parallel = fm.ParallelSGDA(0.03, 0.05, cohort_size=4)
    same(recorded, go(task, parallel, trace=first))
    # whoever is in the second cohort
    others = tuple((np.asarray(c) + k) % 6 for k, c in enumerate(recorded.trace.cohorts))
    same(recorded, go(task, fm.CDMAGE(**one), trace=fm.Trace(cohorts=others)))
    same(go(task, fm.CDMAGE(**one, ) .replace(cohort_size=None)), go(task, parallel.replace(cohort_size=None)))  # fmt: skip


def test_cd_mage_plus_with_alpha_one_is_cd_mage(task):
    same(go(task, fm.CDMAGEPlus(**LOCAL, alpha=1.0)), go(task, fm.CDMAGE(**LOCAL)))
    same(go(task, fm.CDMAGEPlus(**LOCAL, alpha=7.0)), go(task, fm.CDMAGE(**LOCAL)))  # cut at one
    differ(go(task, fm.CDMAGEPlus(**LOCAL, alpha=0.3)), go(task, fm.CDMAGE(**LOCAL)))


def test_cd_mage_plus_with_everybody_is_cd_mage_for_any_alpha(task):
    everybody = {**LOCAL, "cohort_size": None}
    same(go(task, fm.CDMAGEPlus(**everybody, alpha=0.3)), go(task, fm.CDMAGE(**everybody)))


def test_coda_plus_without_its_term_is_local_sgda(task):
    same(go(task, fm.CODAPlus(**LOCAL, theta=0.0)), go(task, fm.LocalSGDA(**LOCAL)))
    differ(go(task, fm.CODAPlus(**LOCAL, theta=5.0)), go(task, fm.LocalSGDA(**LOCAL)))


def test_one_cohort_for_both_phases_is_everybody_where_there_are_no_others(task):
    everybody = {**LOCAL, "cohort_size": None, "batch_size": None}
    same(go(task, fm.CDMAGEPlus(**everybody, same_cohort=True, alpha=0.3)), go(task, fm.CDMAGE(**everybody)))


def test_catalyst_scaffold_that_keeps_nothing_with_one_step_is_parallel_sgda(task):
    one = {**LOCAL, "local_steps": 1}
    recorded = go(task, fm.CatalystScaffoldS(**one), record=True)
    assert recorded.client_states is None
    same(recorded, go(task, fm.ParallelSGDA(0.03, 0.05, cohort_size=4), trace=fm.Trace(cohorts=recorded.trace.cohorts)))


def test_codasca_in_its_first_round_is_coda_plus(task):
    # From c = c_i = 0 there is nothing to correct by yet.
    same(go(task, fm.CODASCA(**LOCAL, theta=0.5), rounds=1), go(task, fm.CODAPlus(**LOCAL, theta=0.5), rounds=1))
    differ(go(task, fm.CODASCA(**LOCAL, theta=0.5), rounds=2), go(task, fm.CODAPlus(**LOCAL, theta=0.5), rounds=2))


def test_catalyst_scaffold_with_k_steps_each_time_is_codasca(task):
    recorded = go(task, fm.CODASCA(**LOCAL, theta=0.5, restart_every=9), record=True)
    coins = dataclasses.replace(recorded.trace, draws={"steps": np.full(5, 4, np.int32)})
    method = fm.CatalystScaffoldS(**LOCAL, theta=0.5, restart_every=9, keep="clients")
    # The cohort's own phase comes after the coin's: full batches have no draws of their own to differ by.
    full = {"batch_size": None}
    recorded = go(task, fm.CODASCA(**LOCAL, theta=0.5, restart_every=9).replace(**full), record=True)
    same(recorded, go(task, method.replace(**full), trace=coins))


def test_extra_step_with_a_tiny_step_is_local_sgda_to_first_order(task):
    small = {**LOCAL, "lr_x": 1e-5, "lr_y": 1e-5}
    a, b = go(task, fm.ExtraStepLocalSGD(**small, fresh_batch=False)), go(task, fm.LocalSGDA(**small))
    moved = np.abs(b.x).max()
    assert 1e-12 < np.abs(a.x - b.x).max() < 1e-3 * moved


# -- each box, by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_cohort", [False, True])
def test_cd_mage_equals_its_box(task, same_cohort):
    method = fm.CDMAGE(0.03, 0.05, local_steps=3, cohort_size=4, same_cohort=same_cohort)
    result = go(task, method, rounds=3, record=True)
    assert len(result.trace.cohorts) == 2 - same_cohort
    x, y = np.zeros(4), np.zeros(3)
    for t in range(3):
        first, second = (np.asarray(c)[t] for c in (result.trace.cohorts * 2)[:2])
        gx, gy = gradients(task, x, y)
        u, v = gx[first].mean(0), gy[first].mean(0)
        ends = []
        for i in second:
            xi, yi = x, y
            for _ in range(3):
                hx, hy = gradients(task, xi, yi)
                xi, yi = xi - 0.03 * (hx[i] - gx[i] + u), yi + 0.05 * (hy[i] - gy[i] + v)
            ends.append((xi, yi))
        x, y = np.mean([e[0] for e in ends], axis=0), np.mean([e[1] for e in ends], axis=0)
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.y, y, rtol=1e-11)
    np.testing.assert_allclose(result.state.estimate.x, u, rtol=1e-11)  # of the last round, with which z was made
    np.testing.assert_allclose(result.state.estimate.y, v, rtol=1e-11)


def test_the_second_phase_of_one_cohort_goes_to_those_who_answered_the_first(task):
    """What is left of the cohort after the first phase takes the steps, and nobody else is asked."""
    method = fm.CDMAGE(0.03, 0.05, local_steps=3, cohort_size=4, same_cohort=True)
    result = go(task, method, rounds=6, record=True, availability=fm.Availability(0.7, vanish=0.4))
    cohort, (first, second) = np.asarray(result.trace.cohorts[0]), (np.asarray(a) for a in result.trace.answers)
    np.testing.assert_array_equal(first, cohort >= 0)
    assert (second <= first).all()
    assert (second < first).any()
    x, y = np.zeros(4), np.zeros(3)
    for t in range(6):
        gx, gy = gradients(task, x, y)
        asked = cohort[t][first[t]]
        ends = []
        for i in cohort[t][second[t]]:
            xi, yi = x, y
            for _ in range(3):
                hx, hy = gradients(task, xi, yi)
                xi, yi = xi - 0.03 * (hx[i] - gx[i] + gx[asked].mean(0)), yi + 0.05 * (hy[i] - gy[i] + gy[asked].mean(0))
            ends.append((xi, yi))
        x, y = (np.mean([e[k] for e in ends], axis=0) for k in (0, 1)) if ends else (x, y)
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.y, y, rtol=1e-11)


def test_the_two_cohorts_are_drawn_independently(task):
    cohorts = go(task, fm.CDMAGE(**LOCAL), rounds=40, record=True).trace.cohorts
    first, second = (np.sort(np.asarray(c), axis=1) for c in cohorts)
    assert all(len(set(row)) == 4 for row in (*first, *second))  # without replacement
    alike = (first == second).all(axis=1).mean()
    assert alike < 0.5  # one of 15 subsets: 1/15 in the mean


def test_the_estimate_of_cd_mage_plus_equals_its_recursion_step_by_step(task):
    alpha = fm.PowerDecay(0.9, 0.4, cap=0.8)
    method = fm.CDMAGEPlus(0.03, 0.05, alpha, local_steps=3, batch_size=2, cohort_size=3)
    results = [go(task, method, rounds=t, record=True) for t in range(1, 6)]
    cohorts = np.asarray(results[-1].trace.cohorts[0])
    points = [task.problem.start, *(fm.Point(r.x, r.y) for r in results)]
    u = v = 0.0
    for t, result in enumerate(results):
        a = 1.0 if t == 0 else min(0.8, 0.9 / (t + 1) ** 0.4)
        now, before = gradients(task, *points[t]), gradients(task, *points[max(t - 1, 0)])
        u = (1 - a) * u + (now[0] - (1 - a) * before[0])[cohorts[t]].mean(0)
        v = (1 - a) * v + (now[1] - (1 - a) * before[1])[cohorts[t]].mean(0)
        np.testing.assert_allclose(result.state.estimate.x, u, rtol=1e-10)
        np.testing.assert_allclose(result.state.estimate.y, v, rtol=1e-10)
        np.testing.assert_allclose(result.state.previous.x, points[t].x, rtol=1e-12)


def test_an_unheard_first_phase_keeps_the_estimate_and_its_point(task):
    method = fm.CDMAGEPlus(**LOCAL, alpha=0.5)
    recorded = go(task, method, rounds=2, record=True)
    first, second = (np.array(c) for c in recorded.trace.cohorts)
    first[1] = -1
    silent = go(task, method, rounds=2, trace=fm.Trace(cohorts=(first, second)), record=True)
    after_one = go(task, method, rounds=1)
    np.testing.assert_allclose(silent.state.estimate.x, after_one.state.estimate.x, rtol=1e-12)
    np.testing.assert_allclose(silent.state.previous.x, task.problem.start.x, atol=1e-15)
    assert np.abs(silent.x - after_one.x).max() > 1e-4  # the second phase went on along the old estimate


def test_the_first_estimate_is_a_gradient_whenever_it_is_made(task):
    method = fm.CDMAGEPlus(**LOCAL, alpha=0.1)
    first, second = (np.array(c) for c in go(task, method, rounds=2, record=True).trace.cohorts)
    first[0] = -1
    late = go(task, method, rounds=2, trace=fm.Trace(cohorts=(first, second)))
    gx, gy = gradients(task, *task.problem.start)  # without an estimate nobody moved
    np.testing.assert_allclose(late.state.estimate.x, gx[first[1]].mean(0), rtol=1e-10)
    np.testing.assert_allclose(late.state.estimate.y, gy[first[1]].mean(0), rtol=1e-10)


def test_one_minibatch_serves_both_points_of_the_correction(x64):
    """With a linear noise term in each example, the noise cancels only if the batch is the same at both points."""
    noisy = fm.problems.quadratic(4, examples=16, noise=50.0, heterogeneity=0.5, seed=2)
    exact = fm.problems.quadratic(4, examples=16, noise=0.0, heterogeneity=0.5, seed=2)
    np.testing.assert_allclose(noisy.solution.x, exact.solution.x, rtol=1e-6)
    go = lambda made: fm.run(noisy.problem, noisy.clients, made, rounds=600, engine=fm.Simulator(devices=1), eval_every=600)
    for method in (fm.CDMAGE, fm.CatalystScaffoldS):
        assert distance(noisy, go(method(0.02, 0.02, local_steps=4, batch_size=1))) < 1e-8
    assert distance(noisy, go(fm.CDMA(0.02, 0.02, local_steps=4, batch_size=1))) > 0.1


def test_extra_steps_equal_their_box(task):
    method = fm.ExtraStepLocalSGD(0.05, 0.07, local_steps=2)
    result = go(task, method, rounds=2)
    x, y = np.zeros(4), np.zeros(3)
    for _ in range(2):
        ends = []
        for i in range(6):
            xi, yi = x, y
            for _ in range(2):
                gx, gy = (g[i] for g in gradients(task, xi, yi))
                hx, hy = (g[i] for g in gradients(task, xi - 0.05 * gx, yi + 0.07 * gy))
                xi, yi = xi - 0.05 * hx, yi + 0.07 * hy
            ends.append((xi, yi))
        x, y = np.mean([e[0] for e in ends], axis=0), np.mean([e[1] for e in ends], axis=0)
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.y, y, rtol=1e-11)


def test_a_fresh_batch_for_the_second_gradient_is_another_one(task):
    assert fm.ExtraStepLocalSGD(**LOCAL).fresh_batch  # as in the paper
    differ(go(task, fm.ExtraStepLocalSGD(**LOCAL)), go(task, fm.ExtraStepLocalSGD(**LOCAL, fresh_batch=False)))


def test_coda_plus_equals_its_box(task):
    """Rounds of 3 steps, stages of 5: the second, fourth and fifth round each end a stage."""
    theta, d = 0.4, 0.5
    result = go(task, fm.CODAPlus(0.03, 0.05, theta=theta, restart_every=5, local_steps=3, stage_decay=d), rounds=6)
    x, y, ref, stage = np.zeros(4), np.zeros(3), np.zeros(4), 0
    for t in range(6):
        ends = []
        for i in range(6):
            xi, yi = x, y
            for _ in range(3):
                gx, gy = (g[i] for g in gradients(task, xi, yi))
                xi, yi = xi - 0.03 * d**stage * (gx + theta * (xi - ref)), yi + 0.05 * d**stage * gy
            ends.append((xi, yi))
        x, y = np.mean([e[0] for e in ends], axis=0), np.mean([e[1] for e in ends], axis=0)
        if t + 1 in (2, 4, 5):  # 6, 12 and 15 steps have passed 5, 10 and 15
            ref, stage = x, stage + 1
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.y, y, rtol=1e-11)
    np.testing.assert_allclose(result.state.x_reference, ref, rtol=1e-11)


def test_catalyst_scaffold_that_keeps_nothing_equals_its_box(task):
    lr_x, lr_y, theta = 0.03, 0.05, 0.4
    method = fm.CatalystScaffoldS(lr_x, lr_y, theta=theta, restart_every=6, local_steps=3, cohort_size=4)
    result = go(task, method, rounds=5, record=True)
    x, y, done = np.zeros(4), np.zeros(3), 0
    x_ref, y_ref, restarts = x, y, 0
    for t in range(5):
        cohort, K = np.asarray(result.trace.cohorts[0])[t], int(np.asarray(result.trace.draws["steps"])[t])
        gx, gy = gradients(task, x, y)
        u, v = gx[cohort].mean(0), gy[cohort].mean(0)
        ends = []
        for i in cohort:
            xi, yi = x, y
            for _ in range(K):
                hx, hy = gradients(task, xi, yi)
                along_x, along_y = hx[i] - gx[i] + u + theta * (xi - x_ref), hy[i] - gy[i] + v - theta * (yi - y_ref)
                xi, yi = xi - lr_x * along_x, yi + lr_y * along_y
            ends.append((xi, yi))
        x, y = np.mean([e[0] for e in ends], axis=0), np.mean([e[1] for e in ends], axis=0)
        if (done + K) // 6 > done // 6:
            x_ref, y_ref, restarts = x, y, restarts + 1
        done += K
    assert 0 < restarts < 5
    np.testing.assert_allclose(result.x, x, rtol=1e-10)
    np.testing.assert_allclose(result.y, y, rtol=1e-10)
    np.testing.assert_allclose(result.state.x_reference, x_ref, rtol=1e-10)
    np.testing.assert_allclose(result.state.y_reference, y_ref, rtol=1e-10)


@pytest.mark.parametrize("method", [fm.CODASCA, fm.CatalystScaffoldS])
def test_control_variates_equal_option_two_of_scaffold(task, method):
    lr_x, lr_y, theta = 0.03, 0.05, 0.4
    codasca = method is fm.CODASCA
    own = {"server_lr_x": 1.2, "server_lr_y": 0.8, "stage_decay": 0.5} if codasca else {"keep": "clients"}
    made = method(lr_x, lr_y, theta=theta, restart_every=6, local_steps=3, cohort_size=4, **own)
    result = go(task, made, rounds=4, record=True)
    eta_x, eta_y = (1.2, 0.8) if codasca else (1.0, 1.0)
    N = 6
    x, y, ref = np.zeros(4), np.zeros(3), np.zeros(4)
    c, own, steps_done = [np.zeros(4), np.zeros(3)], [[np.zeros(4), np.zeros(3)] for _ in range(N)], 0
    for t in range(4):
        cohort = np.asarray(result.trace.cohorts[0])[t]
        K = 3 if codasca else int(np.asarray(result.trace.draws["steps"])[t])
        ends, changes = [], []
        for i in cohort:
            xi, yi = x, y
            for _ in range(K):
                gx, gy = (g[i] for g in gradients(task, xi, yi))
                gx = gx + theta * (xi - ref)
                xi, yi = xi - lr_x * (gx - own[i][0] + c[0]), yi + lr_y * (gy - own[i][1] + c[1])
            new = [own[i][0] - c[0] + (x - xi) / (K * lr_x), own[i][1] - c[1] + (yi - y) / (K * lr_y)]
            changes.append([new[0] - own[i][0], new[1] - own[i][1]])
            own[i] = new
            ends.append((xi, yi))
        c = [c[k] + np.sum([d[k] for d in changes], axis=0) / N for k in (0, 1)]
        x, y = x + eta_x * (np.mean([e[0] for e in ends], axis=0) - x), y + eta_y * (np.mean([e[1] for e in ends], axis=0) - y)
        if (steps_done + K) // 6 > steps_done // 6:
            ref = x
            lr_x, lr_y = (lr_x / 2, lr_y / 2) if codasca else (lr_x, lr_y)
        steps_done += K
    np.testing.assert_allclose(result.x, x, rtol=1e-10)
    np.testing.assert_allclose(result.y, y, rtol=1e-10)
    np.testing.assert_allclose(result.state.variate.x, c[0], rtol=1e-9)
    np.testing.assert_allclose(result.state.x_reference, ref, rtol=1e-10)
    np.testing.assert_allclose(result.client_states.y, [o[1] for o in own], rtol=1e-9)


def test_catalyst_scaffold_communicates_with_probability_one_over_k(task):
    draws = go(task, fm.CatalystScaffoldS(**LOCAL), rounds=400, record=True).trace.draws["steps"]
    assert draws.min() >= 1
    assert abs(draws.mean() - 4) < 0.6  # the deviation of the mean of 400 is sqrt(12) / 20 = 0.17
    assert abs((draws == 1).mean() - 0.25) < 0.08


# -- exact solutions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        fm.CDMAGE(**FULL),
        fm.CDMAGEPlus(**FULL, alpha=0.3),
        fm.CODASCA(**FULL, theta=0.3, restart_every=10),
        fm.CatalystScaffoldS(**FULL, theta=0.3, restart_every=10),
        fm.CatalystScaffoldS(**FULL, theta=0.3, restart_every=10, keep="clients"),
        fm.CODASCA(**FULL, cohort_size=3),
    ],
    ids=["CDMAGE", "CDMAGEPlus", "CODASCA", "CatalystScaffoldS", "CatalystScaffoldS-clients", "CODASCA-cohort"],
)
def test_methods_that_correct_drift_reach_the_saddle_with_constant_steps(x64, method):
    task = fm.problems.quadratic(6, seed=3)
    assert distance(task, go(task, method, rounds=700)) < 1e-9


@pytest.mark.parametrize("method", [fm.CDMA, fm.ExtraStepLocalSGD, fm.CODAPlus])
def test_methods_that_do_not_stop_at_a_distance_that_grows_with_the_local_work(x64, method):
    task = fm.problems.quadratic(6, seed=3)
    limit = lambda lr, K: distance(task, go(task, method(lr, lr, local_steps=K), rounds=1500))
    base, longer, larger = limit(0.01, 5), limit(0.01, 10), limit(0.02, 5)
    assert base > 1e-3
    # with the drift of K steps, lr (K - 1) / 2 to first order
    assert 1.7 < longer / base < 2.8
    assert 1.6 < larger / base < 2.5


def test_cd_methods_draw_from_p_and_average_evenly(x64):
    weights = [1, 1, 1, 1, 8, 8]
    task = fm.problems.quadratic(6, seed=3, weights=weights)
    seen = np.asarray(go(task, fm.CDMA(**FULL, cohort_size=1), rounds=600, record=True).trace.cohorts[0])
    share = np.bincount(seen.ravel(), minlength=6) / seen.size
    np.testing.assert_allclose(share, np.array(weights) / 20, atol=0.06)
    # the heavy ones are in every cohort of three, and weigh twice as much there: .25 x .2 = .05, 1 x .4 = .4
    seen = np.asarray(go(task, fm.CDMA(**FULL, cohort_size=3), rounds=300, record=True).trace.cohorts[0])
    assert all({4, 5} < set(row) for row in seen)
    one = go(task, fm.CDMA(**FULL, cohort_size=3), rounds=1, trace=fm.Trace(cohorts=(np.array([[4, 1, 5]]),)))
    ends = [go(task, fm.CDMA(**FULL, cohort_size=1), rounds=1, trace=fm.Trace(cohorts=(np.array([[i]]),))).x for i in (4, 1, 5)]
    np.testing.assert_allclose(one.x, 0.4 * ends[0] + 0.2 * ends[1] + 0.4 * ends[2], rtol=1e-10)
    # with everybody there is nothing to draw, and the limit is still the saddle of sum p_i f_i
    assert distance(task, go(task, fm.CDMAGE(**FULL), rounds=700)) < 1e-9
    assert np.abs(saddle(task.clients, np.full(6, 1 / 6)).x - task.solution.x).max() > 0.01


def test_everybody_in_another_order_is_still_everybody(x64):
    task = fm.problems.quadratic(6, seed=3, weights=[1, 2, 3, 4, 5, 6])
    backwards = fm.Trace(cohorts=(np.arange(6)[None, ::-1],))
    here, there = (go(task, fm.CDMA(**FULL), rounds=1, trace=trace) for trace in (None, backwards))
    np.testing.assert_allclose(here.x, there.x, rtol=1e-12)


def test_extra_steps_solve_a_bilinear_game_where_plain_ones_spiral_out(x64):
    loss = lambda x, y, batch: jnp.mean(batch["b"]) * jnp.dot(x, y)
    problem = fm.MinimaxProblem(loss, jnp.ones(2), jnp.ones(2))
    clients = fm.ClientData.equal({"b": np.ones(3)}, 3)
    steps = {"lr_x": 0.3, "lr_y": 0.3, "local_steps": 5}
    size = lambda method: float(np.linalg.norm(fm.run(problem, clients, method, rounds=40, engine=fm.Simulator(devices=1)).x))
    assert size(fm.ExtraStepLocalSGD(**steps)) < 1e-3
    assert size(fm.LocalSGDA(**steps)) > 100


# -- theory ------------------------------------------------------------------------------------------------------------


def constants_of(task):
    """Return the constants of the paper's assumptions for a quadratic, from its matrices."""
    m = client_means(task.clients)
    top = lambda M: max(np.linalg.norm(part, 2) for part in M)
    mean = {k: v.mean(0) for k, v in m.items()}
    mu = np.linalg.eigvalsh(mean["C"]).min()
    phi = lambda x: fm.metrics.objective(task.problem, task.clients, fm.Point(x, best(x)))
    best = lambda x: task.problem.best_response(x, task.clients, np.full(task.clients.count, 1 / task.clients.count))
    start, solution = task.problem.start, task.solution
    gap = float(phi(start.x) - phi(jnp.asarray(solution.x)))
    dual = float(phi(start.x) - fm.metrics.objective(task.problem, task.clients, start))
    spread = np.sqrt(((m["a"] - mean["a"]) ** 2).sum(1).mean())  # the matrices are alike: gradients differ by a_i alone
    spread_y = np.sqrt(((m["b"] - mean["b"]) ** 2).sum(1).mean())
    B = top(m["B"])
    return fm.Constants(top(m["A"]), top(m["C"]), B, B, mu, spread, spread_y, gap, dual), phi


def shifted_quadratic():
    """Return clients that differ in their linear terms alone, so that the gradient dissimilarity is a constant."""
    task = fm.problems.quadratic(8, seed=5)
    fields = {k: np.array(v) for k, v in task.clients.fields.items()}
    for k in ("A", "B", "C"):
        fields[k][:] = fields[k].mean(0)
    clients = fm.ClientData.equal(fields, 8)
    return dataclasses.replace(task, clients=clients, solution=saddle(clients, np.full(8, 1 / 8)))


def test_the_steps_of_theorem_one_keep_its_bound(x64):
    task = shifted_quadratic()
    c, _ = constants_of(task)
    T, S = 3000, 4
    method = fm.CDMAGE.from_theory(c, rounds=T, local_steps=5, cohort_size=S)
    result = go(task, method, rounds=T, metrics=fm.metrics.Phi(), eval_every=50)
    mean = np.mean(result.history["phi/grad"][:-1] ** 2)
    L, Lphi, L0 = c.smoothness, c.phi_smoothness, c.potential
    bound = (
        4 * np.sqrt(40 * L0 * (Lphi + L) * c.sigma1**2 / (21 * S * T))
        + (20 / 7 + 60 * c.L12**2 / c.mu**2) * np.sqrt(L0 * L * c.sigma2**2 / (3 * S * T))
        + (8 * Lphi + (1827 * c.L12**2 / c.mu**2 + 72) * L) * 40 * L0 / (21 * T)
    )
    assert 0 < mean < bound
    assert result.history["phi/grad"][-1] < 0.8 * result.history["phi/grad"][0]  # and it does go down


def test_from_theory_gives_the_printed_steps():
    c = fm.Constants(L1=2.0, L2=3.0, L12=1.0, L21=1.0, mu=0.5, sigma1=1.5, sigma2=0.7, gap=4.0, dual_gap=2.0, G1=0.3, G2=0.2)
    L, Lphi, L0, K, S, T = np.sqrt(20.0), 4.0, 4.1, 6, 5, 1000
    assert np.isclose(c.smoothness, L)
    assert np.isclose(c.phi_smoothness, Lphi)
    mage = fm.CDMAGE.from_theory(c, rounds=T, local_steps=K, cohort_size=S, batch_size=10)
    gamma = min(1 / (87 * L * K), np.sqrt(4 * L0 * S / (3 * L * T * K**2 * 0.49)))
    eta = min(1 / (36 * L * K), 1 / (16 * K), 0.25 * gamma / 21, np.sqrt(40 * L0 * S / (21 * (Lphi + L) * T * K**2 * 2.25)))
    np.testing.assert_allclose((mage.lr_x, mage.lr_y), (eta, gamma))
    assert (mage.batch_size, mage.cohort_size, mage.local_steps) == (10, S, K)

    ma = fm.CDMA.from_theory(c, rounds=T, local_steps=K, cohort_size=S)
    gamma = min(1 / (87 * L * K), np.sqrt(20 * L0 * S / (L * T * K**2 * 0.49)), (30 * L0 / (20 * 0.53 * T * K**3)) ** (1 / 3))
    eta = min(
        np.sqrt(20 * L0 * S / (7 * (Lphi + L) * T * K**2 * 2.25)),
        (3 * L0 / (20 * (2.25 + 0.09) * T * K**3)) ** (1 / 3),
        1 / (36 * L * K), 1 / (16 * K), 0.25 * gamma / 21,
    )  # fmt: skip
    np.testing.assert_allclose((ma.lr_x, ma.lr_y), (eta, gamma))

    plus = fm.CDMAGEPlus.from_theory(c, local_steps=K, cohort_size=S)
    for t in (0, 10, 10**9):
        gamma = min(1 / (100 * L * K), S ** (1 / 3) / (L * K * (t + 1) ** (1 / 3)))
        np.testing.assert_allclose(plus.lr_y(t), gamma, rtol=1e-5)
        np.testing.assert_allclose(plus.lr_x(t), min(1 / (2 * L * K), 2 * 0.25 * gamma / 33), rtol=1e-5)
        np.testing.assert_allclose(plus.alpha(t), min(1, 8192 * 20 * K**2 * gamma**2 / S), rtol=1e-5)


def test_from_theory_gives_the_least_of_the_printed_bounds_whichever_it_is():
    """Theorems 1 and 3 with constants from all over: 1/(4 L_Phi K) is never the least, each other bound is somewhere."""
    rng, least = np.random.default_rng(0), set()
    for _ in range(200):
        L1, L2, L12, L21, mu, s1, s2, gap, dual, G1, G2 = v = 10 ** rng.uniform(-2, [2] * 10 + [5])
        K, S, T = (int(10**p) for p in rng.uniform(0, (1.5, 1.5, 4)))
        c = fm.Constants(*v)
        L, Lphi, L0 = np.sqrt(2 * max(L1**2 + L21**2, L2**2 + L12**2)), L1 + L12 * L21 / mu, gap + dual / 20
        follow = mu**2 / (21 * L12**2)
        smooth = {"smooth": 1 / (36 * L * K), "phi": 1 / (4 * Lphi * K)}
        mage_y = {"smooth": 1 / (87 * L * K), "noise": np.sqrt(4 * L0 * S / (3 * L * T * K**2 * s2**2))}
        mage_x = smooth | {
            "follow": follow * min(mage_y.values()),
            "noise": np.sqrt(40 * L0 * S / (21 * (Lphi + L) * T * K**2 * s1**2)),
        }
        ma_y = {
            "smooth": 1 / (87 * L * K),
            "noise": np.sqrt(20 * L0 * S / (L * T * K**2 * s2**2)),
            "drift": (30 * L0 / (L**2 * (s2**2 + G2**2) * T * K**3)) ** (1 / 3),
        }
        ma_x = smooth | {
            "follow": follow * min(ma_y.values()),
            "noise": np.sqrt(20 * L0 * S / (7 * (Lphi + L) * T * K**2 * s1**2)),
            "drift": (3 * L0 / (L**2 * (s1**2 + G1**2) * T * K**3)) ** (1 / 3),
        }
        for method, x, y in ((fm.CDMAGE, mage_x, mage_y), (fm.CDMA, ma_x, ma_y)):
            made = method.from_theory(c, rounds=T, local_steps=K, cohort_size=S)
            np.testing.assert_allclose((made.lr_x, made.lr_y), (min(x.values()), min(y.values())), rtol=1e-12)
            least |= {(method, player, min(b, key=b.get)) for player, b in (("x", x), ("y", y))}
        plus = fm.CDMAGEPlus.from_theory(c, local_steps=K, cohort_size=S)
        for t in (0, 10**9):
            gamma = min(1 / (100 * L * K), S ** (1 / 3) / (L * K * (t + 1) ** (1 / 3)))
            bounds = {"smooth": 1 / (2 * L * K), "phi": 1 / (2 * Lphi * K), "follow": 2 * mu**2 * gamma / (33 * L12**2)}
            lr_x = plus.lr_x(t) if callable(plus.lr_x) else plus.lr_x
            np.testing.assert_allclose((lr_x, plus.lr_y(t)), (min(bounds.values()), gamma), rtol=1e-5)
            np.testing.assert_allclose(plus.alpha(t), 8192 * L**2 * K**2 * gamma**2 / S, rtol=1e-5)
            least.add((fm.CDMAGEPlus, "x", min(bounds, key=bounds.get)))
    bounds = {"x": ("smooth", "follow", "noise"), "y": ("smooth", "noise")}
    wanted = {(method, player, b) for method in (fm.CDMAGE, fm.CDMA) for player in "xy" for b in bounds[player]}
    wanted |= {(fm.CDMA, "x", "drift"), (fm.CDMA, "y", "drift"), (fm.CDMAGEPlus, "x", "smooth"), (fm.CDMAGEPlus, "x", "follow")}
    assert least == wanted


def test_noise_that_is_not_there_bounds_nothing():
    quiet = fm.Constants(L1=1.0, L2=1.0, L12=0.0, L21=0.0, mu=1.0)
    method = fm.CDMAGE.from_theory(quiet, rounds=10, local_steps=1, cohort_size=1)
    np.testing.assert_allclose((method.lr_x, method.lr_y), (1 / (36 * np.sqrt(2)), 1 / (87 * np.sqrt(2))))
    assert fm.CDMAGEPlus.from_theory(quiet, local_steps=1, cohort_size=1).lr_x == pytest.approx(1 / (2 * np.sqrt(2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fm.Constants(L1=0.0, L2=1.0, L12=1.0, L21=1.0, mu=1.0), "above zero"),
        (lambda: fm.Constants(L1=1.0, L2=1.0, L12=-1.0, L21=1.0, mu=1.0), "L12 must be"),
        (lambda: fm.CODAPlus(0.1, 0.1, restart_every=0), "restart_every"),
        (lambda: fm.CODASCA(0.1, 0.1, local_steps=fm.UniformSteps(2, 3)), "local_steps"),
        (lambda: fm.CDMAGEPlus(0.1, 0.1, alpha=-1.0), "alpha must not be negative"),
        (lambda: fm.CODAPlus(0.1, 0.1, stage_decay=-0.5), "stage_decay must not be negative"),
        (lambda: fm.CatalystScaffoldS(0.1, 0.1, keep="server"), 'keep must be "nothing" or "clients", not \'server\''),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(fm.InputError, match=message):
        make()
