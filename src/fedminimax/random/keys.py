"""Randomness as a function of (seed, round, phase, client, draw, step), and of nothing else.

Keys are pairs of 32-bit words and random words are Threefry blocks of counters: a draw costs one block per two words, with no
chain of keys behind it. (Deriving a ``jax.random`` key per step costs more than drawing a batch, in time and in compilation.)
Blocks are those of ``jax.random``, but written out: JAX's are a loop on CPUs, whose turns cost thrice what a small draw does.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.players import Count

Key = jax.Array
"""Two 32-bit words."""

_GOLDEN = 0x9E3779B9
_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def root(seed: Any) -> Key:
    """Return the key of a seed (any integer; a traced one must fit 32 bits)."""
    if isinstance(seed, (int, np.integer)):
        return jnp.asarray(np.array([(int(seed) >> 32) & 0xFFFFFFFF, int(seed) & 0xFFFFFFFF], np.uint32))
    return jnp.stack([jnp.uint32(0), jnp.asarray(seed).astype(jnp.uint32)])


def derive(key: Key, first: Count, second: Count = 0) -> Key:
    """Return the key at a place (first, second) of a key's tree."""
    return jnp.stack(_threefry(key, _word(first), _word(second)))


def words(key: Key, count: int, step: Count = 0) -> jax.Array:
    """Return ``count`` random words for one step of a key."""
    blocks = jnp.arange(-(-count // 2), dtype=jnp.uint32)
    return jnp.concatenate(_threefry(key, _word(step), blocks))[:count]


def words_for(key: Key, ids: jax.Array) -> jax.Array:
    """Return one random word for each id, whoever else is among them."""
    return _threefry(key, _word(ids), jnp.uint32(0))[0]


def variant(key: Key, number: int) -> Key:
    """Return one of a key's variants, for streams that are few and numbered at compile time: no block is spent."""
    return key ^ np.array([(number * _GOLDEN) & 0xFFFFFFFF, 0], np.uint32)


def uniform(bits: jax.Array) -> jax.Array:
    """Map random words to [0, 1)."""
    return (bits >> 8).astype(jnp.float32) * np.float32(2.0**-24)


def as_jax(key: Key) -> jax.Array:
    """Return a key for ``jax.random``."""
    return jax.random.wrap_key_data(key, impl="threefry2x32")


def _word(value: Count) -> jax.Array:
    return jnp.asarray(np.uint32(value) if isinstance(value, int) else value).astype(jnp.uint32)


@functools.partial(jax.jit, inline=True)  # traced once for each shape, and one call outside of programs
def _threefry(key: Key, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the two words of the Threefry blocks of counters (first, second).

    Threefry-2x32 with 20 rounds: J. Salmon, M. Moraes, R. Dror and D. Shaw,
    "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(_PARITY))
    x, y = first + schedule[0], second + schedule[1]
    for four in range(5):
        for shift in _ROTATIONS[four % 2]:
            x = x + y
            y = ((y << np.uint32(shift)) | (y >> np.uint32(32 - shift))) ^ x
        x = x + schedule[(four + 1) % 3]
        y = y + schedule[(four + 2) % 3] + np.uint32(four + 1)
    return x, y
