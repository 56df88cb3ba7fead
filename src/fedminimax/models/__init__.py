"""The networks that the papers train, as Flax modules, and convolutions that stay fast inside ``lax.scan`` on a CPU.

To use :func:`conv` in a network of your own, give ``flax.linen.Conv`` the argument
``conv_general_dilated=fedminimax.models.conv``.
"""

from collections.abc import Callable

from flax import linen as nn

from fedminimax.models.convolutions import Padding, conv, conv_max_pool, conv_transpose, max_pool
from fedminimax.models.dcgan import DCGANDiscriminator, DCGANGenerator
from fedminimax.models.layers import BatchNorm, ConvPool, Shifted
from fedminimax.models.networks import CNN, MLP, VGG11, LeNet5, Linear, Logistic, ResNet18, TutorialCNN
from fedminimax.models.pooled_gan import PooledDiscriminator, PooledGenerator

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": Logistic,
    "linear": Linear,
    "mlp": MLP,
    "cnn": CNN,
    "lenet5": LeNet5,
    "tutorial_cnn": TutorialCNN,
    "vgg11": VGG11,
    "resnet18": ResNet18,
}
"""The classifiers by name."""

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "VGG11",
    "BatchNorm",
    "ConvPool",
    "DCGANDiscriminator",
    "DCGANGenerator",
    "LeNet5",
    "Linear",
    "Logistic",
    "Padding",
    "PooledDiscriminator",
    "PooledGenerator",
    "ResNet18",
    "Shifted",
    "TutorialCNN",
    "conv",
    "conv_max_pool",
    "conv_transpose",
    "max_pool",
]
