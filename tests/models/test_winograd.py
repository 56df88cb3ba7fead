"""Winograd's convolution is a convolution: values and derivatives in both modes, at sizes that tiles do not divide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedminimax.models import conv
from fedminimax.models.winograd import FEWEST_CHANNELS, FEWEST_TILES, TILE, pays, winograd_conv

CASES = [
    ((2, 8, 8, 3, 5), ((1, 1), (1, 1))),
    ((3, 7, 9, 2, 4), ((1, 1), (1, 1))),
    ((1, 5, 6, 4, 2), ((0, 0), (0, 0))),
    ((2, 3, 13, 2, 2), ((2, 1), (0, 2))),
]


def drawn(shape, pads):
    batch, height, width, channels, features = shape
    keys = jax.random.split(jax.random.key(0), 5)
    images = jax.random.normal(keys[0], (batch, height, width, channels))
    kernel = jax.random.normal(keys[1], (3, 3, channels, features))
    out = (batch, height + sum(pads[0]) - 2, width + sum(pads[1]) - 2, features)
    return images, kernel, jax.random.normal(keys[2], out), jax.random.normal(keys[3], images.shape), keys[4]


def direct(images, kernel, pads):
    return lax.conv_general_dilated(images, kernel, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def close(ours, theirs, rtol):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * float(jnp.abs(b).max()))


@pytest.mark.parametrize(("shape", "pads"), CASES)
def test_values_and_derivatives_are_those_of_a_convolution(shape, pads, x64):
    images, kernel, above, along, key = drawn(shape, pads)
    across = jax.random.normal(key, kernel.shape)

    def both(convolve):
        f = lambda a, w: convolve(a, w, pads)
        out, back = jax.vjp(f, images, kernel)
        pushed = jax.jvp(f, (images, kernel), (along, across))[1]
        turned = jax.jvp(lambda w: jax.grad(lambda w: jnp.sum(f(images, w) ** 2))(w), (kernel,), (across,))[1]
        return out, back(above), pushed, turned

    close(jax.jit(lambda: both(winograd_conv))(), jax.jit(lambda: both(direct))(), 1e-13)


def test_many_clients_each_have_a_kernel(x64):
    images, kernel, *_ = drawn((2, 8, 8, 3, 5), ((1, 1), (1, 1)))
    pads = ((1, 1), (1, 1))
    images, kernels = jnp.stack([images, 2 * images]), jnp.stack([kernel, kernel - 1])
    ours = jax.vmap(lambda a, w: winograd_conv(a, w, pads))(images, kernels)
    close(ours, jnp.stack([direct(a, w, pads) for a, w in zip(images, kernels, strict=True)]), 1e-13)


def test_single_precision_is_nearly_kept():
    """The points of interpolation are chosen for it: with the usual 0, 1, -1, 2, -2 the error is several times as large."""
    images, kernel, *_ = drawn((4, 16, 16, 64, 64), ((1, 1), (1, 1)))
    found = winograd_conv(images, kernel, ((1, 1), (1, 1)))
    with jax.enable_x64(True):
        close(found, direct(images.astype(jnp.float64), kernel.astype(jnp.float64), ((1, 1), (1, 1))), 5e-6)


def test_it_is_used_where_it_pays(monkeypatch):
    least = FEWEST_CHANNELS
    images, kernel = jnp.zeros((FEWEST_TILES // 4, 2 * TILE, 2 * TILE, least)), jnp.zeros((3, 3, least, least))
    same = ((1, 1), (1, 1))
    assert pays(images, kernel, (1, 1), same)
    assert not pays(images, kernel, (2, 2), same)
    assert not pays(images, jnp.zeros((5, 5, least, least)), (1, 1), ((2, 2), (2, 2)))
    assert not pays(images[1:], kernel, (1, 1), same)
    assert not pays(images[..., 1:], kernel[:, :, 1:], (1, 1), same)
    assert not pays(images, kernel[..., 1:], (1, 1), same)
    assert not pays(images.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16), (1, 1), same)
    assert not pays(jnp.zeros((FEWEST_TILES, 3, 64, least)), kernel, (1, 1), same)
    numbers = ("NHWC", "HWIO", "NHWC")
    products = lambda a: str(jax.make_jaxpr(lambda a: conv(a, kernel, (1, 1), "SAME", dimension_numbers=numbers))(a)).count(
        "dot_general"
    )
    assert products(images) == (TILE + 2) ** 2
    assert products(images[1:]) == 1
