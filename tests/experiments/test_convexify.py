"""The second stage of train-convexify-train: features of the network that the clients trained, one scale for all of them."""

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.experiments.convexify import tangent
from fedminimax.experiments.material import examples
from fedminimax.problems.linearize import tangent_features


@pytest.fixture(scope="module")
def divided():
    network = fm.models.MLP((8,))
    pooled = examples("digits", train=120, test=40, seed=3)
    owner = np.arange(120) % 4
    kept = np.where(np.arange(120) < 20, -1, owner)
    stages = tangent("digits", network, features=15, rounds=2, local_steps=3, batch_size=5, train=120, test=40, seed=3)
    return network, pooled, owner, kept, stages.divide(owner, 4, kept)


def test_the_features_are_those_of_the_network_after_federated_averaging(divided):
    network, pooled, owner, kept, made = divided
    clients = pooled.divide(owner, 4, kept).clients
    problem = fm.problems.robust_model(network, clients, 10, loss="entropy", seed=3)
    weights = fm.run(problem, clients, fm.FedAvg(0.1, local_steps=3, batch_size=5), rounds=2, seed=3).x
    test, own = (
        tangent_features(network, weights, inputs, features=15, seed=3)
        for inputs in (pooled.held["test"]["inputs"], clients.fields["inputs"])
    )
    # One affine map for all examples and clients: centred, and the largest eigenvalue of the covariance is 1.
    found = np.asarray(made.clients.fields["inputs"])
    assert np.allclose(found.mean(axis=0), 0, atol=1e-5)
    assert np.isclose(np.linalg.eigvalsh(found.T @ found / len(found))[-1], 1, atol=1e-4)
    width = np.linalg.norm(own - own.mean(axis=0), 2) / np.sqrt(len(own))
    assert np.allclose(found, (own - own.mean(axis=0)) / width, atol=1e-4)
    assert np.allclose(made.held["test"]["inputs"], (test - own.mean(axis=0)) / width, atol=1e-4)


def test_examples_stay_with_their_clients(divided):
    _, pooled, owner, kept, made = divided
    before = pooled.divide(owner, 4, kept)
    assert np.array_equal(made.clients.sizes, before.clients.sizes)
    assert np.array_equal(made.clients.fields["labels"], before.clients.fields["labels"])
    assert np.array_equal(made.apart["test"]().fields["labels"], before.apart["test"]().fields["labels"])
