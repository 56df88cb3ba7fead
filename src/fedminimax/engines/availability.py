"""Who answers: chance, or a record of what happened."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.engines import keys
from fedminimax.errors import InputError


@dataclass(frozen=True)
class Availability:
    """Each client answers each request with a given probability; the server invites more than it needs.

    A cohort of S is made by inviting ``ceil(over_invite * S)`` clients and keeping the first S that answer, in a random
    order. When fewer answer, the cohort is smaller. Later requests to the same cohort are answered with the same
    probability again.

    Args:
        probability: one number, or one per client.
        over_invite: how many clients are invited for each one that is needed; at least 1.
    """

    probability: float | tuple[float, ...]
    over_invite: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.probability, (int, float)):
            object.__setattr__(self, "probability", tuple(float(p) for p in self.probability))
        values = np.asarray(self.probability, float)
        if not ((values >= 0) & (values <= 1)).all():
            raise InputError("Availability needs probabilities between 0 and 1.")
        if not self.over_invite >= 1:
            raise InputError(f"over_invite must be at least 1, not {self.over_invite}.")

    def check(self, count: int) -> None:
        """Raise an :class:`InputError` unless there is one probability for all, or one for each client."""
        if isinstance(self.probability, tuple) and len(self.probability) != count:
            raise InputError(f"Availability has {len(self.probability)} probabilities, but there are {count} clients.")

    def invitations(self, needed: int, count: int) -> int:
        """Return how many clients to invite so as to keep ``needed`` of ``count``."""
        return min(count, math.ceil(self.over_invite * needed))

    def answers(self, key: keys.Key, ids: jax.Array) -> jax.Array:
        """Return which of the clients answer, each by a draw of its own."""
        draw = keys.uniform(keys.words_for(key, ids))
        chance = jnp.asarray(self.probability)
        return draw < (chance if chance.ndim == 0 else chance[ids])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trace:
    """A record of who took part and how much they did, replayed exactly.

    Args:
        cohorts: one entry for each cohort that the algorithm asks for in a round, in order: an integer array [rounds, S]
            of client numbers, -1 where a place stayed empty.
        steps: optional tau, [rounds, N].
        draws: optional values of the server's own draws, by name, each [rounds, ...].
        invited: optional, one entry for each cohort: how many clients were invited to it, [rounds].
        answers: optional, one entry for each exchange: which places of the cohort answered it, [rounds, S].

    What is not given is drawn as in any run, so a trace recorded by ``run(..., record=True)`` replays with the same seed.
    """

    cohorts: tuple[Any, ...] = ()
    steps: Any = None
    draws: dict[str, Any] = field(default_factory=dict)
    invited: tuple[Any, ...] = ()
    answers: tuple[Any, ...] = ()

    def check(self, rounds: int, count: int) -> None:
        """Raise an :class:`InputError` unless the trace covers ``rounds`` rounds of ``count`` clients."""
        named = [(f"cohort {k}", c) for k, c in enumerate(self.cohorts)] + list(self.draws.items())
        named += [(f"answers {k}", a) for k, a in enumerate(self.answers)]
        named += [(f"invited {k}", i) for k, i in enumerate(self.invited)]
        for name, record in [*named, *([("steps", self.steps)] if self.steps is not None else [])]:
            if np.shape(record)[:1] < (rounds,):
                raise InputError(f"The trace's {name} covers {len(record)} rounds, but {rounds} are to be run.")
        for k, cohort in enumerate(self.cohorts):
            ids = np.asarray(cohort)
            if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer) or ids.min() < -1 or ids.max() >= count:
                raise InputError(
                    f"The trace's cohort {k} must be an integer array [rounds, S] of client numbers below {count} (or -1)."
                )
        if self.steps is not None:
            steps = np.asarray(self.steps)
            if steps.ndim != 2 or steps.shape[1] != count or steps.min() < 1:
                raise InputError(f"The trace's steps must be an array [rounds, {count}] of numbers of at least 1.")
