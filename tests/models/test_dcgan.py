"""DCGAN's generator and discriminator against their formulas, and batch normalisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from references import (
    NHWC,
    QUICK,
    assert_runs_for_clients_in_a_scan,
    count,
    dense,
    initial,
    native_conv,
    normal,
    random_params,
    slow_operations,
)

from fedminimax import models
from fedminimax.errors import InputError


def batch_norm(x, layer):
    axes = tuple(range(x.ndim - 1))
    return (x - x.mean(axes)) / jnp.sqrt(x.var(axes) + 1e-5) * layer["scale"] + layer["bias"]


def generator_in_the_papers_order(params, noise, size):
    def up(x, layer):
        return lax.conv_transpose(x, layer["kernel"], (2, 2), "SAME", dimension_numbers=NHWC) + layer.get("bias", 0)

    x = dense(noise, params["Dense_0"]).reshape(len(noise), size // 4, size // 4, -1)
    x = jax.nn.relu(batch_norm(x, params["BatchNorm_0"]))
    x = jax.nn.relu(batch_norm(up(x, params["ConvTranspose_0"]), params["BatchNorm_1"]))
    return jnp.tanh(up(x, params["ConvTranspose_1"]))


def discriminator_in_the_papers_order(params, images):
    def leaky(x):
        return jnp.where(x > 0, x, 0.2 * x)

    pad = [(1, 1), (1, 1)]
    x = leaky(native_conv(images, params["Conv_0"], pad, 2))
    x = leaky(batch_norm(native_conv(x, params["Conv_1"], pad, 2), params["BatchNorm_0"]))
    return dense(x.reshape(len(x), -1), params["Dense_0"])[:, 0]


def assert_same_value_and_grads(ours, reference, params):
    weighted = lambda f: lambda params: (jnp.sum(f(params) * normal(*jax.eval_shape(f, params).shape, seed=3)), f(params))
    both = lambda params: [jax.value_and_grad(weighted(f), has_aux=True)(params) for f in (ours, reference)]
    ((_, out), grads), ((_, wanted), wanted_grads) = jax.jit(both, compiler_options=QUICK)(params)
    np.testing.assert_allclose(out, wanted, rtol=1e-9, atol=1e-9)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), grads, wanted_grads)
    assert min(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(wanted_grads)) > 1e-3


@pytest.mark.parametrize(("size", "channels"), [(28, 1), (8, 3)])
def test_generator_is_the_papers(x64, size, channels):
    model, noise = models.DCGANGenerator(size, channels, features=4, latent=5), normal(3, 5)
    params = random_params(model, noise)
    images = jax.eval_shape(model.apply, {"params": params}, noise)
    assert images.shape == (3, size, size, channels)
    ours = lambda params: model.apply({"params": params}, noise)
    assert_same_value_and_grads(ours, lambda params: generator_in_the_papers_order(params, noise, size), params)


@pytest.mark.parametrize(("size", "channels"), [(28, 1), (8, 3)])
def test_discriminator_is_the_papers(x64, size, channels):
    model, images = models.DCGANDiscriminator(size, features=4), normal(3, size, size, channels)
    params = random_params(model, images)
    assert jax.eval_shape(model.apply, {"params": params}, images).shape == (3,)
    ours = lambda params: model.apply({"params": params}, images)
    assert_same_value_and_grads(ours, lambda params: discriminator_in_the_papers_order(params, images), params)


def test_generator_takes_noise_to_images_between_minus_one_and_one():
    model, noise = models.DCGANGenerator(size=8, features=4), 100 * normal(4, 100).astype(jnp.float32)
    params = jax.tree.map(lambda leaf: 10 * leaf.astype(jnp.float32), random_params(model, noise))
    images = jax.jit(model.apply, compiler_options=QUICK)({"params": params}, noise)
    assert -1 <= jnp.min(images) < -0.9
    assert 0.9 < jnp.max(images) <= 1


@pytest.mark.parametrize(
    ("model", "shape", "size"),
    [
        # dense without bias, two batch normalisations, two kernels, one bias
        (models.DCGANGenerator(), (100,), 100 * 7 * 7 * 128 + 2 * 128 + 16 * 128 * 64 + 2 * 64 + 16 * 64 + 1),
        (
            models.DCGANGenerator(size=32, channels=3, features=8, latent=20),
            (20,),
            20 * 8 * 8 * 16 + 2 * 16 + 16 * 16 * 8 + 2 * 8 + 16 * 8 * 3 + 3,
        ),
        # a kernel and a bias, a kernel and a batch normalisation, dense with bias
        (models.DCGANDiscriminator(), (28, 28, 1), 16 * 64 + 64 + 16 * 64 * 128 + 2 * 128 + 7 * 7 * 128 + 1),
        (models.DCGANDiscriminator(size=32, features=8), (32, 32, 3), 16 * 3 * 8 + 8 + 16 * 8 * 16 + 2 * 16 + 8 * 8 * 16 + 1),
    ],
)
def test_number_of_parameters(model, shape, size):
    assert count(model, 2, *shape) == size


def test_initial_parameters():
    generator, discriminator = initial(models.DCGANGenerator(8), 2, 100), initial(models.DCGANDiscriminator(8), 2, 8, 8, 1)
    for params in (generator, discriminator):
        for name, layer in params.items():
            if "bias" in layer:
                assert jnp.all(layer["bias"] == 0)
            weights, mean = (layer["scale"], 1) if name.startswith("BatchNorm") else (layer["kernel"], 0)
            assert jnp.mean(weights) == pytest.approx(mean, abs=4 * 0.02 / np.sqrt(weights.size))
            assert jnp.std(weights) == pytest.approx(0.02, rel=4 / np.sqrt(2 * weights.size))


def test_batch_norm_has_mean_zero_and_variance_one(x64):
    inputs = 3 + 5 * normal(6, 4, 4, 3)
    params = {"scale": jnp.ones(3), "bias": jnp.zeros(3)}
    out = models.BatchNorm(epsilon=0.0).apply({"params": params}, inputs)
    np.testing.assert_allclose(out.mean((0, 1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(out.var((0, 1, 2)), 1, rtol=1e-12)
    params = {"scale": jnp.array([1.0, 2, 3]), "bias": jnp.array([4.0, 5, 6])}
    np.testing.assert_allclose(
        models.BatchNorm(epsilon=0.0).apply({"params": params}, inputs), out * params["scale"] + params["bias"], rtol=1e-12
    )
    of_vectors = models.BatchNorm().apply({"params": params}, inputs[:, 0, 0])
    np.testing.assert_allclose(of_vectors, batch_norm(inputs[:, 0, 0], params), rtol=1e-12)


def test_batch_norm_gradient_takes_mean_and_variance_along(x64):
    inputs, weights = normal(8, 3), normal(8, 3, seed=1)
    params = {"scale": jnp.ones(3), "bias": jnp.zeros(3)}
    out = lambda params, x: models.BatchNorm(epsilon=0.0).apply({"params": params}, x)
    of_params, of_inputs = jax.grad(lambda *a: jnp.sum(weights * out(*a)), (0, 1))(params, inputs)
    np.testing.assert_allclose(of_params["bias"], weights.sum(0), rtol=1e-10)
    np.testing.assert_allclose(of_params["scale"], (weights * out(params, inputs)).sum(0), rtol=1e-10)
    # neither a shift nor a stretch of the batch changes the output
    np.testing.assert_allclose(of_inputs.sum(0), 0, atol=1e-12)
    np.testing.assert_allclose((of_inputs * inputs).sum(0), 0, atol=1e-12)
    assert jnp.min(jnp.max(jnp.abs(of_inputs), axis=0)) > 0.1


class Pair(nn.Module):
    """The discriminator's opinion of what the generator makes."""

    @nn.compact
    def __call__(self, noise):
        images = models.DCGANGenerator(size=8, features=2, latent=3)(noise)
        return models.DCGANDiscriminator(size=8, features=2)(images)


def test_the_pair_runs_for_clients_in_a_scan(x64):
    assert_runs_for_clients_in_a_scan(Pair(), normal(2, 2, 3, 3))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the matrix products are for CPUs")
def test_the_pair_trains_without_the_slow_operations():
    noise = normal(3, 3).astype(jnp.float32)
    params = random_params(Pair(), noise)
    assert slow_operations(lambda params: Pair().apply({"params": params}, noise), params) == []


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (models.DCGANGenerator(), (2, 64), "takes noise of shape (batch, 100), not (2, 64)"),
        (models.DCGANGenerator(), (100,), "not (100,)"),
        (models.DCGANGenerator(size=30), (2, 100), "size 30: choose a positive multiple of 4"),
        (models.DCGANDiscriminator(), (2, 32, 32, 1), "(batch, 28, 28, channels), not (2, 32, 32, 1)"),
        (models.DCGANDiscriminator(), (2, 784), "not (2, 784)"),
        (models.DCGANDiscriminator(size=0), (2, 28, 28, 1), "size 0"),
    ],
)
def test_wrong_inputs_are_named(model, shape, message):
    with pytest.raises(InputError) as error:
        model.init(jax.random.key(0), jnp.zeros(shape))
    assert message in str(error.value)
