"""The compiled program of runs side by side: rounds of many settings with many seeds, and evaluations between them.

Settings inside, seeds outside: runs with the same seed draw the same cohorts and batches, so these are drawn once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedminimax.devices import compiler_options
from fedminimax.engines.evaluation import Kinds
from fedminimax.engines.program import Carry, Program, Script
from fedminimax.engines.simulated_round import Given, Placed
from fedminimax.federation.accounting import Message, Traffic
from fedminimax.federation.guard import finite
from fedminimax.metrics import Context
from fedminimax.players import Tree
from fedminimax.random import keys

FINITE = "finite"
"""What tells whether a run's state is finite, among the numbers of an evaluation."""
_AXIS = "runs"
_KEPT: OrderedDict[Hashable, tuple[Any, list[Message], list[str]]] = OrderedDict()
_MOST_KEPT = 16


class Recipe(NamedTuple):
    """What a program is made of, beside the shapes of its arguments.

    Attributes:
        rounds_of: the rounds of one run.
        structure: that of the settings.
        varies: which of their numbers vary.
        judges: the metrics.
        rounds: how many rounds a call has room for.
        blocks: how many evaluations.
        devices: how many devices the runs are split over.
        by_settings: whether they are split by settings, or else by seeds.
    """

    rounds_of: Program
    structure: Any
    varies: tuple[bool, ...]
    judges: Kinds
    rounds: int
    blocks: int
    devices: int
    by_settings: bool


def axes(by_settings: bool) -> tuple[str | None, str | None]:
    """Return over what the seeds, and over what the settings, are split."""
    return (None, _AXIS) if by_settings else (_AXIS, None)


def mesh(devices: int) -> Mesh:
    """Return the devices that runs are split over."""
    return Mesh(np.asarray(jax.local_devices()[:devices]), (_AXIS,))


def made(recipe: Recipe, example: tuple[Any, ...]) -> tuple[Any, list[Message], list[str]]:
    """Return the compiled program, the exchanges of one of its rounds, and the names of an evaluation's numbers in order.

    If there was such a program before, it is that one.

    Args:
        recipe: what it is made of.
        example: arguments like those it will be called with; see :func:`_program`.
    """
    leaves, structure = jax.tree.flatten(example)
    key = recipe, structure, tuple((np.shape(a), jnp.result_type(a), getattr(a, "sharding", None)) for a in leaves)
    if key not in _KEPT:
        script, order = Script(), list[str]()
        compiled = jax.jit(_program(recipe, script, order), compiler_options=compiler_options()).lower(*example).compile()
        _KEPT[key] = compiled, script.messages, order
        while len(_KEPT) > _MOST_KEPT:
            _KEPT.popitem(last=False)
    _KEPT.move_to_end(key)
    return _KEPT[key]


def forget() -> None:
    """Let go of the programs that were made."""
    _KEPT.clear()


def _program(recipe: Recipe, script: Script, order: list[str]) -> Any:
    """Return the function that is compiled; tracing it fills in the script, and the order of the numbers."""

    def rounds(leaves: Tree, seeds: Any, placed: Placed, carry: Carry, t: Any) -> tuple[Carry, Traffic]:
        def of_seed(seed: Any, carry: Carry) -> Any:
            key = keys.root(seed)

            def of_setting(leaves: Any, carry: Carry) -> Any:
                method = jax.tree.unflatten(recipe.structure, leaves)
                return recipe.rounds_of.one_round(Given(method, placed, key), carry, t, script)

            return jax.vmap(of_setting, ([0 if v else None for v in recipe.varies], 0))(leaves, carry)

        carry, done = jax.vmap(of_seed)(seeds, carry)
        return carry, done.traffic

    def judge(judges: Any, placed: Any, carry: Carry, t: Any) -> dict[str, Any]:
        def one(state: Any) -> dict[str, Any]:
            values = recipe.judges.values(judges, recipe.rounds_of.problem, placed.clients, state, Context(t))
            values |= {FINITE: finite(state)}
            order[:] = values  # what is compiled gives them by the alphabet
            return values

        return jax.vmap(jax.vmap(one))(carry.state)

    def sweep_rounds(
        leaves: Any, seeds: Any, carry: Any, placed: Any, judges: Any, first: Any, blocks: Any, per: Any, judged: Any
    ) -> tuple[Carry, dict[str, Any], Traffic]:
        """Run ``blocks`` times ``per`` rounds from round ``first`` on, and evaluate after each if it is to be ``judged``."""
        # Each is traced once, for its shapes and for the loop.
        run, look = jax.jit(rounds, inline=True), jax.jit(judge, inline=True)
        room = lambda size, shapes: jax.tree.map(lambda s: jnp.zeros((size, *s.shape), s.dtype), shapes)
        put = lambda all_, row, k: jax.tree.map(lambda a, r: a.at[k].set(r), all_, row)
        values = jax.eval_shape(look, judges, placed, carry, first)
        traffic = room(recipe.rounds, jax.eval_shape(run, leaves, seeds, placed, carry, first)[1])

        def block(b: Any, loop: Any) -> Any:
            def body(k: Any, loop: Any) -> Any:
                carry, traffic = loop
                carry, new = run(leaves, seeds, placed, carry, first + b * per + k)
                return carry, put(traffic, new, b * per + k)

            carry, found, traffic = loop
            carry, traffic = jax.lax.fori_loop(0, per, body, (carry, traffic))
            nothing = lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), values)
            new = jax.lax.cond(judged, lambda: look(judges, placed, carry, first + (b + 1) * per), nothing)
            return carry, put(found, new, b), traffic

        return jax.lax.fori_loop(0, blocks, block, (carry, room(recipe.blocks, values), traffic))

    if recipe.devices == 1:
        return sweep_rounds
    split, everywhere = axes(recipe.by_settings), PartitionSpec()
    runs, rows = PartitionSpec(*split), PartitionSpec(None, *split)
    leaves = [PartitionSpec(split[1]) if v else everywhere for v in recipe.varies]
    sharded = jax.shard_map(
        sweep_rounds,
        mesh=mesh(recipe.devices),
        in_specs=(leaves, PartitionSpec(split[0]), runs, *[everywhere] * 6),
        out_specs=(runs, rows, rows),
        check_vma=False,
    )
    sharded.__name__ = sweep_rounds.__name__
    return sharded
