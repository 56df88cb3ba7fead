"""Which of N rows, a client's or a node's each, is where: what a process has of them, and all of them put together again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedminimax import wire
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.shards import ClientShard, deal
from fedminimax.players import Tree

if TYPE_CHECKING:
    from fedminimax.engines.mesh.channel import Channel


@dataclass(frozen=True)
class Dealt:
    """Blocks of rows, one for each device of all processes; each has room for as many as the largest.

    Args:
        cuts: where blocks begin and end, [places + 1].
        process: which process this is.
        each: how many blocks a process has.
    """

    cuts: np.ndarray
    process: int
    each: int

    @classmethod
    def of(cls, share: ClientShard | GeneratedClients, process: int, processes: int, each: int) -> Dealt:
        """Return how the clients of a process's share, and of all others, are dealt out."""
        generated = isinstance(share, GeneratedClients)
        return cls(deal(share.sizes, processes * each) if generated else np.asarray(share.cuts), process, each)  # type: ignore[union-attr]

    @property
    def most(self) -> int:
        """How many rows there is room for in a block."""
        return int(np.diff(self.cuts).max())

    @property
    def own(self) -> range:
        """The numbers of this process's rows."""
        return range(int(self.cuts[self.process * self.each]), int(self.cuts[(self.process + 1) * self.each]))

    def _blocks(self) -> list[tuple[int, int]]:
        cuts = self.cuts[self.process * self.each : (self.process + 1) * self.each + 1]
        return [(int(a), int(b)) for a, b in itertools.pairwise(cuts)]

    def numbers(self) -> np.ndarray:
        """Return whose rows are in this process's blocks, [each * most]; the last of a block fills it up."""
        return np.concatenate([np.minimum(np.arange(a, a + self.most), b - 1) for a, b in self._blocks()])

    def part(self, all_: Any) -> np.ndarray:
        """Return the rows of this process's blocks, filled up, from all rows, [N, ...]."""
        return np.asarray(all_)[self.numbers()]

    def rows(self, part: np.ndarray) -> np.ndarray:
        """Return this process's rows in their order, from its blocks, which are filled up."""
        most = self.most
        return np.concatenate([part[k * most : k * most + b - a] for k, (a, b) in enumerate(self._blocks())])

    def gathered(self, own: Tree, channel: Channel, everybody: bool = False) -> Tree:
        """Return all rows from each process's own; only process 0 has them, unless everybody is to."""
        leaves, structure = jax.tree.flatten(own)
        found: Sequence[Any] = [wire.decode(part) for part in channel.collect(wire.encode(leaves), everybody)]
        if not found:
            return None
        return jax.tree.unflatten(structure, [np.concatenate(rows) for rows in zip(*found, strict=True)])
