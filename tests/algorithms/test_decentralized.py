"""Methods without a server: exact solutions on every graph, identities, their boxes by hand, and what nodes may see."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import players
from fedminimax.algorithms.decentralized import Decentralized
from fedminimax.federation.nodes import Rows
from fedminimax.network import Network
from fedminimax.problems.personalized_quadratic import ill_conditioned, solution
from fedminimax.problems.quadratic import client_means, saddle

GRAPHS = {
    "ring": lambda: Network.ring(6),
    "star": lambda: Network.star(5),
    "grid": lambda: Network.grid(2, 3),
    "complete": lambda: Network.complete(5),
}


@functools.cache
def task_on(graph, coupling=0.7, **options):
    return fm.problems.personalized_quadratic(GRAPHS[graph](), coupling, seed=2, **options)


def go(task, algorithm, rounds, **options):
    fixed = {"engine": fm.Simulator("vmap", 1), "eval_every": rounds, "seed": 5}
    return fm.run(task.problem, task.clients, algorithm, rounds=rounds, **{**fixed, **options})


def distance(task, result, target=None):
    target = task.solution if target is None else target
    return float(np.hypot(np.linalg.norm(result.x - target.x), np.linalg.norm(result.y - target.y)))


def sliding(task, **options):
    return fm.Sliding.from_theory(task.problem, **task.info, **{"inner_tol": 1e-14, "inner_steps": 300, **options})


def gradients(task, x, y):
    m = client_means(task.clients)
    rows = lambda matrix, v: np.einsum("nij,nj->ni", matrix, v)
    gx = rows(m["A"], x) + rows(m["B"], y) + m["a"]
    gy = rows(m["B"].swapaxes(1, 2), x) - rows(m["C"], y) + m["b"]
    return gx, gy


def on_balls(task, x=None, y=None):
    """The same task with every node's players in balls of these radii."""
    ball = lambda radius: None if radius is None else fm.sets.L2Ball(radius)
    return dataclasses.replace(task, problem=task.problem.replace(x_set=ball(x), y_set=ball(y)))


def ball(rows, radius):
    """Each row, projected on a ball."""
    return (
        rows if radius is None else rows * np.minimum(1.0, radius / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))[:, None]
    )


def held(rows, radius):
    """How many rows a ball holds back."""
    return np.sum(np.linalg.norm(rows, axis=1) > radius * (1 - 1e-9))


def solution_on_balls(task, x=None, y=None):
    """The solution with these radii, by extragradient steps on the whole objective that end at a fixed point."""
    W, c = task.problem.network.matrix.toarray(), task.problem.coupling
    lr = 0.5 / (task.info["L"] + c * np.linalg.eigvalsh(W)[-1])
    here = tuple(np.zeros(np.shape(v)) for v in task.solution)

    def step(at):
        gx, gy = gradients(task, *at)
        return ball(here[0] - lr * (gx + c * W @ at[0]), x), ball(here[1] + lr * (gy - c * W @ at[1]), y)

    for _ in range(5000):
        here, before = step(step(here)), here
        if max(np.abs(a - b).max() for a, b in zip(here, before, strict=True)) < 1e-16:
            break
    assert max(np.abs(a - b).max() for a, b in zip(step(here), here, strict=True)) < 1e-15
    return fm.Point(*here)


# -- exact solutions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_solution_makes_the_residual_zero(x64, graph):
    task = task_on(graph)
    state = fm.Point(*(jnp.asarray(v) for v in task.solution))
    assert float(fm.metrics.Residual()(task.problem, task.clients, state)) < 1e-12
    assert float(fm.metrics.Residual()(task.problem, task.clients, task.problem.start)) > 0.1


@pytest.mark.parametrize("graph", GRAPHS)
def test_both_methods_reach_the_solution_linearly(x64, graph):
    task = task_on(graph)
    L = task.info["L"]
    for method, rounds in ((sliding(task), 400), (fm.LocalExtraStep.from_theory(task.problem, L), 1500)):
        half, whole = (distance(task, go(task, method, k)) for k in (rounds // 4, rounds))
        start = float(np.hypot(*(np.linalg.norm(v) for v in task.solution)))
        assert whole < 1e-12 * max(1.0, start), type(method).__name__
        assert 0 < half < 0.05 * start  # and it is on its way: not there by accident


@pytest.mark.parametrize("radius", [0.5, 0.1])
def test_methods_reach_the_solution_on_sets_that_bind(x64, radius):
    """Sliding's subproblem is that on the sets: an unconstrained one leads elsewhere as soon as a set binds."""
    task = on_balls(task_on("ring", 0.1), y=radius)
    target = solution_on_balls(task, y=radius)
    assert 0 < held(target.y, radius) < 6
    assert distance(task, go(task, sliding(task), 500), target) < 1e-12
    if radius == 0.5:  # the others' programs once
        made = fm.LocalExtraStep.from_theory(task.problem, task.info["L"])
        assert distance(task, go(task, made, 6000), target) < 1e-11
        made = fm.SlidingNN(0.1, 0.1, theta=8.0, local_steps=100)
        assert distance(task, go(task, made, 600), target) < 1e-11


def test_without_coupling_nodes_find_their_own_solutions(x64):
    task = task_on("ring", 0.0)
    alone = task.solution
    for k in range(6):  # each is the saddle of its own node
        own = fm.problems.quadratic(6, seed=2)
        assert np.allclose(alone.x[k], saddle(own.clients, np.eye(6)[k]).x)
    for method in (sliding(task), fm.LocalTraining(0.1, 0.1), fm.DecentralizedExtraGradient.from_theory(task.problem, 5.0)):
        assert distance(task, go(task, method, 600)) < 1e-10
    coupled = task_on("ring")
    assert distance(coupled, go(coupled, fm.LocalTraining(0.1, 0.1), 600), alone) < 1e-10  # whatever the coupling


def test_a_huge_coupling_makes_all_nodes_agree_on_the_global_saddle(x64):
    network = Network.grid(2, 3)
    task = fm.problems.personalized_quadratic(network, 1e6, seed=2)
    whole = fm.problems.quadratic(6, seed=2).solution
    np.testing.assert_allclose(task.solution.x, np.broadcast_to(whole.x, (6, 4)), atol=1e-5)
    nearer = [np.abs(solution(task.clients, network, c).x - whole.x).max() for c in (0.1, 10, 1000)]
    assert nearer[0] > 5 * nearer[1] > 250 * nearer[2] > 0


def test_sliding_needs_exchanges_in_proportion_to_the_coupling_and_no_more_local_work(x64):
    """Theorem 1, where 3 mu < c lambda_max << L: c lambda_max / mu exchanges, and L / mu local steps (but for a logarithm)."""
    network = Network.ring(6, normalized=True)
    couplings = np.array([4.0, 8.0, 16.0])
    gossip, work = [], []
    for c in couplings:
        task = ill_conditioned(network, float(c), L=400.0)
        rounds = int(100 * c)
        method = sliding(task, inner_tol=1e-11, inner_steps=2000)
        seen = go(task, method, rounds, metrics=fm.metrics.Distance(task.solution), eval_every=rounds // 100).history
        first = int(np.argmax(seen["distance/total"] < 1e-8))
        assert first > 0
        gossip.append(seen["gossip_rounds"][first])
        work.append(seen["local_steps"][first] / 6)
    slope = lambda counts: np.polyfit(np.log(couplings), np.log(counts), 1)[0]
    assert 0.8 < slope(gossip) < 1.2
    assert slope(work) < 0.2


# -- the boxes, by hand ------------------------------------------------------------------------------------------------


RADII = {"x": 0.25, "y": 0.1}


def test_sliding_equals_its_box_on_sets(x64):
    task = on_balls(task_on("star"), **RADII)
    W, c = task.problem.network.matrix.toarray(), 0.7
    gamma, lr = 0.1, 0.2
    result = go(task, fm.Sliding(gamma, lr, inner_steps=3), 4)
    into = lambda x, y: (ball(x, RADII["x"]), ball(y, RADII["y"]))
    x, y = np.zeros((5, 4)), np.zeros((5, 3))
    kept_back, solved = np.zeros(2), []  # by the last projections; the U of all rounds
    for _ in range(4):
        vx, vy = x - gamma * c * W @ x, y - gamma * c * W @ y
        ux, uy = x, y
        for _ in range(3):
            gx, gy = gradients(task, ux, uy)
            ax, ay = into(ux - lr * (gamma * gx + ux - vx), uy + lr * (gamma * gy - (uy - vy)))
            gx, gy = gradients(task, ax, ay)
            ux, uy = into(ux - lr * (gamma * gx + ax - vx), uy + lr * (gamma * gy - (ay - vy)))
        px, py = ux + gamma * c * (W @ x - W @ ux), uy + gamma * c * (W @ y - W @ uy)
        x, y = into(px, py)
        solved.append((ux, uy))
        kept_back = np.maximum(kept_back, [np.abs(px - x).max(), np.abs(py - y).max()])
    assert kept_back.min() > 1e-4
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.y, y, rtol=1e-11)
    averaged = go(task, fm.Sliding(gamma, lr, inner_steps=3, average=True), 4)
    np.testing.assert_allclose(averaged.x, np.mean([u for u, _ in solved], axis=0), rtol=1e-11)
    np.testing.assert_allclose(averaged.y, np.mean([u for _, u in solved], axis=0), rtol=1e-11)
    np.testing.assert_allclose(averaged.state.z.y, y, rtol=1e-11)


def test_sliding_solves_its_subproblem_to_the_tolerance(x64):
    """It stops one step after r <= tol, and r bounds the error by 1 + eta (1 + gamma L), at a bound of a set too."""
    task = on_balls(task_on("star", 0.0), **RADII)  # without coupling a round is the subproblem alone
    method, tol = sliding(task, inner_tol=1e-14, inner_steps=500), 1e-3
    exact = go(task, method, 1)
    assert held(exact.y, RADII["y"]) > 0
    rough = go(task, method.replace(inner_tol=tol), 1)
    assert distance(task, rough, fm.Point(exact.x, exact.y)) <= 1.5 * tol * np.sqrt(5)

    gamma, lr = method.gamma, method.inner_lr
    x, y = np.zeros((5, 4)), np.zeros((5, 3))
    steps, going = np.zeros(5, int), np.ones(5, bool)
    while going.any():
        ahead = x, y
        for turn in range(2):
            gx, gy = gradients(task, *ahead)
            ux, uy = x - lr * (gamma * gx + ahead[0]), y + lr * (gamma * gy - ahead[1])
            ahead = ball(ux, RADII["x"]), ball(uy, RADII["y"])
            if turn == 0:
                residual = np.hypot(*(np.linalg.norm(u - v, axis=1) for u, v in zip((x, y), ahead, strict=True))) / lr
        (x, y), steps = ahead, steps + going
        going &= residual > tol
    assert rough.costs["local_steps"].sum() == steps.sum() > 25


COINS = ((1, 0, 1, 1, 0), (1, 1, 0, 1))


def test_local_extra_step_equals_its_box_on_sets(x64):
    task = on_balls(task_on("ring"), **RADII)
    into = lambda x, y: (ball(x, RADII["x"]), ball(y, RADII["y"]))
    W, c, gamma, p, K = task.problem.network.matrix.toarray(), 0.7, 0.1, 0.3, 19
    result = go(task, fm.LocalExtraStep(gamma, p, coins=COINS), K)
    x, y = np.zeros((6, 4)), np.zeros((6, 3))
    ux, uy = x, y
    exchanges = 1
    for k in range(K):
        xi, keep = COINS[0][k % 5], COINS[1][k % 4]
        bx, by = (1 - p) * x + p * ux, (1 - p) * y + p * uy
        gx, gy = gradients(task, ux, uy)
        fx, fy = gx + c * W @ ux, gy - c * W @ uy
        hx, hy = into(bx - gamma * fx, by + gamma * fy)
        G = lambda x, y, xi=xi: (
            xi / (1 - p) * gradients(task, x, y)[0] + (1 - xi) / p * c * W @ x,
            xi / (1 - p) * gradients(task, x, y)[1] - (1 - xi) / p * c * W @ y,
        )
        new = G(hx, hy), G(ux, uy)
        x, y = into(bx - gamma * (new[0][0] - new[1][0] + fx), by + gamma * (new[0][1] - new[1][1] + fy))
        if not keep:
            ux, uy = x, y
        exchanges += (not xi) + (not keep)
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.y, y, rtol=1e-11)
    assert result.costs["gossip_rounds"].sum() == exchanges
    assert held(x, RADII["x"]) > 0
    assert held(y, RADII["y"]) > 0


@pytest.mark.parametrize("method", [fm.DecentralizedExtraGradient, fm.LocalTraining], ids=lambda m: m.__name__)
def test_extragradient_steps_equal_their_equations_on_sets(x64, method):
    task = on_balls(task_on("ring"), **RADII)
    W, lr_x, lr_y = task.problem.network.matrix.toarray(), 0.1, 0.15
    c = 0.0 if method is fm.LocalTraining else 0.7
    result = go(task, method(lr_x, lr_y), 4)
    x, y = np.zeros((6, 4)), np.zeros((6, 3))

    def step(ax, ay):
        gx, gy = gradients(task, ax, ay)
        return ball(x - lr_x * (gx + c * W @ ax), RADII["x"]), ball(y + lr_y * (gy - c * W @ ay), RADII["y"])

    for _ in range(4):
        x, y = step(*step(x, y))
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.y, y, rtol=1e-11)
    assert held(x, RADII["x"]) > 0
    assert held(y, RADII["y"]) > 0


def test_coins_are_tossed_with_their_probability_and_a_period_is_one(x64):
    task = task_on("ring")
    rounds, p = 600, 0.2
    tossed = go(task, fm.LocalExtraStep(1e-3, p), rounds).costs["gossip_rounds"]
    assert abs(tossed.mean() - 2 * p) < 0.08
    assert abs(np.mean(tossed[1:] == 1) - 2 * p * (1 - p)) < 0.08  # one coin of two: they are independent
    regular = go(task, fm.LocalExtraStep(1e-3, p, coins="periodic"), 20).costs["gossip_rounds"]
    assert regular.tolist() == [1, 0, 0, 0, 2] + [0, 0, 0, 0, 2] * 3


def test_a_period_reaches_the_solution_too(x64):
    task = task_on("ring")
    made = fm.LocalExtraStep.from_theory(task.problem, task.info["L"], coins="periodic")
    assert distance(task, go(task, made, 1500)) < 1e-9


@pytest.mark.parametrize(("graph", "lambda_max", "rho", "printed"), [("complete", 1.0, None, True), ("star", 5.0, 0.6, False)])
def test_networks_forms_equal_their_equations_on_sets(x64, graph, lambda_max, rho, printed):
    """Section 3.4: W x = x - x-bar with a server, else W over lambda_max. Buffers begin at zero each round."""
    task = on_balls(task_on(graph), **RADII)
    c, theta, r, lr, T = 0.7, 2.0, 3.0, 0.05, 3
    W = np.eye(5) - 0.2 if graph == "complete" else task.problem.network.matrix.toarray() / lambda_max

    def train(x, y, lr, pull=0.0):
        ux, uy = x, y
        dx, dy = np.zeros_like(x), np.zeros_like(y)
        for _ in range(T):
            gx, gy = gradients(task, ux, uy)
            dx = (rho or 0.0) * dx + gx + pull * (ux - x)
            dy = (rho or 0.0) * dy + gy - pull * (uy - y)
            ux, uy = ball(ux - lr * dx, RADII["x"]), ball(uy + lr * dy, RADII["y"])
        return ux, uy

    method = fm.SlidingNN(lr, lr, theta=theta, momentum=rho, printed=printed, local_steps=T)
    slid = go(task, method, 4)
    x, y = np.zeros((5, 4)), np.zeros((5, 3))
    kept_back = np.zeros(2)  # by the last projections
    for _ in range(4):
        ux, uy = train(x - W @ x / theta, y - W @ y / theta, lr, theta * c * lambda_max)
        s = theta**-2 if printed else 1 / theta
        px, py = ux + s * (W @ x - W @ ux), uy + s * (W @ y - W @ uy)
        x, y = ball(px, RADII["x"]), ball(py, RADII["y"])
        kept_back = np.maximum(kept_back, [np.abs(px - x).max(), np.abs(py - y).max()])
    assert graph == "complete" or kept_back.min() > 1e-4
    np.testing.assert_allclose(slid.x, x, rtol=1e-11)
    np.testing.assert_allclose(slid.y, y, rtol=1e-11)
    personal = go(task, method.replace(personal="u"), 4)
    np.testing.assert_allclose(personal.x, ux, rtol=1e-11)
    np.testing.assert_allclose(personal.state.z.x, x, rtol=1e-11)

    method = fm.LocalNN(lr, lr, r=r, momentum=rho, local_steps=T)
    local = go(task, method, 2)
    x, y = np.zeros((5, 4)), np.zeros((5, 3))
    for _ in range(2):
        x, y = train(x, y, lr / r)
        x, y = x - W @ x / r, y - W @ y / r  # a weighted mean of neighbours', which stays in the sets
    np.testing.assert_allclose(local.x, x, rtol=1e-11)
    np.testing.assert_allclose(local.y, y, rtol=1e-11)
    # but a neighbour may send anything
    told = method.average(task.problem, None, fm.Point(jnp.ones(4), jnp.ones(3)), fm.Point(jnp.full(4, 1e3), jnp.full(3, 1e3)))
    np.testing.assert_allclose([np.linalg.norm(told.x), np.linalg.norm(told.y)], [RADII["x"], RADII["y"]])


@pytest.mark.parametrize("network", [Network.star(20), Network.grid(4, 5)], ids=["star", "grid"])
def test_networks_forms_are_scaled_by_the_largest_eigenvalue(x64, network):
    """With theta = r = 2 and the plain Laplacian an averaging that is not scaled overshoots: NaN on the star."""
    task = fm.problems.personalized_quadratic(network, 0.1, seed=2)
    result = go(task, fm.SlidingNN(0.05, 0.05, theta=2.0, local_steps=150), 400)
    assert distance(task, result) < 1e-8
    lr = 0.02
    made = fm.LocalNN(lr, lr, r=2.0, local_steps=round(1 / (lr * 0.1 * network.lambda_max)))
    assert np.isfinite(go(task, made, 200).x).all()
    near = go(task, made.replace(r=20.0), 800)  # the smaller the steps of a round, the nearer
    assert distance(task, near) < 0.2 * distance(task, fm.Point(*solution(task.clients, network, 0.0)))


def test_with_theta_one_the_rows_agree_for_ever(x64):
    task = task_on("complete")
    result = go(task, fm.SlidingNN(0.05, 0.05, theta=1.0, local_steps=5), 6, metrics=fm.metrics.Consensus())
    assert result.history["consensus/x"][-1] < 1e-14
    looser = go(task, fm.SlidingNN(0.05, 0.05, theta=2.0, local_steps=5), 6, metrics=fm.metrics.Consensus())
    assert looser.history["consensus/x"][-1] > 1e-3
    personal = go(task, fm.SlidingNN(0.05, 0.05, theta=1.0, local_steps=5, personal="u"), 6)
    assert np.std(personal.x, axis=0).min() > 1e-3  # the models that the nodes trained are not alike
    np.testing.assert_allclose(personal.x.mean(axis=0), result.x[0], rtol=1e-11)


def test_steps_of_the_theory(x64):
    """(13) and (18) of the proofs, Table 2, and the extragradient method's step, where c lambda_max = 0.5 * 4."""
    task = fm.problems.personalized_quadratic(Network.ring(8), 0.5)
    problem = task.problem
    slide = lambda **given: fm.Sliding.from_theory(problem, **given)
    assert slide(L=6.0, mu=0.1).gamma == pytest.approx(1 / 8)
    assert slide(L=6.0, mu=1.0).gamma == pytest.approx(1 / 12)
    assert slide(L=6.0, mu=0.1).inner_lr == pytest.approx(1 / (2 * (1 + 6 / 8)))
    assert (slide(L=6.0).gamma, slide(L=6.0).inner_lr) == pytest.approx((1 / 4, 1 / 5))
    # Table 1's delta, from which T = 2 (1 + gamma L) log(1 / delta)
    steps = lambda delta, gamma: np.ceil(2 * (1 + 6 * gamma) * np.log(1 / delta))
    assert slide(L=6.0, mu=0.1).inner_steps == steps(1 / (64 * 80 + 64 * 36 / 0.8), 1 / 8)
    assert slide(L=6.0).inner_steps == steps(1 / (16 * (1 + 36 / 16)), 1 / 4)
    assert slide(L=6.0, epsilon=0.1, diameter=2.0).inner_steps == steps((0.1 / 4 / 2.5 / 2) ** 2, 1 / 4)
    balls = problem.replace(x_set=fm.sets.L2Ball(1.5), y_set=fm.sets.L2Ball(2.0))
    bounded = fm.Sliding.from_theory(balls, 6.0, epsilon=0.1)
    assert bounded.inner_steps == steps((0.1 / 4 / 2.5 / 5) ** 2, 1 / 4)
    assert slide(L=6.0, inner_tol=1e-3).inner_steps == fm.Sliding(0.1, 0.1).inner_steps
    with pytest.raises(fm.InputError, match="give from_theory a diameter"):
        slide(L=6.0, epsilon=0.1)
    local = fm.LocalExtraStep.from_theory(problem, 6.0)
    assert (local.p, local.gamma) == pytest.approx((2 / 8, 2**0.5 / (2 * 8**1.5)))
    whole = fm.DecentralizedExtraGradient.from_theory(problem, 6.0)
    assert (whole.lr_x, whole.lr_y) == pytest.approx((1 / 16, 1 / 16))


def test_the_theory_s_inner_steps_reach_its_relative_precision(x64):
    """Lemma 2, with Table 1's delta: ||U - U-hat||^2 <= delta ||Z - U-hat||^2 after T steps."""
    task = ill_conditioned(Network.ring(6), 0.0, L=50.0)  # without coupling a round is the subproblem alone
    method = fm.Sliding.from_theory(task.problem, 50.0, 1.0)
    done = go(task, method, 1)
    m, gamma = client_means(task.clients), method.gamma
    delta = 1 / (64 / gamma + 64 * gamma * 2500)
    for k in range(6):
        J = np.block([[m["A"][k], m["B"][k]], [-m["B"][k].T, m["C"][k]]])
        solved = np.linalg.solve(np.eye(7) + gamma * J, -gamma * np.concatenate([m["a"][k], -m["b"][k]]))
        error = np.concatenate([done.x[k], done.y[k]]) - solved
        assert 0 < error @ error <= delta * (solved @ solved)
    assert done.costs["local_steps"].sum() == 6 * method.inner_steps


def test_where_f_is_not_strongly_convex_the_average_s_gap_falls_as_in_theorem_4(x64):
    """A bilinear game on a ring: gap(average of K rounds) <= q ||Z_0 - Z||^2 / K, where q = c lambda_max."""
    network, c, rng = Network.ring(4), 0.5, np.random.default_rng(3)
    zero = {"A": np.zeros((1, 4, 4)), "C": np.zeros((1, 3, 3))}
    draw = lambda *shape: rng.normal(size=(1, *shape))
    clients = fm.ClientData.from_list([{**zero, "B": draw(4, 3), "a": draw(4), "b": draw(3)} for _ in range(4)])
    own = fm.problems.quadratic(1).problem
    balls = {"x_set": fm.sets.L2Ball(1.0), "y_set": fm.sets.L2Ball(0.5)}
    problem = fm.PersonalizedProblem(own.loss, own.x0, own.y0, c, network, **balls)
    task = fm.problems.Task(problem, clients)
    L = max(np.linalg.norm(B, 2) for B in client_means(clients)["B"])
    method = fm.Sliding.from_theory(problem, L, epsilon=1e-2, average=True)
    seen = go(task, method, 80, eval_every=20, metrics=[fm.metrics.PersonalizedGap(), fm.metrics.Residual()])
    gaps, K = seen.history["gap"], np.asarray(seen.history["round"])
    assert gaps[0] > 1.0
    assert np.all(gaps[1:] <= 2.0 * 4 * (1.0 + 0.25) / K[1:])
    assert gaps[-1] < 0.5 * gaps[1]

    # the gap by steps of our own, long enough
    m, W = client_means(clients), network.matrix.toarray()
    rows = lambda matrix, v: np.einsum("nij,nj->ni", matrix, v)
    F = lambda x, y: np.sum(x * rows(m["B"], y)) + np.sum(m["a"] * x) + np.sum(m["b"] * y) + c / 2 * (
        np.sum(x * (W @ x)) - np.sum(y * (W @ y))
    )  # fmt: skip
    x, y = seen.x, seen.y
    best_x, best_y = x, y
    for _ in range(4000):
        best_x = ball(best_x - 0.2 * (rows(m["B"], y) + m["a"] + c * W @ best_x), 1.0)
        best_y = ball(best_y + 0.2 * (rows(m["B"].swapaxes(1, 2), x) + m["b"] - c * W @ best_y), 0.5)
    np.testing.assert_allclose(gaps[-1], F(x, best_y) - F(best_x, y), rtol=1e-6)


def test_minibatches_lead_local_extra_steps_to_the_exact_solution(x64):
    """The same minibatch at Z' and U, and all examples at U: the noise vanishes, without smaller steps."""
    task = task_on("ring", 0.3, examples=6, noise=0.3)
    method = fm.LocalExtraStep(0.05, 0.3, batch_size=2)
    assert distance(task, go(task, method, 3000)) < 1e-10
    one = go(task, method.replace(coins=((1,), (1,))), 2).costs
    assert one["grad_evals"].tolist() == [6 * (6 + 4), 6 * 4]  # the anchor's on all examples, then two on two examples
    assert one["local_steps"].tolist() == [12, 6]


def test_with_small_steps_the_networks_forms_aim_at_the_coupled_problem(x64):
    task = task_on("complete")
    exact = go(task, fm.SlidingNN(0.1, 0.1, theta=8.0, local_steps=60, printed=False), 200)
    assert distance(task, exact) < 1e-6
    lr, T = 0.002, round(1 / (0.002 * 0.7))
    near = go(task, fm.LocalNN(lr, lr, r=8.0, local_steps=T), 60)
    assert distance(task, near) < 0.25 * distance(task, go(task, fm.LocalTraining(0.1, 0.1), 600))


# -- what nodes may see ------------------------------------------------------------------------------------------------


def test_only_edges_carry_anything(x64):
    """On a line a-b-c a change at c reaches a after two exchanges, not after one."""
    network = Network.from_edges([(0, 1), (1, 2)])
    task = fm.problems.personalized_quadratic(network, 0.5, seed=1)
    changed = {k: np.array(v) for k, v in task.clients.fields.items()}
    changed["a"][2] += 1.0
    other = dataclasses.replace(task, clients=fm.ClientData.equal(changed, 3))
    method = fm.LocalNN(0.05, 0.05, local_steps=2)
    for rounds, reached in ((1, {1, 2}), (2, {0, 1, 2})):
        a, b = go(task, method, rounds).x, go(other, method, rounds).x
        assert {k for k in range(3) if np.abs(a[k] - b[k]).max() > 1e-12} == reached


def test_floats_are_counted_along_the_edges(x64):
    task = task_on("ring")
    costs = go(task, sliding(task, inner_steps=2), 3).costs
    assert costs["floats_up"].tolist() == [2 * 12 * 7] * 3  # two exchanges, 12 directed edges, 7 numbers
    assert (costs["floats_up_x"].sum(), costs["floats_down"].sum()) == (2 * 12 * 4 * 3, 0)
    assert costs["gossip_rounds"].tolist() == [2, 2, 2]
    assert costs["grad_evals"].tolist() == [6 * 2 * 2] * 3
    assert costs["local_steps"].tolist() == [6 * 2] * 3  # an extragradient step is one, with two gradients
    assert go(task, fm.LocalNN(0.1, 0.1, local_steps=5), 2).costs["local_steps"].tolist() == [6 * 5] * 2
    coins = go(task, fm.LocalExtraStep(0.01, 0.4, coins=((1, 0), (1, 1))), 4).costs
    assert coins["local_steps"].tolist() == [12, 0, 6, 0]  # the first round takes the anchor's gradients too
    whole = go(task, fm.DecentralizedExtraGradient(0.01, 0.01), 2).costs
    assert (whole["local_steps"].tolist(), whole["grad_evals"].tolist()) == ([6] * 2, [12] * 2)  # here too
    assert "gossip_rounds" not in go(task, fm.LocalTraining(0.1, 0.1), 1).costs


def test_a_server_s_averaging_needs_no_edges_and_no_32_bits(x64):
    """50,000 nodes, 2.5e9 messages: nothing of that size is made, and all are counted."""
    count, at = 50_000, np.random.default_rng(0).normal(size=50_000)
    loss = lambda x, y, batch: jnp.mean((x - batch["at"]) ** 2 - (y - batch["at"]) ** 2) / 2
    problem = fm.PersonalizedProblem(loss, jnp.zeros(()), jnp.zeros(()), 1.0, Network.complete(count))
    result = fm.run(problem, fm.ClientData.equal({"at": at}, count), fm.LocalNN(0.5, 0.5, local_steps=1), rounds=1)
    x = 0.25 * at  # eta / r
    np.testing.assert_allclose(result.x, x - (x - x.mean()) / 2, rtol=1e-11)
    assert result.costs["floats_up"].tolist() == [count * (count - 1) * 2]
    assert result.costs["gossip_rounds"].tolist() == [1]
    assert "edges" not in vars(problem.network)


def test_a_broken_node_harms_nobody_else(x64):
    task = task_on("ring")
    broken = {k: np.array(v) for k, v in task.clients.fields.items()}
    broken["a"][0] = np.nan
    data = fm.ClientData(broken, *(getattr(task.clients, n) for n in ("starts", "sizes", "smallest", "largest", "batching")))
    for engine in ("simulator", "isolated"):
        with pytest.warns(UserWarning, match="refused"):
            result = fm.run(task.problem, data, sliding(task, inner_steps=3), rounds=3, engine=engine)
        assert not np.isfinite(result.x[0]).all()
        assert np.isfinite(result.x[1:]).all()
        assert result.costs["dropped"].sum() > 0


class Peeking(Decentralized):
    """A method that adds up rows outside the nodes."""

    def step(self, problem, state, nodes):
        return state + state


def test_rows_cannot_be_touched_outside_the_nodes(x64):
    task = task_on("ring")
    method = jax.tree_util.register_static(dataclasses.dataclass(frozen=True)(Peeking))()
    with pytest.raises(fm.InputError, match="the nodes' own"):
        go(task, method, 1)
    with pytest.raises(fm.InputError, match="the nodes' own"):
        np.asarray(Rows(np.zeros(3)))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda t: go(t, fm.LocalSGDA(0.1, 0.1), 1), "is for a MinimaxProblem"),
        (lambda t: go(t, sliding(t), 1, availability=fm.Availability(0.5)), "always there"),
        (lambda t: go(t, sliding(t), 1, metrics=fm.metrics.Value()), "players of its own"),
        (lambda t: go(t, sliding(t), 1, metrics=fm.metrics.ClientLoss()), "players of its own"),
        (lambda t: fm.run(t.problem, t.clients.only(0), sliding(t), rounds=1), "6 nodes, but there are data of 1"),
        (lambda t: t.problem.replace(coupling=-1.0), "coupling must be"),
        (lambda t: t.problem.replace(network="ring"), "must be a Network"),
        (lambda t: fm.LocalExtraStep(0.1, 1.5), "0 < p < 1"),
        (lambda t: fm.LocalExtraStep(0.1, 0.5, coins=((0, 2), (1,))), "two sequences"),
        (lambda t: fm.LocalExtraStep(0.1, 0.5, coins="fair"), "coins must be"),
        (lambda t: fm.SlidingNN(0.1, 0.1, theta=0.5), "theta must be at least 1"),
        (lambda t: fm.SlidingNN(0.1, 0.1, personal="v"), "'z' or 'u'"),
        (lambda t: fm.LocalNN(0.1, 0.1, r=0.9), "r must be at least 1"),
        (lambda t: fm.LocalExtraStep.from_theory(t.problem.replace(coupling=0.0), 1.0), "use LocalTraining"),
    ],
)
def test_what_makes_no_sense_is_named(x64, attempt, message):
    with pytest.raises(fm.InputError, match=message):
        attempt(task_on("ring"))


# -- models ------------------------------------------------------------------------------------------------------------


def test_accuracies_of_local_and_mean_models():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    fields = {"inputs": (rng.normal(size=(60, 4)) + 2 * labels[:, None]).astype(np.float32), "labels": labels.astype(np.int32)}
    for clients in (fm.ClientData.equal(fields, 4), fm.ClientData.from_owner(fields, np.repeat(range(4), [6, 12, 18, 24]))):
        problem = fm.problems.personalized_training(fm.models.Logistic(3), clients, 3, 0.1, Network.ring(4))
        result = fm.run(problem, clients, fm.LocalNN(0.3, 0.1, local_steps=5, batch_size=6), rounds=10)
        local = fm.metrics.NodeAccuracy()
        each = np.asarray(local.values(problem, clients, result.state))
        for k in range(4):
            x = jax.tree.map(lambda a, k=k: a[k], result.x)
            guess = np.argmax(problem.predict(x, clients[k]["inputs"]), axis=-1)
            np.testing.assert_allclose(each[k], np.mean(guess == clients[k]["labels"]), rtol=1e-6)
        assert float(local(problem, clients, result.state)["worst"]) == pytest.approx(each.min())
        mean = jax.tree.map(lambda a: a.mean(0), result.x)
        guess = np.argmax(problem.predict(mean, fields["inputs"]), axis=-1)
        shared = float(fm.metrics.GlobalAccuracy(fields)(problem, clients, result.state))
        assert shared == pytest.approx(np.mean(guess == labels))
        assert each.mean() > 0.6


def classifiers(model, side):
    """Three nodes on a ring with images of three classes: the problem of section 2.2, and its data."""
    rng = np.random.default_rng(1)
    labels = (np.arange(48) % 3).astype(np.int32)
    inputs = rng.normal(size=(48, side, side, 1)) + labels[:, None, None, None] - 1.0
    clients = fm.ClientData.equal({"inputs": inputs.astype(np.float32), "labels": labels}, 3)
    return fm.problems.personalized_training(model, clients, 3, 0.1, Network.ring(3), beta_x=1e-4, beta_y=1.0), clients


@pytest.mark.parametrize(
    "model", [fm.models.Logistic(3), fm.models.MLP((8,), 3), fm.models.CNN(3)], ids=lambda m: type(m).__name__
)
def test_any_network_trains_on_nodes_of_its_own(model):
    """Every node's own loss falls, with a model of its own and noise against it."""
    problem, clients = classifiers(model, 8)
    method = fm.SlidingNN(0.1, 0.1, local_steps=1)  # a loop of several would take twice as long to compile
    result = fm.run(problem, clients, method, rounds=6, metrics=fm.metrics.Consensus(), eval_every=6)
    value = jax.jit(problem.value)
    own = lambda z, k: float(value(*jax.tree.map(lambda a: np.asarray(a)[k], z), clients[k]))
    for k in range(3):
        assert own((result.x, result.y), k) < own(problem.start, k) - 0.05
    assert result.history["consensus/x"][-1] > 1e-4
    assert np.abs(result.y).max() > 0


def test_nodes_may_start_from_weights_of_their_own(x64):
    problem, clients = classifiers(fm.models.Logistic(3), 4)
    others = fm.problems.personalized_training(fm.models.Logistic(3), clients, 3, 0.1, Network.ring(3), alike=False)
    weights = lambda p: np.concatenate([np.asarray(a).reshape(3, -1) for a in jax.tree.leaves(p.start.x)], axis=1)
    assert np.ptp(weights(problem), axis=0).max() == 0
    assert np.ptp(weights(others), axis=0).max() > 0.1
    task = task_on("ring")
    rows = fm.Point(*(np.random.default_rng(0).normal(size=np.shape(v)) for v in task.solution))
    away = dataclasses.replace(task, problem=task.problem.replace(starts=rows, y_set=fm.sets.L2Ball(10.0)))
    np.testing.assert_array_equal(away.problem.start.x, rows.x)
    assert distance(task, go(away, sliding(task), 400)) < 1e-10  # and get to the same solution
    with pytest.raises(fm.InputError, match="a row like"):
        task.problem.replace(starts=fm.Point(rows.x[:3], rows.y[:3]))


def test_a_residual_network_descends_against_its_noise():
    problem, clients = classifiers(fm.models.ResNet18(3, width=8), 8)

    @jax.jit
    def step(z, batch):
        g = problem.grad(*z, batch)
        moved = problem.project(fm.Point(players.add(z.x, g.x, -0.05), players.add(z.y, g.y, 0.05)))
        return moved, problem.value(*z, batch)

    z, values = jax.tree.map(lambda a: a[0], problem.start), []
    for _ in range(8):
        z, value = step(z, clients[0])
        values.append(float(value))
    assert values[-1] < values[0] - 0.2
    assert float(jnp.abs(z.y).max()) > 0


def test_a_swept_strength_is_a_coupling_times_as_large(x64):
    network = fm.Network.ring(4)
    run = lambda coupling, **given: fm.run(
        (task := fm.problems.personalized_quadratic(network, coupling)).problem, task.clients,
        fm.DecentralizedExtraGradient(0.05, 0.05, **given), rounds=5, progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(run(0.5, strength=3.0).x, run(1.5).x, rtol=1e-12)
    assert np.abs(np.asarray(run(0.5).x) - np.asarray(run(1.5).x)).max() > 1e-3
