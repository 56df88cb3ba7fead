"""Methods that must coincide, do; and each one equals its paper's box, written out by hand in NumPy."""

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.algorithms.solvers import Momentum, Plain, Proximal, Weighted
from fedminimax.problems.quadratic import saddle

LOCAL = {"lr_x": 0.03, "lr_y": 0.05, "local_steps": 4, "batch_size": 3, "cohort_size": 4}


@pytest.fixture
def task(x64):
    return fm.problems.quadratic(6, examples=8, noise=0.4, seed=1)


def go(task, algorithm, rounds=5, **options):
    return fm.run(task.problem, task.clients, algorithm, rounds=rounds, seed=7, **options)


def same(a, b, tolerance=1e-12):
    for p, q in zip(jax.tree.leaves((a.x, a.y)), jax.tree.leaves((b.x, b.y)), strict=True):
        np.testing.assert_allclose(p, q, rtol=tolerance, atol=tolerance)


def differ(a, b):
    assert np.abs(a.x - b.x).max() > 1e-4


def test_fess_gda_without_smoothing_is_fsgda(task):
    server = {"server_lr_x": 1.3, "server_lr_y": 0.8}
    same(go(task, fm.FessGDA(**LOCAL, **server, p=0.0, beta=0.4)), go(task, fm.FSGDA(**LOCAL, **server)))
    differ(go(task, fm.FessGDA(**LOCAL, **server, p=1.0, beta=0.4)), go(task, fm.FSGDA(**LOCAL, **server)))


def test_fsgda_with_unit_server_steps_is_local_sgda(task):
    same(go(task, fm.FSGDA(**LOCAL)), go(task, fm.LocalSGDA(**LOCAL)))
    same(go(task, fm.FessGDA(**LOCAL, p=0.0)), go(task, fm.LocalSGDA(**LOCAL)))


def test_zero_momentum_is_none(task):
    same(go(task, fm.LocalSGDA(**LOCAL, momentum=0.0)), go(task, fm.LocalSGDA(**LOCAL)))
    differ(go(task, fm.LocalSGDA(**LOCAL, momentum=0.5)), go(task, fm.LocalSGDA(**LOCAL)))


def test_fed_norm_sgda_with_equal_steps_is_fsgda(task):
    server = {"server_lr_x": 1.3, "server_lr_y": 0.8}
    same(go(task, fm.FedNormSGDA(**LOCAL, **server)), go(task, fm.FSGDA(**LOCAL, **server)))


def test_fed_norm_sgda_with_any_solver_and_equal_steps_is_plain_averaging(task):
    """tau_eff / ||a||_1 = 1 when all a_i are alike, whatever the solver."""
    for solver, other in ((Momentum(0.6), fm.LocalSGDA(**LOCAL, momentum=0.6)),):
        same(go(task, fm.FedNormSGDA(**LOCAL, solver=solver)), go(task, other))


@pytest.mark.parametrize("every", [1, 3])
def test_plus_methods_agree_and_a_snapshot_of_the_moment_differs_only_within_a_round(task, every):
    plus = fm.LocalSGDAPlus(**LOCAL, snapshot_every=every)
    same(go(task, fm.FedNormSGDAPlus(**LOCAL, snapshot_every=every)), go(task, plus))
    one = {**LOCAL, "local_steps": 1}
    fresh, plain = go(task, fm.LocalSGDAPlus(**one, snapshot_every=every)), go(task, fm.LocalSGDA(**one))
    same(fresh, plain) if every == 1 else differ(fresh, plain)


def test_one_local_step_is_parallel_sgda(task):
    one = {**LOCAL, "local_steps": 1, "batch_size": None}
    parallel = fm.ParallelSGDA(lr_x=0.03, lr_y=0.05, cohort_size=4)
    for method in (fm.LocalSGDA(**one), fm.SAGDA(**{**one, "cohort_size": None})):
        everybody = method.cohort_size is None
        same(go(task, method), go(task, parallel.replace(cohort_size=None) if everybody else parallel))


def test_smoothed_gda_is_fess_gda_on_one_client(x64):
    task = fm.problems.quadratic(1, seed=2)
    result = fm.run(task.problem, task.clients, fm.SmoothedGDA(0.05, 0.07, p=0.8, beta=0.3), rounds=6)
    m = {k: v[0] for k, v in task.clients.fields.items()}
    x, y = np.zeros(4), np.zeros(3)
    z = x.copy()
    for _ in range(6):
        gx, gy = m["A"] @ x + m["B"] @ y + m["a"], m["B"].T @ x - m["C"] @ y + m["b"]
        x, y = x - 0.05 * (gx + 0.8 * (x - z)), y + 0.07 * gy  # simultaneous
        z = z + 0.3 * (x - z)
    np.testing.assert_allclose(result.x, x, rtol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-12)
    np.testing.assert_allclose(result.state.z, z, rtol=1e-12)


def by_hand(task, rounds, update):
    """Run ``update(x, y, memory, gradients, t)`` on full batches; gradients[i](x, y) is client i's."""

    def client(i):
        m = {k: np.asarray(v).mean(axis=0) for k, v in task.clients[i].items()}
        return lambda x, y: (m["A"] @ x + m["B"] @ y + m["a"], m["B"].T @ x - m["C"] @ y + m["b"])

    gradients = [client(i) for i in range(task.clients.count)]
    x, y, memory = np.zeros(4), np.zeros(3), {}
    for t in range(rounds):
        x, y = update(x, y, memory, gradients, t)
    return x, y


def test_fess_gda_equals_algorithm_1_by_hand(task):
    method = fm.FessGDA(0.03, 0.05, server_lr_x=1.4, server_lr_y=2.5, p=0.9, beta=0.2, local_steps=3)
    radius = 0.1
    problem = task.problem.replace(y_set=fm.sets.L2Ball(radius))
    ball = lambda y: y * min(1.0, radius / max(np.linalg.norm(y), 1e-300))

    def update(x, y, memory, gradients, t):
        z = memory.setdefault("z", x)
        ends = []
        for g in gradients:
            u, v = x, y
            for _ in range(3):
                gx, gy = g(u, v)
                u, v = u - 0.03 * gx, ball(v + 0.05 * gy)
            ends.append((u, v))
        x_bar, y_bar = (np.mean([e[k] for e in ends], axis=0) for k in (0, 1))
        x_new = x + 1.4 * (x_bar - x) - 0.03 * 1.4 * 3 * 0.9 * (x - z)
        memory["z"] = z + 0.2 * (x_new - z)
        return x_new, ball(y + 2.5 * (y_bar - y))

    result = fm.run(problem, task.clients, method, rounds=6)
    x, y = by_hand(task, 6, update)
    free = fm.run(task.problem, task.clients, method, rounds=6)
    assert np.abs(free.y - y).max() > 0.05, "the set must bind for its projections to be tested"
    np.testing.assert_allclose(result.x, x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-11, atol=1e-12)


def ball(radius):
    return lambda v: v * min(1.0, radius / max(np.linalg.norm(v), 1e-300))


def test_smoothed_agda_equals_its_box_by_hand(task):
    """y answers the new x; on a cohort, with sets for both players that bind."""
    method = fm.SmoothedAGDA(0.05, 0.07, p=0.8, beta=0.3, cohort_size=2)
    problem = task.problem.replace(x_set=fm.sets.L2Ball(0.15), y_set=fm.sets.L2Ball(0.2))
    cohort = [[0, 3], [5, 1], [2, 4], [1, 0]]

    def update(x, y, memory, gradients, t):
        z, mine = memory.setdefault("z", x), [gradients[i] for i in cohort[t]]
        new = ball(0.15)(x - 0.05 * (np.mean([g(x, y)[0] for g in mine], axis=0) + 0.8 * (x - z)))
        memory["z"] = z + 0.3 * (new - z)
        return new, ball(0.2)(y + 0.07 * np.mean([g(new, y)[1] for g in mine], axis=0))

    result = fm.run(problem, task.clients, method, rounds=4, trace=fm.Trace((np.array(cohort),)))
    x, y = by_hand(task, 4, update)
    np.testing.assert_allclose([np.linalg.norm(x), np.linalg.norm(y)], [0.15, 0.2], err_msg="the sets must bind")
    np.testing.assert_allclose(result.x, x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-11, atol=1e-12)
    assert result.costs["floats_up_x"].tolist() == [8] * 4
    assert result.costs["floats_up_y"].tolist() == [6] * 4


def test_fed_sgda_m_equals_its_box_by_hand(task):
    """Estimates are averaged with the models, on cohorts, with a set that binds; the first step of all only estimates."""
    method = fm.FedSGDAM(0.03, 0.05, alpha=0.3, beta=0.6, local_steps=3, cohort_size=2)
    problem, cohort = task.problem.replace(y_set=fm.sets.L2Ball(0.1)), [[0, 3], [5, 1], [2, 4]]

    def update(x, y, memory, gradients, t):
        ends = []
        for g in (gradients[i] for i in cohort[t]):
            u, w, v = x, y, memory.get("v")
            for _ in range(3):
                if v is None:  # nothing is known yet
                    v = g(u, w)
                    continue
                new = u - 0.03 * v[0], ball(0.1)(w + 0.05 * v[1])
                old, here = g(u, w), g(*new)
                v = here[0] + 0.7 * (v[0] - old[0]), here[1] + 0.4 * (v[1] - old[1])
                u, w = new
                memory["bound"] = memory.get("bound", 0) + np.isclose(np.linalg.norm(w), 0.1)
            ends.append((u, w, *v))
        means = [np.mean([e[k] for e in ends], axis=0) for k in range(4)]
        memory["v"] = means[2], means[3]
        return means[0], means[1]

    memory_of = {}
    x, y = by_hand(task, 3, lambda x, y, memory, gradients, t: update(x, y, memory_of, gradients, t))
    result = fm.run(problem, task.clients, method, rounds=3, trace=fm.Trace((np.array(cohort),)))
    np.testing.assert_allclose(result.x, x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.state.estimate.x, memory_of["v"][0], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.state.estimate.y, memory_of["v"][1], rtol=1e-11, atol=1e-12)
    assert memory_of["bound"] > 3, "the set must bind"


def test_fed_sgda_m_takes_both_gradients_on_one_minibatch(x64):
    """Here minibatches differ in linear terms alone, which cancel in a difference on one minibatch: with alpha = beta = 0
    nothing but the first estimate's noise is ever in the estimates."""
    task = fm.problems.quadratic(1, examples=8, noise=0.4, seed=1)
    method = fm.FedSGDAM(0.03, 0.05, alpha=0.0, beta=0.0, local_steps=2, batch_size=2)
    noises = []
    for rounds in (1, 4):
        state = fm.run(task.problem, task.clients, method, rounds=rounds, seed=7).state
        g = fm.metrics.gradient(task.problem, task.clients, fm.metrics.point(task.problem, task.clients, state))
        noises.append(np.concatenate([state.estimate.x - g.x, state.estimate.y - g.y]))
    assert np.abs(noises[0]).max() > 0.01
    np.testing.assert_allclose(noises[1], noises[0], atol=1e-12)


def test_fed_sgda_m_on_one_client_with_all_its_data_is_descent_ascent_whatever_is_forgotten(x64):
    task = fm.problems.quadratic(1, seed=2)
    plain = go(task, fm.LocalSGDA(0.03, 0.05, local_steps=11), rounds=1)  # 3 rounds of 4, of which the first only estimates
    for alpha, beta in ((1.0, 1.0), (0.2, 0.7)):
        same(go(task, fm.FedSGDAM(0.03, 0.05, alpha=alpha, beta=beta, local_steps=4), rounds=3), plain)


def test_fed_sgda_plus_is_local_sgda_plus_with_server_steps_by_hand(task):
    plus = {**LOCAL, "snapshot_every": 2}
    same(go(task, fm.FedSGDAPlus(**plus)), go(task, fm.LocalSGDAPlus(**plus)))
    method = fm.FedSGDAPlus(0.03, 0.05, server_lr_x=1.4, server_lr_y=0.7, snapshot_every=2, local_steps=3)

    def update(x, y, memory, gradients, t):
        if t % 2 == 0:
            memory["snapshot"] = x
        ends = []
        for g in gradients:
            u, w = x, y
            for _ in range(3):
                u, w = u - 0.03 * g(u, w)[0], w + 0.05 * g(memory["snapshot"], w)[1]
            ends.append((u, w))
        return tuple(z + lr * (np.mean([e[k] for e in ends], axis=0) - z) for k, (z, lr) in enumerate(((x, 1.4), (y, 0.7))))

    result, (x, y) = go(task, method, rounds=4), by_hand(task, 4, update)
    np.testing.assert_allclose(result.x, x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-11, atol=1e-12)


DECAY = (1.0, 0.5, 0.2, 0.7, 0.3)
MIXED = (Momentum(0.7), Weighted(DECAY), Plain(), Proximal(0.4), Momentum(0.2), Proximal(1.5))


@pytest.mark.parametrize(
    ("solver", "plus"),
    [(s, plus) for s in (Plain(), Momentum(0.7), Proximal(0.4), Weighted(DECAY)) for plus in (False, True)] + [(MIXED, False)],
    ids=lambda v: repr(v)[:20],
)
def test_fed_norm_sgda_equals_equations_2_and_3_by_hand(x64, solver, plus):
    """Gradients are collected, weighted by a_i, normalised by ||a_i||_1 and put together as the paper prints it."""
    p = np.array([1.0, 2, 3, 2, 1, 3]) / 12
    task = fm.problems.quadratic(6, weights=p, seed=3)
    tau, cohort, n = (2, 5, 3, 4, 1, 5), [[0, 1, 4], [3, 5, 2], [1, 2, 3], [5, 4, 0]], 6
    kind, extra = (fm.FedNormSGDAPlus, {"snapshot_every": 2}) if plus else (fm.FedNormSGDA, {})
    lr_x, lr_y = 0.03, 0.05
    each = solver if isinstance(solver, tuple) else (solver,) * n
    method = kind(
        lr_x, lr_y, server_lr_x=1.2, server_lr_y=0.9, solver=solver, local_steps=fm.ClientSteps(tau), cohort_size=3, **extra
    )

    def weights_of(i, lr):
        steps, own = tau[i], each[i]
        k = np.arange(steps)
        return {
            Plain: lambda: np.ones(steps),
            Momentum: lambda: (1 - own.rho ** (steps - k)) / (1 - own.rho),
            Proximal: lambda: (1 - lr * own.mu) ** (steps - 1 - k),
            Weighted: lambda: np.array(DECAY)[:steps],
        }[type(own)]()

    def update(x, y, memory, gradients, t):
        if t % 2 == 0:
            memory["snapshot"] = x
        total_x, total_y = 0.0, 0.0
        for i in cohort[t]:
            u, v, du, dv, seen, own = x, y, np.zeros(4), np.zeros(3), [], each[i]
            for k in range(tau[i]):
                gx = gradients[i](u, v)[0]
                gy = gradients[i](memory["snapshot"] if plus else u, v)[1]
                seen.append((gx, gy))
                if isinstance(own, Momentum):
                    du, dv = own.rho * du + gx, own.rho * dv + gy
                elif isinstance(own, Proximal):
                    du, dv = gx + own.mu * (u - x), gy - own.mu * (v - y)
                elif isinstance(own, Weighted):
                    du, dv = own.a[k] * gx, own.a[k] * gy
                else:
                    du, dv = gx, gy
                u, v = u - lr_x * du, v + lr_y * dv
            a_x, a_y = weights_of(i, lr_x), weights_of(i, lr_y)
            share = p[i] * n / len(cohort[t])
            total_x = total_x + share * sum(a * g[0] for a, g in zip(a_x, seen, strict=True)) / a_x.sum()
            total_y = total_y + share * sum(a * g[1] for a, g in zip(a_y, seen, strict=True)) / a_y.sum()
        eff_x = sum(p[i] * weights_of(i, lr_x).sum() for i in range(n))
        eff_y = sum(p[i] * weights_of(i, lr_y).sum() for i in range(n))
        return x - eff_x * 1.2 * lr_x * total_x, y + eff_y * 0.9 * lr_y * total_y

    x, y = by_hand(task, 4, update)
    result = fm.run(task.problem, task.clients, method, rounds=4, trace=fm.Trace((np.array(cohort),)))
    np.testing.assert_allclose(result.x, x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-11, atol=1e-12)


P = np.array([1.0, 2, 3, 2, 1, 3]) / 12
COHORTS = [[0, 3, 1], [5, -1, 2], [2, 4, 5]]
"""Who takes part by turns; a place in the second round stays empty."""


@pytest.fixture
def unequal(x64):
    return fm.problems.quadratic(6, examples=2, noise=0.4, weights=P, seed=1)


def over(cohort, values):
    """The p-weighted mean over those who replied."""
    return np.average(values, axis=0, weights=P[[i for i in cohort if i >= 0]])


@pytest.mark.parametrize("kind", [fm.LocalSGDA, fm.FSGDA], ids=lambda kind: kind.__name__)
def test_means_are_weighted_by_p_over_those_who_replied(unequal, kind):
    """K local steps, then x + s (mean - x), the mean by p_i over the cohort's sum of p."""
    server = {"server_lr_x": 1.3, "server_lr_y": 0.8} if kind is fm.FSGDA else {}

    def update(x, y, memory, gradients, t):
        ends = []
        for i in COHORTS[t]:
            u, v = x, y
            for _ in range(3 if i >= 0 else 0):
                gx, gy = gradients[i](u, v)
                u, v = u - 0.03 * gx, v + 0.05 * gy
            ends += [(u - x, v - y)] if i >= 0 else []
        x_bar, y_bar = (over(COHORTS[t], [e[k] for e in ends]) for k in (0, 1))
        return x + server.get("server_lr_x", 1.0) * x_bar, y + server.get("server_lr_y", 1.0) * y_bar

    method = kind(0.03, 0.05, local_steps=3, cohort_size=3, **server)
    result = go(unequal, method, rounds=3, trace=fm.Trace((np.array(COHORTS),)))
    x, y = by_hand(unequal, 3, update)
    np.testing.assert_allclose(result.x, x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        fm.LocalSGDAPlus(0.03, 0.05, local_steps=1, cohort_size=3),
        fm.FessGDA(0.03, 0.05, p=0.5, local_steps=1, cohort_size=3),
        fm.ParallelSGDA(0.03, 0.05, cohort_size=3),
        fm.CODAPlus(0.03, 0.05, theta=0.5, local_steps=1, cohort_size=3),
    ],
    ids=lambda m: type(m).__name__,
)
def test_the_first_step_of_the_others_is_weighted_by_p_too(unequal, method):
    result = go(unequal, method, rounds=1, trace=fm.Trace((np.array(COHORTS[1:2]),)))

    def update(x, y, memory, gradients, t):
        g = [gradients[i](x, y) for i in COHORTS[1] if i >= 0]
        return x - 0.03 * over(COHORTS[1], [v[0] for v in g]), y + 0.05 * over(COHORTS[1], [v[1] for v in g])

    x, y = by_hand(unequal, 1, update)
    np.testing.assert_allclose(result.x, x, rtol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-12)


def test_sagda_equals_its_definition_by_hand(unequal):
    method = fm.SAGDA(0.03, 0.05, server_lr_x=1.2, server_lr_y=0.9, local_steps=3, cohort_size=3)

    def update(x, y, memory, gradients, t):
        mine = [gradients[i] for i in COHORTS[t] if i >= 0]
        v = [g(x, y) for g in mine]
        bar = [over(COHORTS[t], [w[k] for w in v]) for k in (0, 1)]
        moves = []
        for g, own in zip(mine, v, strict=True):
            u, w = x, y
            for _ in range(3):
                gx, gy = g(u, w)
                u, w = u - 0.03 * (gx - own[0] + bar[0]), w + 0.05 * (gy - own[1] + bar[1])
            moves.append((u - x, w - y))
        return x + 1.2 * over(COHORTS[t], [m[0] for m in moves]), y + 0.9 * over(COHORTS[t], [m[1] for m in moves])

    result = go(unequal, method, rounds=3, trace=fm.Trace((np.array(COHORTS),)))
    x, y = by_hand(unequal, 3, update)
    np.testing.assert_allclose(result.x, x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(result.y, y, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("tau", [1, 2, 7])
def test_the_momentum_normaliser_is_the_sum_of_its_coefficients(x64, rho, tau):
    by_sums = sum(sum(rho ** (j - k) for j in range(k, tau)) for k in range(tau))
    np.testing.assert_allclose(Momentum(rho).norm(tau, 0.1, 0), by_sums, rtol=1e-12)


@pytest.mark.parametrize("rate", [0.0, 1e-8, 1e-6, 1e-3, 0.3])
def test_the_proximal_normaliser_is_exact_in_float32(rate):
    by_sums = sum((1 - rate) ** k for k in range(10))
    np.testing.assert_allclose(Proximal(rate).norm(10, 1.0, 0), by_sums, rtol=1e-6)


def test_saddle_is_where_all_gradients_vanish(x64):
    task = fm.problems.quadratic(5, weights=[1, 2, 3, 4, 5], examples=3, noise=1.0)
    g = fm.metrics.gradient(task.problem, task.clients, task.solution)
    assert np.abs(np.concatenate([g.x, g.y])).max() < 1e-12
    other = saddle(task.clients, np.full(5, 0.2))
    assert np.abs(other.x - task.solution.x).max() > 1e-3
