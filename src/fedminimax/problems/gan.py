"""Generative adversarial training. Here: the one-dimensional Wasserstein GAN of fess-gda.txt, section 4.1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.players import Point
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.task import Task


def wgan(
    penalty: float = 0.001,
    *,
    clients: int = 10,
    examples: int = 10_000,
    mean: float = 0.0,
    deviation: float = 0.1,
    start: tuple[float, float] = (1.0, 1.0),
    seed: int = 0,
) -> Task:
    r"""A Wasserstein GAN that learns a Gaussian in one dimension.

    .. math:: \min_{\mu, \sigma} \max_{\phi} \frac1n \sum_j D_\phi(\hat\mu + \hat\sigma z_j) - D_\phi(\mu + \sigma z_j)
              - \lambda \|\phi\|^2, \quad D_\phi(u) = \phi_1 u + \phi_2 u^2

    Real and generated samples share z_j, so the solution is exact: mu = mu-hat, sigma = sigma-hat, phi = 0. (mu-hat +
    2 sigma-hat mean(z), -sigma-hat) is a second one: start at sigma > 0. Strongly concave in phi with modulus 2 lambda.

    Args:
        penalty: lambda.
        clients: how many clients share the examples evenly.
        examples: n.
        mean: mu-hat.
        deviation: sigma-hat.
        start: where (mu, sigma) start; phi starts at zero.
        seed: of the samples z.
    """
    z = np.random.default_rng(seed).normal(size=examples).astype(jnp.zeros(()).dtype)

    def discriminator(phi: Any, u: Any) -> Any:
        return phi[0] * u + phi[1] * u**2

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        real, fake = mean + deviation * batch["z"], x[0] + x[1] * batch["z"]
        return jnp.mean(discriminator(y, real) - discriminator(y, fake)) - penalty * jnp.sum(y**2)

    def best_response(x: Any, data: ClientData, weights: Any) -> Any:
        share = (weights / jnp.asarray(data.sizes))[data.owners()]
        z = jnp.asarray(data.fields["z"])
        real, fake = mean + deviation * z, x[0] + x[1] * z
        return jnp.stack([jnp.sum(share * (real - fake)), jnp.sum(share * (real**2 - fake**2))]) / (2 * penalty)

    problem = MinimaxProblem(loss, jnp.asarray(start), jnp.zeros(2), best_response=best_response, name="1-D WGAN")
    solution = Point(np.array([mean, deviation]), np.zeros(2))
    return Task(problem, ClientData.equal({"z": z}, clients), solution=solution)


def wgan_error(problem: MinimaxProblem, clients: ClientData, state: Any) -> jax.Array:
    """Return (mu - mu-hat)^2 + (|sigma| - sigma-hat)^2 for the default target (0, 0.1), as Figure 1 does."""
    return state.x[0] ** 2 + (jnp.abs(state.x[1]) - 0.1) ** 2
