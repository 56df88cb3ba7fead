"""Penalties in corners that the generic solvers do not reach."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedminimax.penalties import QFair


@pytest.mark.parametrize("q", [0.2, 1.5])
def test_the_root_of_qfairs_prox_is_found_on_both_sides_of_one(q, x64):
    """u + sigma (1 + 1/q) u^(1/q) = w + sigma s, whatever the step, on both sides of where the equation is turned."""
    rng = np.random.default_rng(0)
    w, s, sigma = rng.uniform(0, 2, 40), 10.0 ** rng.uniform(-3, 3, 40), 10.0 ** rng.uniform(-30, 30, 40)
    u = np.asarray(QFair(q).prox(jnp.asarray(w), jnp.asarray(s), jnp.asarray(sigma)))
    np.testing.assert_allclose(u + sigma * (1 + 1 / q) * u ** (1 / q), w + sigma * s, rtol=1e-12)


def test_qfairs_curvature_is_that_of_a_square_at_one_and_fades_elsewhere():
    assert [QFair(q).strong_concavity(3) for q in (0.5, 1.0, 2.0)] == [0.0, 2.0, 0.0]


def test_weights_start_equal():
    np.testing.assert_array_equal(QFair(1.0).start(4), np.full(4, 0.25))
