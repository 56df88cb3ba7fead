"""Differential privacy of what clients send: every message is clipped, and gets Gaussian noise, before it leaves its client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedminimax.errors import InputError
from fedminimax.federation.guard import is_loss
from fedminimax.players import Tree
from fedminimax.random import gaussian, keys
from fedminimax.random.keys import Key

REPLACE, ZERO = "replace", "zero"
_NOISE = 2**32 - 1
"""The variant of a client's key from which its noise comes: a client's program counts its own draws from zero on."""


@dataclass(frozen=True)
class Privacy:
    r"""Clips every message of a client, and adds Gaussian noise to it, before it leaves the client.

    A message has up to two parts: the losses that it reports (fields called ``loss``), and all else as one vector. A part m
    with bound C is sent as

    .. math::
        m \min(1, C / \|m\|) + z C \xi, \qquad \xi \sim N(0, I),

    with the ``noise`` z. What is not finite is sent as zeros with noise. Both parts together are one Gaussian mechanism:
    measured in their bounds each moves by at most s, together by :math:`\sqrt 2 s`, which is what two mechanisms that are
    composed give as well.

    Args:
        clip: the bound C of the vector, in the Euclidean norm.
        noise: z, the noise's standard deviation over the bound; 0: clipping alone, and an epsilon of infinity.
        delta: the chance for which epsilon need not hold; far less than one over the number of clients.
        clip_loss: the bound of reported losses. Methods that report any need it: a loss and a gradient have different scales.
        adjacency: which two runs are to look alike: "replace" (a client's data against any other data in its place, so that its
            message moves by up to s = 2 bounds) or "zero" (against a client that sends noise alone: s = 1, and an epsilon that
            is smaller and says less).
    """

    clip: float
    noise: float
    delta: float = 1e-5
    clip_loss: float | None = None
    adjacency: str = REPLACE

    def __post_init__(self) -> None:
        for name in ("clip", "clip_loss"):
            bound = getattr(self, name)
            if bound is not None and not 0 < bound < math.inf:
                raise InputError(f"{name} must be positive and finite, not {bound}.")
        if not 0 <= self.noise < math.inf:
            raise InputError(f"noise must be at least 0, the noise's standard deviation over the bound, not {self.noise}.")
        if not 0 < self.delta < 1:
            raise InputError(f"delta must be between 0 and 1, such as 1e-5, not {self.delta}.")
        if self.adjacency not in (REPLACE, ZERO):
            raise InputError(f"adjacency must be 'replace' or 'zero', not {self.adjacency!r}.")

    @property
    def cost(self) -> float:
        """What one part of a message costs: (s / z)^2, the square of its mu in Gaussian differential privacy."""
        moves = 2.0 if self.adjacency == REPLACE else 1.0
        return (moves / self.noise) ** 2 if self.noise > 0 else math.inf

    def protect(self, message: Tree, key: Key) -> Tree:
        """Return a message as it may leave its client.

        Args:
            message: what the client's program would send.
            key: the client's, of this exchange.
        """
        known, structure = jax.tree_util.tree_flatten_with_path(message)
        leaves, own = [jnp.asarray(leaf) for _, leaf in known], keys.variant(key, _NOISE)
        for bound, places in self._parts(known):
            clipped = _clipped([leaves[k] for k in places], bound)
            for k, leaf in zip(places, clipped, strict=True):
                leaves[k] = leaf
                if self.noise > 0:
                    drawn = gaussian.normal(own, leaf.shape, leaf.dtype, k)
                    leaves[k] = leaf + jnp.asarray(self.noise * bound, leaf.dtype) * drawn
        return jax.tree.unflatten(structure, leaves)

    def _parts(self, known: list[tuple[Any, Any]]) -> list[tuple[float, list[int]]]:
        """Return the bound of each part that a message has, and which of its leaves are in it."""
        losses = [k for k, (path, leaf) in enumerate(known) if jnp.size(leaf) and is_loss(path)]
        vector = [k for k, (path, leaf) in enumerate(known) if jnp.size(leaf) and not is_loss(path)]
        if any(not jnp.issubdtype(jnp.result_type(known[k][1]), jnp.floating) for k in [*losses, *vector]):
            raise InputError("Noise can be added to real numbers alone, but this method's clients send others: run it without.")
        if losses and self.clip_loss is None:
            raise InputError(
                "This method's clients report losses, which need a bound of their own: give Privacy(clip_loss=...)."
            )
        return [(bound, places) for bound, places in ((self.clip_loss, losses), (self.clip, vector)) if places and bound]

    def parts(self, message: Tree) -> int:
        """Return how many parts a message has."""
        return len(self._parts(jax.tree_util.tree_leaves_with_path(message)))


class Sent(NamedTuple):
    """Who may have sent something in an exchange, and how it was put together: arrays, over rounds where there are several.

    Attributes:
        ids: who was asked, [S]; -1: nobody. Whether the reply arrived does not matter: it was sent.
        parts: how many parts the message has.
        weights: of the replies in the sum, [S]; zeros: there is none, and each reply is seen.
    """

    ids: jax.Array
    parts: jax.Array
    weights: jax.Array


def _clipped(leaves: list[jax.Array], bound: float) -> list[jax.Array]:
    """Return a vector in several leaves, no longer than its bound; zeros where it is not finite."""
    length = _length(leaves)
    shorter, sound = jnp.where(length > bound, bound / length, 1.0), jnp.isfinite(length)
    cut = lambda leaf: jnp.where(length > bound, (shorter * leaf).astype(leaf.dtype), leaf)
    return [jnp.where(sound, cut(leaf), jnp.zeros_like(leaf)) for leaf in leaves]


def _length(leaves: list[jax.Array]) -> jax.Array:
    """Return the Euclidean norm, of numbers whose squares are too large as well."""
    wide = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in wide]))
    unit = jnp.where(largest > 0, largest, 1.0)
    return unit * jnp.sqrt(sum((jnp.sum(jnp.square(leaf / unit)) for leaf in wide), jnp.zeros((), unit.dtype)))
