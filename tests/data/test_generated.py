"""Clients whose data is made on demand: the same as if it had been stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm


def make(client):
    key = jax.random.fold_in(jax.random.key(3), client)
    labels = (client + jnp.arange(6)) % 3
    return {"inputs": jax.random.normal(key, (6, 4)) + labels[:, None], "labels": labels}


LOCAL = {"lr_x": 0.1, "lr_y": 0.1, "local_steps": 3, "batch_size": 2, "cohort_size": 3}


@pytest.mark.parametrize(
    ("method", "batching"),
    [(fm.CDMAGEPlus(**LOCAL, alpha=0.5), "epochs"), (fm.CODASCA(**LOCAL), "replacement")],
    ids=["CDMAGEPlus", "CODASCA"],
)
def test_a_run_is_that_on_stored_data(method, batching):
    made = fm.GeneratedClients(make, 7, batching)
    stored = made.take(range(7))
    problem = fm.problems.robust_training(fm.models.Logistic(3), stored, 3, penalty=0.5)
    runs = [
        fm.run(problem, data, method, rounds=3, seed=4, **options)
        for data, options in ((stored, {}), (made, {"engine": fm.Simulator(devices=2)}), (made, {"engine": "isolated"}))
    ]
    for other in runs[1:]:
        for a, b in zip(jax.tree.leaves(runs[0].state), jax.tree.leaves(other.state), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
        assert other.costs["grad_evals"].tolist() == runs[0].costs["grad_evals"].tolist()


def test_a_million_clients_cost_nothing_until_they_are_asked():
    asked = []

    def counted(client):
        asked.append(client)
        return make(client)

    clients = fm.GeneratedClients(counted, 10**6)
    sample = clients.take(range(20))
    problem = fm.problems.robust_training(fm.models.Logistic(3), sample, 3, penalty=0.5)
    result = fm.run(
        problem, clients, fm.CDMAGEPlus(**LOCAL, alpha=0.5), rounds=5, metrics=fm.metrics.On(fm.metrics.Value(), sample)
    )
    assert len(asked) < 20  # when programs are made, not per client
    assert {"round", "value"} <= set(result.history)
    assert np.isfinite(result.history["value"]).all()
    assert result.costs["replies"].tolist() == [6] * 5


def test_all_examples_at_once_are_refused_with_the_cure():
    clients = fm.GeneratedClients(make, 50)
    problem = fm.problems.robust_training(fm.models.Logistic(3), clients.take([0]), 3)
    with pytest.raises(fm.InputError, match=r"metrics\.On"):
        fm.run(problem, clients, fm.CDMA(**LOCAL), rounds=1, metrics=fm.metrics.Value())


def test_numbers_and_seeds_can_be_added():
    clients = fm.GeneratedClients(make, 5)
    assert clients.numbered() == clients.numbered()  # one function, one program
    np.testing.assert_array_equal(clients.numbered().take([3, 4]).fields["_client"], np.repeat([3, 4], 6))
    assert clients.seeded().is_seeded
    assert not clients.is_seeded
    assert (clients.total, len(clients), clients.smallest, clients.largest) == (30, 5, 6, 6)


def test_generated_clients_serve_weights_on_clients_too():
    clients = fm.GeneratedClients(make, 6)
    problem = fm.problems.robust_model(fm.models.Linear(3), clients.take(range(6)), 3)
    stored, made = (
        fm.run(problem.as_minimax(), data, fm.CDMA(**LOCAL), rounds=2) for data in (clients.take(range(6)), clients)
    )
    for a, b in zip(jax.tree.leaves(stored.x), jax.tree.leaves(made.x), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: fm.GeneratedClients(make, 0), "count"),
        (lambda: fm.GeneratedClients(make, 3, "all"), "batching must be"),
        (lambda: fm.GeneratedClients(lambda c: {"a": jnp.zeros(3), "b": jnp.zeros(2)}, 3), "of one length"),
        (lambda: fm.GeneratedClients(lambda c: jnp.zeros(()), 3), "of one length"),
        (lambda: fm.GeneratedClients(make, 3).take([3]), "from 0 to 2"),
        (lambda: fm.GeneratedClients({"inputs": jnp.zeros((2, 3))}, 3), "make must be a function"),
        (lambda: fm.GeneratedClients(lambda c: np.random.default_rng(c).normal(size=3), 3), r"jax\.random\.key\(client\)"),
        (lambda: fm.GeneratedClients(lambda c: jnp.zeros(3) if c < 5 else jnp.ones(3), 3), r"jnp\.where in place"),
        (lambda: fm.GeneratedClients(lambda c: jnp.zeros(3 + c), 3), "the same for all clients"),
        (lambda: fm.problems.auc(fm.models.Logistic(3), fm.GeneratedClients(make, 3)), r"clients\.take"),
    ],
)
def test_what_cannot_be_is_named(attempt, message):
    with pytest.raises(fm.InputError, match=message):
        attempt()
