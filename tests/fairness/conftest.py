"""Federations to judge models on."""

import pytest
from made_up_sites import as_federation, patients, people


@pytest.fixture(scope="session")
def rare():
    return as_federation(patients())


@pytest.fixture(scope="session")
def balanced():
    return as_federation(people().drop(columns="risk"))


@pytest.fixture(scope="session")
def three():
    return as_federation(patients(("no", "maybe", "yes")))


@pytest.fixture(scope="session")
def quantity():
    frame = people().drop(columns="outcome").assign(risk=lambda f: 100 * f["risk"] + 500)
    return as_federation(frame, "risk", "regression")
