"""Normal draws whose tails are as long as privacy needs them."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.players import Count
from fedminimax.random import keys
from fedminimax.random.keys import Key

_WORD = np.float32(2.0**-32)


def normal(key: Key, shape: tuple[int, ...], dtype: jnp.dtype, step: Count = 0) -> jax.Array:
    r"""Return standard normal numbers, by Box and Muller: :math:`\sqrt{-2 \ln u}\,(\cos 2\pi v, \sin 2\pi v)`.

    u has 64 random bits, so that numbers as far out as 9.4 come as often as they should. The inverse of the distribution
    function at 24 bits, as ``jax.random.normal`` takes it in single precision, ends at 5.4: a number beyond it would tell
    noise alone from noise and a message, and of 10^5 numbers there is one such in every 170 messages.

    Args:
        key: of the draw.
        shape: of the array.
        dtype: of the array; the numbers are made in single precision at least.
        step: which of the key's arrays.
    """
    count = math.prod(shape)
    pairs = -(-count // 2)
    kind = jnp.promote_types(dtype, jnp.float32)
    high, low, turn = (part.astype(kind) for part in keys.words(key, 3 * pairs, step).reshape(3, pairs))
    radius = jnp.sqrt(-2 * jnp.log((high + (low + 0.5) * _WORD) * _WORD))
    angle = (2 * math.pi) * (turn * _WORD)
    drawn = jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])
    return drawn[:count].reshape(shape).astype(dtype)
