"""Generative adversarial training: networks (Xie et al., CD-MAGE, section 5.3), and a Wasserstein GAN in one dimension
(Shen et al., AISTATS 2024, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.players import Point
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.examples import fields_of, output_shape, weights_at_start
from fedminimax.problems.task import Task
from fedminimax.random import keys

UNIFORM, NORMAL = "uniform", "normal"


def gan(
    generator: Any,
    discriminator: Any,
    clients: ClientData,
    *,
    latent: int = 100,
    prior: str | Callable[[jax.Array], jax.Array] = UNIFORM,
    saturating: bool = True,
    coupled: bool = True,
    weights: Any = None,
    seed: int = 0,
) -> MinimaxProblem:
    r"""A generator G against a discriminator D, both Flax networks.

    .. math:: \min_x \max_y \sum_i p_i\, \mathrm{mean}_j \log D_y(a_{ij}) + E_w \log (1 - D_y(G_x(w)))

    Each example of a batch comes with a noise vector w of its own, drawn afresh in every batch. Real and generated examples
    are batches of their own in D, as batch normalisation wants it.

    Args:
        generator: maps noise [n, latent] to examples, such as ``models.DCGANGenerator()``.
        discriminator: maps examples to one logit each, such as ``models.DCGANDiscriminator()``.
        clients: data with the field "inputs".
        latent: the length of w.
        prior: "uniform" on [-1, 1]^latent, "normal", or a function of a ``jax.random`` key that returns one w.
        saturating: whether the generator descends on log(1 - D(G)), as the objective has it. Its gradient vanishes where D is
            sure; with False the generator descends on -log D(G) instead (I. Goodfellow et al., 2014, section 3), while D's
            gradient stays the same. There is then no common objective, and the loss's value means nothing.
        coupled: whether a network looks at its batch as a whole (batch normalisation): clients must then have equally many
            examples, and the objective has no value over all of them.
        weights: p_i; None: equal.
        seed: of the initial weights.
    """
    fields = fields_of(clients, "gan", "inputs")
    if prior == UNIFORM:
        draw: Any = lambda key: jax.random.uniform(key, (latent,), minval=-1.0, maxval=1.0)
    elif prior == NORMAL:
        draw = lambda key: jax.random.normal(key, (latent,))
    elif callable(prior):
        draw = prior
    else:
        raise InputError(f"prior must be 'uniform', 'normal' or a function of a key, not {prior!r}.")
    shape = np.shape(draw(jax.random.key(0)))
    if shape != (latent,):
        raise InputError(f"The prior draws noise of shape {shape}, but latent is {latent}: they must agree.")

    def noise(words: jax.Array) -> jax.Array:
        return jax.vmap(lambda word: draw(keys.as_jax(jnp.stack([word, jnp.uint32(0)]))))(words)

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        judge = lambda y, images: discriminator.apply({"params": y}, images).reshape(-1)
        fake = generator.apply({"params": x}, noise(batch[ClientData.SEED]))
        # log D = log sigmoid(logit), log (1 - D) = log sigmoid(-logit)
        real = jnp.mean(jax.nn.log_sigmoid(judge(y, batch["inputs"])))
        if saturating:
            return real + jnp.mean(jax.nn.log_sigmoid(-judge(y, fake)))
        still = jax.lax.stop_gradient
        ours = jnp.mean(jax.nn.log_sigmoid(-judge(y, still(fake))))  # all that y sees
        return real + ours - jnp.mean(jax.nn.log_sigmoid(judge(still(y), fake)))

    def generate(x: Any, key: jax.Array, count: int) -> jax.Array:
        return generator.apply({"params": x}, jax.vmap(draw)(jax.random.split(key, count)))

    keys_ = jax.random.split(jax.random.key(seed), 2)
    real = jnp.asarray(fields["inputs"][:1])
    x0 = weights_at_start(generator, keys_[0], jnp.zeros((2, latent)))
    made = output_shape(generator, x0, jnp.zeros((1, latent)))
    if made != real.shape[1:]:
        raise InputError(f"The generator makes examples of shape {made}, but the clients' have {real.shape[1:]}.")
    y0 = weights_at_start(discriminator, keys_[1], jnp.concatenate([real, real]))
    judged = output_shape(discriminator, y0, real)
    if judged not in ((), (1,)):
        raise InputError(f"The discriminator returns {judged} for each example: it must return one logit.")
    return MinimaxProblem(
        loss, x0, y0, weights=weights, generate=generate, seeded=True, coupled=coupled, name="GAN"
    )  # fmt: skip


def wgan(
    penalty: float = 0.001,
    *,
    clients: int = 10,
    examples: int = 10_000,
    mean: float = 0.0,
    deviation: float = 0.1,
    start: tuple[float, float] = (1.0, 1.0),
    seed: int = 0,
) -> Task[MinimaxProblem]:
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
    if not penalty > 0:
        raise InputError(f"penalty must be above zero, but is {penalty}: without it the best phi is infinitely far.")
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
