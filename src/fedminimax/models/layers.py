"""The layers that the networks share: dense, convolutional and normalising, with the initialisations of the papers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.custom_derivatives import SymbolicZero

from fedminimax import checks
from fedminimax.errors import InputError
from fedminimax.models.convolutions import Padding, conv, conv_max_pool, conv_transpose

Initializer = Callable[..., jax.Array]


def _lecun(fan_in: int) -> tuple[Initializer, Initializer]:
    return nn.initializers.lecun_normal(), nn.initializers.zeros_init()


def _pytorch(fan_in: int) -> tuple[Initializer, Initializer]:
    bound = 1 / math.sqrt(fan_in)

    def draw(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw, draw


def _dcgan(fan_in: int) -> tuple[Initializer, Initializer]:
    return nn.initializers.normal(0.02), nn.initializers.zeros_init()


def _xavier(fan_in: int) -> tuple[Initializer, Initializer]:
    return nn.initializers.xavier_uniform(), nn.initializers.zeros_init()


INITIALIZERS: dict[str, Callable[[int], tuple[Initializer, Initializer]]] = {
    "lecun": _lecun,
    "pytorch": _pytorch,
    "dcgan": _dcgan,
    "xavier": _xavier,
}
"""How kernels and biases start, by name, given the number of inputs that an output sums over (its fan-in).

- "lecun": kernels are normal with variance 1 / fan_in, cut off at two deviations; biases are zero. Flax's default.
- "pytorch": kernels and biases are uniform on [-1 / sqrt(fan_in), 1 / sqrt(fan_in)]. PyTorch's default.
- "dcgan": kernels are normal with deviation 0.02; biases are zero. Radford, Metz and Chintala, 2016.
- "xavier": kernels are uniform with variance 2 / (fan_in + fan_out); biases are zero. Glorot and Bengio, 2010.
"""


class Layer(nn.Module):
    """What dense and convolutional layers have in common.

    Attributes:
        features: number of outputs, or of features of the images that are returned.
        initializer: how kernel and bias start, a key of ``INITIALIZERS``.
        use_bias: whether there is a bias. A layer before a normalisation needs none.
    """

    features: int
    initializer: str = "lecun"
    use_bias: bool = True

    def parameters(self, inputs: jax.Array, window: tuple[int, ...] = ()) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the inputs, the kernel and the bias, in one dtype. The bias is 0 where there is none."""
        if self.initializer not in INITIALIZERS:
            known = ", ".join(repr(name) for name in INITIALIZERS)
            raise InputError(f"initializer is {self.initializer!r}: choose one of {known}.")
        shape = (*window, inputs.shape[-1], self.features)
        kernel_init, bias_init = INITIALIZERS[self.initializer](math.prod(shape[:-1]))
        kernel = self.param("kernel", kernel_init, shape)
        bias = self.param("bias", bias_init, (self.features,)) if self.use_bias else jnp.zeros((), kernel.dtype)
        inputs, kernel, bias = nn.dtypes.promote_dtype(inputs, kernel, bias)
        return inputs, kernel, bias


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shifted:
    """Inputs to which one shift is added, the same for every example: examples + shift.

    A network of your own that sets ``takes_shifted = True`` gets its inputs in this form from
    :func:`~fedminimax.problems.robust_training`, and may give them, flattened, to :class:`Dense`.

    Attributes:
        examples: (batch, ...).
        shift: of the shape of one example.
    """

    examples: jax.Array
    shift: jax.Array


def shifted(model: Any, examples: jax.Array, shift: jax.Array) -> jax.Array | Shifted:
    """Return examples + shift as inputs of a model: summed, or apart if the model says that it ``takes_shifted`` inputs."""
    takes = vars(type(model)).get("takes_shifted", False)  # said by the class itself: a subclass may do other things first
    return Shifted(examples, shift) if takes else examples + shift


@jax.custom_jvp
def _shifted_dot(examples: jax.Array, shift: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return (examples + shift) @ kernel.

    All examples move with the shift alike, so its gradient is that of the sum of the outputs: one row's work. Left to itself,
    reverse differentiation finds the gradient of every row and then adds them up.
    """
    return (examples + shift) @ kernel


@functools.partial(_shifted_dot.defjvp, symbolic_zeros=True)
def _shifted_dot_jvp(primals: tuple[jax.Array, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    examples, shift, kernel = primals
    inputs = examples + shift
    out = inputs @ kernel
    slope = jnp.zeros_like(out)
    for tangent, move in zip(tangents, (lambda d: d @ kernel, lambda d: d @ kernel, lambda d: inputs @ d), strict=True):
        if not isinstance(tangent, SymbolicZero):
            slope = slope + move(tangent)
    return out, slope


class Dense(Layer):
    """A dense layer: inputs @ kernel + bias. The inputs may be :class:`Shifted`."""

    @nn.compact
    def __call__(self, inputs: jax.Array | Shifted) -> jax.Array:
        """Return the outputs, (batch, features)."""
        if isinstance(inputs, Shifted):
            examples, kernel, bias = self.parameters(inputs.examples)
            return _shifted_dot(examples, inputs.shift.astype(examples.dtype), kernel) + bias
        inputs, kernel, bias = self.parameters(inputs)
        return inputs @ kernel + bias


class Conv(Layer):
    """A convolution of NHWC images, plus a bias.

    Attributes:
        window: height and width of the kernel.
        stride: stride along both axes.
        padding: "SAME", "VALID", or a (low, high) pair for each axis.
    """

    window: int = 3
    stride: int = 1
    padding: Padding = "SAME"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the convolved images, (batch, height, width, features)."""
        inputs, kernel, bias = self.parameters(inputs, (self.window, self.window))
        strides = (self.stride, self.stride)
        return conv(inputs, kernel, strides, self.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias


class ConvTranspose(Layer):
    """A transposed convolution that makes NHWC images ``stride`` times as high and wide, plus a bias.

    Attributes:
        window: height and width of the kernel.
        stride: factor by which height and width grow.
    """

    window: int = 4
    stride: int = 2

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the larger images, (batch, stride * height, stride * width, features)."""
        inputs, kernel, bias = self.parameters(inputs, (self.window, self.window))
        return conv_transpose(inputs, kernel, (self.stride, self.stride), "SAME") + bias


class ConvPool(Layer):
    """Convolution, ReLU and 2x2 max pooling; by default the convolution is 3x3 with padding 1.

    Attributes:
        window: height and width of the kernel.
        padding: "SAME", "VALID", or a (low, high) pair for each axis.
        slope: of the ReLU where its input is negative; above zero it is a leaky one.
    """

    window: int = 3
    padding: Padding = "SAME"
    slope: float = 0.0

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return images of half the height and width of the convolved ones, (batch, height, width, features)."""
        inputs, kernel, bias = self.parameters(inputs, (self.window, self.window))
        # max and ReLU commute, and so do max and adding a constant: pooling first leaves a quarter of the work to both.
        pooled = conv_max_pool(inputs, kernel, self.padding) + bias
        return nn.leaky_relu(pooled, self.slope) if self.slope else nn.relu(pooled)


class BatchNorm(nn.Module):
    r"""Batch normalisation by the mean and variance of the batch at hand, in training and after it.

    out = scale (x - mean) / sqrt(variance + epsilon) + bias, for each feature, over examples and pixels.

    It has parameters only and keeps no running statistics, which clients of unlike data could not share.

    Attributes:
        epsilon: what is added to the variance.
        deviation: standard deviation of the scales around 1 at the start.
    """

    epsilon: float = 1e-5
    deviation: float = 0.0

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the normalised inputs, (..., features)."""

        def around_one(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
            return 1 + self.deviation * jax.random.normal(key, shape, dtype)

        features = inputs.shape[-1]
        scale = self.param("scale", around_one, (features,))
        bias = self.param("bias", nn.initializers.zeros_init(), (features,))
        inputs, scale, bias = nn.dtypes.promote_dtype(inputs, scale, bias)
        axes = tuple(range(inputs.ndim - 1))
        mean = inputs.mean(axes)
        centred = inputs - mean
        variance = jnp.mean(centred * centred, axes)
        return centred * (scale * jax.lax.rsqrt(variance + self.epsilon)) + bias


def flatten(inputs: Any) -> Any:
    """Return the inputs as (batch, features); of :class:`Shifted` inputs both parts."""
    if isinstance(inputs, Shifted):
        return Shifted(flatten(inputs.examples), inputs.shift.reshape(-1))
    if inputs.ndim < 2:
        raise InputError(f"A model takes inputs of shape (batch, ...), not {inputs.shape}: add the batch axis.")
    return inputs.reshape(inputs.shape[0], -1)


def check_widths(model: str, classes: Any, hidden: Any = ()) -> None:
    """Raise an :class:`InputError` unless a network's outputs and hidden layers are whole numbers of units."""
    checks.integer(f"{model}'s classes", classes)
    if not isinstance(hidden, (tuple, list)):
        raise InputError(f"{model}'s hidden is {hidden!r}: give the width of each hidden layer, such as (200, 200).")
    for width in hidden:
        checks.integer(f"A width in {model}'s hidden", width)


def check_images(model: str, images: jax.Array, least: int) -> None:
    """Raise an error that names the cause and the cure unless the inputs are NHWC images of that many pixels a side."""
    if images.ndim != 4 or min(images.shape[1:3]) < least:
        raise InputError(
            f"{model} takes images of shape (batch, height, width, channels) of at least {least} x {least} pixels, "
            f"not {images.shape}: reshape the inputs, or use Logistic or MLP."
        )
