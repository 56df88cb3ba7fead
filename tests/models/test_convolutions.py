"""Convolutions and pooling against XLA's own, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from references import NHWC, QUICK, assert_same, native_pool, normal, random_params, slow_operations

from fedminimax import models


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
def test_conv_is_xlas(x64, size, kernel, strides, padding):
    def with_(function):
        return lambda x, w: function(x, w, window_strides=strides, padding=padding, dimension_numbers=NHWC)

    assert_same(with_(models.conv), with_(lax.conv_general_dilated), normal(2, *size, 3), normal(*kernel, 3, 5, seed=1))


@pytest.mark.parametrize(
    ("size", "window", "stride", "channels", "features"),
    [
        ((6, 6), 3, 1, 1, 30),  # far more features than channels
        ((2, 2), 3, 1, 24, 48),  # many features and few rows
        ((7, 9), 4, 2, 8, 4),
        ((8, 8), 4, 2, 1, 16),
        ((9, 8), 1, 2, 6, 4),
    ],
)
def test_conv_is_xlas_whichever_way_the_rows_are_shifted(x64, size, window, stride, channels, features):
    def with_(function):
        return lambda x, w: function(x, w, (stride, stride), "SAME", dimension_numbers=NHWC)

    images, kernel = normal(2, *size, channels), normal(window, window, channels, features, seed=1)
    assert_same(with_(models.conv), with_(lax.conv_general_dilated), images, kernel)


def test_conv_under_vmap_with_a_kernel_for_each_client(x64):
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
def test_conv_of_other_kinds_is_xlas(x64, shape, kernel, options):
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
def test_conv_in_flax(x64, shape):
    options = {"features": 4, "kernel_size": (3, 3), "strides": 2}
    ours, reference = nn.Conv(**options, conv_general_dilated=models.conv), nn.Conv(**options)
    variables = {"params": random_params(reference, normal(*shape))}
    assert_same(lambda x: ours.apply(variables, x), lambda x: reference.apply(variables, x), normal(*shape))


@pytest.mark.parametrize(("size", "window"), [((6, 6), 2), ((7, 9), 2), ((8, 10), 3)])
def test_max_pool_is_xlas(x64, size, window):
    images = normal(2, *size, 3)
    assert_same(lambda x: models.max_pool(x, window), lambda x: native_pool(x, window), images)


def test_max_pool_gradient_of_equal_entries_adds_up_to_one():
    grad = jax.grad(lambda x: models.max_pool(x).sum())(jnp.zeros((1, 4, 4, 1)))
    sums = grad.reshape(2, 2, 2, 2).sum(axis=(1, 3))
    np.testing.assert_allclose(sums, 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("size", "kernel", "channels", "padding"),
    [
        ((8, 8), (3, 3), 1, "SAME"),
        ((7, 9), (3, 3), 3, "SAME"),
        ((8, 7), (5, 5), 4, "SAME"),
        ((7, 6), (2, 4), 3, "SAME"),
        ((7, 8), (1, 1), 3, "SAME"),
        ((8, 8), (3, 3), 5, "SAME"),
        ((7, 9), (3, 4), 5, "SAME"),
        ((8, 9), (5, 5), 1, "VALID"),
        ((8, 9), (5, 5), 6, "VALID"),
        ((7, 6), (3, 3), 2, ((2, 0), (-1, 1))),
    ],
)
def test_conv_max_pool_is_xlas(x64, size, kernel, channels, padding):
    def reference(x, w):
        return native_pool(lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=NHWC))

    ours = lambda x, w: models.conv_max_pool(x, w, padding)
    assert_same(ours, reference, normal(2, *size, channels), normal(*kernel, channels, 5, seed=1))


@pytest.mark.parametrize("channels", [3, 8])
def test_conv_max_pool_under_vmap_with_a_kernel_for_each_client(x64, channels):
    images, kernels = normal(3, 2, 6, 6, channels), normal(3, 3, 3, channels, 4, seed=1)
    each = lambda x, w: jnp.stack([models.conv_max_pool(a, b) for a, b in zip(x, w, strict=True)])
    assert_same(jax.vmap(models.conv_max_pool), each, images, kernels)


@pytest.mark.parametrize("channels", [3, 8])
def test_conv_max_pool_has_second_derivatives(x64, channels):
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


@pytest.mark.parametrize(
    ("size", "kernel", "strides", "padding"),
    [
        ((7, 7), (4, 4), (2, 2), "SAME"),
        ((5, 6), (3, 4), (2, 3), "SAME"),
        ((5, 4), (2, 1), (3, 2), "SAME"),
        ((5, 6), (3, 5), (2, 2), "VALID"),
        ((5, 4), (2, 1), (3, 2), "VALID"),
        ((5, 4), (4, 4), (2, 2), ((1, 2), (3, 0))),
        ((5, 4), (4, 4), (2, 2), ((4, 5), (-1, 0))),
    ],
)
def test_conv_transpose_is_xlas(x64, size, kernel, strides, padding):
    def with_(function, **options):
        return lambda x, w: function(x, w, strides, padding, **options)

    ours, reference = with_(models.conv_transpose), with_(lax.conv_transpose, dimension_numbers=NHWC)
    assert_same(ours, reference, normal(2, *size, 3), normal(*kernel, 3, 5, seed=1))


def test_conv_transpose_is_the_gradient_of_conv(x64):
    images, kernel = normal(2, 8, 8, 3), normal(4, 4, 3, 5, seed=1)
    small = normal(2, 4, 4, 5, seed=2)
    forward = lambda x: lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=NHWC)
    (wanted,) = jax.vjp(forward, images)[1](small)
    result = models.conv_transpose(small, kernel[::-1, ::-1].transpose(0, 1, 3, 2), (2, 2))
    np.testing.assert_allclose(result, wanted, rtol=1e-10, atol=1e-10)


def test_conv_transpose_under_vmap_with_a_kernel_for_each_client(x64):
    images, kernels = normal(3, 2, 3, 4, 3), normal(3, 4, 4, 3, 2, seed=1)
    ours = lambda x, w: models.conv_transpose(x, w, (2, 2))
    each = lambda x, w: jnp.stack([ours(a, b) for a, b in zip(x, w, strict=True)])
    assert_same(jax.vmap(ours), each, images, kernels)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the matrix products are for CPUs")
def test_conv_transpose_trains_without_the_slow_operations():
    images, kernel = normal(2, 7, 7, 3), normal(4, 4, 3, 5, seed=1)

    def used(function, **options):
        gradient = jax.grad(lambda x, w: function(x, w, (2, 2), "SAME", **options).sum(), (0, 1))
        return slow_operations(jax.jit(gradient).lower(images, kernel))

    assert used(lax.conv_transpose, dimension_numbers=NHWC) == ["stablehlo.convolution"]
    assert used(models.conv_transpose) == []
