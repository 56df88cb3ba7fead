"""Random draws that cost what is drawn, not what it is drawn from."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax.players import Count
from fedminimax.random import keys
from fedminimax.random.keys import Key

_GOLDEN = 0x9E3779B9

# A loop outside of any program (the isolated engine's server draws so) is compiled anew at every call, unless it is one itself.
_program = functools.partial(jax.jit, inline=True)


@functools.partial(_program, static_argnames=("population", "size"))
def subset(key: Key, population: int, size: int) -> jax.Array:
    """Return ``size`` different numbers below ``population``, every subset being equally likely.

    Sampling 10 of 10^6 must not cost a permutation: Floyd's method needs ``size`` draws and ``size^2`` comparisons. A
    permutation is used where it is the cheaper of the two.
    """
    if size == population:
        return jnp.arange(population)
    if size * size > 4 * population * math.log2(population + 1):
        return jnp.argsort(keys.words(key, population))[:size].astype(jnp.int32)
    bits = keys.words(key, size)

    def insert(k: jax.Array, chosen: jax.Array) -> jax.Array:
        last = population - size + k
        candidate = below(bits[k], last + 1)
        # A number already there is replaced by the newest one that could not have been drawn before.
        return chosen.at[k].set(jnp.where(jnp.any(chosen == candidate), last, candidate))

    return jax.lax.fori_loop(0, size, insert, jnp.full(size, -1, jnp.int32))


@functools.partial(_program, static_argnames=("size", "replace"))
def weighted(key: Key, weights: jax.Array, size: int, replace: bool) -> jax.Array:
    """Return ``size`` indices drawn in proportion to ``weights``; without replacement with the chances of :func:`inclusion`.

    Without replacement this is systematic sampling (W. Madow, 1949) in a random order: the chances are laid end to end, and
    every unit of length has one point. One draw after another would give heavy indices less than their share.
    """
    if replace:
        total = jnp.cumsum(weights)
        points = keys.uniform(keys.words(key, size)).astype(total.dtype) * total[-1]
        return jnp.minimum(jnp.searchsorted(total, points, side="right"), weights.shape[0] - 1).astype(jnp.int32)
    count = weights.shape[0]
    words = keys.words(key, count + 1)
    order = jnp.argsort(words[1:])
    ends = jnp.cumsum(inclusion(weights, size)[order])
    places = jnp.arange(size)
    points = (places + keys.uniform(words[0]).astype(ends.dtype)) * (ends[-1] / size)
    found = jnp.searchsorted(ends, points, side="right")
    # Rounding must not put two points into one index.
    found = jnp.minimum(jax.lax.cummax(found - places) + places, count - size + places)
    return order[found].astype(jnp.int32)


@_program
def inclusion(weights: jax.Array, size: Count) -> jax.Array:
    """Return the chances, in proportion to the weights but at most one, that sum to ``size``.

    Where fewer than ``size`` have any weight, those have a chance of one, and the sum is smaller.
    """

    def shares(sure: jax.Array) -> jax.Array:
        """Return the chances of the others if these are sure to be drawn."""
        rest = jnp.sum(jnp.where(sure, 0.0, weights))
        return jnp.where(rest > 0, (size - jnp.sum(sure)) / jnp.where(rest > 0, rest, 1.0), 0.0) * weights

    def widen(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        sure = carry[0] | (shares(carry[0]) >= 1)
        return sure, jnp.any(sure != carry[0])

    sure, _ = jax.lax.while_loop(lambda carry: carry[1], widen, (jnp.zeros(weights.shape, bool), jnp.asarray(True)))
    return jnp.where(sure, 1.0, shares(sure))


def below(bits: jax.Array, bound: Count) -> jax.Array:
    """Map 32 random bits to {0, ..., bound - 1} by the high word of bits * bound (bias below bound / 2^32)."""
    bound = jnp.asarray(bound).astype(jnp.uint32)
    low = (bits & 0xFFFF) * (bound & 0xFFFF)
    middle = (bits >> 16) * (bound & 0xFFFF) + (low >> 16)
    other = (bits & 0xFFFF) * (bound >> 16) + (middle & 0xFFFF)
    return ((bits >> 16) * (bound >> 16) + (middle >> 16) + (other >> 16)).astype(jnp.int32)


def shuffled(key: Key, position: jax.Array, size: Count) -> jax.Array:
    """Return where each position of an endless stream of reshuffled passes over {0, ..., size - 1} points.

    Position p belongs to pass p // size. Each pass is a permutation of its own: a Feistel network on the next even power of
    two, walked until it lands below ``size``. It costs a few hashes per position and no memory.
    """
    size = jnp.asarray(size).astype(jnp.uint32)
    position = position.astype(jnp.uint32)
    tweak = _mix(key[0] ^ _mix((position // size) * jnp.uint32(_GOLDEN) + key[1]))
    half = (33 - jax.lax.clz(jnp.maximum(size - 1, 1).astype(jnp.uint32))) // 2
    mask = (jnp.uint32(1) << half) - 1

    def permute(value: jax.Array) -> jax.Array:
        left, right = value >> half, value & mask
        for turn in range(6):
            left, right = right, left ^ (_mix(right * jnp.uint32(_GOLDEN) + tweak + jnp.uint32(turn)) & mask)
        return (left << half) | right

    first = permute(position % size)
    walk = jax.lax.while_loop(lambda v: jnp.any(v >= size), lambda v: jnp.where(v >= size, permute(v), v), first)
    return walk.astype(jnp.int32)


def _mix(word: jax.Array) -> jax.Array:
    """Scramble a 32-bit word (two multiply-and-shift rounds)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
