"""Runs side by side: which settings share a program, how many of them fit, and where their numbers are put."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedminimax import devices as host
from fedminimax.algorithms.base import Algorithm
from fedminimax.engines.evaluation import Kinds
from fedminimax.engines.layout import Layout, Strategy
from fedminimax.engines.program import Carry, Program
from fedminimax.engines.simulated_round import Placed
from fedminimax.engines.simulator import ROOM
from fedminimax.federation.accounting import Traffic
from fedminimax.plan import Plan
from fedminimax.players import Tree
from fedminimax.sweeps import memory
from fedminimax.sweeps.rounds import Recipe, axes, made, mesh
from fedminimax.sweeps.standing import Shape, Standing


@dataclass(frozen=True)
class Common:
    """What all runs of a sweep share.

    Args:
        plan: what every run is, but for its setting and seed.
        strategy: how clients are run.
        every: how many rounds lie between evaluations.
        names: the hyper-parameters that vary.
        devices: how many devices to split the runs over; None: all.
    """

    plan: Plan
    strategy: Strategy
    every: int
    names: tuple[str, ...]
    devices: int | None
    _placed: dict[int, Any] = field(default_factory=dict)

    def placed(self, devices: int, put: Callable[[Placed], Any]) -> Any:
        """Return the data and the weights p on so many devices, where they are put once."""
        if devices not in self._placed:
            weights = np.asarray(self.plan.problem.client_weights(self.plan.clients), jnp.zeros(()).dtype)
            self._placed[devices] = put(Placed(self.plan.clients, weights))
        return self._placed[devices]


def kind_of(method: Algorithm) -> Hashable:
    """Return what settings must agree in to share a program: the structure, the shapes and types of their numbers."""
    leaves, structure = jax.tree.flatten(method)
    return structure, tuple((np.shape(leaf), _number(leaf).dtype) for leaf in leaves)


class Kind:
    """Settings that share a program. It is compiled once for each shape.

    Args:
        common: what all runs of the sweep share.
        method: any of the settings.
    """

    def __init__(self, common: Common, method: Algorithm):
        self.common = common
        self.structure = jax.tree.structure(method)
        self.example = method
        self.rounds_of = Program.of(common.plan.problem, method, common.plan.conditions, Layout(common.strategy, 1))
        paths = jax.tree_util.tree_leaves_with_path(method)
        self.varies = [_field(path) in common.names for path, _ in paths]
        self._compiled: dict[Shape, Compiled] = {}

    def compiled(self, shape: Shape) -> Compiled:
        """Return the program for so many settings and seeds."""
        if shape not in self._compiled:
            self._compiled[shape] = Compiled(self, shape)
        return self._compiled[shape]

    def capacity(self, settings: int, seeds: int, processes: int = 1) -> int:
        """Return how many runs fit into memory at once.

        The program of all settings and seeds says what it needs; where that is too much, it is compiled again for fewer.

        Args:
            settings: how many settings there are.
            seeds: how many seeds.
            processes: how many processes share this machine's memory.
        """
        shape, room = Shape(settings, seeds), memory.budget() / processes
        while (needed := self.compiled(shape).bytes) > room and shape.runs > 1:
            self._compiled.pop(shape)
            shape = Shape.within(min(int(shape.runs * room / needed), shape.runs - 1), settings, seeds)
        return max(shape.runs, int(shape.runs * room / max(needed, 1)))

    @functools.cached_property
    def carry(self) -> Carry:
        """The shapes of what goes from round to round of one run."""
        return jax.eval_shape(lambda: self._begin(jax.tree.leaves(self.example)))

    def start(self, methods: Sequence[Algorithm], seeds: int) -> Standing:
        """Return how runs of these settings stand before the first round."""
        leaves = self.leaves(methods)
        if any(self.varies):
            firsts = jax.vmap(self._begin, ([0 if v else None for v in self.varies],))(leaves)
        else:
            firsts = jax.tree.map(lambda a: a[None], self._begin(leaves))
        everywhere = lambda a: np.broadcast_to(np.asarray(a), (seeds, len(methods), *a.shape[1:]))
        return Standing(jax.tree.map(everywhere, firsts), {}, 0)

    def _begin(self, leaves: list[Any]) -> Carry:
        first = self.rounds_of.first(jax.tree.unflatten(self.structure, leaves))
        return self.rounds_of.spread(first, self.common.plan.clients.count)

    def leaves(self, methods: Sequence[Algorithm]) -> list[Any]:
        """Return the numbers of some settings: those that vary stacked, the others as they are."""
        each = list(zip(*(jax.tree.leaves(method) for method in methods), strict=True))
        return [np.stack([_number(a) for a in column]) if v else column[0] for column, v in zip(each, self.varies, strict=True)]


class Compiled:
    """The program of one kind of settings in one shape, compiled."""

    def __init__(self, kind: Kind, shape: Shape):
        common = kind.common
        by_settings = shape.settings >= shape.seeds
        on_host = getattr(getattr(common.plan.problem, "loss", None), "on_host", False)  # one device waits for the host
        self.used = 1 if on_host else min(host.usable(common.devices, worthwhile=True), max(shape))
        padded = lambda size, split: -(-size // self.used) * self.used if split else size
        self.shape = Shape(padded(shape.settings, by_settings), padded(shape.seeds, not by_settings))
        self._kind = kind
        self._axes, self._mesh = axes(by_settings), mesh(self.used)
        self.every = common.every
        self.blocks = max(1, ROOM // common.every)
        """How many evaluations a call has room for."""
        self.rounds = min(ROOM, self.blocks * common.every)
        """How many rounds a call has room for."""
        judges, arrays = Kinds.of(common.plan.metrics)
        self._all = common.placed(self.used, lambda data: self._put((data, arrays), PartitionSpec()))
        recipe = Recipe(
            kind.rounds_of, kind.structure, tuple(kind.varies), judges, self.rounds, self.blocks, self.used, by_settings
        )
        self._program, self.messages, self.order = made(recipe, self._example())

    @property
    def bytes(self) -> int:
        """How much memory a call takes beside the data."""
        held = self._program.memory_analysis()
        if held is None:
            return 0
        shared = sum(np.size(a) * jnp.result_type(a).itemsize for a in jax.tree.leaves(self._all))
        own = held.temp_size_in_bytes + held.output_size_in_bytes + max(0, held.argument_size_in_bytes - shared)
        return int(own) * self.used

    def __call__(
        self, leaves: Any, seeds: Any, carry: Any, first: int, blocks: int, per_block: int, judged: bool
    ) -> tuple[Carry, dict[str, Any], Traffic]:
        """Run ``blocks`` times ``per_block`` rounds from round ``first`` on, and evaluate after each."""
        counts = (np.int32(first), np.int32(blocks), np.int32(per_block), np.bool_(judged))
        return jax.block_until_ready(self._program(leaves, seeds, carry, *self._all, *counts))

    def place(self, methods: Sequence[Algorithm], seeds: Sequence[int], standing: Standing) -> tuple[Any, Any, Any]:
        """Put settings, seeds and how they stand on the devices. Places left over repeat the first."""
        leaves = [
            self._put(_filled(a, self.shape.settings, 0), PartitionSpec(self._axes[1])) if v else a
            for a, v in zip(self._kind.leaves(methods), self._kind.varies, strict=True)
        ]
        chosen = self._put(_filled(np.asarray(seeds, np.uint32), self.shape.seeds, 0), PartitionSpec(self._axes[0]))
        fill = lambda a: _filled(_filled(np.asarray(a), self.shape.seeds, 0), self.shape.settings, 1)
        return leaves, chosen, self._put(jax.tree.map(fill, standing.carry), PartitionSpec(*self._axes))

    def _put(self, tree: Tree, spec: PartitionSpec) -> Tree:
        where = jax.local_devices()[0] if self.used == 1 else NamedSharding(self._mesh, spec)
        return jax.device_put(tree, where)

    def _example(self) -> tuple[Any, ...]:
        """Return what a call looks like: shapes, for what may not fit into memory."""
        kind, shape = self._kind, self.shape
        placed = lambda dims, like, spec: jax.ShapeDtypeStruct(
            (*dims, *np.shape(like)),
            jax.dtypes.canonicalize_dtype(like.dtype),
            sharding=None if self.used == 1 else NamedSharding(self._mesh, spec),
        )
        leaves = [
            placed((shape.settings,), _number(leaf), PartitionSpec(self._axes[1])) if v else leaf
            for leaf, v in zip(jax.tree.leaves(kind.example), kind.varies, strict=True)
        ]
        carry = jax.tree.map(lambda a: placed(shape[::-1], a, PartitionSpec(*self._axes)), kind.carry)
        seeds = placed((shape.seeds,), np.uint32(0), PartitionSpec(self._axes[0]))
        return leaves, seeds, carry, *self._all, *(np.int32(0),) * 3, np.bool_(True)


def _field(path: Any) -> str:
    return str(getattr(path[0], "name", ""))


def _number(value: Any) -> np.ndarray:
    return np.asarray(value, float) if isinstance(value, (int, float)) else np.asarray(value)


def _filled(a: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Return an array with its first entry along an axis repeated until there are ``size``."""
    missing = size - a.shape[axis]
    return a if missing == 0 else np.concatenate([a, np.repeat(a.take([0], axis), missing, axis)], axis)
