"""The generator and the discriminator that the authors of cd-mage.txt train, by their published code.

Section 5.3 of the paper names DCGAN; the code has 5x5 convolutions of 32 and 64 features with pooling and 1024 dense units in
the discriminator, without batch normalisation, and dense layers of 1024 and 6272 units with batch normalisation in the
generator, from Xavier's initialisation. These are the sizes of the convolutional GAN of Stanford's course CS231n, which
the rest follows here: no padding, a leaky ReLU of slope 0.01, normalisation after the ReLU, and 4x4 transposed convolutions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedminimax.models.dcgan import check_noise, check_size
from fedminimax.models.layers import BatchNorm, ConvPool, ConvTranspose, Dense, check_images, flatten

SLOPE = 0.01  # of the leaky ReLU, where its input is negative


class PooledGenerator(nn.Module):
    """Two dense layers, then two transposed 4x4 convolutions of stride 2, to images in [-1, 1].

    ReLU and batch normalisation, in this order, follow each layer but the last, which tanh follows.

    Attributes:
        size: height and width of the images, a multiple of 4, such as 28 or 32.
        channels: number of channels of the images.
        features: number of features at half the height and width; at a quarter there are twice as many, 7 x 7 x 128 = 6272.
        hidden: number of units of the first dense layer.
        latent: number of entries of a noise vector.
        initializer: how weights and biases start.
    """

    size: int = 28
    channels: int = 1
    features: int = 64
    hidden: int = 1024
    latent: int = 100
    initializer: str = "xavier"

    @nn.compact
    def __call__(self, noise: jax.Array) -> jax.Array:
        """Return images, (batch, size, size, channels), from noise vectors, (batch, latent)."""
        check_size("PooledGenerator", self.size)
        check_noise("PooledGenerator", noise, self.latent)
        side = self.size // 4
        x = BatchNorm()(nn.relu(Dense(self.hidden, self.initializer)(noise)))
        # each of the 6272 units is normalised by itself, as a dense layer's are
        x = BatchNorm()(nn.relu(Dense(side * side * 2 * self.features, self.initializer)(x)))
        x = x.reshape(-1, side, side, 2 * self.features)
        x = BatchNorm()(nn.relu(ConvTranspose(self.features, self.initializer)(x)))
        return jnp.tanh(ConvTranspose(self.channels, self.initializer)(x))


class PooledDiscriminator(nn.Module):
    """Two 5x5 convolutions, each pooled 2x2, one dense layer, then one logit, that of being real; no batch normalisation.

    The convolutions have no padding; a leaky ReLU follows each layer but the last. For NHWC images of at least 16 x 16 pixels.

    Attributes:
        features: number of features of the first convolution; the second has twice as many.
        hidden: number of units of the dense layer.
        initializer: how weights and biases start.
    """

    features: int = 32
    hidden: int = 1024
    initializer: str = "xavier"

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits, (batch,), of NHWC images in [-1, 1]."""
        check_images("PooledDiscriminator", images, least=16)
        x = images
        for features in (self.features, 2 * self.features):
            x = ConvPool(features, self.initializer, window=5, padding="VALID", slope=SLOPE)(x)
        x = nn.leaky_relu(Dense(self.hidden, self.initializer)(flatten(x)), SLOPE)
        return Dense(1, self.initializer)(x)[:, 0]
