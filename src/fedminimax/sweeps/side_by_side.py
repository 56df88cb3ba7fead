"""Runs side by side: settings and seeds that share a program, as one compiled computation.

Settings inside, seeds outside: runs with the same seed draw the same cohorts and batches, so these are drawn once.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedminimax import devices as host
from fedminimax.algorithms.base import Algorithm
from fedminimax.engines.evaluation import Kinds
from fedminimax.engines.layout import Layout, Strategy
from fedminimax.engines.program import Carry, Program, Script
from fedminimax.engines.simulated_round import Given, Placed
from fedminimax.engines.simulator import ROOM
from fedminimax.federation.accounting import Traffic
from fedminimax.federation.guard import finite
from fedminimax.metrics import Context
from fedminimax.plan import Plan
from fedminimax.players import Tree
from fedminimax.random import keys
from fedminimax.sweeps import memory
from fedminimax.sweeps.standing import Shape, Standing

_AXIS = "runs"
FINITE = "finite"
"""What tells whether a run's state is finite, among the numbers of an evaluation."""


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
        self.script = Script()
        self._compiled: dict[Shape, Compiled] = {}

    def compiled(self, shape: Shape) -> Compiled:
        """Return the program for so many settings and seeds."""
        if shape not in self._compiled:
            self._compiled[shape] = Compiled(self, shape)
        return self._compiled[shape]

    def capacity(self, settings: int, seeds: int) -> int:
        """Return how many runs fit into memory at once.

        The program of all settings and seeds says what it needs; where that is too much, it is compiled again for fewer.
        """
        shape, room = Shape(settings, seeds), memory.budget()
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
        self.used = min(host.usable(common.devices, worthwhile=True), max(shape))
        padded = lambda size, split: -(-size // self.used) * self.used if split else size
        self.shape = Shape(padded(shape.settings, by_settings), padded(shape.seeds, not by_settings))
        self._kind = kind
        self._axes = (None, _AXIS) if by_settings else (_AXIS, None)  # of seeds, of settings
        self._mesh = Mesh(np.asarray(jax.devices()[: self.used]), (_AXIS,))
        self.every = common.every
        self.blocks = max(1, ROOM // common.every)
        """How many evaluations a call has room for."""
        self.rounds = min(ROOM, self.blocks * common.every)
        """How many rounds a call has room for."""
        plan = common.plan
        kinds, arrays = Kinds.of(plan.metrics)
        weights = np.asarray(plan.problem.client_weights(plan.clients), jnp.zeros(()).dtype)
        self._kinds, self._all = kinds, self._put((Placed(plan.clients, weights), arrays), PartitionSpec())
        self._program = self._compile()
        self.messages = kind.script.messages

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
        where = jax.devices()[0] if self.used == 1 else NamedSharding(self._mesh, spec)
        return jax.device_put(tree, where)

    def _compile(self) -> Any:
        kind, problem = self._kind, self._kind.common.plan.problem
        rounds_of, script = kind.rounds_of, kind.script
        axes = [0 if v else None for v in kind.varies]

        def sweep_rounds(
            leaves: Any,
            seeds: Any,
            carry: Any,
            placed: Any,
            judges: Any,
            first: Any,
            blocks: Any,
            per: Any,
            judged: Any,
        ) -> Any:
            def rounds(carry: Carry, t: Any) -> Any:
                def of_seed(seed: Any, carry: Carry) -> Any:
                    key = keys.root(seed)

                    def of_setting(leaves: Any, carry: Carry) -> Any:
                        method = jax.tree.unflatten(kind.structure, leaves)
                        return rounds_of.one_round(Given(method, placed, key), carry, t, script)

                    return jax.vmap(of_setting, (axes, 0))(leaves, carry)

                carry, done = jax.vmap(of_seed)(seeds, carry)
                return carry, done.traffic

            def judge(carry: Carry, t: Any) -> Any:
                def one(state: Any) -> Any:
                    return self._kinds.values(judges, problem, placed.clients, state, Context(t)) | {FINITE: finite(state)}

                return jax.vmap(jax.vmap(one))(carry.state)

            room = lambda size, shapes: jax.tree.map(lambda s: jnp.zeros((size, *s.shape), s.dtype), shapes)
            put = lambda all_, row, k: jax.tree.map(lambda a, r: a.at[k].set(r), all_, row)
            values = jax.eval_shape(judge, carry, first)
            traffic = room(self.rounds, jax.eval_shape(rounds, carry, first)[1])

            def block(b: Any, loop: Any) -> Any:
                def body(k: Any, loop: Any) -> Any:
                    carry, traffic = loop
                    carry, new = rounds(carry, first + b * per + k)
                    return carry, put(traffic, new, b * per + k)

                carry, found, traffic = loop
                carry, traffic = jax.lax.fori_loop(0, per, body, (carry, traffic))
                nothing = lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), values)
                new = jax.lax.cond(judged, lambda: judge(carry, first + (b + 1) * per), nothing)
                return carry, put(found, new, b), traffic

            return jax.lax.fori_loop(0, blocks, block, (carry, room(self.blocks, values), traffic))

        program: Any = sweep_rounds
        if self.used > 1:
            runs, of_settings, everywhere = PartitionSpec(*self._axes), PartitionSpec(self._axes[1]), PartitionSpec()
            leaves = [of_settings if v else everywhere for v in kind.varies]
            rows = PartitionSpec(None, *self._axes)
            program = jax.shard_map(
                sweep_rounds,
                mesh=self._mesh,
                in_specs=(leaves, PartitionSpec(self._axes[0]), runs, *[everywhere] * 6),
                out_specs=(runs, rows, rows),
                check_vma=False,
            )
            program.__name__ = sweep_rounds.__name__
        return jax.jit(program).lower(*self._example()).compile()

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
