"""Randomness as a function of (seed, round, phase, client, draw, step), and of nothing else.

Keys are pairs of 32-bit words and random words are Threefry blocks of counters: a draw costs one block per two words, with no
chain of keys behind it. (Deriving a ``jax.random`` key per step costs more than drawing a batch, in time and in compilation.)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.players import Count

Key = jax.Array
"""Two 32-bit words."""

_GOLDEN = 0x9E3779B9


def root(seed: Any) -> Key:
    """Return the key of a seed (any integer; a traced one must fit 32 bits)."""
    if isinstance(seed, (int, np.integer)):
        return jnp.asarray(np.array([(int(seed) >> 32) & 0xFFFFFFFF, int(seed) & 0xFFFFFFFF], np.uint32))
    return jnp.stack([jnp.uint32(0), jnp.asarray(seed).astype(jnp.uint32)])


def derive(key: Key, first: Count, second: Count = 0) -> Key:
    """Return the key at a place (first, second) of a key's tree."""
    place = jnp.stack([_word(first), _word(second)])
    return _threefry(key, place)


def words(key: Key, count: int, step: Count = 0) -> jax.Array:
    """Return ``count`` random words for one step of a key."""
    blocks = -(-count // 2)
    counters = jnp.concatenate([jnp.broadcast_to(_word(step), (blocks,)), jnp.arange(blocks, dtype=jnp.uint32)])
    return _threefry(key, counters)[:count]


def words_for(key: Key, ids: jax.Array) -> jax.Array:
    """Return one random word for each id, whoever else is among them."""
    counters = jnp.concatenate([ids.astype(jnp.uint32), jnp.zeros(ids.shape, jnp.uint32)])
    return _threefry(key, counters)[: ids.shape[0]]


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


def _threefry(key: Key, counters: jax.Array) -> jax.Array:
    """Return the Threefry blocks of counters."""
    from jax.extend.random import threefry_2x32  # jax.extend brings Pallas, a tenth of the time that JAX takes to import

    return threefry_2x32((key[0], key[1]), counters)
