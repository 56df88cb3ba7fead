"""Successive halving: all settings run for a while, the best go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedminimax import checks
from fedminimax.errors import InputError
from fedminimax.metrics import HIGHER, LOWER


@dataclass(frozen=True)
class Halving:
    """Spend the rounds on the settings that do well (K. Jamieson and A. Talwalkar, AISTATS 2016).

    All settings run for a share of the rounds. Then the best of every ``factor`` go on from where they are, ``factor`` times as
    far, and so on; the last run all rounds. Settings are compared by the mean of a metric over seeds; those that diverged are
    last.

    ``fm.sweep(..., rounds=810, search=..., samples=27, halving=fm.Halving("worst_case"))`` runs 27 settings for 30 rounds, 9 of
    them up to 90, 3 up to 270 and one up to 810: about 2,100 rounds instead of 21,870.

    Args:
        metric: what settings are compared by, as the history calls it; not one on test data.
        factor: of how many the best goes on.
        rungs: how often settings are compared before the end, or after which rounds; by default until one is left.
        better: "lower" or "higher"; by default what the metric says of itself.
    """

    metric: str
    factor: int = 3
    rungs: int | Sequence[int] | None = None
    better: str | None = None

    def __post_init__(self) -> None:
        checks.integer("Halving.factor", self.factor, least=2)
        if self.better not in (None, LOWER, HIGHER):
            raise InputError(f"Halving.better is {self.better!r}: give 'lower' or 'higher'.")
        if isinstance(self.rungs, Sequence):
            object.__setattr__(self, "rungs", tuple(checks.integer("Each of Halving.rungs", r) for r in self.rungs))
        elif self.rungs is not None:
            checks.integer("Halving.rungs", self.rungs, least=0)

    def stops(self, rounds: int, every: int, settings: int) -> list[int]:
        """Return after how many rounds the settings are compared, which must be when they are evaluated."""
        if isinstance(self.rungs, Sequence):
            wrong = [r for r in self.rungs if r % every or not 0 < r < rounds]
            if wrong or list(self.rungs) != sorted(set(self.rungs)):
                raise InputError(
                    f"Halving compares after the rounds {list(self.rungs)}: they must increase, be below rounds = {rounds}, "
                    f"and be evaluated (eval_every = {every})."
                )
            return list(self.rungs)
        most = int(math.log(settings) / math.log(self.factor) + 1e-9)
        count = most if self.rungs is None else self.rungs
        shares = [rounds / self.factor ** (count - k) for k in range(count)]
        return sorted({stop for share in shares if 0 < (stop := every * math.ceil(share / every)) < rounds})

    def survivors(self, scores: np.ndarray) -> list[int]:
        """Return which go on, given a score for each, the less the better and not finite where it diverged."""
        sound = np.flatnonzero(np.isfinite(scores))
        quota = max(1, len(scores) // self.factor)
        return sorted(int(k) for k in sound[np.argsort(scores[sound], kind="stable")][:quota])
