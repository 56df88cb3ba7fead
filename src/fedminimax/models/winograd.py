"""Winograd's convolution by 3x3 kernels with stride 1, as sums of slices and products that XLA does fast on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Matrix = tuple[tuple[float, ...], ...]

TILE = 4
"""Height and width of the squares of outputs that are found together, m below."""
FEWEST_CHANNELS, FEWEST_TILES = 32, 128
"""With fewer the products are too small a part of the whole: measured."""

_SQUARE, _ROOT = 2.0, 2.0**0.5
# The polynomials are interpolated at 0, 1/sqrt 2, -1/sqrt 2, sqrt 2, -sqrt 2 and infinity: each a power of sqrt 2, and in pairs
# of inverses, these round off less than the usual 0, 1, -1, 2, -2. The first five rows of B^T, and of G, are scaled inversely.
_INPUT: Matrix = (
    (1, 0, -2.5, 0, 1, 0),
    (0, -_ROOT, -_SQUARE, _ROOT / 2, 1, 0),
    (0, _ROOT, -_SQUARE, -_ROOT / 2, 1, 0),
    (0, -_ROOT / 2, -0.5, _ROOT, 1, 0),
    (0, _ROOT / 2, -0.5, -_ROOT, 1, 0),
    (0, 1, 0, -2.5, 0, 1),
)
"""B^T: the six lines of a tile, transformed."""
_KERNEL: Matrix = (
    (1, 0, 0),
    (-2 / 3, -_ROOT / 3, -1 / 3),
    (-2 / 3, _ROOT / 3, -1 / 3),
    (1 / 6, _ROOT / 6, 1 / 3),
    (1 / 6, -_ROOT / 6, 1 / 3),
    (0, 0, 1),
)
"""G: the three lines of a kernel, transformed."""
_OUTPUT: Matrix = (
    (1, 1, 1, 1, 1, 0),
    (0, _ROOT / 2, -_ROOT / 2, _ROOT, -_ROOT, 0),
    (0, 0.5, 0.5, 2, 2, 0),
    (0, _ROOT / 4, -_ROOT / 4, 2 * _ROOT, -2 * _ROOT, 1),
)
"""A^T: the four lines of outputs, from six products."""


def winograd_conv(images: jax.Array, kernel: jax.Array, pads: Sequence[tuple[int, int]], precision: Any = None) -> jax.Array:
    """Convolve NHWC images by a 3x3 HWIO kernel with stride 1, four times fewer multiplications than by the definition.

    For each 4x4 square Y of outputs and the 6x6 square D of inputs under it, and each pair (a, b) of 36,

        V[a, b] = (B^T D B)[a, b],  U[a, b] = (G W G^T)[a, b],  M[a, b] = V[a, b] @ U[a, b],  Y = A^T M A,

    where the entries of D, W and M are vectors and matrices of channels: 36 products of (tiles, channels) and (channels,
    features), instead of one of (16 tiles, 9 channels) and (9 channels, features). What is copied is 9/4 of the images, not 9
    times them.

    All of it is linear in the images and linear in the kernel, so differentiation in both modes gives the gradients in the
    same 36-product form, dW = G^T [V^T (A dY A^T)] G and dX = B [(A dY A^T) U^T] B^T, and there is no rule of its own.

    Errors of rounding are three to five times those of the direct sum (3e-6 of the largest output, with 256 channels), since
    the transforms add numbers of either sign. It compiles for longer: there is more to it.

    References:
        Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016.

    Args:
        images: (batch, height, width, channels).
        kernel: (3, 3, channels, features).
        pads: rows and columns of zeros to add, a (low, high) pair for each axis.
        precision: precision of the products.

    Returns:
        The convolved images, (batch, height + pads - 2, width + pads - 2, features).
    """
    batch, *size, channels = images.shape
    (top, bottom), (left, right) = pads
    height, width = size[0] + top + bottom - 2, size[1] + left + right - 2
    down, across = -(-height // TILE), -(-width // TILE)
    # one row and column of tiles more, so that they can be cut by a reshape, not by strided slices, whose gradient is slow
    edges = [(top, TILE * (down + 1) - size[0] - top, 0), (left, TILE * (across + 1) - size[1] - left, 0)]
    padded = lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
    inputs = [
        v.reshape(-1, channels) for line in _combine(_INPUT, _lines(padded, 1)) for v in _combine(_INPUT, _lines(line, 2))
    ]
    rows = _combine(_KERNEL, list(kernel))
    # the barrier keeps XLA from computing the transformed kernels again inside every product that uses them
    kernels = lax.optimization_barrier([u for row in rows for u in _combine(_KERNEL, list(row))])
    # 36 products of matrices, since stacking them for a batched one would copy all inputs
    products = [jnp.matmul(v, u, precision=precision) for v, u in zip(inputs, kernels, strict=True)]
    squares = [product.reshape(batch, down, across, -1) for product in products]
    columns = [_combine(_OUTPUT, squares[i : i + len(_INPUT)]) for i in range(0, len(squares), len(_INPUT))]
    out = [_combine(_OUTPUT, list(column)) for column in zip(*columns, strict=True)]
    lines = [jnp.stack(line, axis=3) for line in zip(*out, strict=True)]
    whole = jnp.stack(lines, axis=2).reshape(batch, TILE * down, TILE * across, -1)
    return whole[:, :height, :width]


def pays(images: jax.Array, kernel: jax.Array, strides: Sequence[int], pads: Sequence[tuple[int, int]]) -> bool:
    """Say whether :func:`winograd_conv` is the faster convolution for arrays of these shapes and this dtype.

    It multiplies less, but transforms every kernel, so that there must be many tiles; and it adds more, so that there must
    be many channels to multiply by. It was faster wherever these bounds let it be measured, and slower with 32 tiles of 512
    channels and with 16 channels. Half precision is too coarse for the transforms.
    """
    if tuple(kernel.shape[:2]) != (3, 3) or tuple(strides) != (1, 1) or jnp.finfo(images.dtype).bits < 32:
        return False
    sides = [size + low + high - 2 for size, (low, high) in zip(images.shape[1:3], pads, strict=True)]
    if min(sides) < TILE:
        return False
    tiles = images.shape[0] * reduce(lambda count, side: count * -(-side // TILE), sides, 1)
    return min(kernel.shape[2:]) >= FEWEST_CHANNELS and tiles >= FEWEST_TILES


def _lines(array: jax.Array, axis: int) -> list[jax.Array]:
    """Return the six lines of every tile along an axis: the four that it starts with, and the first two of the next tile."""
    count = array.shape[axis] // TILE
    cut = array.reshape(*array.shape[:axis], count, TILE, *array.shape[axis + 1 :])
    lines = [jnp.squeeze(line, axis + 1) for line in lax.split(cut, (1,) * TILE, axis=axis + 1)]
    own = [lax.slice_in_dim(line, 0, count - 1, axis=axis) for line in lines]
    return own + [lax.slice_in_dim(line, 1, count, axis=axis) for line in lines[:2]]


def _combine(matrix: Matrix, parts: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the sums of the parts that the rows of a matrix of constants weigh, written out, without its zeros."""
    return [
        reduce(jnp.add, [part if entry == 1 else entry * part for entry, part in zip(row, parts, strict=True) if entry])
        for row in matrix
    ]
