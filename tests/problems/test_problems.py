import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.data import ClientData
from fedminimax.players import Point


def test_wgan_gradients_vanish_at_both_solutions(x64):
    task = fm.problems.wgan(0.01, examples=500, mean=0.3, deviation=0.2)
    z = np.asarray(task.clients.fields["z"])
    second = Point(np.array([0.3 + 2 * 0.2 * z.mean(), -0.2]), np.zeros(2))
    for point in (task.solution, second):
        g = metrics.gradient(task.problem, task.clients, jax.tree.map(jnp.asarray, point))
        assert np.abs(np.concatenate([g.x, g.y])).max() < 1e-14


def test_wgan_best_response_is_where_the_y_gradient_vanishes(x64):
    task = fm.problems.wgan(0.02, examples=200)
    x = jnp.asarray([0.4, 0.7])
    y = metrics.maximize_y(task.problem, task.clients, x, jnp.zeros(2))
    assert np.abs(metrics.gradient(task.problem, task.clients, Point(x, y)).y).max() < 1e-12


def fair(penalty=0.0, weights="size"):
    rng = np.random.default_rng(0)
    labels = rng.choice(3, p=[0.6, 0.3, 0.1], size=90).astype(np.int32)
    fields = {"inputs": rng.normal(size=(90, 4)) + labels[:, None], "labels": labels}
    clients = ClientData.from_owner(fields, np.repeat([0, 1, 2], [10, 30, 50]))
    return fm.problems.fair_classification(fm.models.Logistic(3), clients, 3, penalty=penalty, weights=weights), clients


def class_losses(problem, clients, x):
    logits = np.asarray(problem.predict(x, clients.fields["inputs"]))
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    labels = np.asarray(clients.fields["labels"])
    return np.array([-log_p[labels == c, c].mean() for c in range(3)])


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_fair_objective_is_the_weighted_sum_of_class_means(x64, penalty):
    problem, clients = fair(penalty)
    x = jax.tree.map(lambda a: a + 0.3, problem.x0)
    y = jnp.asarray([0.2, 0.5, 0.3])
    expected = np.asarray(y) @ class_losses(problem, clients, x) - penalty / 2 * (0.04 + 0.25 + 0.09)
    np.testing.assert_allclose(metrics.objective(problem, clients, Point(x, y)), expected, rtol=1e-6)


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_fair_best_response_beats_every_other_weighting(x64, penalty):
    problem, clients = fair(penalty)
    y = metrics.maximize_y(problem, clients, problem.x0, problem.y0)
    losses = class_losses(problem, clients, problem.x0)
    value = lambda y: y @ losses - penalty / 2 * y @ y
    others = np.random.default_rng(1).dirichlet(np.ones(3), size=500)
    assert value(np.asarray(y)) >= max(value(o) for o in others) - 1e-9
    numerical = metrics.maximize_y(problem.replace(best_response=None), clients, problem.x0, problem.y0, tol=1e-9)
    np.testing.assert_allclose(value(np.asarray(numerical)), value(np.asarray(y)), atol=1e-8)


def test_regularized_subtracts_the_term_of_theorem_3_3(x64):
    problem, clients = fair()
    center = jnp.asarray([1.0, 0.0, 0.0])
    regular = fm.problems.regularized(problem, epsilon=0.4, y0=center)
    y = jnp.asarray([0.2, 0.5, 0.3])
    change = metrics.objective(problem, clients, Point(problem.x0, y)) - metrics.objective(
        regular, clients, Point(problem.x0, y)
    )
    np.testing.assert_allclose(change, 0.4 / (4 * np.sqrt(2)) * (0.64 + 0.25 + 0.09), rtol=1e-10)
    with pytest.raises(fm.InputError, match="bounded Y"):
        fm.problems.regularized(fm.problems.quadratic(2).problem, epsilon=0.1)


def test_regularized_has_no_best_response_of_the_problem_before(x64):
    """The best weights of the regularised problem are not a vertex: kept from f, the old ones would be far too good."""
    problem, clients = fair()
    regular = fm.problems.regularized(problem, epsilon=20.0)
    y = np.asarray(metrics.maximize_y(regular, clients, problem.x0, problem.y0, tol=1e-10))
    center, rate = np.full(3, 1 / 3), 20.0 / (4 * np.sqrt(2))
    # argmax <F, y> - rate ||y - y_0||^2 is the projection of y_0 + F / (2 rate), by bisection for its threshold
    point, low, high = center + class_losses(problem, clients, problem.x0) / (2 * rate), -10.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    assert np.count_nonzero(np.maximum(point - low, 0)) > 1, "the solution must not be a vertex"
    np.testing.assert_allclose(y, np.maximum(point - low, 0), atol=1e-6)


def test_a_maximum_of_losses_is_solved_as_theorems_3_3_and_3_4_say(x64):
    """FESS-GDA on f reaches the exact saddle; on f - eps / 4D ||y - y_0||^2 it stops at a point that is 2 eps-stationary for f
    (the constant of the proof) and not stationary."""
    task = fm.problems.maximum_of_quadratics(4, dim_x=3, active=3, inactive=1, heterogeneity=0.3, seed=2)
    method, epsilon, l = fm.FessGDA(0.05, 0.05, p=2.0, beta=0.2, local_steps=1), 0.05, 1.1 * task.info["weak_convexity"]
    solve = lambda problem: fm.run(problem, task.clients, method, rounds=3000, eval_every=3000).state
    exact = solve(task.problem)
    np.testing.assert_allclose(exact.x, task.solution.x, atol=1e-10)
    np.testing.assert_allclose(exact.y, task.solution.y, atol=1e-10)
    envelope = jax.jit(lambda z: metrics.MoreauGradient(l)(task.problem, task.clients, z))
    assert envelope(task.problem.start)["grad"] > 1
    assert envelope(Point(exact.x, exact.y))["grad"] < 1e-7
    regular = fm.problems.regularized(task.problem, epsilon=epsilon)
    near = solve(regular)
    far = lambda problem: float(np.hypot(*metrics.Stationarity(l)(problem, task.clients, near).values()))
    assert far(regular) < 1e-8, "the regularised problem must be solved"
    assert 1e-4 < far(task.problem) < 2 * epsilon


def test_translation_turns_a_stationary_point_of_f_into_one_of_phi(x64):
    """Proposition 3.1: at the solution of the translated problem ||grad Phi|| = 2l ||x - x~||, the envelope's gradient."""
    task = fm.problems.quadratic(3, seed=8)
    l = 4.0
    near = Point(jnp.asarray(task.solution.x) + 0.1, jnp.asarray(task.solution.y) + 0.1)
    moved = fm.problems.translated(task.problem, near, l)
    assert moved.start.x is not None
    np.testing.assert_allclose(moved.start.x, near.x)
    result = fm.run(moved, task.clients, fm.ParallelSGDA(0.05, 0.05), rounds=3000)
    grad_phi = metrics.Phi()(task.problem, task.clients, result)["grad"]
    envelope = metrics.MoreauGradient(l, tol=1e-12)(task.problem, task.clients, near)["grad"]
    np.testing.assert_allclose(grad_phi, envelope, rtol=1e-5)
    np.testing.assert_allclose(grad_phi, 2 * l * np.linalg.norm(result.x - near.x), rtol=1e-6)


def test_one_point_concave_is_what_its_name_says(x64):
    """Assumption 9 of fed-norm-sgda, for every client at one and the same y*(x); neither convex in x nor concave in y."""
    p = np.array([1.0, 2, 3]) / 6
    task = fm.problems.one_point_concave(3, examples=4, noise=0.5, weights=p, seed=1)
    problem, rng = task.problem, np.random.default_rng(0)
    B = task.clients[0]["B"][0]
    curved = {"x": False, "y": False}
    for scale in (0.1, 1.0, 3.0, 10.0):
        x, y = scale * rng.normal(size=4), scale * rng.normal(size=3)
        best = B @ x
        ends = best + np.array([[3.0], [9.0]])
        for client in task.clients:
            value = lambda x, y, client=client: float(problem.loss(x, y, client))
            slope = np.asarray(problem.grad_y(jnp.asarray(x), jnp.asarray(y), client))
            assert slope @ (y - best) <= value(x, y) - value(x, best) + 1e-12
            assert value(x, y) < value(x, best)
            curved["y"] |= value(x, ends.mean(axis=0)) < (value(x, ends[0]) + value(x, ends[1])) / 2 - 1e-6
            curved["x"] |= value(x, B @ x) > (value(x + 1, B @ (x + 1)) + value(x - 1, B @ (x - 1))) / 2 + 1e-6
        phi = metrics.Phi()(problem, task.clients, Point(jnp.asarray(x), jnp.asarray(y)))
        gradient = 2 * x / (1 + x**2) ** 2
        np.testing.assert_allclose(phi["value"], np.sum(x**2 / (1 + x**2)), rtol=1e-12)
        np.testing.assert_allclose(phi["grad"], np.linalg.norm(gradient), rtol=1e-10)
    assert curved == {"x": True, "y": True}


def test_weights_are_normalised_and_by_size_when_asked(x64):
    _, clients = fair()
    problem = lambda w: fm.MinimaxProblem(lambda x, y, b: 0.0 * x[0], jnp.ones(1), jnp.ones(1), weights=w)
    np.testing.assert_allclose(problem(None).client_weights(clients), [1 / 3] * 3)
    np.testing.assert_allclose(problem("size").client_weights(clients), np.array([10, 30, 50]) / 90)
    np.testing.assert_allclose(problem([1, 1, 2]).client_weights(clients), [0.25, 0.25, 0.5])


def test_class_shares_count_by_p(x64):
    """With weights that are not the sizes, F_c is the p-weighted mean over the examples of class c."""
    p = np.array([0.6, 0.3, 0.1])
    problem, clients = fair(weights=p)
    x, y = jax.tree.map(lambda a: a + 0.3, problem.x0), jnp.asarray([0.2, 0.5, 0.3])
    logits = np.asarray(problem.predict(x, clients.fields["inputs"]))
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(90), labels := np.asarray(clients.fields["labels"])]
    share = np.repeat(p / [10, 30, 50], [10, 30, 50])
    by_class = [share[labels == c] @ losses[labels == c] / share[labels == c].sum() for c in range(3)]
    np.testing.assert_allclose(metrics.objective(problem, clients, Point(x, y)), np.asarray(y) @ by_class, rtol=1e-6)
    best = np.asarray(metrics.maximize_y(problem, clients, x, y))
    np.testing.assert_array_equal(best, np.eye(3)[int(np.argmax(by_class))])


def test_wgan_error_is_that_of_figure_1():
    from fedminimax.problems.gan import wgan_error

    at = lambda mean, deviation: float(wgan_error(None, None, Point(jnp.asarray([mean, deviation]), jnp.zeros(2))))
    np.testing.assert_allclose([at(0.3, 0.1), at(0.0, 0.5), at(0.3, -0.5)], [0.09, 0.16, 0.25], rtol=1e-6)
    np.testing.assert_allclose(at(0.0, -0.1), 0.0, atol=1e-12)  # the second solution


@pytest.mark.parametrize("seed", [0, 1])
def test_a_maximum_of_nonconvex_quadratics_has_the_solution_it_says(x64, seed):
    p = [1.0, 2.0, 3.0]
    task = fm.problems.maximum_of_quadratics(3, dim_x=3, active=3, inactive=2, weights=p, seed=seed)
    problem, clients, best = task.problem, task.clients, task.solution
    weights = np.array(p) / 6
    H, c, s = (np.tensordot(weights, np.asarray(clients.fields[k]), 1) for k in ("H", "c", "s"))
    f = lambda x: np.einsum("jab,a,b->j", H, x, x) / 2 + c @ x + s
    lowest = np.linalg.eigvalsh(H)[:, 0]
    assert (lowest[:3] <= -0.5 + 1e-9).all(), "every active loss must be nonconvex"
    np.testing.assert_allclose(task.info["weak_convexity"], -lowest.min(), rtol=1e-9)
    np.testing.assert_allclose(f(best.x), [0, 0, 0, -1, -1], atol=1e-12)
    assert best.y[:3].min() > 0
    np.testing.assert_allclose([best.y.sum(), *best.y[3:]], [1, 0, 0])
    g = metrics.gradient(problem, clients, jax.tree.map(jnp.asarray, best))
    np.testing.assert_allclose(g.x, 0, atol=1e-12)
    for x in best.x + np.random.default_rng(0).normal(size=(200, 3)):
        assert f(x).max() >= np.sum((x - best.x) ** 2) / 2 - 1e-9, "the minimum must be global"
    x = jnp.asarray(best.x + 0.7)
    y = metrics.maximize_y(problem, clients, x, problem.y0)
    np.testing.assert_allclose(metrics.objective(problem, clients, Point(x, y)), f(np.asarray(x)).max(), rtol=1e-12)


def test_the_two_sided_pl_example_is_what_the_paper_says(x64):
    task = fm.problems.two_sided_pl(3, weights=[1, 2, 3])
    problem, clients = task.problem, task.clients
    h = lambda x, y: x**2 + 3 * np.sin(x) ** 2 * np.sin(y) ** 2 - 4 * y**2 - 10 * np.sin(y) ** 2
    grid = jnp.linspace(-6.0, 6.0, 61)
    xs, ys = (a.ravel() for a in jnp.meshgrid(grid, grid))
    at = lambda x, y: Point(x[None], y[None])
    values = jax.jit(jax.vmap(lambda x, y: metrics.objective(problem, clients, at(x, y))))(xs, ys)
    np.testing.assert_allclose(values, h(xs, ys), atol=1e-10)
    slopes = jax.jit(jax.vmap(lambda x, y: metrics.gradient(problem, clients, at(x, y))))(xs, ys)
    # Assumption 3.7 with the constants told: the minimum over x is at 0, and so is the maximum over y.
    assert (np.asarray(slopes.x[:, 0] ** 2) >= 2 * task.info["mu_x"] * (values - h(0.0, ys)) - 1e-9).all()
    assert (np.asarray(slopes.y[:, 0] ** 2) >= 2 * task.info["mu"] * (h(xs, 0.0) - values) - 1e-9).all()
    turn = lambda v: np.diff(np.asarray(v).reshape(61, 61), 2, axis=1)  # along x
    assert turn(values).min() < 0, "convex in x"
    assert turn(np.asarray(values).reshape(61, 61).T.ravel()).max() > 0, "concave in y"
    result = fm.run(problem, clients, fm.FessGDA(0.05, 0.05, p=0.0, local_steps=1), rounds=400)
    np.testing.assert_allclose([*result.x, *result.y], 0, atol=1e-10)


LOSS = lambda x, y, batch: jnp.mean(batch @ x) + jnp.sum(y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fm.MinimaxProblem(LOSS, np.ones(2), np.ones(12) / 12, y_set=fm.sets.Simplex(10)),
            "Simplex of 10 but y0 has 12",
        ),
        (lambda: fm.MinimaxProblem(LOSS, np.array([1, np.nan]), np.ones(1)), "x0 has a NaN"),
        (lambda: fm.MinimaxProblem(LOSS, {}, np.ones(1)), "x0 is empty"),
        (lambda: fm.MinimaxProblem(LOSS, {"a": "text"}, np.ones(1)), r"x0\['a'\] is a str"),
        (lambda: fm.MinimaxProblem(LOSS, np.ones(2), np.ones(1), weights="sizes"), "None, 'size' or one number"),
        (lambda: run_with(weights=[1, 2]), "but there are 3 clients"),
        (lambda: run_with(weights=[1, -2, 3]), "not negative"),
        (lambda: run_with(x0=np.ones(5)), "cannot be evaluated on the clients' data"),
        (lambda: run_with(loss=lambda x, y, b: b @ x), "must return one real number"),
        (
            lambda: fm.problems.fair_classification(fm.models.Logistic(3), ClientData.equal(np.ones(6), 2), 3),
            "'inputs' and 'labels'",
        ),
        (lambda: fair_with([0, 1, 5, 0]), "whole numbers from 0 to 2"),
        (lambda: fair_with([0, 1, 1, 0]), "Nobody has an example of class 2"),
        (lambda: fm.problems.quadratic(0), "at least one client"),
    ],
)
def test_wrong_problems_are_named(make, message):
    with pytest.raises(fm.InputError, match=message):
        make()


def run_with(loss=LOSS, x0=None, weights=None):
    problem = fm.MinimaxProblem(loss, np.ones(2) if x0 is None else x0, np.ones(1), weights=weights)
    fm.run(problem, ClientData.equal(np.ones((6, 2)), 3), fm.LocalSGDA(0.1, 0.1), rounds=1)


def fair_with(labels):
    fields = {"inputs": np.ones((4, 2)), "labels": np.array(labels, np.int32)}
    return fm.problems.fair_classification(fm.models.Logistic(3), ClientData.equal(fields, 2), 3)
