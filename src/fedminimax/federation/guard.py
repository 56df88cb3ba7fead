"""What stands between a client's reply and the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.errors import InputError
from fedminimax.players import Tree

MEAN, TRIMMED, MEDIAN = "mean", "trimmed", "median"


@dataclass(frozen=True)
class Guard:
    """Checks every reply before it is aggregated.

    A reply with a non-finite number is dropped and counted, and the weights are renormalised over those that remain: NaN
    from one client never reaches the model.

    Args:
        max_norm: a reply (an update, a gradient; its ``loss`` field apart) longer than this is scaled down to it.
        max_loss: a reply whose ``loss`` field exceeds this in absolute value is dropped.
        aggregate: "mean" (weighted, as the algorithm asks), "trimmed" (mean without the extremes, coordinate by
            coordinate) or "median". The last two need all replies at once, so memory grows with the cohort, and count
            every client equally.
        trim: the share dropped at either end by "trimmed" (at least one reply, while that leaves any).
        drop_nonfinite: set to False to let everything through (to see what then happens).
    """

    max_norm: float | None = None
    max_loss: float | None = None
    aggregate: str = MEAN
    trim: float = 0.1
    drop_nonfinite: bool = True

    def __post_init__(self) -> None:
        if self.aggregate not in (MEAN, TRIMMED, MEDIAN):
            raise InputError(f"aggregate must be 'mean', 'trimmed' or 'median', not {self.aggregate!r}.")
        if not 0 <= self.trim < 0.5:
            raise InputError(f"trim must be at least 0 and below 0.5, not {self.trim}.")
        for name in ("max_norm", "max_loss"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise InputError(f"{name} must be positive, not {bound}.")

    @property
    def stacks(self) -> bool:
        """Whether aggregation needs all replies at once."""
        return self.aggregate != MEAN

    def inspect(self, reply: Tree) -> tuple[Tree, jax.Array | bool]:
        """Return the reply, made safe, and whether to accept it. A refused reply comes back as zeros."""
        accepted: jax.Array | bool = True
        if self.drop_nonfinite:
            accepted = finite(reply)
        if self.max_loss is not None:
            for path, leaf in jax.tree_util.tree_leaves_with_path(reply):
                if is_loss(path):
                    accepted = accepted & jnp.all(jnp.abs(leaf) <= self.max_loss)
        if self.max_norm is not None:
            vectors = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(reply) if not is_loss(path)]
            length = players.norm(vectors)
            factor = jnp.where(length > self.max_norm, self.max_norm / length, 1.0)
            shorten = lambda path, leaf: leaf if is_loss(path) else (factor * leaf).astype(leaf.dtype)
            reply = jax.tree_util.tree_map_with_path(shorten, reply)
        if accepted is not True:
            # Not a product with zero: NaN times zero is NaN.
            reply = jax.tree.map(lambda leaf: jnp.where(accepted, leaf, jnp.zeros_like(leaf)), reply)
        return reply, accepted

    def combine(self, stacked: Tree, accepted: jax.Array) -> Tree:
        """Return the trimmed mean or median over the accepted rows, coordinate by coordinate (zeros if there are none)."""
        count = jnp.sum(accepted)

        def location(leaf: jax.Array) -> jax.Array:
            mask = accepted.reshape(-1, *([1] * (leaf.ndim - 1)))
            ordered = jnp.sort(jnp.where(mask, leaf, jnp.inf), axis=0)
            if self.aggregate == MEDIAN:
                low, high = (count - 1) // 2, count // 2 + 1
            else:
                least = 1 if self.trim > 0 else 0  # of few replies too: a share of four that rounds to none guards nothing
                cut = jnp.minimum(jnp.maximum(jnp.floor(self.trim * count).astype(count.dtype), least), (count - 1) // 2)
                low, high = cut, count - cut
            rank = jnp.arange(leaf.shape[0]).reshape(mask.shape)
            kept = (rank >= low) & (rank < high)
            return jnp.sum(jnp.where(kept, ordered, 0.0), axis=0) / jnp.maximum(high - low, 1).astype(leaf.dtype)

        return players.select(count > 0, jax.tree.map(location, stacked), jax.tree.map(lambda a: jnp.zeros_like(a[0]), stacked))


def is_loss(path: Any) -> bool:
    """Tell whether a leaf of a reply, by its path, is a loss that the client reports."""
    last = path[-1] if path else None
    return str(getattr(last, "name", getattr(last, "key", ""))) == "loss"


def finite(tree: Tree) -> jax.Array | bool:
    """Tell whether every number of a tree is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else True
