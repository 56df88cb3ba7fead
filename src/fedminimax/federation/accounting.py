"""What a run costs: floats down and up, per player; gradients and local steps; replies lost; time. Counted, not estimated.

The size of a message is known when a round is compiled; how many clients were sent one and answered is known when it runs.
The two meet here, in 64-bit integers on the host.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.players import Count, Tree

PLAYERS = ("x", "y", "other")
_BITS = 11
NOTHING = dict.fromkeys(PLAYERS, 0)
"""The floats of what is not sent."""
MIX = "mix"
"""What an exchange between neighbours is called among the messages."""


@dataclass(frozen=True)
class Message:
    """One exchange of a round: the client function that was called, the floats in request and reply, the places to fill.

    With ``part`` only some of the places are asked, which ones being known when the round runs.
    """

    function: str
    down: dict[str, int]
    up: dict[str, int]
    places: int = 0
    part: bool = False


class Work(NamedTuple):
    """What clients computed."""

    examples: Count
    """Per-example gradients."""
    steps: Count
    """Local steps: turns of a loop that took gradients, and one for what a client's program took outside of its loops."""


NO_WORK = Work(0, 0)


class Traffic(NamedTuple):
    """How many clients one exchange reached: arrays of one entry per round, per exchange."""

    invited: Any
    """Clients that were sent the request."""
    answered: Any
    """Clients whose reply arrived, as the engine tells; 1 for an exchange between neighbours that took place."""
    dropped: Any
    """Replies that the guard refused."""
    work: Any
    """The clients' :class:`Work`, added up in parts (see :func:`split`): [2, 3]."""
    waited: Any
    """Seconds of simulated time until the server went on; zero without delays."""


def split(work: Work) -> jax.Array:
    """Return both counts in parts of 11 bits, whose sums over a million clients stay exact in 32 bits: [..., 2, 3]."""
    counts, mask = jnp.stack([jnp.asarray(count, jnp.int32) for count in work], axis=-1), (1 << _BITS) - 1
    return jnp.stack([counts & mask, (counts >> _BITS) & mask, counts >> (2 * _BITS)], axis=-1)


def measure_request(fn: Callable[..., Tree], broadcast: tuple[Tree, ...], per_client: tuple[Tree, ...]) -> dict[str, int]:
    """Return the floats of a request by player: an argument called x or x_..., or a field x inside it, is the min player's."""
    names = list(inspect.signature(fn).parameters)[2:]
    rows = tuple(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), tree) for tree in per_client)
    return _floats(dict(zip(names, (*broadcast, *rows), strict=False)))  # parameters with defaults may be left out


def measure_reply(reply: Tree) -> dict[str, int]:
    """Return the floats of a reply by player."""
    return _floats(reply)


def _floats(tree: Tree) -> dict[str, int]:
    total = dict.fromkeys(PLAYERS, 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        total[_player(path)] += int(np.prod(np.shape(leaf)))
    return total


def _player(path: Any) -> str:
    for step in path:
        name = str(getattr(step, "name", getattr(step, "key", "")))
        if name in ("x", "y") or name.startswith(("x_", "y_")):
            return name[0]
    return "other"


def names(gossip: bool) -> list[str]:
    """Return what is counted, in the order of :func:`history`.

    Args:
        gossip: whether nodes exchange something with their neighbours.
    """
    floats = [f"floats_{direction}{player}" for direction in ("down", "up") for player in (*(f"_{p}" for p in PLAYERS), "")]
    return [*floats, "grad_evals", "local_steps", "replies", "dropped", *(["gossip_rounds"] if gossip else []), "waited"]


def history(messages: list[Message], traffic: Traffic) -> dict[str, np.ndarray]:
    """Return the costs of each round, from what was sent and how often.

    Args:
        messages: the exchanges of a round, in order.
        traffic: arrays [..., rounds, exchanges] (and the parts of the work).
    """
    counts = Traffic(*(np.asarray(c, np.int64) for c in traffic))
    exchanges = [m.function == MIX for m in messages]
    # an exchange between neighbours is counted as one, and is a message along every edge, each way
    along = np.array([m.places if mix else 1 for m, mix in zip(messages, exchanges, strict=True)], np.int64)
    counts = counts._replace(answered=counts.answered * along)
    costs: dict[str, np.ndarray] = {}
    for direction, senders in (("down", counts.invited), ("up", counts.answered)):
        for player in PLAYERS:
            size = np.array([getattr(m, direction)[player] for m in messages], np.int64)
            costs[f"floats_{direction}_{player}"] = senders @ size
        costs[f"floats_{direction}"] = sum(costs[f"floats_{direction}_{p}"] for p in PLAYERS)  # type: ignore[assignment]
    work = counts.work.reshape(*counts.answered.shape, 2, 3).sum(-3) @ (1 << (_BITS * np.arange(3)))
    costs["grad_evals"], costs["local_steps"] = work[..., 0], work[..., 1]
    costs["replies"] = counts.answered.sum(-1)
    costs["dropped"] = counts.dropped.sum(-1)
    if any(exchanges):
        costs["gossip_rounds"] = (counts.answered[..., exchanges] > 0).sum(-1)
    costs["waited"] = np.asarray(traffic.waited, np.float64).sum(-1)
    return costs
