"""The generator and the discriminator of DCGAN, for small images.

A. Radford, L. Metz and S. Chintala, "Unsupervised representation learning with deep convolutional generative adversarial
networks", ICLR 2016.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedminimax.errors import InputError
from fedminimax.models.layers import BatchNorm, Conv, ConvTranspose, Dense, flatten

SLOPE = 0.2  # of the leaky ReLU, where its input is negative
DEVIATION = 0.02  # of the scales of the batch normalisation at the start


class DCGANGenerator(nn.Module):
    """DCGAN's generator: a dense layer, then two transposed 4x4 convolutions of stride 2, to images in [-1, 1].

    Batch normalisation and ReLU follow each layer but the last, which tanh follows.

    Attributes:
        size: height and width of the images, a multiple of 4, such as 28 or 32.
        channels: number of channels of the images.
        features: number of features at half the height and width; at a quarter there are twice as many.
        latent: number of entries of a noise vector.
    """

    size: int = 28
    channels: int = 1
    features: int = 64
    latent: int = 100

    @nn.compact
    def __call__(self, noise: jax.Array) -> jax.Array:
        """Return images, (batch, size, size, channels), from noise vectors, (batch, latent)."""
        check_size("DCGANGenerator", self.size)
        check_noise("DCGANGenerator", noise, self.latent)
        side = self.size // 4
        # no biases before a batch normalisation: it would subtract them again
        x = Dense(side * side * 2 * self.features, "dcgan", use_bias=False)(noise)
        x = x.reshape(-1, side, side, 2 * self.features)
        x = nn.relu(BatchNorm(deviation=DEVIATION)(x))
        x = ConvTranspose(self.features, "dcgan", use_bias=False)(x)
        x = nn.relu(BatchNorm(deviation=DEVIATION)(x))
        return jnp.tanh(ConvTranspose(self.channels, "dcgan")(x))


class DCGANDiscriminator(nn.Module):
    """DCGAN's discriminator: two 4x4 convolutions of stride 2 with leaky ReLU, then one logit, that of being real.

    Batch normalisation follows the second convolution.

    Attributes:
        size: height and width of the images, a multiple of 4, such as 28 or 32.
        features: number of features of the first convolution; the second has twice as many.
    """

    size: int = 28
    features: int = 64

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits, (batch,), of NHWC images in [-1, 1]."""
        check_size("DCGANDiscriminator", self.size)
        if images.ndim != 4 or images.shape[1:3] != (self.size, self.size):
            raise InputError(
                f"DCGANDiscriminator takes images of shape (batch, {self.size}, {self.size}, channels), "
                f"not {images.shape}: reshape the images, or set size to their height and width."
            )
        x = Conv(self.features, "dcgan", window=4, stride=2)(images)
        x = nn.leaky_relu(x, SLOPE)
        x = Conv(2 * self.features, "dcgan", use_bias=False, window=4, stride=2)(x)
        x = nn.leaky_relu(BatchNorm(deviation=DEVIATION)(x), SLOPE)
        return Dense(1, "dcgan")(flatten(x))[:, 0]


def check_noise(model: str, noise: jax.Array, latent: int) -> None:
    """Raise an error that names the cause and the cure unless the noise is one vector an image."""
    if noise.ndim != 2 or noise.shape[1] != latent:
        raise InputError(
            f"{model} takes noise of shape (batch, {latent}), not {noise.shape}: "
            f"reshape the noise, or set latent to its length."
        )


def check_size(model: str, size: int) -> None:
    """Raise an error unless an image can be halved twice."""
    if size < 4 or size % 4:
        raise InputError(f"{model} has size {size}: choose a positive multiple of 4, such as 28 or 32.")
