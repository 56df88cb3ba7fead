"""Winograd's convolution by 3x3 kernels with stride 1, as sums of slices and products that XLA does fast on CPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Matrix = tuple[tuple[float, ...], ...]


class Scheme(NamedTuple):
    """Winograd's F(m x m, 3 x 3): m^2 outputs by (m + 2)^2 multiplications, where the definition has 9 m^2.

    Attributes:
        tile: m, height and width of the squares of outputs that are found together.
        inputs: B^T: the m + 2 lines of a square of inputs, transformed.
        kernel: G: the three lines of a kernel, transformed.
        outputs: A^T: the m lines of outputs, from m + 2 products.
    """

    tile: int
    inputs: Matrix
    kernel: Matrix
    outputs: Matrix


_SQUARE, _ROOT = 2.0, 2.0**0.5
# The polynomials are interpolated at 0, 1/sqrt 2, -1/sqrt 2, sqrt 2, -sqrt 2 and infinity: each a power of sqrt 2, and in pairs
# of inverses, these round off less than the usual 0, 1, -1, 2, -2. The first five rows of B^T, and of G, are scaled inversely.
FOUR = Scheme(
    tile=4,
    inputs=(
        (1, 0, -2.5, 0, 1, 0),
        (0, -_ROOT, -_SQUARE, _ROOT / 2, 1, 0),
        (0, _ROOT, -_SQUARE, -_ROOT / 2, 1, 0),
        (0, -_ROOT / 2, -0.5, _ROOT, 1, 0),
        (0, _ROOT / 2, -0.5, -_ROOT, 1, 0),
        (0, 1, 0, -2.5, 0, 1),
    ),
    kernel=(
        (1, 0, 0),
        (-2 / 3, -_ROOT / 3, -1 / 3),
        (-2 / 3, _ROOT / 3, -1 / 3),
        (1 / 6, _ROOT / 6, 1 / 3),
        (1 / 6, -_ROOT / 6, 1 / 3),
        (0, 0, 1),
    ),
    outputs=(
        (1, 1, 1, 1, 1, 0),
        (0, _ROOT / 2, -_ROOT / 2, _ROOT, -_ROOT, 0),
        (0, 0.5, 0.5, 2, 2, 0),
        (0, _ROOT / 4, -_ROOT / 4, 2 * _ROOT, -2 * _ROOT, 1),
    ),
)
"""A quarter of the multiplications."""
# At 0, 1, -1 and infinity.
TWO = Scheme(
    tile=2,
    inputs=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    kernel=((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    outputs=((1, 1, 1, 0), (0, 1, -1, -1)),
)
"""Four ninths of the multiplications, with fewer and smaller transformed kernels: for small images, and for few channels."""


class Bound(NamedTuple):
    """Where a scheme is faster than one product, as measured: with less, what it adds and copies takes longer than it saves.

    Attributes:
        scheme: the scheme.
        fewer: the fewest channels and features.
        more: the fewest of the more numerous of the two.
        tiles: the fewest tiles in a batch.
    """

    scheme: Scheme
    fewer: int
    more: int
    tiles: int


BOUNDS = (Bound(FOUR, 32, 32, 128), Bound(TWO, 32, 32, 128), Bound(TWO, 16, 32, 1024))
"""The first one that is kept is taken."""


def winograd_conv(
    images: jax.Array,
    kernel: jax.Array,
    pads: Sequence[tuple[int, int]],
    precision: Any = None,
    scheme: Scheme = FOUR,
) -> jax.Array:
    """Convolve NHWC images by a 3x3 HWIO kernel with stride 1, with a half or a quarter of the usual multiplications.

    For each m x m square Y of outputs and the square D of inputs under it, of m + 2, and each pair (a, b) of (m + 2)^2,

        V[a, b] = (B^T D B)[a, b],  U[a, b] = (G W G^T)[a, b],  M[a, b] = V[a, b] @ U[a, b],  Y = A^T M A,

    where the entries of D, W and M are vectors and matrices of channels: with m = 4, 36 products of (tiles, channels) and
    (channels, features), instead of one of (16 tiles, 9 channels) and (9 channels, features). What is copied is 9/4 of the
    images, not 9 times them (4 times with m = 2).

    All of it is linear in the images and linear in the kernel, so differentiation in both modes gives the gradients in the
    same form, dW = G^T [V^T (A dY A^T)] G and dX = B [(A dY A^T) U^T] B^T, and there is no rule of its own.

    Errors of rounding with m = 4 are three to five times those of the direct sum (3e-6 of the largest output, with 256
    channels), since the transforms add numbers of either sign. It compiles for longer: there is more to it.

    References:
        Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.

    Args:
        images: (batch, height, width, channels).
        kernel: (3, 3, channels, features).
        pads: rows and columns of zeros to add, a (low, high) pair for each axis.
        precision: precision of the products.
        scheme: how large the squares are, and the transforms.

    Returns:
        The convolved images, (batch, height + pads - 2, width + pads - 2, features).
    """
    batch, *size, channels = images.shape
    tile = scheme.tile
    (top, bottom), (left, right) = pads
    height, width = size[0] + top + bottom - 2, size[1] + left + right - 2
    down, across = -(-height // tile), -(-width // tile)
    # one row and column of tiles more, so that they can be cut by a reshape, not by strided slices, whose gradient is slow
    edges = [(top, tile * (down + 1) - size[0] - top, 0), (left, tile * (across + 1) - size[1] - left, 0)]
    padded = lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
    inputs = [
        v.reshape(-1, channels)
        for line in _combine(scheme.inputs, _lines(padded, 1, tile))
        for v in _combine(scheme.inputs, _lines(line, 2, tile))
    ]
    rows = _combine(scheme.kernel, list(kernel))
    # the barrier keeps XLA from computing the transformed kernels again inside every product that uses them
    kernels = lax.optimization_barrier([u for row in rows for u in _combine(scheme.kernel, list(row))])
    # so many products of matrices, since stacking them for a batched one would copy all inputs
    products = [jnp.matmul(v, u, precision=precision) for v, u in zip(inputs, kernels, strict=True)]
    squares = [product.reshape(batch, down, across, -1) for product in products]
    columns = [_combine(scheme.outputs, squares[i : i + tile + 2]) for i in range(0, len(squares), tile + 2)]
    out = [_combine(scheme.outputs, list(column)) for column in zip(*columns, strict=True)]
    lines = [jnp.stack(line, axis=3) for line in zip(*out, strict=True)]
    whole = jnp.stack(lines, axis=2).reshape(batch, tile * down, tile * across, -1)
    return whole[:, :height, :width]


def that_pays(images: jax.Array, kernel: jax.Array, strides: Sequence[int], pads: Sequence[tuple[int, int]]) -> Scheme | None:
    """Return the scheme with which :func:`winograd_conv` is the faster convolution for arrays of these shapes and this dtype.

    It multiplies less, but transforms every kernel, so that there must be many tiles: where images are too small for enough
    of 4x4, there may be enough of 2x2. And it adds more, so that there must be many channels to multiply by. Half precision is
    too coarse for the transforms.
    """
    if tuple(kernel.shape[:2]) != (3, 3) or tuple(strides) != (1, 1) or jnp.finfo(images.dtype).bits < 32:
        return None
    sides = [size + low + high - 2 for size, (low, high) in zip(images.shape[1:3], pads, strict=True)]

    few, many = sorted(kernel.shape[2:])

    def kept(bound: Bound) -> bool:
        tile = bound.scheme.tile
        tiles = images.shape[0] * math.prod(-(-side // tile) for side in sides)
        return min(sides) >= tile and tiles >= bound.tiles and few >= bound.fewer and many >= bound.more

    return next((bound.scheme for bound in BOUNDS if kept(bound)), None)


def _lines(array: jax.Array, axis: int, tile: int) -> list[jax.Array]:
    """Return the lines of every tile's inputs along an axis: those of the tile itself, and the first two of the next."""
    count = array.shape[axis] // tile
    cut = array.reshape(*array.shape[:axis], count, tile, *array.shape[axis + 1 :])
    lines = [jnp.squeeze(line, axis + 1) for line in lax.split(cut, (1,) * tile, axis=axis + 1)]
    own = [lax.slice_in_dim(line, 0, count - 1, axis=axis) for line in lines]
    return own + [lax.slice_in_dim(line, 1, count, axis=axis) for line in lines[:2]]


def _combine(matrix: Matrix, parts: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the sums of the parts that the rows of a matrix of constants weigh, written out, without its zeros."""
    return [
        reduce(jnp.add, [part if entry == 1 else entry * part for entry, part in zip(row, parts, strict=True) if entry])
        for row in matrix
    ]
