"""A small table, its federation, and models of it with made-up weights: nothing is trained."""

import pytest
from patients import patients, weights

from fedminimax.data.tabular import Table, federate
from fedminimax.models import MLP, Linear
from fedminimax.saved import save_model


@pytest.fixture(scope="session")
def frame():
    return patients()


@pytest.fixture(scope="session")
def federation(frame):
    return federate(Table("patients", frame, "back", "site", "classification"), min_rows=5)


@pytest.fixture(scope="session")
def quantity(frame):
    return federate(Table("patients", frame, "stay", "site", "regression"), min_rows=5)


@pytest.fixture
def save(federation, tmp_path):
    """Save a model of the table; what is given takes the place of what is usual."""

    def make(folder=tmp_path / "model", **given):
        d = len(federation.features)
        usual = {
            "network": Linear(2),
            "x": weights([(d, 2)]),
            "encoder": federation.encoder,
            "method": "ScaffPD",
            "settings": {"tau": 0.1},
            "summary": {},
        }
        return save_model(folder, **{**usual, **given})

    return make


@pytest.fixture
def save_mlp(save, federation):
    d = len(federation.features)
    return lambda **given: save(network=MLP((16, 8), 2), x=weights([(d, 16), (16, 8), (8, 2)]), **given)
