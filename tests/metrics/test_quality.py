"""Measures of quality against small cases by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.data import ClientData
from fedminimax.metrics import base


def labelled():
    """Three clients of 1, 2 and 3 examples; the model predicts the larger of two inputs."""
    inputs = np.array([[1, 0], [1, 0], [0, 1], [1, 0], [1, 0], [0, 1]], float)
    labels = np.array([0, 1, 1, 0, 1, 1], np.int32)
    clients = ClientData.from_owner({"inputs": inputs, "labels": labels}, np.array([0, 1, 1, 2, 2, 2]))
    loss = lambda x, y, batch: jnp.mean(batch["labels"] * x[0]) + y[0]
    problem = fm.MinimaxProblem(loss, jnp.ones(1), jnp.zeros(1), predict=lambda x, inputs: inputs * x)
    return problem, clients


def test_accuracy_by_client_and_by_class(x64):
    problem, clients = labelled()
    z = problem.start
    by_client = metrics.ClientAccuracy()(problem, clients, z)
    np.testing.assert_allclose([by_client["mean"], by_client["worst"]], [(1 + 0.5 + 2 / 3) / 3, 0.5])
    np.testing.assert_allclose([by_client["worst20"], by_client["best20"]], [0.5, 1.0])
    by_class = metrics.ClassAccuracy(classes=2)(problem, clients, z)
    np.testing.assert_allclose([by_class["all"], by_class["mean"], by_class["worst"]], [4 / 6, (1 + 0.5) / 2, 0.5])
    held_out = {"inputs": np.array([[0.0, 1.0]]), "labels": np.array([1])}
    assert metrics.ClassAccuracy(held_out, 2)(problem, clients, z)["all"] == 1.0


def test_losses_by_client_and_by_class(x64):
    problem, clients = labelled()
    by_client = metrics.ClientLoss()(problem, clients, problem.start)
    np.testing.assert_allclose([by_client["mean"], by_client["worst"], by_client["best20"]], [(0 + 1 + 2 / 3) / 3, 1.0, 0.0])
    by_class = metrics.ClassLoss(classes=2)(problem, clients, problem.start)
    right, wrong = np.log(1 + np.exp(-1)), np.log(1 + np.exp(1))
    np.testing.assert_allclose([by_class["best20"], by_class["worst"]], [right, (2 * right + 2 * wrong) / 4])


def test_worst_and_best_fifths_of_ten():
    values = jnp.asarray([0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.6, 0.4, 1.0])
    got = metrics.summary(values)
    np.testing.assert_allclose([got["worst20"], got["best20"], got["worst"]], [0.15, 0.95, 0.1], rtol=1e-6)
    losses = metrics.summary(values, higher_is_better=False)
    np.testing.assert_allclose([losses["worst20"], losses["best20"], losses["worst"]], [0.95, 0.15, 1.0], rtol=1e-6)


def test_what_the_model_says_is_the_same_in_batches(x64, monkeypatch):
    """Whatever the number of examples beside that of a batch, none is missed, doubled or out of place."""
    problem = fm.MinimaxProblem(
        lambda x, y, b: x + y, 1.0, 0.0, predict=lambda x, inputs: inputs["a"] * x + inputs["b"][:, None]
    )
    monkeypatch.setattr(base, "BATCH", 4)
    for count in (3, 5, 8, 9, 11):
        inputs = {"a": np.arange(2.0 * count).reshape(count, 2), "b": 100.0 * np.arange(count)}
        got = metrics.predictions(problem, jnp.asarray(3.0), {"inputs": inputs})
        np.testing.assert_array_equal(got, 3 * inputs["a"] + inputs["b"][:, None])


def test_the_model_sees_batches_of_bounded_size(monkeypatch):
    seen = []
    predict = lambda x, inputs: seen.append(inputs.shape) or inputs * x
    problem = fm.MinimaxProblem(lambda x, y, b: x + y, 1.0, 0.0, predict=predict)
    monkeypatch.setattr(base, "BATCH", 10)
    metrics.predictions(problem, 1.0, {"inputs": np.zeros((95, 2))})
    assert set(seen) == {(10, 2)}


def test_errors_of_clients(x64):
    inputs = np.array([[1.0], [2.0], [3.0]])
    clients = ClientData.from_owner({"inputs": inputs, "labels": np.array([2.0, 4.0, 9.0])}, np.array([0, 1, 1]))
    problem = fm.MinimaxProblem(lambda x, y, b: x + y, 2.0, 0.0, predict=lambda x, inputs: inputs * x)
    got = metrics.ClientError(scale=10.0)(problem, clients, problem.start)
    np.testing.assert_allclose([got["worst"], got["best20"]], [10 * np.sqrt(9 / 2), 0.0])


def test_accuracy_without_predict_says_so():
    _, clients = labelled()
    problem = fm.MinimaxProblem(lambda x, y, b: x + y, 1.0, 0.0)
    with pytest.raises(fm.InputError, match="has no `predict`"):
        metrics.ClientAccuracy()(problem, clients, problem.start)
    task = fm.problems.quadratic(2)
    with pytest.raises(fm.InputError, match="has no `predict`"):
        metrics.ClientAccuracy()(task.problem, task.clients, task.problem.start)
