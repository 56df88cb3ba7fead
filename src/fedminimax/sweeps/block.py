"""Some settings with some seeds, under way side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedminimax.algorithms.base import Algorithm
from fedminimax.federation import accounting
from fedminimax.federation.accounting import Traffic
from fedminimax.interrupts import uninterrupted
from fedminimax.sweeps.side_by_side import Compiled
from fedminimax.sweeps.standing import Part, Standing


class Block:
    """Some settings with some seeds, under way side by side.

    Args:
        compiled: the program.
        methods: the settings.
        seeds: the seeds.
        part: where they go on from.
    """

    def __init__(self, compiled: Compiled, methods: Sequence[Algorithm], seeds: Sequence[int], part: Part):
        self.program, self._counts = compiled, (len(methods), len(seeds))
        self._leaves, self._seeds, self._carry = compiled.place(methods, seeds, part.standing)
        self.round, self._spent = part.standing.round, part.standing.spent
        self._rows = [part.rows] if part.rows else []
        if self.round == 0 and not self._rows:
            self._advance(1, 0, True)

    def advance(self, rounds: int, until: int) -> int:
        """Run about so many rounds more, at most up to round ``until``, with all evaluations on the way; return how many."""
        every, left = self.program.every, until - self.round
        rounds = max(1, min(rounds, self.program.rounds, left))
        if self.round % every or rounds < every:  # a part of the way to the next evaluation
            rounds = min(rounds, every - self.round % every)
            self._advance(1, rounds, (self.round + rounds) % every == 0)
            return rounds
        blocks = rounds // every
        self._advance(blocks, every, True)
        return blocks * every

    @property
    def part(self) -> Part:
        """How the runs stand, and what was evaluated."""
        settings, seeds = self._counts
        carry = jax.tree.map(lambda a: np.asarray(a)[:seeds, :settings], self._carry)
        rows = (
            {name: np.concatenate([rows[name] for rows in self._rows], axis=2) for name in self._rows[0]} if self._rows else {}
        )
        return Part(Standing(carry, self._spent, self.round), rows)

    def _advance(self, blocks: int, per_block: int, judged: bool) -> None:
        compiled, rounds = self.program, blocks * per_block
        carry, values, traffic = compiled(self._leaves, self._seeds, self._carry, self.round, blocks, per_block, judged)
        new = {name: self._shaped(values[name], blocks) for name in compiled.order}
        counts = Traffic(*(self._shaped(a, rounds) for a in traffic))
        spent, at = {}, np.arange(1, blocks + 1) * per_block
        for name, cost in accounting.history(compiled.messages, counts).items():
            before = self._spent.get(name, np.zeros(cost.shape[:-1], cost.dtype))
            so_far = np.cumsum(np.concatenate([before[..., None], cost], axis=-1), axis=-1)  # in order, however it is cut
            new[name], spent[name] = so_far[..., at], so_far[..., -1]
        with uninterrupted():  # Ctrl-C finds all of it or nothing
            self._carry, self._spent, self.round = carry, spent, self.round + rounds
            self._rows += [new] if judged else []

    def _shaped(self, a: Any, rows: int) -> np.ndarray:
        """Return [rows, seeds, settings, ...] as [settings, seeds, rows, ...], without the places left over."""
        settings, seeds = self._counts
        return np.moveaxis(np.asarray(a)[:rows, :seeds, :settings], (0, 1, 2), (2, 1, 0))
