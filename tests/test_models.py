"""Convolutions against XLA's own, values and gradients; the networks against their formulas."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from fedminimax import models
from fedminimax.errors import InputError

NHWC = ("NHWC", "HWIO", "NHWC")

# Each program here runs once, on small arrays: what takes the time is to optimise it.
QUICK = {"xla_backend_optimization_level": 0}


@pytest.fixture
def double():
    """64-bit numbers, for tight comparisons."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def random_params(model, inputs):
    """Parameters of the model's shapes, biases not zero; drawn here, since compiling Flax's initialisers takes longer."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
    return jax.tree.map(lambda leaf: normal(*leaf.shape, seed=leaf.size) / np.sqrt(leaf.size / leaf.shape[-1]), shapes)


def value_and_grads(function, *args):
    """The value, and the gradients of a weighted sum of its entries with respect to each argument."""
    out, pull = jax.vjp(function, *args)
    return out, *pull(normal(*out.shape, seed=9).astype(out.dtype))


def assert_same(function, reference, *args, tolerance=1e-10):
    both = lambda *a: [value_and_grads(f, *a) for f in (function, reference)]
    results, expected = jax.jit(both, compiler_options=QUICK)(*args)
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        assert result.dtype == wanted.dtype
        assert jnp.max(jnp.abs(wanted)) > 0.1
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)


def native_pool(images, window=2):
    return nn.max_pool(images, (window, window), (window, window))


@pytest.mark.parametrize(
    ("size", "kernel", "strides", "padding"),
    [
        ((8, 8), (3, 3), (1, 1), "SAME"),
        ((9, 6), (3, 3), (1, 1), "VALID"),
        ((9, 6), (3, 3), (2, 2), "SAME"),
        ((9, 6), (3, 2), (1, 2), "SAME_LOWER"),
        ((9, 6), (4, 3), (2, 1), "VALID"),
        ((7, 7), (1, 1), (1, 1), "SAME"),
        ((7, 8), (5, 3), (3, 2), ((2, 1), (0, 3))),
        ((7, 8), (2, 2), (1, 1), ((0, 0), (1, 0))),
        ((7, 8), (3, 3), (1, 2), ((-1, 1), (1, -2))),
    ],
)
def test_conv_is_xlas(double, size, kernel, strides, padding):
    def with_(function):
        return lambda x, w: function(x, w, window_strides=strides, padding=padding, dimension_numbers=NHWC)

    assert_same(with_(models.conv), with_(lax.conv_general_dilated), normal(2, *size, 3), normal(*kernel, 3, 5, seed=1))


def test_conv_under_vmap_with_a_kernel_for_each_client(double):
    def with_(function):
        return lambda x, w: function(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    images, kernels = normal(4, 2, 8, 8, 3), normal(4, 3, 3, 3, 5, seed=1)
    each = lambda x, w: jnp.stack([with_(lax.conv_general_dilated)(a, b) for a, b in zip(x, w, strict=True)])
    assert_same(jax.vmap(with_(models.conv)), each, images, kernels)
    shared = lambda x, w: jnp.stack([with_(lax.conv_general_dilated)(x, b) for b in w])
    assert_same(jax.vmap(with_(models.conv), in_axes=(None, 0)), shared, images[0], kernels)


@pytest.mark.parametrize(
    ("shape", "kernel", "options"),
    [
        ((2, 8, 8, 4), (3, 3, 4, 6), {"rhs_dilation": (2, 2), "dimension_numbers": NHWC}),
        ((2, 8, 8, 4), (3, 3, 4, 6), {"lhs_dilation": (2, 1), "dimension_numbers": NHWC}),
        ((2, 8, 8, 4), (3, 3, 2, 6), {"feature_group_count": 2, "dimension_numbers": NHWC}),
        ((4, 8, 8, 2), (3, 3, 2, 6), {"batch_group_count": 2, "dimension_numbers": NHWC}),
        ((2, 4, 8, 8), (6, 4, 3, 3), {}),
        ((2, 8, 4), (3, 4, 6), {"dimension_numbers": ("NWC", "WIO", "NWC")}),
    ],
    ids=["kernel dilation", "image dilation", "groups", "batch groups", "NCHW", "one axis"],
)
def test_conv_of_other_kinds_is_xlas(double, shape, kernel, options):
    axes = len(shape) - 2
    assert_same(
        lambda x, w: models.conv(x, w, (1,) * axes, [(1, 2)] * axes, **options),
        lambda x, w: lax.conv_general_dilated(x, w, (1,) * axes, [(1, 2)] * axes, **options),
        normal(*shape),
        normal(*kernel, seed=1),
    )


def test_conv_keeps_to_the_asked_element_type():
    images, kernel = normal(2, 8, 8, 3).astype(jnp.bfloat16), normal(3, 3, 3, 5).astype(jnp.bfloat16)
    out = models.conv(
        images, kernel, (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type=jnp.float32, precision="highest"
    )
    wanted = lax.conv_general_dilated(
        images.astype(jnp.float32), kernel.astype(jnp.float32), (1, 1), "SAME", dimension_numbers=NHWC
    )
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, wanted, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 9, 8, 3), (9, 8, 3), (2, 2, 9, 8, 3)])
def test_conv_in_flax(double, shape):
    options = {"features": 4, "kernel_size": (3, 3), "strides": 2}
    ours, reference = nn.Conv(**options, conv_general_dilated=models.conv), nn.Conv(**options)
    variables = {"params": random_params(reference, normal(*shape))}
    assert_same(lambda x: ours.apply(variables, x), lambda x: reference.apply(variables, x), normal(*shape))


@pytest.mark.parametrize(("size", "window"), [((6, 6), 2), ((7, 9), 2), ((8, 10), 3)])
def test_max_pool_is_xlas(double, size, window):
    images = normal(2, *size, 3)
    assert_same(lambda x: models.max_pool(x, window), lambda x: native_pool(x, window), images)


def test_max_pool_gradient_of_equal_entries_adds_up_to_one():
    grad = jax.grad(lambda x: models.max_pool(x).sum())(jnp.zeros((1, 4, 4, 1)))
    sums = grad.reshape(2, 2, 2, 2).sum(axis=(1, 3))
    np.testing.assert_allclose(sums, 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("size", "kernel", "channels"),
    [
        ((8, 8), (3, 3), 1),
        ((7, 9), (3, 3), 3),
        ((8, 7), (5, 5), 4),
        ((7, 6), (2, 4), 3),
        ((7, 8), (1, 1), 3),
        ((8, 8), (3, 3), 5),
        ((7, 9), (3, 4), 5),
    ],
)
def test_conv_max_pool_is_xlas(double, size, kernel, channels):
    def reference(x, w):
        return native_pool(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC))

    assert_same(models.conv_max_pool, reference, normal(2, *size, channels), normal(*kernel, channels, 5, seed=1))


@pytest.mark.parametrize("channels", [3, 8])
def test_conv_max_pool_under_vmap_with_a_kernel_for_each_client(double, channels):
    images, kernels = normal(3, 2, 6, 6, channels), normal(3, 3, 3, channels, 4, seed=1)
    each = lambda x, w: jnp.stack([models.conv_max_pool(a, b) for a, b in zip(x, w, strict=True)])
    assert_same(jax.vmap(models.conv_max_pool), each, images, kernels)


@pytest.mark.parametrize("channels", [3, 8])
def test_conv_max_pool_has_second_derivatives(double, channels):
    def reference(x, w):
        return native_pool(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC))

    def curvature(function):
        loss = lambda x, w: jnp.sum(jnp.sin(function(x, w)))
        return lambda x, w: jax.jvp(lambda v: jax.grad(loss)(x, v), (w,), (jnp.ones_like(w),))[1]

    args = normal(2, 8, 8, channels), normal(3, 3, channels, 5, seed=1)
    both = lambda *a: [curvature(f)(*a) for f in (models.conv_max_pool, reference)]
    result, wanted = jax.jit(both, compiler_options=QUICK)(*args)
    assert jnp.max(jnp.abs(wanted)) > 0.1
    np.testing.assert_allclose(result, wanted, rtol=1e-9, atol=1e-9)


def cnn_in_the_papers_order(params, images):
    """Convolution, bias, ReLU, pooling, three times, then three dense layers, with XLA's own operations."""
    x = images
    for i in range(3):
        layer = params[f"ConvPool_{i}"]
        x = lax.conv_general_dilated(x, layer["kernel"], (1, 1), [(1, 1), (1, 1)], dimension_numbers=NHWC)
        x = native_pool(jax.nn.relu(x + layer["bias"]))
    x = x.reshape(len(x), -1)
    for i in range(3):
        layer = params["MLP_0"][f"Dense_{i}"]
        x = x @ layer["kernel"] + layer["bias"]
        x = jax.nn.relu(x) if i < 2 else x
    return x


@pytest.mark.parametrize(("shape", "count"), [((32, 32, 3), 581_866), ((28, 28, 1), 352_202)], ids=["CIFAR-10", "MNIST"])
def test_cnn_is_the_papers(double, shape, count):
    images = normal(4, *shape)
    params = random_params(models.CNN(), images)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count

    def ours(params):
        return jnp.sum(models.CNN(classes=10).apply({"params": params}, images) ** 2)

    def reference(params):
        return jnp.sum(cnn_in_the_papers_order(params, images) ** 2)

    both = lambda params: [jax.value_and_grad(f)(params) for f in (ours, reference)]
    (value, grads), (wanted, wanted_grads) = jax.jit(both, compiler_options=QUICK)(params)
    np.testing.assert_allclose(value, wanted, rtol=1e-10)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), grads, wanted_grads)
    assert min(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(wanted_grads)) > 1e-3


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the matrix products are for CPUs")
def test_cnn_trains_without_the_slow_operations():
    images = normal(4, 32, 32, 3).astype(jnp.float32)
    params = random_params(models.CNN(), images)
    slow = ("stablehlo.convolution", "stablehlo.select_and_scatter", "stablehlo.reduce_window")

    def used(function):
        text = jax.jit(jax.grad(lambda p: function(p, images).sum())).lower(params).as_text()
        return [operation for operation in slow if operation in text]

    assert used(cnn_in_the_papers_order) == list(slow)
    assert used(lambda params, x: models.CNN().apply({"params": params}, x)) == []


def test_logistic_is_linear(double):
    inputs = normal(6, 4, 4, 1)
    params = random_params(models.Logistic(classes=3), inputs)
    dense = params["Dense_0"]
    assert dense["kernel"].shape == (16, 3)
    expected = inputs.reshape(6, 16) @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(models.Logistic(classes=3).apply({"params": params}, inputs), expected, rtol=1e-12)


def test_mlp_has_relu_between_its_layers(double):
    inputs = normal(6, 8)
    model = models.MLP(hidden=(5, 7), classes=3)
    params = random_params(model, inputs)
    assert [params[f"Dense_{i}"]["kernel"].shape for i in range(3)] == [(8, 5), (5, 7), (7, 3)]
    x = inputs
    for i in range(3):
        x = x @ params[f"Dense_{i}"]["kernel"] + params[f"Dense_{i}"]["bias"]
        x = jnp.maximum(x, 0) if i < 2 else x
    np.testing.assert_allclose(model.apply({"params": params}, inputs), x, rtol=1e-12)


@pytest.mark.parametrize("name", models.MODELS)
def test_registry(name):
    model = models.MODELS[name](classes=7)
    logits, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.ones((2, 28, 28, 1)))
    assert logits.shape == (2, 7)
    assert logits.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
    first = inspect.getdoc(models.MODELS[name]).splitlines()[0]
    assert first.endswith(".")
    assert not first.startswith(type(model).__name__ + "(")  # a description, not the signature that dataclasses add


def test_initial_parameters():
    init = jax.jit(models.ConvPool(16).init, compiler_options=QUICK)
    params = init(jax.random.key(0), jnp.ones((1, 8, 8, 3)))["params"]
    assert jnp.std(params["kernel"]) == pytest.approx(1 / np.sqrt(27), rel=0.1)  # LeCun's: variance 1 / (3 * 3 * 3)
    assert jnp.all(params["bias"] == 0)


def test_cnn_takes_bytes():
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), np.uint8)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), random_params(models.CNN(), jnp.asarray(images)))
    apply = jax.jit(lambda x: models.CNN().apply({"params": params}, x), compiler_options=QUICK)
    result = apply(images)
    np.testing.assert_allclose(result, apply(images.astype(np.float32)), rtol=1e-6)
    assert jnp.max(jnp.abs(result)) > 1


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (models.CNN(), (2, 784), "not (2, 784)"),
        (models.CNN(), (2, 7, 28, 1), "not (2, 7, 28, 1)"),
        (models.Logistic(), (784,), "not (784,)"),
        (models.MLP(), (), "not ()"),
    ],
)
def test_wrong_inputs_are_named(model, shape, message):
    with pytest.raises(InputError) as error:
        model.init(jax.random.key(0), jnp.zeros(shape))
    assert message in str(error.value)
