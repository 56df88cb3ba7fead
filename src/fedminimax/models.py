"""The networks that the papers train, as Flax modules, and convolutions that stay fast inside ``lax.scan`` on a CPU.

XLA's convolution is slow on CPUs inside loops (``lax.scan``, ``lax.map``), which is where a federated round does all
its work, and so is the gradient of its windowed maximum. :func:`conv`, :func:`max_pool` and :func:`conv_max_pool` are
slices and one matrix product on CPUs, and XLA's own operations on every other platform. To use them in a network of
your own, give ``flax.linen.Conv`` the argument ``conv_general_dilated=fedminimax.models.conv``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedminimax.errors import InputError

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

    On CPUs, NHWC images and HWIO kernels without dilation or groups are convolved by one matrix product; anything else,
    and every other platform, gets XLA's own convolution. Values agree to rounding.

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


def conv_max_pool(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return ``max_pool(conv(images, kernel, (1, 1), "SAME"))``, for NHWC images and an HWIO kernel.

    On CPUs, images of few channels are convolved and pooled together: the four outputs that a pooling square covers all
    come from one (k+1) x (k+1) patch, so they are the features of a stride-2 convolution with a kernel that is shifted
    four times. With k = 3 this multiplies 16/9 times as much, but copies 4/9 as much, and with few channels copying is
    what takes the time.
    """

    def separate(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return _sliced_max(_matrix_conv(images, kernel, (1, 1), "SAME"), window=2)

    def together(images: jax.Array, kernel: jax.Array) -> jax.Array:
        shifts = [jnp.pad(kernel, ((a, 1 - a), (b, 1 - b), (0, 0), (0, 0))) for a in (0, 1) for b in (0, 1)]
        pads = []
        for size, k in zip(images.shape[1:3], kernel.shape[:2], strict=True):
            low = (k - 1) // 2
            pads.append((low, 2 * (size // 2) + k - 1 - size - low))
        squares = _matrix_conv(images, jnp.concatenate(shifts, axis=-1), (2, 2), pads)
        return _max_halves(_max_halves(squares))

    def native(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return _native_max(lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=_NHWC), window=2)

    few = images.shape[-1] <= 4
    return lax.platform_dependent(images, kernel, cpu=together if few else separate, default=native)


def _layout(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any) -> lax.ConvDimensionNumbers:
    """Return the layouts in the one form in which they can be compared."""
    return lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)


def _matrix_conv(
    images: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Padding,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """Convolve NHWC images by one matrix product between shifted copies and the kernel."""

    def product(images: jax.Array, matrix: jax.Array) -> jax.Array:
        # as a product of two matrices, since XLA is slow to contract over several axes in its gradient
        left = images.reshape(-1, images.shape[-1])
        out = jnp.matmul(left, matrix, precision=precision, preferred_element_type=preferred_element_type)
        return out.reshape(*images.shape[:-1], -1)

    rows, columns, channels, features = kernel.shape
    pads = padding
    if isinstance(pads, str):
        pads = lax.padtype_to_pads(images.shape[1:3], (rows, columns), strides, pads)
    zero = jnp.zeros((), images.dtype)
    padded = lax.pad(images, zero, [(0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0)])
    shifted = jnp.concatenate(_shifts(padded, axis=2, window=columns, stride=strides[1]), axis=-1)
    if strides[0] == 1:
        # Shifting the rows after the product copies fewer numbers than before it: the product, over all rows of the
        # padded images, is larger by (rows - 1) / height, but its left factor is ``rows`` times smaller.
        matrix = kernel.transpose(1, 2, 0, 3).reshape(columns * channels, rows * features)
        # split, not slices: its transpose is a concatenation, theirs would be a sum of padded arrays
        parts = lax.split(product(shifted, matrix), (features,) * rows, axis=3)
        height = padded.shape[1] - rows + 1
        return reduce(jnp.add, [lax.slice_in_dim(part, i, i + height, axis=1) for i, part in enumerate(parts)])
    patches = jnp.concatenate(_shifts(shifted, axis=1, window=rows, stride=strides[0]), axis=-1)
    return product(patches, kernel.reshape(rows * columns * channels, features))


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


class Logistic(nn.Module):
    """Multinomial logistic regression: one linear layer on the flattened inputs.

    logits = W x + b.

    Attributes:
        classes: number of classes.
    """

    classes: int = 10

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the logits, (batch, classes)."""
        return nn.Dense(self.classes)(_flatten(inputs))


class Linear(nn.Module):
    """One linear layer that starts at zero, for frozen features and convex problems.

    Attributes:
        classes: number of outputs: one for each class, or 1 for a regression.
    """

    classes: int = 10

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the scores, (batch, classes)."""
        return nn.Dense(self.classes, kernel_init=nn.initializers.zeros)(_flatten(inputs))


class MLP(nn.Module):
    """Fully connected network with ReLU hidden layers, on the flattened inputs.

    Attributes:
        hidden: width of each hidden layer.
        classes: number of classes.
    """

    hidden: tuple[int, ...] = (200, 200)
    classes: int = 10

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the logits, (batch, classes)."""
        x = _flatten(inputs)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


class ConvPool(nn.Module):
    """A layer of :class:`CNN`: 3x3 convolution with padding 1, ReLU, 2x2 max pooling.

    Attributes:
        features: number of features of the convolution.
    """

    features: int

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return images of half the height and width, (batch, height // 2, width // 2, features)."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (3, 3, inputs.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        inputs, kernel, bias = nn.dtypes.promote_dtype(inputs, kernel, bias)
        # max and ReLU commute, and so do max and adding a constant: pooling first leaves a quarter of the work to both.
        return nn.relu(conv_max_pool(inputs, kernel) + bias)


class CNN(nn.Module):
    """Convolutional network: 3x3 convolutions (16, 32, 64) with ReLU and 2x2 max pooling, then 512-64-classes.

    For NHWC images of at least 8 x 8 pixels, such as MNIST's (28, 28, 1) and CIFAR-10's (32, 32, 3).

    Attributes:
        classes: number of classes.
    """

    classes: int = 10

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the logits, (batch, classes)."""
        if inputs.ndim != 4 or min(inputs.shape[1:3]) < 8:
            raise InputError(
                f"CNN takes images of shape (batch, height, width, channels) of at least 8 x 8 pixels, "
                f"not {inputs.shape}: reshape the inputs, or use Logistic or MLP."
            )
        x = inputs
        for features in (16, 32, 64):
            x = ConvPool(features)(x)
        return MLP(hidden=(512, 64), classes=self.classes)(x)


def _flatten(inputs: jax.Array) -> jax.Array:
    """Return the inputs as (batch, features)."""
    if inputs.ndim < 2:
        raise InputError(f"A model takes inputs of shape (batch, ...), not {inputs.shape}: add the batch axis.")
    return inputs.reshape(inputs.shape[0], -1)


MODELS: dict[str, Callable[..., nn.Module]] = {"logistic": Logistic, "linear": Linear, "mlp": MLP, "cnn": CNN}
"""The models by name."""
