"""Classifiers: linear models, fully connected and convolutional networks."""

from __future__ import annotations

from typing import ClassVar

import jax
from flax import linen as nn

from fedminimax.errors import InputError
from fedminimax.models.layers import Conv, ConvPool, Dense, Shifted, check_images, check_widths, flatten


class Logistic(nn.Module):
    """Multinomial logistic regression: one linear layer on the flattened inputs.

    logits = W x + b.

    Attributes:
        classes: number of classes.
    """

    takes_shifted: ClassVar[bool] = True
    classes: int = 10

    def __post_init__(self) -> None:
        check_widths(type(self).__name__, self.classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array | Shifted) -> jax.Array:
        """Return the logits, (batch, classes)."""
        return Dense(self.classes)(flatten(inputs))


class Linear(nn.Module):
    """One linear layer that starts at zero, for frozen features and convex problems.

    Attributes:
        classes: number of outputs: one for each class, or 1 for a regression.
    """

    classes: int = 10

    def __post_init__(self) -> None:
        check_widths(type(self).__name__, self.classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the scores, (batch, classes)."""
        return nn.Dense(self.classes, kernel_init=nn.initializers.zeros)(flatten(inputs))


class MLP(nn.Module):
    """Fully connected network with ReLU hidden layers, on the flattened inputs.

    Attributes:
        hidden: width of each hidden layer.
        classes: number of classes.
        initializer: how weights and biases start: "lecun" (normal, and zero) or "pytorch" (uniform, as PyTorch's default).
    """

    takes_shifted: ClassVar[bool] = True
    hidden: tuple[int, ...] = (200, 200)
    classes: int = 10
    initializer: str = "lecun"

    def __post_init__(self) -> None:
        check_widths(type(self).__name__, self.classes, self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array | Shifted) -> jax.Array:
        """Return the logits, (batch, classes)."""
        x = flatten(inputs)
        for width in self.hidden:
            x = nn.relu(Dense(width, self.initializer)(x))
        return Dense(self.classes, self.initializer)(x)


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
        check_images("CNN", inputs, least=8)
        x = inputs
        for features in (16, 32, 64):
            x = ConvPool(features)(x)
        return MLP(hidden=(512, 64), classes=self.classes)(x)


class LeNet5(nn.Module):
    """LeNet-5 with ReLU and max pooling: 5x5 convolutions (6, 16), each pooled 2x2, then 120-84-classes.

    The convolutions have no padding. For NHWC images of at least 16 x 16 pixels, such as MNIST's (28, 28, 1).

    LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998.

    Attributes:
        classes: number of classes.
        last_relu: whether the outputs go through a ReLU too.
        initializer: how weights and biases start: "lecun" (normal, and zero) or "pytorch" (uniform, as PyTorch's default).
    """

    classes: int = 10
    last_relu: bool = False
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the logits, (batch, classes)."""
        check_images("LeNet5", inputs, least=16)
        x = inputs
        for features in (6, 16):
            x = ConvPool(features, self.initializer, window=5, padding="VALID")(x)
        x = MLP((120, 84), self.classes, self.initializer)(x)
        return nn.relu(x) if self.last_relu else x


class TutorialCNN(nn.Module):
    """The network of TensorFlow's CIFAR-10 tutorial: 3x3 convolutions (32, 64, 64), the first two pooled, then 64-classes.

    The convolutions have no padding; ReLU follows every layer but the last. For NHWC images of at least 18 x 18 pixels, such as
    CIFAR-10's (32, 32, 3). McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017,
    train such a network.

    Attributes:
        classes: number of classes.
        initializer: how weights and biases start: "lecun" (normal, and zero) or "pytorch" (uniform, as PyTorch's default).
    """

    classes: int = 10
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the logits, (batch, classes)."""
        check_images("TutorialCNN", inputs, least=18)
        x = inputs
        for features in (32, 64):
            x = ConvPool(features, self.initializer, padding="VALID")(x)
        x = nn.relu(Conv(64, self.initializer, padding="VALID")(x))
        return MLP((64,), self.classes, self.initializer)(x)


class VGG11(nn.Module):
    """VGG-11 for small images: eight 3x3 convolutions (64 to 512) with ReLU and five 2x2 max poolings, then one dense layer.

    It has neither dropout nor normalisation. For NHWC images of at least 32 x 32 pixels, such as CIFAR-10's (32, 32, 3).

    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015.

    Attributes:
        classes: number of classes.
        initializer: how weights and biases start: "lecun" (normal, and zero) or "pytorch" (uniform, as PyTorch's default).
    """

    classes: int = 10
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the logits, (batch, classes)."""
        check_images("VGG11", inputs, least=32)
        x = inputs
        for features in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for width in features[:-1]:
                x = nn.relu(Conv(width, self.initializer)(x))
            x = ConvPool(features[-1], self.initializer)(x)
        return Dense(self.classes, self.initializer)(flatten(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images, with group normalisation: a 3x3 convolution, eight residual blocks, one dense layer.

    Four stages of two blocks have width, 2 width, 4 width and 8 width features, each stage but the first at half the height and
    width of the one before. Group normalisation takes the place of batch normalisation, which unlike clients do not share. For
    NHWC images of at least 8 x 8 pixels, such as CIFAR-10's (32, 32, 3).

    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016.
    Wu and He, "Group normalization", ECCV 2018.

    Attributes:
        classes: number of classes.
        width: number of features of the first stage; 16 makes a small ResNet-18.
        groups: number of groups of features that are normalised together; it divides width.
        initializer: how weights and biases start: "lecun" (normal, and zero) or "pytorch" (uniform, as PyTorch's default).
    """

    classes: int = 10
    width: int = 64
    groups: int = 8
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the logits, (batch, classes)."""
        check_images("ResNet18", inputs, least=8)
        if self.groups < 1 or self.width < 1 or self.width % self.groups:
            raise InputError(
                f"ResNet18 has width {self.width} and {self.groups} groups: choose a number of groups that divides the width."
            )
        x = Conv(self.width, self.initializer, use_bias=False)(inputs)
        x = nn.relu(_group_norm(self.groups)(x))
        for stage, stride in enumerate((1, 2, 2, 2)):
            features = self.width * 2**stage
            x = ResidualBlock(features, stride, self.groups, self.initializer)(x)
            x = ResidualBlock(features, 1, self.groups, self.initializer)(x)
        return Dense(self.classes, self.initializer)(x.mean((1, 2)))


class ResidualBlock(nn.Module):
    """A block of :class:`ResNet18`: two 3x3 convolutions, whose input is added to their output.

    out = relu(norm(conv(relu(norm(conv(x))))) + x), where norm(conv_1x1(x)) stands for the last x if its shape is another.

    Attributes:
        features: number of features.
        stride: stride of the first convolution.
        groups: number of groups of features that are normalised together.
        initializer: how weights start.
    """

    features: int
    stride: int
    groups: int
    initializer: str

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the images, (batch, height, width, features)."""

        def norm_conv(x: jax.Array, window: int, stride: int) -> jax.Array:
            padding = ((window // 2, window // 2),) * 2
            x = Conv(self.features, self.initializer, use_bias=False, window=window, stride=stride, padding=padding)(x)
            return _group_norm(self.groups)(x)

        x = nn.relu(norm_conv(inputs, 3, self.stride))
        x = norm_conv(x, 3, 1)
        shortcut = inputs if inputs.shape == x.shape else norm_conv(inputs, 1, self.stride)
        return nn.relu(x + shortcut)


def _group_norm(groups: int) -> nn.Module:
    return nn.GroupNorm(num_groups=groups, epsilon=1e-5)
