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
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.problems.robust import Problem

if TYPE_CHECKING:
    from fedminimax.engines.mesh.channel import Channel


@dataclass(frozen=True)
class Dealt:
    """Blocks of rows, one for each device of all processes; each has room for as many as the largest.

    Args:
        cuts: where blocks begin and end, [places + 1].
        process: which process this is.
        each: how many blocks a process has.
        order: from which blocks are cut, [N]; None: as rows are numbered.
    """

    cuts: np.ndarray
    process: int
    each: int
    order: np.ndarray | None = None

    @classmethod
    def of(cls, share: ClientShard | GeneratedClients, problem: Problem, process: int, processes: int, each: int) -> Dealt:
        """Return how the clients of a process's share, and of all others, are dealt out."""
        if isinstance(share, ClientShard):
            return cls(np.asarray(share.cuts), process, each, share.order)
        order, sizes = order_of(problem, share.sizes, processes * each), np.asarray(share.sizes)
        return cls(deal(sizes if order is None else sizes[order], processes * each), process, each, order)

    @property
    def most(self) -> int:
        """How many rows there is room for in a block."""
        return int(np.diff(self.cuts).max())

    @property
    def own(self) -> np.ndarray:
        """The numbers of this process's rows, as they are dealt."""
        return np.concatenate(self._blocks())

    def _blocks(self) -> list[np.ndarray]:
        cuts = self.cuts[self.process * self.each : (self.process + 1) * self.each + 1]
        places = [np.arange(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
        return places if self.order is None else [np.asarray(self.order)[at] for at in places]

    def numbers(self) -> np.ndarray:
        """Return whose rows are in this process's blocks, [each * most]; the last of a block fills it up."""
        return np.concatenate([np.pad(own, (0, self.most - len(own)), mode="edge") for own in self._blocks()])

    def part(self, all_: Any) -> np.ndarray:
        """Return the rows of this process's blocks, filled up, from all rows, [N, ...]."""
        return np.asarray(all_)[self.numbers()]

    def rows(self, part: np.ndarray) -> np.ndarray:
        """Return this process's rows as they are dealt, from its blocks, which are filled up."""
        most = self.most
        return np.concatenate([part[k * most : k * most + len(own)] for k, own in enumerate(self._blocks())])

    def joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return all rows as they are numbered, from each process's as they are dealt."""
        whole = np.concatenate(parts)
        return whole if self.order is None else whole[np.argsort(self.order)]

    def gathered(self, own: Tree, channel: Channel, everybody: bool = False) -> Tree:
        """Return all rows from each process's own; only process 0 has them, unless everybody is to."""
        leaves, structure = jax.tree.flatten(own)
        found: Sequence[Any] = [wire.decode(part) for part in channel.collect(wire.encode(leaves), everybody)]
        if not found:
            return None
        return jax.tree.unflatten(structure, [self.joined(rows) for rows in zip(*found, strict=True)])


def order_of(problem: Problem, sizes: Any, places: int) -> np.ndarray | None:
    """Return the order from which blocks are cut: that of a network's nodes; None: as clients are numbered."""
    return problem.network.order(sizes, places) if isinstance(problem, PersonalizedProblem) else None
