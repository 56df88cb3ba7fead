"""Which runs go side by side, and how they stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np


class Shape(NamedTuple):
    """How many settings and seeds run side by side."""

    settings: int
    seeds: int

    @property
    def runs(self) -> int:
        """How many runs that is."""
        return self.settings * self.seeds

    @classmethod
    def within(cls, most: int, settings: int, seeds: int) -> Shape:
        """Return the shape of at most so many runs; all seeds of a setting where there is room, because they share draws."""
        together = min(seeds, max(1, most))
        width = max(1, most // together) if together == seeds else 1
        return cls(_even(settings, width), _even(seeds, together))


class Standing(NamedTuple):
    """How some runs stand: all that they go on from, [seeds, settings, ...], and what they have cost, [settings, seeds]."""

    carry: Any
    spent: dict[str, np.ndarray]
    round: int

    def only(self, settings: Sequence[int]) -> Standing:
        """Return how some of the settings stand."""
        rows = np.asarray(settings)
        return self._replace(
            carry=jax.tree.map(lambda a: np.asarray(a)[:, rows], self.carry),
            spent={name: cost[rows] for name, cost in self.spent.items()},
        )


class Part(NamedTuple):
    """Some runs side by side: how they stand, and what was evaluated so far, [settings, seeds, evaluations, ...] by name."""

    standing: Standing
    rows: dict[str, np.ndarray]

    @property
    def ended(self) -> Part:
        """The same where nothing goes on."""
        return self._replace(standing=self.standing._replace(carry=None))


def joined(standings: Sequence[Standing]) -> Standing:
    """Return how the settings of several stand together."""
    first = standings[0]
    return first._replace(
        carry=jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *(s.carry for s in standings)),
        spent={name: np.concatenate([s.spent[name] for s in standings]) for name in first.spent},
    )


def _even(count: int, most: int) -> int:
    """Return the size of the fewest equal parts that are no larger than ``most``."""
    return -(-count // -(-count // min(count, most)))
