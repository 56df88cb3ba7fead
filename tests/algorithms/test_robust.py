"""Methods for weights on clients: their boxes by hand in NumPy, their identities, exact solutions, and poisoned clients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.data import ClientData
from fedminimax.engines.layout import Layout
from fedminimax.engines.program import Program
from fedminimax.federation.round import Conditions

N, DIM, K = 5, 4, 3


@pytest.fixture
def task(x64):
    return fm.problems.robust_regression(N, DIM, 8, rho=0.2, sigma=0.5, seed=2)


class Quadratics:
    """The task's losses and gradients, in NumPy."""

    def __init__(self, task, mu=0.1):
        self.data = [(np.asarray(c["inputs"]), np.asarray(c["labels"])) for c in task.clients]
        self.mu = mu

    def loss(self, i, x):
        a, b = self.data[i]
        return np.mean((a @ x - b) ** 2) + self.mu / 2 * x @ x

    def losses(self, x):
        return np.array([self.loss(i, x) for i in range(len(self.data))])

    def grad(self, i, x):
        a, b = self.data[i]
        return 2 * a.T @ (a @ x - b) / len(b) + self.mu * x

    def average(self, p):
        """The minimiser of sum_i p_i f_i, by one linear solve."""
        H = sum(q * 2 * a.T @ a / len(b) for q, (a, b) in zip(p, self.data, strict=True)) + self.mu * np.eye(DIM)
        return np.linalg.solve(H, sum(q * 2 * a.T @ b / len(b) for q, (a, b) in zip(p, self.data, strict=True)))


def onto_simplex(v):
    """Held et al.: sort, find the threshold."""
    u = np.sort(v)[::-1]
    k = np.arange(1, len(v) + 1)
    rho = np.flatnonzero(u - (np.cumsum(u) - 1) / k > 0)[-1]
    return np.maximum(v - (np.cumsum(u)[rho] - 1) / (rho + 1), 0)


def chi_prox(w, s, sigma, rho):
    return onto_simplex((w + sigma * s + sigma * rho) / (1 + sigma * rho * len(w)))


RADIUS = 0.3
BALL = fm.sets.L2Ball(RADIUS)


def onto_ball(x):
    return x * min(1.0, RADIUS / max(np.linalg.norm(x), 1e-300))


def local(q, i, x, lr, steps, correction=0.0, pull=0.0, project=lambda u: u):
    path = [x]
    for _ in range(steps):
        path.append(project(path[-1] - lr * (q.grad(i, path[-1]) + correction + pull * (path[-1] - x))))
    return path


def go(task, algorithm, rounds=5, **options):
    return fm.run(task.problem, task.clients, algorithm, rounds=rounds, seed=7, **{"eval_every": rounds, **options})


def same(a, b, tol=1e-11):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tol, atol=tol)


# -- the boxes, by hand ------------------------------------------------------------------------------------------------


def test_fed_avg_and_fed_prox_are_their_boxes(task):
    p = np.array([1.0, 2, 3, 4, 5])
    q = Quadratics(task)
    free = lambda x: x
    for method, pull, x_set, project in (
        (fm.FedAvg(0.05, 1.3, local_steps=K, cohort_size=3), 0.0, BALL, onto_ball),
        (fm.FedProx(0.05, 1.3, local_steps=K, cohort_size=3, mu=0.7), 0.7, None, free),
    ):
        weighted = dataclasses.replace(task, problem=task.problem.replace(weights=p, x_set=x_set))
        result = go(weighted, method, record=True)
        x, inside, outside = np.zeros(DIM), 0, 0
        for cohort in result.trace.cohorts[0]:
            ends = [local(q, i, x, 0.05, K, pull=pull, project=project)[-1] for i in cohort]
            inside += sum(np.linalg.norm(e) < RADIUS * (1 - 1e-9) for e in ends)
            x = x + 1.3 * np.average([e - x for e in ends], axis=0, weights=p[cohort])
            outside += np.linalg.norm(x) > RADIUS
            x = project(x)
        same(result.x, x)
        if x_set is not None:  # it binds in local steps and on the server
            assert inside < 15
            assert outside > 0


def test_scaffold_is_its_box(task):
    result = go(task, fm.Scaffold(0.05, 0.9, local_steps=K, cohort_size=3), rounds=6, record=True)
    q, x, c, own = Quadratics(task), np.zeros(DIM), np.zeros(DIM), np.zeros((N, DIM))
    for cohort in result.trace.cohorts[0]:
        moves, changes = [], []
        for i in cohort:
            end = local(q, i, x, 0.05, K, correction=c - own[i])[-1]
            new = own[i] - c + (x - end) / (K * 0.05)
            moves.append(end - x)
            changes.append(new - own[i])
            own[i] = new
        x, c = x + 0.9 * np.mean(moves, axis=0), c + len(cohort) / N * np.mean(changes, axis=0)
    same(result.x, x)
    same(result.state.x_variate, c)
    same(result.client_states, own)


def test_afl_is_its_box_with_and_without_local_steps(task):
    q = Quadratics(task)
    for steps in (1, K):
        result = go(task, fm.AFL(0.05, 0.3, local_steps=steps))
        x, w = np.zeros(DIM), np.full(N, 1 / N)
        for _ in range(5):
            ends = np.array([local(q, i, x, 0.05, steps)[-1] for i in range(N)])
            x, w = w @ ends, chi_prox(w, q.losses(x), 0.3, 0.2)
        same(result.x, x)
        same(result.w, w)


def test_drfa_is_its_box_from_the_recorded_cohorts_and_snapshots(task):
    method = fm.DRFA(0.05, 0.02, local_steps=K, cohort_size=3)
    result = go(task, method, rounds=8, record=True)
    first, second = result.trace.cohorts
    stops = result.trace.draws["t"]
    assert set(stops) <= {1, 2, 3}
    assert len(set(stops)) > 1
    assert any(len(set(row)) < 3 for row in first.tolist()), "drawn with replacement"
    assert all(len(set(row)) == 3 for row in second.tolist()), "drawn without"
    q, x, w = Quadratics(task), np.zeros(DIM), np.full(N, 1 / N)
    for cohort, judges, stop in zip(first, second, stops, strict=True):
        paths = [local(q, i, x, 0.05, K) for i in cohort]
        x, snapshot = np.mean([p[-1] for p in paths], axis=0), np.mean([p[stop] for p in paths], axis=0)
        v = np.zeros(N)
        v[judges] = [q.loss(i, snapshot) * N / 3 for i in judges]
        w = chi_prox(w, v, 0.02 * K, 0.2)
    same(result.x, x)
    same(result.w, w)
    same(result.state.x_snapshot, snapshot)
    replayed = fm.run(task.problem, task.clients, method, rounds=8, seed=99, trace=result.trace, eval_every=8)
    same(replayed.x, result.x)


@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_scaff_pd_is_its_box(task, mu):
    tau0, sigma0, theta, lr, rho = 0.1, 0.3, 0.9, 0.02, 0.2
    constrained = mu > 0  # the set binds in local steps and on the server, where tau > lr K steps out of it
    project = onto_ball if constrained else lambda x: x
    task = dataclasses.replace(task, problem=task.problem.replace(x_set=BALL if constrained else None))
    result = go(task, fm.ScaffPD(tau0, sigma0, theta, mu, lr, local_steps=K), rounds=7)
    q, x, w = Quadratics(task), np.zeros(DIM), np.full(N, 1 / N)
    gamma, tau, sigma, extrapolation, before = sigma0 / tau0, tau0, sigma0, theta, q.losses(np.zeros(DIM))
    touched = left = False
    for _ in range(7):
        now = q.losses(x)
        w = chi_prox(w, now + extrapolation * (now - before), sigma, rho)
        own = np.array([q.grad(i, x) for i in range(N)])
        c = w @ own
        ends = [local(q, i, x, lr, K, correction=c - own[i], project=project)[-1] for i in range(N)]
        touched |= any(np.linalg.norm(end) > RADIUS * (1 - 1e-9) for end in ends)
        x = x - tau * (w @ np.array([(x - end) / (lr * K) for end in ends]))
        left |= np.linalg.norm(x) > RADIUS * (1 + 1e-9)
        x = project(x)
        # Condition 5.1: gamma_{r+1} = gamma_r (1 + mu tau_r), tau_{r+1} = tau_r sqrt(gamma_r / gamma_{r+1}), sigma = gamma tau
        following = gamma * (1 + mu * tau)
        tau, old = tau * np.sqrt(gamma / following), sigma
        gamma, sigma, before = following, following * tau, now
        extrapolation = theta * old / sigma
    assert (touched and left) or not constrained
    same(result.x, x)
    same(result.w, w)
    up, down = (result.costs[f"floats_{way}_{player}"] for way, player in (("up", "x"), ("down", "x")))
    assert (up == N * 2 * DIM).all(), "a variate and an update from each, to be summed"
    assert (down == N * 3 * DIM).all(), "x, then x and c"
    assert (result.costs["floats_up_other"] == N).all(), "one loss from each"


def test_scaff_pd_reports_on_all_examples_or_on_a_minibatch(task):
    evaluations = lambda **sizes: go(task, fm.ScaffPD(0.1, 0.3, local_steps=K, batch_size=2, **sizes), 2).costs["grad_evals"]
    assert (evaluations() == N * (8 + K * 2)).all()
    assert (evaluations(report_size=4) == N * (4 + K * 2)).all()


def test_q_fed_avg_and_delta_fl_are_their_boxes(task):
    q = Quadratics(task)
    result = go(task, fm.QFedAvg(0.05, 2.0, local_steps=K, cohort_size=3), record=True)
    x = np.zeros(DIM)
    for cohort in result.trace.cohorts[0]:
        f, D = q.losses(x)[cohort], np.array([(x - local(q, i, x, 0.05, K)[-1]) / 0.05 for i in cohort])
        h = 2.0 * f * (D**2).sum(axis=1) + f**2 / 0.05
        x = x - (f**2) @ D / h.sum()
    same(result.x, x)
    result = go(task, fm.DeltaFL(0.05, 0.4, 1.0, local_steps=K, cohort_size=4), record=True)
    x = np.zeros(DIM)
    for cohort in result.trace.cohorts[0]:
        f = q.losses(x)[cohort]
        tail = cohort[f >= np.quantile(f, 0.6)]
        assert len(tail) == 2
        x = x + np.mean([local(q, i, x, 0.05, K)[-1] - x for i in tail], axis=0)
    same(result.x, x)
    sent = result.costs
    assert (sent["floats_up_x"] == 2 * DIM).all()
    assert (sent["floats_up"] == 4 + 2 * DIM).all(), "four losses, and two updates from the tail"
    assert (sent["grad_evals"] == 2 * K * 8).all()


# -- identities --------------------------------------------------------------------------------------------------------


def test_identities(task):
    common = {"local_steps": K, "batch_size": 4, "cohort_size": 3}
    base = go(task, fm.FedAvg(0.05, **common))
    same(go(task, fm.FedProx(0.05, **common, mu=0.0)).x, base.x)
    same(go(task, fm.QFedAvg(0.05, q=0.0, **common)).x, base.x)
    assert np.abs(go(task, fm.FedProx(0.05, **common, mu=1.0)).x - base.x).max() > 1e-3
    everybody = go(task, fm.FedAvg(0.05, local_steps=K))
    same(go(task, fm.AFL(0.05, 0.0, local_steps=K)).x, everybody.x)
    same(go(task, fm.DeltaFL(0.05, alpha=1.0, local_steps=K)).x, everybody.x)
    same(go(task, fm.Scaffold(0.05, local_steps=1)).x, go(task, fm.FedAvg(0.05, local_steps=1)).x)


def test_scaff_pd_with_one_local_step_is_the_accelerated_primal_dual_step(task):
    """(4.3): x - tau sum_i w_i g_i(x), whatever the clients' own step size."""
    result = go(task, fm.ScaffPD(0.1, 0.3, 0.9, lr_x=0.7, local_steps=1), rounds=6)
    q, x, w, before = Quadratics(task), np.zeros(DIM), np.full(N, 1 / N), None
    for _ in range(6):
        now = q.losses(x)
        w = chi_prox(w, now + 0.9 * (now - (now if before is None else before)), 0.3, 0.2)
        x, before = x - 0.1 * sum(w[i] * q.grad(i, x) for i in range(N)), now
    same(result.x, x)


def test_scaff_pd_on_q_fair_steps_by_the_sum_of_its_weights(task):
    """There sum w is not one, and with K = 1 the step is (sum w) times that of (4.3)."""
    problem = task.problem.replace(penalty=fm.QFair(1.0))
    one = fm.run(problem, task.clients, fm.ScaffPD(0.1, 0.3, lr_x=0.7, local_steps=1), rounds=1)
    q = Quadratics(task)
    gradient = sum(one.w[i] * q.grad(i, np.zeros(DIM)) for i in range(N))
    assert abs(one.w.sum() - 1) > 0.05
    same(one.x, -0.1 * one.w.sum() * gradient)


def test_scaff_pd_with_fixed_weights_is_scaffold_with_fresh_variates(task):
    result = go(task, fm.ScaffPD(0.15, 0.0, local_steps=K))
    q, x = Quadratics(task), np.zeros(DIM)
    for _ in range(5):
        own = np.array([q.grad(i, x) for i in range(N)])
        x = np.mean([local(q, i, x, 0.05, K, correction=own.mean(axis=0) - own[i])[-1] for i in range(N)], axis=0)
    same(result.x, x)
    same(result.w, np.full(N, 1 / N))


def test_shared_y_methods_run_on_the_minimax_form_and_descent_ascent_is_afl(task):
    """On f_i(x, w) = N w_i f_i(x) the mean gradient is (sum_i w_i g_i, f): Parallel SGDA is AFL with K = 1."""
    problem = task.problem.replace(penalty=fm.Agnostic())
    agnostic = dataclasses.replace(task, problem=problem)
    shared = dataclasses.replace(task, problem=problem.as_minimax())
    afl = go(agnostic, fm.AFL(0.05, 0.3), metrics=[fm.metrics.Value(), fm.metrics.Phi()])
    gda = go(shared, fm.ParallelSGDA(0.05, 0.3), metrics=[fm.metrics.Value(), fm.metrics.Phi()])
    same(afl.x, gda.x)
    same(afl.w, gda.y)
    for name in ("value", "phi/value", "phi/grad"):
        same(afl.history[name], gda.history[name])
    q = Quadratics(task)
    same(afl.final()["value"], q.losses(afl.x) @ afl.w)
    same(afl.final()["phi/value"], q.losses(afl.x).max())
    same(gda.x, go(shared, fm.ParallelSGDA(0.05, 0.3), engine="isolated").x)
    with pytest.raises(fm.InputError, match="as_minimax"):
        go(agnostic, fm.ParallelSGDA(0.05, 0.3))
    with pytest.raises(fm.InputError, match="is for a RobustProblem"):
        go(shared, fm.AFL(0.05, 0.3))


def test_limits_of_the_penalty_are_the_average_and_the_worst_case(task):
    make = lambda penalty: fm.problems.robust_regression(N, DIM, 8, sigma=0.5, seed=2, penalty=penalty).solution
    average = Quadratics(task).average(np.full(N, 1 / N))
    np.testing.assert_allclose(make(fm.ChiSquare(1e8)).x, average, atol=1e-7)
    np.testing.assert_allclose(make(fm.CVaR(1.0)).x, average, atol=1e-12)
    np.testing.assert_allclose(make(fm.ChiSquare(0.0)).x, make(fm.Agnostic()).x, atol=1e-12)
    assert np.abs(make(fm.Agnostic()).x - average).max() > 1e-2


# -- exact solutions ---------------------------------------------------------------------------------------------------


def test_the_exact_solution_is_a_saddle(task):
    """Found by Newton's method here; checked by optimality and against a generic solver of the primal problem."""
    import scipy.optimize

    for penalty in (fm.ChiSquare(0.05), fm.Agnostic(), fm.CVaR(0.5)):
        found = fm.problems.robust_regression(N, DIM, 8, sigma=0.5, seed=2, penalty=penalty)
        q, (x, w) = Quadratics(found), found.solution
        np.testing.assert_allclose(sum(w[i] * q.grad(i, x) for i in range(N)), 0, atol=1e-11)
        best = lambda v, penalty=penalty, q=q: _primal(penalty, q.losses(v))
        assert best(x) == pytest.approx(float(q.losses(x) @ w - penalty.value(jnp.asarray(w))), abs=1e-11)
        out = scipy.optimize.minimize(best, x + 0.05, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13})
        assert best(x) <= out.fun + 1e-9


def _primal(penalty, losses):
    w = penalty.maximize(jnp.asarray(losses))
    return float(losses @ w - penalty.value(w))


@pytest.mark.parametrize(("rho", "sigma"), [(0.01, 0.1), (0.05, 0.01), (0.1, 0.1)])
def test_scaff_pd_converges_linearly_and_faster_with_more_local_steps(x64, rho, sigma):
    """Theorem 5.5 and Figure 5: ||x - x*||^2 <= 1e-16 for K = 1, 10, 100 at one local step size."""
    task = fm.problems.robust_regression(rho=rho, sigma=sigma)
    needed = []
    for steps in (1, 10, 100):
        lr = 0.005
        method = fm.ScaffPD(tau=steps * lr, sigma=0.15 / (rho + sigma), theta=0.9, lr_x=lr, local_steps=steps)
        result = go(
            task, method, rounds={1: 3000, 10: 400, 100: 150}[steps], metrics=fm.metrics.Distance(task.solution), eval_every=5
        )
        error = result.history["distance/x"] ** 2
        assert error[-1] <= 1e-16, (steps, error[-1])
        needed.append(int(result.history["round"][np.argmax(error <= 1e-16)]))
        # Linear: on the way down the logarithm falls by about the same amount every round.
        way = np.log(error[(error > 1e-16) & (np.arange(len(error)) >= 2)])
        rounds = np.arange(len(way))
        if len(way) >= 6:
            assert np.corrcoef(rounds, way)[0, 1] < -0.98
    assert needed[0] > needed[1] > needed[2], needed


def test_scaff_pd_without_a_penalty_is_accelerated(x64):
    """Theorem 5.1: with the growing sigma_r and shrinking tau_r of Condition 5.1 the squared error falls at least as 1/R^2."""
    task = fm.problems.robust_regression(penalty=fm.Agnostic())
    constants = {k: task.info[k] for k in ("L_xx", "L_wx", "mu_x")}
    method = fm.ScaffPD.from_theory(**constants, local_steps=10)
    result = go(task, method, rounds=4000, metrics=fm.metrics.Distance(task.solution), eval_every=50)
    rounds, error = result.history["round"], result.history["distance/x"] ** 2
    late = (rounds >= 200) & (error > 1e-24)
    slope = np.polyfit(np.log(rounds[late]), np.log(error[late]), 1)[0]
    assert slope <= -1.8, slope
    tau, sigma = method.tau / np.sqrt(result.state.growth), method.sigma * np.sqrt(result.state.growth)
    assert tau < method.tau / 2, "tau shrinks"
    assert sigma > 2 * method.sigma, "sigma grows"
    same(tau * sigma, method.tau * method.sigma)


def test_scaff_pd_theory_steps_with_a_penalty_are_lemma_b8s_and_converge(x64):
    task = fm.problems.robust_regression(rho=0.1)
    constants = {k: task.info[k] for k in ("L_xx", "L_wx", "mu_x", "mu_w")}
    method = fm.ScaffPD.from_theory(**constants, local_steps=10)
    L, Lw, mx, mw = constants.values()
    tau, sigma, theta = method.tau, method.sigma, method.theta
    # (B.49), with pi = theta sigma L_wx
    assert mx * tau == pytest.approx(4 * (1 - theta) / theta)
    assert mw * sigma == pytest.approx((1 - theta) / theta)
    assert 1 / tau >= (12 * L + 2 * theta * (theta * sigma * Lw) * Lw) * (1 - 1e-9)
    result = go(task, method, rounds=4000, metrics=fm.metrics.Distance(task.solution), eval_every=500)
    error = result.history["distance/x"] ** 2
    assert (error[1:] < error[:-1] * 0.5).all()
    assert error[-1] < 1e-10
    with pytest.raises(fm.InputError, match="strongly convex"):
        fm.ScaffPD.from_theory(1.0, 1.0, 0.0)


def test_baselines_reach_what_they_minimise(task):
    q = Quadratics(task)
    p = np.array([1.0, 2, 3, 4, 5]) / 15
    weighted = dataclasses.replace(task, problem=task.problem.replace(weights=p))
    average = q.average(p)
    same(go(weighted, fm.FedAvg(0.1, local_steps=1), 1500).x, average, 1e-9)
    same(go(weighted, fm.Scaffold(0.03, local_steps=K), 1500).x, average, 1e-9)
    for method in (fm.FedAvg, fm.FedProx):
        gaps = [np.linalg.norm(go(weighted, method(lr, local_steps=8), int(40 / lr)).x - average) for lr in (0.02, 0.01)]
        assert gaps[0] > 1e-3, "drift must be visible"
        assert gaps[1] / gaps[0] == pytest.approx(0.5, abs=0.15)
    # AFL with K = 1 reaches the saddle of the penalised problem; with K > 1 its clients drift.
    saddle = task.solution
    afl = go(task, fm.AFL(0.05, 0.3), 3000)
    same(afl.x, saddle.x, 1e-9)
    same(afl.w, saddle.y, 1e-9)
    assert np.linalg.norm(go(task, fm.AFL(0.02, 0.3, local_steps=8), 3000).x - saddle.x) > 1e-3
    # q-FFL with K = 1: the gradient of sum_i f_i^(q+1) vanishes.
    x = go(task, fm.QFedAvg(0.1, 2.0, local_steps=1), 3000).x
    f = q.losses(x)
    np.testing.assert_allclose(sum(f[i] ** 2 * q.grad(i, x) for i in range(N)), 0, atol=1e-9)


def test_drfa_draws_near_the_worst_case_solution(x64):
    """Its noise does not vanish, so only the direction of travel is certain: far nearer to the saddle than the average is."""
    task = fm.problems.robust_regression(N, DIM, 50, sigma=1.0, seed=2, penalty=fm.Agnostic())
    average = Quadratics(task).average(np.full(N, 1 / N))
    # everybody reports; decaying steps average the noise of drawing by w
    method = fm.DRFA(fm.PowerDecay(0.05, 0.5), fm.PowerDecay(0.02, 0.5), local_steps=1)
    result = go(task, method, 4000)
    assert np.linalg.norm(result.x - task.solution.x) < 0.25 * np.linalg.norm(average - task.solution.x)


# -- a poisoned client -------------------------------------------------------------------------------------------------


def poisonable(task):
    """Return the problem, and clients of which number 0 reports its loss times a factor; its gradients are honest."""
    inner, clients = task.problem.loss, task.clients
    rest = (clients.starts, clients.sizes, clients.smallest, clients.largest)
    owner = np.repeat(np.arange(clients.count), clients.sizes)

    def loss(x, batch):
        value = inner(x, {k: v for k, v in batch.items() if k != "factor"})
        return value + jax.lax.stop_gradient((jnp.mean(batch["factor"]) - 1) * value)

    with_factor = lambda factor: ClientData({**clients.fields, "factor": np.where(owner == 0, factor, 1.0)}, *rest)
    return task.problem.replace(loss=loss), with_factor


@pytest.mark.parametrize(
    "method",
    [fm.AFL(0.05, 0.1), fm.DRFA(0.05, 0.02, local_steps=2), fm.ScaffPD(0.1, 0.1, local_steps=2)],
    ids=lambda m: type(m).__name__,
)
def test_an_inflated_loss_takes_over_the_weights_unless_it_is_bounded(task, method):
    problem, clients = poisonable(task)
    after = lambda factor, **options: fm.run(problem, clients(factor), method, rounds=30, eval_every=30, **options)
    off = fm.Guard(drop_nonfinite=False)
    assert after(1e6, guard=off).w[0] > 0.99, "without a bound one client dictates the model"
    guarded, honest = after(1e6, guard=fm.Guard(max_loss=100.0)), after(1.0)
    assert guarded.costs["dropped"].sum() >= 20
    assert guarded.w[0] < 0.5
    others = lambda w: w[1:] / w[1:].sum()
    assert np.abs(others(guarded.w) - others(honest.w)).max() < 0.25
    assert not np.isfinite(after(np.nan, guard=off).w).all()
    kept = after(np.nan)
    assert np.isfinite(kept.w).all()
    assert kept.w[0] < 0.5


# -- the problem -------------------------------------------------------------------------------------------------------


def test_problems_say_what_is_wrong(task):
    with pytest.raises(fm.InputError, match="penalty must be"):
        fm.RobustProblem(lambda x, b: 0.0, jnp.zeros(2), 0.1)
    with pytest.raises(fm.InputError, match="does not know its clients"):
        fm.AFL(0.1, 0.1).init(task.problem)
    with pytest.raises(fm.InputError, match="one whole number for all clients"):
        fm.DRFA(0.1, 0.1, local_steps=fm.UniformSteps(1, 2))
    with pytest.raises(fm.InputError, match="at most 1"):
        fm.DeltaFL(0.1, alpha=1.5)
    with pytest.raises(fm.InputError, match="must return one"):
        go(dataclasses.replace(task, problem=task.problem.replace(loss=lambda x, b: x)), fm.AFL(0.1, 0.1))
    with pytest.raises(fm.InputError, match="must be a MinimaxProblem or a RobustProblem"):
        fm.run("problem", task.clients, fm.AFL(0.1, 0.1), rounds=1)


def test_weights_history_and_spread(task):
    result = go(task, fm.AFL(0.05, 0.3), metrics=fm.metrics.ClientWeights(each=True), eval_every=1)
    same(result.history["w/entropy"][0], 1.0)
    w = result.vectors["w/each"].T
    assert w.shape[0] == N
    same(w[:, -1], result.w)
    share = w[:, -1][w[:, -1] > 0]
    same(result.history["w/entropy"][-1], -np.sum(share * np.log(share)) / np.log(N))
    same(result.history["w/largest"], w.max(axis=0))
    average = go(task, fm.FedAvg(0.05), metrics=[fm.metrics.ClientWeights(), fm.metrics.Value(), fm.metrics.ClientLoss()])
    same(average.final()["w/entropy"], 1.0)
    f = Quadratics(task).losses(average.x)
    same(average.final()["value"], f.mean())
    same(average.final()["client_loss/variance"], f.var())
    same(average.final()["client_loss/worst"], f.max())


@pytest.mark.parametrize("method", [fm.AFL(0.05, 0.1), fm.ScaffPD(0.1, 0.1), fm.Scaffold(0.05)], ids=lambda m: type(m).__name__)
def test_a_run_compiles_its_rounds_once(task, method):
    go(task, method, rounds=3, engine=fm.Simulator("vmap", 1))
    problem, _ = task.problem.bind(task.clients)
    program = Program.of(problem, method, Conditions(), Layout("vmap", 1))
    assert program._advance._cache_size() == 1
