"""Step sizes of the theory, by hand from the papers' conditions."""

import math

import pytest

import fedminimax as fm


def test_fess_gdas_clients_take_the_largest_steps_that_the_conditions_allow():
    """eta_x = 1/(1000 K l), eta_y = eta_x / 256, p = 2l; terms with 6144 and 3072 bound the clients (appendix D)."""
    L, mu, K = 2.0, 0.5, 4
    method = fm.FessGDA.from_theory(L, mu, local_steps=K)
    eta_x = 1 / (1000 * K * L)
    eta_y = eta_x / 256
    beta = eta_y * K * mu / 80000
    assert method.lr_x * method.server_lr_x == pytest.approx(eta_x, rel=1e-12)
    assert method.lr_y * method.server_lr_y == pytest.approx(eta_y, rel=1e-12)
    assert (method.p, method.beta) == (pytest.approx(2 * L), pytest.approx(beta, rel=1e-12))
    assert method.lr_x == pytest.approx(math.sqrt(beta / (6144 * eta_x * 2 * L * L**2 * K**3)), rel=1e-12)
    assert method.lr_y == pytest.approx(math.sqrt(eta_y / (3072 * eta_x * L**2 * K**2)), rel=1e-12)
