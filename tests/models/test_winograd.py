"""Winograd's convolution is a convolution: values and derivatives in both modes, at sizes that tiles do not divide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedminimax.models import conv
from fedminimax.models.winograd import BOUNDS, FOUR, TWO, that_pays, winograd_conv

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


@pytest.mark.parametrize("scheme", [FOUR, TWO], ids=["four", "two"])
@pytest.mark.parametrize(("shape", "pads"), CASES)
def test_values_and_derivatives_are_those_of_a_convolution(shape, pads, scheme, x64):
    images, kernel, above, along, key = drawn(shape, pads)
    across = jax.random.normal(key, kernel.shape)

    def both(convolve):
        f = lambda a, w: convolve(a, w, pads)
        out, back = jax.vjp(f, images, kernel)
        pushed = jax.jvp(f, (images, kernel), (along, across))[1]
        turned = jax.jvp(lambda w: jax.grad(lambda w: jnp.sum(f(images, w) ** 2))(w), (kernel,), (across,))[1]
        return out, back(above), pushed, turned

    ours = lambda a, w, pads: winograd_conv(a, w, pads, scheme=scheme)
    close(jax.jit(lambda: both(ours))(), jax.jit(lambda: both(direct))(), 1e-13)


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


def products(images, kernel, pads="SAME"):
    numbers = ("NHWC", "HWIO", "NHWC")
    return str(jax.make_jaxpr(lambda a: conv(a, kernel, (1, 1), pads, dimension_numbers=numbers))(images)).count("dot_general")


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_it_is_used_where_it_pays(bound):
    tile = bound.scheme.tile
    images = jnp.zeros((bound.tiles // 4, 2 * tile, 2 * tile, bound.fewer))
    kernel = jnp.zeros((3, 3, bound.fewer, bound.more))
    same = ((1, 1), (1, 1))
    assert that_pays(images, kernel, (1, 1), same) in (bound.scheme, FOUR)  # with more tiles there may be enough of the larger
    assert that_pays(images, kernel, (2, 2), same) is None
    assert that_pays(images, jnp.zeros((5, 5, bound.fewer, bound.more)), (1, 1), ((2, 2), (2, 2))) is None
    assert that_pays(images, kernel[..., :15], (1, 1), same) is None
    assert that_pays(images[..., :15], kernel[:, :, :15], (1, 1), same) is None
    assert that_pays(images.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16), (1, 1), same) is None
    assert products(images, kernel) == (that_pays(images, kernel, (1, 1), same).tile + 2) ** 2


def test_small_images_get_small_tiles_and_fewer_or_smaller_ones_none():
    kernel = jnp.zeros((3, 3, 32, 32))
    chosen = lambda *shape, kernel=kernel: that_pays(jnp.zeros(shape), kernel, (1, 1), ((1, 1), (1, 1)))
    assert [chosen(32, size, size, 32) for size in (8, 4, 2, 1)] == [FOUR, TWO, None, None]
    assert chosen(31, 8, 8, 32) is TWO
    assert chosen(31, 4, 4, 32) is None
    assert chosen(128, 2, 2, 32) is TWO
    assert chosen(128, 1, 64, 32) is None
    few = jnp.zeros((3, 3, 16, 32))
    assert [chosen(batch, 16, 16, 16, kernel=few) for batch in (16, 15)] == [TWO, None]
    assert chosen(16, 16, 16, 16, kernel=few[..., :31]) is None
    assert products(jnp.zeros((31, 4, 4, 32)), kernel) == 1
