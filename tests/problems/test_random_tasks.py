"""Random quadratics and regressions are what their documentation says: spectra, scatter, and the constants of the theory."""

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.network import Network
from fedminimax.problems.personalized_quadratic import constants, ill_conditioned
from fedminimax.problems.quadratic import client_means


@pytest.mark.parametrize("curvature", [0.5, 2.0])
def test_quadratics_have_the_curvature_asked_for(x64, curvature):
    """Half to three halves of the curvature in common, and of each client's own half as much again."""
    means = client_means(fm.problems.quadratic(6, 20, 15, curvature=curvature).clients)
    alike = client_means(fm.problems.quadratic(2, 20, 15, curvature=curvature, heterogeneity=0.0).clients)
    for name in ("A", "C"):
        spectrum = np.linalg.eigvalsh(means[name]) / curvature
        assert spectrum.min() >= 0.75
        assert spectrum.max() <= 2.25
        common = np.linalg.eigvalsh(alike[name][0]) / curvature
        assert common.min() >= 0.5
        assert common.max() <= 1.5
        assert common.max() - common.min() > 0.6
        np.testing.assert_allclose(means[name], means[name].swapaxes(1, 2), atol=1e-14)


def test_heterogeneity_is_how_far_quadratics_differ(x64):
    build = lambda h: client_means(fm.problems.quadratic(8, 30, 30, heterogeneity=h).clients)
    none, one, two = build(0.0), build(1.0), build(2.0)
    for name, spread in (("B", 0.5), ("a", 1.0), ("b", 1.0)):
        assert np.ptp(none[name], axis=0).max() == 0
        np.testing.assert_allclose(two[name] - none[name], 2 * (one[name] - none[name]), atol=1e-13)
        assert np.std(one[name] - none[name]) == pytest.approx(spread, rel=0.15)
    np.testing.assert_array_equal(none["a"], 1.0)
    np.testing.assert_array_equal(none["b"], 1.0)


def test_examples_scatter_about_their_clients_terms_by_the_noise(x64):
    clients = fm.problems.quadratic(3, 5, 4, examples=200, noise=0.3, heterogeneity=0.0).clients
    assert clients.sizes.tolist() == [200] * 3
    for name in ("a", "b"):
        for client in clients:
            np.testing.assert_allclose(np.mean(client[name], axis=0), 1.0, atol=1e-14)
        assert np.std(clients.fields[name]) == pytest.approx(0.3, rel=0.1)
    for wrong in ({"clients": 0}, {"dim_x": 0}, {"dim_y": 0}, {"examples": 0}):
        with pytest.raises(fm.InputError, match="at least one"):
            fm.problems.quadratic(**wrong)


def test_the_constants_of_quadratics_on_nodes(x64):
    """L is the largest norm of (grad_x f, -grad_y f)'s Jacobian, and mu the least eigenvalue of its symmetric part."""
    task = fm.problems.personalized_quadratic(Network.ring(4), 0.5, seed=3)
    means = client_means(task.clients)
    norms, least = [], []
    for A, B, C in zip(means["A"], means["B"], means["C"], strict=True):
        jacobian = np.block([[A, B], [-B.T, C]])
        norms.append(np.linalg.svd(jacobian, compute_uv=False).max())
        least.append(np.linalg.eigvalsh((jacobian + jacobian.T) / 2).min())
    np.testing.assert_allclose([task.info["L"], task.info["mu"]], [max(norms), min(least)], rtol=1e-12)


def test_ill_conditioned_quadratics_go_from_one_to_the_largest_curvature(x64):
    task = ill_conditioned(Network.ring(5), 0.5, L=300.0)
    means, found = client_means(task.clients), constants(task.clients)
    for name in ("A", "C"):
        spectrum = np.linalg.eigvalsh(means[name])
        np.testing.assert_allclose([spectrum.min(), spectrum.max()], [1.0, 300.0])
    assert task.info == {"L": 300.0, "mu": 1.0}
    assert found["mu"] == pytest.approx(1.0)
    assert found["L"] == pytest.approx(300.0, rel=1e-4)  # hardly any interaction
    assert np.abs(means["B"]).max() > 0.01
    assert np.ptp(means["a"], axis=0).min() > 0


def test_a_random_regression_is_exact_for_each_client_and_its_constants_are_those_of_the_losses(x64):
    task = fm.problems.robust_regression(3, 4, 30, c=2.0, sigma=0.3, mu_x=0.2, rho=0.4, seed=1)
    rng = np.random.default_rng(1)
    common, inputs = 2 * rng.normal(size=4), rng.normal(size=(3, 30, 4))
    own = common + 0.3 * rng.normal(size=(3, 4))
    hessians, gradients = [], []
    for client, a, true in zip(task.clients, inputs, own, strict=True):
        np.testing.assert_allclose(client["inputs"], a)
        np.testing.assert_allclose(client["labels"], a @ true, rtol=1e-12)
        hessians.append(2 * a.T @ a / 30 + 0.2 * np.eye(4))
        gradients.append(2 * a.T @ (a @ task.solution.x - a @ true) / 30 + 0.2 * task.solution.x)
    spectra = np.linalg.eigvalsh(hessians)
    near = np.linalg.norm(gradients, 2) + spectra.max()
    expected = {"L_xx": spectra.max(), "L_wx": near, "mu_x": spectra.min(), "mu_w": 0.4 * 3}
    for name, value in expected.items():
        assert task.info[name] == pytest.approx(value, rel=1e-9), name
    np.testing.assert_allclose(task.solution.y @ np.array(gradients), 0, atol=1e-10)  # stationary in x
    for wrong in ({"mu_x": 0.0}, {"clients": 0}, {"dim": 0}, {"examples": 0}):
        with pytest.raises(fm.InputError, match="at least one"):
            fm.problems.robust_regression(**wrong)
