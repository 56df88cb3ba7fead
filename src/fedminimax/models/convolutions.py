"""Convolutions and pooling that stay fast inside ``lax.scan`` on a CPU.

XLA's convolution is slow on CPUs inside loops (``lax.scan``, ``lax.map``), which is where a federated round does all
its work, and so is the gradient of its windowed maximum. Here they are slices and matrix products on CPUs, and XLA's
own operations on every other platform.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedminimax.models.winograd import that_pays, winograd_conv

Padding = str | Sequence[tuple[int, int]]
"""What ``lax.conv_general_dilated`` takes: "SAME", "VALID", or a (low, high) pair for each spatial axis."""

_NHWC = ("NHWC", "HWIO", "NHWC")


def conv(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """Convolve as ``lax.conv_general_dilated`` does, in a form that is fast inside loops on CPUs.

    out[n, h, w, :] = sum_{i, j} lhs[n, s h + i, s w + j, :] @ rhs[i, j], on the padded input, for stride s.

    On CPUs, NHWC images and HWIO kernels without dilation or groups are convolved by one matrix product, or for 3x3 kernels of
    many channels with a half or a quarter of the multiplications (:mod:`fedminimax.models.winograd`); anything else, and every
    other platform, gets XLA's own convolution. Values agree to rounding.

    Args:
        lhs: the images, (batch, height, width, channels) when ``dimension_numbers`` is NHWC.
        rhs: the kernel, (height, width, channels, features) when ``dimension_numbers`` is HWIO.
        window_strides: one stride for each spatial axis.
        padding: "SAME", "VALID", or a (low, high) pair for each spatial axis.
        lhs_dilation: dilation of the images.
        rhs_dilation: dilation of the kernel.
        dimension_numbers: the layouts, as ``lax.conv_general_dilated`` takes them.
        feature_group_count: number of groups of features.
        batch_group_count: number of groups of examples.
        precision: precision of the products.
        preferred_element_type: dtype of the sums and of the result.

    Returns:
        The convolved images.
    """
    native = partial(
        lax.conv_general_dilated,
        window_strides=window_strides,
        padding=padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=dimension_numbers,
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    dense = all(d == 1 for d in (*(lhs_dilation or ()), *(rhs_dilation or ()), feature_group_count, batch_group_count))
    if not (dense and lhs.ndim == 4 and _layout(lhs, rhs, dimension_numbers) == _layout(lhs, rhs, _NHWC)):
        return native(lhs, rhs)
    product = partial(
        _matrix_conv,
        strides=tuple(window_strides),
        padding=padding,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    return lax.platform_dependent(lhs, rhs, cpu=product, default=native)


def max_pool(images: jax.Array, window: int = 2) -> jax.Array:
    """Return the maxima over non-overlapping ``window`` x ``window`` squares of NHWC images; a remainder is dropped.

    On CPUs the maximum is taken over strided slices, whose gradient is cheap inside loops. Where entries of a square
    are equal, its gradient is shared among them there, and goes to the first of them on other platforms.
    """
    return lax.platform_dependent(images, cpu=partial(_sliced_max, window=window), default=partial(_native_max, window=window))


def conv_max_pool(images: jax.Array, kernel: jax.Array, padding: Padding = "SAME") -> jax.Array:
    """Return ``max_pool(conv(images, kernel, (1, 1), padding))``, for NHWC images and an HWIO kernel.

    On CPUs, images of few channels are convolved and pooled together: the four outputs that a pooling square covers all
    come from one (k+1) x (k+1) patch, so they are the features of a stride-2 convolution with a kernel that is shifted
    four times. With k = 3 this multiplies 16/9 times as much, but copies 4/9 as much, and with few channels copying is
    what takes the time.
    """

    def separate(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return _sliced_max(_matrix_conv(images, kernel, (1, 1), padding), window=2)

    def together(images: jax.Array, kernel: jax.Array) -> jax.Array:
        shifts = [jnp.pad(kernel, ((a, 1 - a), (b, 1 - b), (0, 0), (0, 0))) for a in (0, 1) for b in (0, 1)]
        pads = []
        for axis, (low, high) in enumerate(_pads(images, kernel, (1, 1), padding)):
            size, k = images.shape[axis + 1], kernel.shape[axis]
            squares = (low + size + high - k + 1) // 2
            pads.append((low, 2 * squares + k - 1 - size - low))
        outputs = _matrix_conv(images, jnp.concatenate(shifts, axis=-1), (2, 2), pads)
        return _max_halves(_max_halves(outputs))

    def native(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return _native_max(lax.conv_general_dilated(images, kernel, (1, 1), padding, dimension_numbers=_NHWC), window=2)

    few = images.shape[-1] <= 4
    return lax.platform_dependent(images, kernel, cpu=together if few else separate, default=native)


def conv_transpose(images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Padding = "SAME") -> jax.Array:
    """Convolve as ``lax.conv_transpose`` does, for NHWC images and an HWIO kernel, in a form that is fast inside loops on CPUs.

    images[n, h, w, :] @ kernel[k - 1 - i, l - 1 - j] is added to pixel (s h + i, t w + j) of the output, for a k x l kernel and
    strides (s, t); the padding says which pixels at the edges are kept. With "SAME" there are s times as many rows as before,
    and t times as many columns.

    On CPUs it is one matrix product, of all pixels with all entries of the kernel, whose parts are added where they overlap.

    Args:
        images: the images, (batch, height, width, channels).
        kernel: the kernel, (height, width, channels, features).
        strides: one stride for each spatial axis.
        padding: "SAME", "VALID", or a (low, high) pair for each spatial axis, as ``lax.conv_transpose`` takes them.

    Returns:
        The convolved images, (batch, height, width, features).
    """
    native = partial(lax.conv_transpose, strides=strides, padding=padding, dimension_numbers=_NHWC)
    product = partial(_matrix_conv_transpose, strides=tuple(strides), padding=padding)
    return lax.platform_dependent(images, kernel, cpu=product, default=native)


def _layout(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any) -> lax.ConvDimensionNumbers:
    """Return the layouts in the one form in which they can be compared."""
    return lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)


def _pads(images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Padding) -> Sequence[tuple[int, int]]:
    """Return the padding of NHWC images as a (low, high) pair for each axis."""
    if isinstance(padding, str):
        return lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], strides, padding)
    return padding


def _matrix_conv(
    images: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Padding,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """Convolve NHWC images by one matrix product between shifted copies and the kernel, or by Winograd's where that pays."""
    pads = _pads(images, kernel, strides, padding)
    scheme = that_pays(images, kernel, strides, pads)
    if scheme is not None and preferred_element_type is None:
        return winograd_conv(images, kernel, pads, precision, scheme)

    def product(copies: list[jax.Array], matrix: jax.Array) -> jax.Array:
        # as a product of two matrices, since XLA is slow to contract over several axes in its gradient
        patches = jnp.concatenate(copies, axis=-1)
        flat = patches.reshape(-1, patches.shape[-1])
        out = jnp.matmul(flat, matrix, precision=precision, preferred_element_type=preferred_element_type)
        return out.reshape(*patches.shape[:-1], -1)

    rows, columns, _, features = kernel.shape
    stride, step = strides
    (top, bottom), sides = pads
    height = (images.shape[1] + top + bottom - rows) // stride + 1
    blocks = rows // stride
    rows_after = _rows_after(kernel, stride, height)
    if rows_after:
        bottom = stride * (height + blocks - 1) - images.shape[1] - top
    padded = _pad(images, (top, bottom), sides)
    if not rows_after:
        shifted = jnp.concatenate(_shifts(padded, axis=2, window=columns, stride=step), axis=-1)
        return product(_shifts(shifted, axis=1, window=rows, stride=stride), kernel.reshape(-1, features))
    lines = _shifts(padded, axis=1, window=stride, stride=stride)
    copies = [copy for line in lines for copy in _shifts(line, axis=2, window=columns, stride=step)]
    matrix = kernel.reshape(blocks, -1, features).transpose(1, 0, 2).reshape(-1, blocks * features)
    # split, not slices: its transpose is a concatenation, theirs would be a sum of padded arrays
    parts = lax.split(product(copies, matrix), (features,) * blocks, axis=3)
    return reduce(jnp.add, [lax.slice_in_dim(part, i, i + height, axis=1) for i, part in enumerate(parts)])


def _rows_after(kernel: jax.Array, stride: int, height: int) -> bool:
    """Say whether to shift by whole strides of rows after the matrix product, not before it, for that many rows of outputs.

    It copies fewer numbers, since the left factor has rows / stride times fewer columns, but the product has as many times
    more: it pays unless there are many more features than channels. It also multiplies more, by (rows / stride - 1) / height,
    since the product is over all rows of the padded images: with many features that is dearer than copying. The factors 2 and
    64 are measured.
    """
    rows, columns, channels, features = kernel.shape
    produced = rows // stride * features
    return rows % stride == 0 and 2 * (rows - stride) * columns * channels > produced and produced < 64 * height


def _matrix_conv_transpose(images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Padding) -> jax.Array:
    """Convolve as :func:`conv_transpose` does, by one matrix product and a sum of its parts."""
    (batch, height, width, channels), (*window, _, features) = images.shape, kernel.shape
    s, t = strides
    # with zeros added, the reversed kernel is rows x columns blocks of s x t entries
    rows, columns = -(-window[0] // s), -(-window[1] // t)
    whole = jnp.pad(kernel[::-1, ::-1], ((0, rows * s - window[0]), (0, columns * t - window[1]), (0, 0), (0, 0)))
    matrix = whole.reshape(rows, s, columns, t, channels, features).transpose(4, 0, 2, 1, 3, 5).reshape(channels, -1)
    products = (images.reshape(-1, channels) @ matrix).reshape(batch, height, width, -1)
    parts = lax.split(products, (s * t * features,) * (rows * columns), axis=3)
    shifts = [((a, rows - 1 - a), (b, columns - 1 - b)) for a in range(rows) for b in range(columns)]
    blocks = reduce(jnp.add, [_pad(part, *shift) for part, shift in zip(parts, shifts, strict=True)])
    _, h, w, _ = blocks.shape
    pixels = blocks.reshape(batch, h, w, s, t, features).transpose(0, 1, 3, 2, 4, 5).reshape(batch, s * h, t * w, features)
    edges = []
    for axis, k, stride in zip((1, 2), window, strides, strict=True):
        low, high = _transposed_pads(k, stride, padding) if isinstance(padding, str) else padding[axis - 1]
        size = stride * (images.shape[axis] - 1) + low + high + 2 - k
        edges.append((low + 1 - k, size - (low + 1 - k) - pixels.shape[axis]))
    return _pad(pixels, *edges)


def _transposed_pads(window: int, stride: int, padding: str) -> tuple[int, int]:
    """Return the (low, high) padding that ``lax.conv_transpose`` gives to images whose pixels the stride has moved apart."""
    if padding == "VALID":
        return window - 1, max(window, stride) - 1
    both = window + stride - 2
    low = window - 1 if stride > window - 1 else -(-both // 2)
    return low, both - low


def _pad(images: jax.Array, rows: tuple[int, int], columns: tuple[int, int]) -> jax.Array:
    """Add that many rows and columns of zeros before and after those of NHWC images; a negative number takes away."""
    return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), (*rows, 0), (*columns, 0), (0, 0, 0)])


def _shifts(array: jax.Array, axis: int, window: int, stride: int) -> list[jax.Array]:
    """Return, for each i < window, the entries i, i + stride, i + 2 stride ... of the axis, equally many for each i."""
    last = (array.shape[axis] - window) // stride * stride
    return [lax.slice_in_dim(array, i, i + last + 1, stride, axis) for i in range(window)]


def _sliced_max(images: jax.Array, window: int) -> jax.Array:
    """Take the maximum over squares as one over strided slices, first of rows, then of columns."""
    for axis in (1, 2):
        images = reduce(jnp.maximum, _shifts(images, axis, window, stride=window))
    return images


def _native_max(images: jax.Array, window: int) -> jax.Array:
    """Take the maximum over squares with XLA's windowed reduction."""
    return nn.max_pool(images, (window, window), (window, window))


def _max_halves(x: jax.Array) -> jax.Array:
    """Return the larger of the two halves of the last axis, entry by entry."""
    half = x.shape[-1] // 2
    return jnp.maximum(*lax.split(x, (half, half), axis=x.ndim - 1))
