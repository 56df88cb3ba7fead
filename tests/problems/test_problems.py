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


def test_weights_are_normalised_and_by_size_when_asked(x64):
    _, clients = fair()
    problem = lambda w: fm.MinimaxProblem(lambda x, y, b: 0.0 * x[0], jnp.ones(1), jnp.ones(1), weights=w)
    np.testing.assert_allclose(problem(None).client_weights(clients), [1 / 3] * 3)
    np.testing.assert_allclose(problem("size").client_weights(clients), np.array([10, 30, 50]) / 90)
    np.testing.assert_allclose(problem([1, 1, 2]).client_weights(clients), [0.25, 0.25, 0.5])


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
