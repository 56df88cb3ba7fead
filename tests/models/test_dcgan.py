"""The networks of GANs against their formulas, and batch normalisation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from references import (
    NHWC,
    QUICK,
    assert_same_outputs,
    assert_same_training,
    count,
    dense,
    initial,
    native_conv,
    native_pool,
    normal,
    random_params,
)

from fedminimax import models
from fedminimax.errors import InputError
from fedminimax.models.layers import INITIALIZERS


class Pair(nn.Module):
    """The discriminator's opinion of what the generator makes."""

    @nn.compact
    def __call__(self, noise):
        images = models.DCGANGenerator(size=8, features=2, latent=3)(noise)
        return models.DCGANDiscriminator(size=8, features=2)(images)


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


def pair_in_the_papers_order(params, noise):
    images = generator_in_the_papers_order(params["DCGANGenerator_0"], noise, size=8)
    return discriminator_in_the_papers_order(params["DCGANDiscriminator_0"], images)


def test_generator_is_the_papers(x64):
    model = models.DCGANGenerator(size=28, channels=3, features=4, latent=5)
    assert_same_outputs(model, partial(generator_in_the_papers_order, size=28), normal(3, 5))


def test_discriminator_is_the_papers(x64):
    assert_same_outputs(models.DCGANDiscriminator(size=28, features=4), discriminator_in_the_papers_order, normal(3, 28, 28, 3))


def test_the_pooled_pair_is_the_authors(x64):
    def generator(params, noise):
        layers = [params[name] for name in ("Dense_0", "Dense_1", "ConvTranspose_0", "ConvTranspose_1")]
        norms = [params[f"BatchNorm_{k}"] for k in range(3)]
        up = lambda x, layer: lax.conv_transpose(x, layer["kernel"], (2, 2), "SAME", dimension_numbers=NHWC) + layer["bias"]
        x = batch_norm(jax.nn.relu(dense(noise, layers[0])), norms[0])
        x = batch_norm(jax.nn.relu(dense(x, layers[1])), norms[1]).reshape(len(noise), 4, 4, -1)
        return jnp.tanh(up(batch_norm(jax.nn.relu(up(x, layers[2])), norms[2]), layers[3]))

    def discriminator(params, images):
        leaky = lambda x: jnp.where(x > 0, x, 0.01 * x)
        x = native_pool(leaky(native_conv(images, params["ConvPool_0"], "VALID")))
        x = native_pool(leaky(native_conv(x, params["ConvPool_1"], "VALID")))
        return dense(leaky(dense(x.reshape(len(x), -1), params["Dense_0"])), params["Dense_1"])[:, 0]

    made = models.PooledGenerator(size=16, channels=2, features=3, hidden=4, latent=5)
    assert_same_outputs(made, generator, normal(3, 5))
    assert_same_outputs(models.PooledDiscriminator(features=3, hidden=4), discriminator, normal(3, 18, 18, 2))


def test_the_pair_trains_for_clients_in_a_scan(x64):
    assert_same_training(Pair(), pair_in_the_papers_order, normal(2, 2, 3, 3))


def test_generator_takes_noise_to_images_between_minus_one_and_one():
    model, noise = models.DCGANGenerator(size=8, features=4), 100 * normal(4, 100).astype(jnp.float32)
    params = jax.tree.map(lambda leaf: 10 * leaf.astype(jnp.float32), random_params(model, noise))
    images = jax.jit(model.apply, compiler_options=QUICK)({"params": params}, noise)
    assert -1 <= jnp.min(images) < -0.9
    assert 0.9 < jnp.max(images) <= 1


@pytest.mark.parametrize(
    ("model", "shape", "size", "out"),
    [
        # dense without bias, two batch normalisations, two kernels, one bias
        (models.DCGANGenerator(), (100,), 100 * 7 * 7 * 128 + 2 * 128 + 16 * 128 * 64 + 2 * 64 + 16 * 64 + 1, (28, 28, 1)),
        (
            models.DCGANGenerator(size=32, channels=3, features=8, latent=20),
            (20,),
            20 * 8 * 8 * 16 + 2 * 16 + 16 * 16 * 8 + 2 * 8 + 16 * 8 * 3 + 3,
            (32, 32, 3),
        ),
        # a kernel and a bias, a kernel and a batch normalisation, dense with bias
        (models.DCGANDiscriminator(), (28, 28, 1), 16 * 64 + 64 + 16 * 64 * 128 + 2 * 128 + 7 * 7 * 128 + 1, ()),
        (models.DCGANDiscriminator(32, features=8), (32, 32, 3), 16 * 3 * 8 + 8 + 16 * 8 * 16 + 2 * 16 + 8 * 8 * 16 + 1, ()),
        # dense layers of 1024 and 6272 units and a transposed convolution, each with a normalisation, and the last one
        (
            models.PooledGenerator(),
            (100,),
            101 * 1024 + 2 * 1024 + 1025 * 6272 + 2 * 6272 + 16 * 128 * 64 + 64 + 2 * 64 + 16 * 64 + 1,
            (28, 28, 1),
        ),
        # 28 -> 24 -> 12 -> 8 -> 4 pixels a side: 4 x 4 x 64 = 1024 numbers into the dense layer
        (models.PooledDiscriminator(), (28, 28, 1), 25 * 32 + 32 + 25 * 32 * 64 + 64 + 1025 * 1024 + 1024 + 1, ()),
    ],
)
def test_number_of_parameters_and_shape(model, shape, size, out):
    assert count(model, 2, *shape) == size
    result, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.zeros((2, *shape)))
    assert result.shape == (2, *out)


def test_initial_parameters(monkeypatch):
    constant = jax.nn.initializers.constant
    monkeypatch.setitem(INITIALIZERS, "dcgan", lambda fan_in: (constant(3.0), constant(5.0)))
    params = initial(Pair(), 2, 3)
    generator, discriminator = params["DCGANGenerator_0"], params["DCGANDiscriminator_0"]
    norms = [layer for name, layer in (*generator.items(), *discriminator.items()) if name.startswith("BatchNorm")]
    others = [layer for name, layer in (*generator.items(), *discriminator.items()) if not name.startswith("BatchNorm")]
    assert (len(norms), len(others)) == (3, 6)
    for layer in others:
        assert jnp.all(layer["kernel"] == 3)
        assert jnp.all(layer.get("bias", 5) == 5)
    for layer in norms:
        assert jnp.all(layer["bias"] == 0)
        assert 0 < jnp.max(jnp.abs(layer["scale"] - 1)) < 5 * 0.02
    # no biases before a batch normalisation, which would take them out again
    assert sum("bias" in layer for layer in others) == 3


def test_batch_norm_starts_around_one():
    scale = initial(models.BatchNorm(deviation=0.02), 2, 1000)["scale"]
    assert jnp.mean(scale) == pytest.approx(1, abs=0.003)
    assert jnp.std(scale) == pytest.approx(0.02, rel=0.1)
    assert jnp.all(initial(models.BatchNorm(), 2, 5)["scale"] == 1)


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
    grad = jax.jit(jax.grad(lambda *a: jnp.sum(weights * out(*a)), (0, 1)), compiler_options=QUICK)
    of_params, of_inputs = grad(params, inputs)
    np.testing.assert_allclose(of_params["bias"], weights.sum(0), rtol=1e-10)
    np.testing.assert_allclose(of_params["scale"], (weights * out(params, inputs)).sum(0), rtol=1e-10)
    # neither a shift nor a stretch of the batch changes the output
    np.testing.assert_allclose(of_inputs.sum(0), 0, atol=1e-12)
    np.testing.assert_allclose((of_inputs * inputs).sum(0), 0, atol=1e-12)
    assert jnp.min(jnp.max(jnp.abs(of_inputs), axis=0)) > 0.1


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (models.DCGANGenerator(), (2, 64), "takes noise of shape (batch, 100), not (2, 64)"),
        (models.DCGANGenerator(), (100,), "not (100,)"),
        (models.DCGANGenerator(size=30), (2, 100), "size 30: choose a positive multiple of 4"),
        (models.DCGANDiscriminator(), (2, 32, 32, 1), "(batch, 28, 28, channels), not (2, 32, 32, 1)"),
        (models.DCGANDiscriminator(), (2, 784), "not (2, 784)"),
        (models.DCGANDiscriminator(size=0), (2, 28, 28, 1), "size 0"),
        (models.PooledGenerator(), (2, 64), "PooledGenerator takes noise of shape (batch, 100), not (2, 64)"),
        (models.PooledGenerator(size=30), (2, 100), "PooledGenerator has size 30"),
        (models.PooledDiscriminator(), (2, 15, 28, 1), "at least 16 x 16 pixels, not (2, 15, 28, 1)"),
    ],
)
def test_wrong_inputs_are_named(model, shape, message):
    with pytest.raises(InputError) as error:
        model.init(jax.random.key(0), jnp.zeros(shape))
    assert message in str(error.value)
