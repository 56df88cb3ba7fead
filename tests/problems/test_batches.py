"""All of a client's examples at once are the mean over them, however many there are beside the chunk."""

import jax.numpy as jnp
import numpy as np

import fedminimax as fm
from fedminimax.problems import base
from fedminimax.problems.base import Span


def test_a_whole_client_is_evaluated_in_chunks(x64, monkeypatch):
    monkeypatch.setattr(base, "CHUNK", 4)
    rng = np.random.default_rng(0)
    a = rng.normal(size=(22, 3))
    loss = lambda x, y, batch: jnp.mean((batch["a"] @ x - y) ** 2)
    problem = fm.MinimaxProblem(loss, jnp.asarray(rng.normal(size=3)), jnp.asarray(0.3))
    x, y = np.asarray(problem.x0), 0.3
    for owner in (np.repeat([0, 1, 2], [3, 9, 10]), np.repeat([0, 1], 11), np.repeat(range(11), 2)):
        clients = fm.ClientData.from_owner({"a": a}, owner)
        for i in (0, clients.count - 1):
            span = Span(clients, clients.starts[i], clients.sizes[i])
            rest = a[owner == i] @ x - y
            np.testing.assert_allclose(problem.value(x, y, span), np.mean(rest**2), rtol=1e-13)
            np.testing.assert_allclose(problem.grad(x, y, span).x, 2 * rest @ a[owner == i] / len(rest), rtol=1e-12)
            np.testing.assert_allclose(problem.grad_y(x, y, span), -2 * np.mean(rest), rtol=1e-12)
