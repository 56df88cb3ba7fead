"""Replies that are far longer than all others: a broken site's, whose one number would ruin everybody's model."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from fedminimax.federation.guard import is_loss
from fedminimax.players import Tree

_ENOUGH = 2
"""Of so many replies the median is taken; of one alone one cannot tell, and what was usual before counts."""


class Usual:
    """How long replies are, by the client's program: a reply that is longer by a factor is none.

    The bound is the factor times the median of the replies to the same request (the shorter one of two), or of the request
    before where those were longer.
    Losses that sites report are bounded apart, by their own median: an inflated one takes over the weights on clients.

    Args:
        factor: how many times longer than the median a reply may be; None: anything goes.
        losses: how many times larger than the median a reported loss may be; None: anything goes.
    """

    def __init__(self, factor: float | None, losses: float | None):
        self._factors = np.array([np.inf if one is None else one for one in (factor, losses)])
        self._medians: dict[str, np.ndarray] = {}

    def refused(self, function: str, replies: Mapping[str, Tree]) -> list[str]:
        """Return the sites whose replies are none, and remember what is usual among the others."""
        if not replies:
            return []
        lengths = {site: _lengths(reply) for site, reply in replies.items()}
        bounds = self._medians.get(function, np.zeros(2))
        if len(lengths) >= _ENOUGH:
            bounds = np.maximum(bounds, _median(list(lengths.values())))
        # A median of zero says nothing: at a solution most updates are none.
        most = np.multiply(self._factors, bounds, out=np.full(2, np.inf), where=bounds > 0)
        wrong = [site for site, length in lengths.items() if (length > most).any()]
        if len(lengths) >= _ENOUGH:
            self._medians[function] = _median([length for site, length in lengths.items() if site not in wrong])
        return wrong


def _median(lengths: list[np.ndarray]) -> np.ndarray:
    """Return the median of each column, the lower one of two."""
    return np.sort(lengths, axis=0)[(len(lengths) - 1) // 2] if lengths else np.zeros(2)


def _lengths(reply: Tree) -> np.ndarray:
    """Return the Euclidean length of a reply, and of the losses in it."""
    squares = np.zeros(2)
    for path, leaf in jax.tree_util.tree_leaves_with_path(reply):
        if leaf.dtype.kind == "f" or leaf.dtype.kind == "V":
            with np.errstate(over="ignore"):
                squares[int(is_loss(path))] += np.sum(np.square(np.asarray(leaf, np.float64)))
    return np.sqrt(squares)
