"""A network against weights on its clients, and robust classifiers on nodes: losses by hand in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.network import Network
from fedminimax.penalties import Agnostic, ChiSquare
from fedminimax.sets import L2Ball

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(6, 2))
LABELS = np.array([0, 1, 2, 2, 0, 1], np.int32)


def federation(labels):
    return fm.ClientData.from_owner({"inputs": INPUTS, "labels": labels}, np.array([0, 0, 1, 1, 1, 1]))


def numbers(problem, seed=1):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), problem.x0)


def squares(x):
    return sum(float(np.sum(np.asarray(a) ** 2)) for a in jax.tree.leaves(x))


@pytest.mark.parametrize("ridge", [0.0, 0.6])
@pytest.mark.parametrize("loss", ["squared", "entropy"])
def test_the_loss_of_a_robust_classifier(x64, loss, ridge):
    clients = federation(LABELS)
    problem = fm.problems.robust_model(fm.models.Linear(3), clients, 3, loss=loss, ridge=ridge, weights=[1, 3])
    x = numbers(problem)
    scores = np.asarray(problem.predict(x, INPUTS))
    one_hot = np.eye(3)[LABELS]
    entropy = np.log(np.exp(scores).sum(axis=1)) - (scores * one_hot).sum(axis=1)
    each = entropy if loss == "entropy" else 0.5 * ((scores - one_hot) ** 2).sum(axis=1)
    expected = np.array([each[:2].mean(), each[2:].mean()]) + ridge / 2 * squares(x)
    np.testing.assert_allclose(problem.losses(x, clients), expected, rtol=1e-12)
    np.testing.assert_allclose(problem.value(x, {"inputs": INPUTS[2:], "labels": LABELS[2:]}), expected[1], rtol=1e-12)
    np.testing.assert_allclose(problem.client_weights(clients), [0.25, 0.75])
    assert problem.penalty == ChiSquare(0.1)


def test_the_loss_of_a_robust_regression(x64):
    labels = RNG.normal(size=6)
    clients = federation(labels)
    problem = fm.problems.robust_model(fm.models.Linear(1), clients, penalty=Agnostic())
    x = numbers(problem)
    each = 0.5 * (np.asarray(problem.predict(x, INPUTS))[:, 0] - labels) ** 2
    np.testing.assert_allclose(problem.losses(x, clients), [each[:2].mean(), each[2:].mean()], rtol=1e-12)
    assert problem.penalty == Agnostic()


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (LABELS, {"classes": 3, "loss": "hinge"}, "'squared' or 'entropy'"),
        (LABELS, {"classes": 3, "ridge": -1e-9}, "ridge"),
        (LABELS, {"classes": 2}, "from 0 to 1"),
        (LABELS.astype(float), {"loss": "entropy"}, "squared loss only"),
        (LABELS.reshape(3, 2).repeat(2, axis=0), {}, "one number an example"),
    ],
)
def test_wrong_robust_models_are_named(labels, options, message):
    with pytest.raises(fm.InputError, match=message):
        fm.problems.robust_model(fm.models.Linear(options.get("classes") or 1), federation(labels), **options)


@pytest.mark.parametrize("beta_x", [0.0, 0.4])
def test_the_loss_of_a_robust_classifier_on_a_node(x64, beta_x):
    """Mean cross-entropy at a + y, plus beta_x/2 ||x||^2, minus beta_y/2 ||y||^2 (personalized-minmax, section 2.2)."""
    clients, network = federation(LABELS), Network.complete(2)
    ball = L2Ball(1.0)
    build = lambda **held: fm.problems.personalized_training(
        fm.models.Logistic(3), clients, 3, 0.3, network, beta_x=beta_x, **held
    )
    problem, y = build(beta_y=0.7), jnp.asarray([0.3, -0.2])
    x, batch = numbers(problem), {"inputs": INPUTS, "labels": LABELS}
    scores = np.asarray(problem.predict(x, INPUTS + np.asarray(y)))
    fit = np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(6), LABELS]) + beta_x / 2 * squares(x)
    np.testing.assert_allclose(problem.value(x, y, batch), fit - 0.35 * 0.13, rtol=1e-12)
    held = build(beta_y=0.0, y_set=ball)
    np.testing.assert_allclose(held.value(x, y, batch), fit, rtol=1e-12)
    assert (held.y_set, held.coupling, problem.coupling) == (ball, 0.3, 0.3)
    for bad in ({"beta_y": 0.0}, {"beta_y": -1.0}):
        with pytest.raises(fm.InputError, match="beta_y"):
            build(**bad)


def test_weights_for_other_clients_are_refused_before_anything_runs():
    for weights, message in (([1, 2, 3], "one number each"), ([1, -1], "not negative"), ([0, 0], "not all zero")):
        problem = fm.problems.robust_model(fm.models.Linear(3), federation(LABELS), 3, weights=weights)
        with pytest.raises(fm.InputError, match=message):
            problem.check(federation(LABELS))
