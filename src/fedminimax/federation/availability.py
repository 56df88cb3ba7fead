"""Who answers, and when: chance.

Every draw is a function of (seed, round, phase, client) and costs what is invited, whatever the number of clients. What is
drawn is looked up in tables that were made on the host, and multiplied once at the most: the logarithms, exponentials and sines
of one compiled program are not, to the last bit, those of another, and a bit decides who is in a cohort.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.errors import InputError
from fedminimax.players import Count
from fedminimax.random import keys

RANDOM = "random"

# What a client is throughout a run (its time zone, its lifetime, its speed) is drawn at a round that never comes.
_NEVER = 2**32 - 1
_ZONE, _LIFETIME, _SPEED = range(3)
_FINE = 8
"""The bits of a level below its power of two."""
_TAIL = 24 << _FINE
"""Levels in each tail."""
_ANGLES = 14
"""The bits of an angle that a wave tells apart."""
_WIDEST = 5.0
"""The largest spread of delays: a factor of 10^11 at the last level, two of which are still a number."""

PerClient = float | tuple[float, ...]
"""One number for all clients, or one for each."""


@dataclass(frozen=True)
class Wave:
    r"""A time of day: clients answer more often at one time and less often at another.

    .. math:: p_i(t) = \operatorname{clip}(p_i (1 + a \sin(2 \pi (t / T + \phi_i))), 0, 1)

    Args:
        amplitude: a, at least 0. Above 1 there are nights when nobody answers.
        period: T, the rounds of a day.
        phase: phi_i, in days: one number, one per client, or "random": every client has a time zone of its own.
    """

    amplitude: float
    period: float
    phase: PerClient | str = RANDOM

    def __post_init__(self) -> None:
        _set(self, amplitude=_number(self.amplitude, "Wave's amplitude"), period=_number(self.period, "Wave's period"))
        if self.amplitude < 0:
            raise InputError(f"Wave's amplitude must be at least 0, not {self.amplitude}: shift the phase by 0.5 instead.")
        if self.period <= 0:
            raise InputError(f"Wave's period must be a positive number of rounds, not {self.period}.")
        if not (isinstance(self.phase, str) and self.phase == RANDOM):
            _set(self, phase=_per_client(self.phase, "Wave's phase", 'one number, one per client, or "random"'))

    def factor(self, run: keys.Key, t: Count, ids: jax.Array) -> jax.Array:
        """Return 1 + a sin(...) of each client at round t; ``run`` is the run's key."""
        # Angles are 32-bit fractions of a day, which wrap around by themselves: midnight is exact after a million rounds.
        turn = jnp.asarray(t).astype(jnp.uint32) * _angle(1 / self.period)
        if isinstance(self.phase, str):
            start = keys.words_for(keys.derive(run, _NEVER, _ZONE), ids)
        else:
            start = _of(_angle(self.phase), ids)
        nearest = (turn + start + np.uint32(1 << (31 - _ANGLES))) >> (32 - _ANGLES)
        return jnp.asarray(_sine(self.amplitude))[nearest.astype(jnp.int32)]


@dataclass(frozen=True)
class Delay:
    r"""How long replies take, in seconds of simulated time.

    .. math:: d_{i,r} = m \, e^{\sigma_s z_i} \, e^{\sigma z_{i,r}}, \qquad z_i, z_{i,r} \sim N(0, 1)

    for client i and request r: z_i is drawn once a run, so that some devices are always slow, and z_{i,r} for each request.
    (The normal distribution is one of 12,288 levels, which reach 5.4 standard deviations.)

    Args:
        median: m, positive.
        spread: sigma, of one device from request to request; from 0 to 5.
        slow: sigma_s, of the devices among themselves; from 0 to 5.
        deadline: replies that take longer are lost; None: the server waits.
    """

    median: float
    spread: float = 0.5
    slow: float = 0.5
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name in ("median", "spread", "slow"):
            _set(self, **{name: _number(getattr(self, name), f"Delay's {name}")})
        if self.median <= 0:
            raise InputError(f"Delay's median must be a positive number of seconds, not {self.median}.")
        for name in ("spread", "slow"):
            if not 0 <= getattr(self, name) <= _WIDEST:
                raise InputError(
                    f"Delay's {name} must be from 0 to {_WIDEST:g}, not {getattr(self, name)}: it is the standard deviation "
                    "of the delay's logarithm."
                )
        if self.deadline is not None:
            _set(self, deadline=_number(self.deadline, "Delay's deadline"))
            if self.deadline <= 0:
                raise InputError(
                    f"Delay's deadline must be a positive number of seconds, not {self.deadline}: None waits for everybody."
                )

    def seconds(self, run: keys.Key, request: keys.Key, ids: jax.Array) -> jax.Array:
        """Return how long each client takes to reply; ``run`` is the run's key and ``request`` the request's."""
        own = _level(keys.words_for(keys.derive(run, _NEVER, _SPEED), ids))
        this_time = _level(keys.words_for(request, ids))
        return jnp.asarray(_lognormal(self.median, self.slow))[own] * jnp.asarray(_lognormal(1.0, self.spread))[this_time]

    def waited(self, seconds: jax.Array, kept: jax.Array, expected: Count) -> jax.Array:
        """Return how long the server waited: for the last reply that it kept, or to the deadline when some stayed away.

        Args:
            seconds: how long the replies took.
            kept: which of them arrived.
            expected: how many there should have been.
        """
        last = jnp.max(jnp.where(kept, seconds, 0.0))
        return last if self.deadline is None else jnp.where(jnp.sum(kept) < expected, np.float32(self.deadline), last)


@dataclass(frozen=True)
class Availability:
    r"""Who answers the server, and how soon; the server invites more clients than it needs.

    A cohort of S is made by inviting ``ceil(over_invite * S)`` clients and keeping the first S that answer. When fewer answer,
    the cohort is smaller. This holds for every cohort of a round. Later requests go to those that are left of the cohort;
    whoever misses one is gone for the rest of the round.

    Client i answers the first request of a cohort at round t when it has not dropped out, with the probability of that hour,
    and in time. The server does not know who has dropped out, and goes on inviting them.

    Args:
        probability: p_i, of answering a request.
        over_invite: how many clients are invited for each one that is needed; at least 1.
        wave: a :class:`Wave` over the rounds that p_i rides on.
        dropout: the rate at which clients leave for ever: after each round with this probability, so that a client is still
            there at round t with probability (1 - dropout)^t.
        delay: a :class:`Delay` of the replies: the first S are then the fastest, and those after the deadline are lost.
            ``costs["waited"]`` counts the seconds. Without it replies come in a random order, and at once.
        vanish: the probability that a client that answered the first request of its cohort is gone at a later one; None: it
            answers each request with its probability again. Methods that ask every cohort only once, CD-MAGE with its two
            cohorts among them (not so with ``same_cohort=True``), have no later one.

    ``probability``, ``dropout`` and ``vanish`` are one number, or one per client.
    """

    probability: PerClient
    over_invite: float = 1.0
    wave: Wave | None = None
    dropout: PerClient = 0.0
    delay: Delay | None = None
    vanish: PerClient | None = None

    def __post_init__(self) -> None:
        for name in ("probability", "dropout", "vanish"):
            value = getattr(self, name)
            if value is None and name == "vanish":
                continue
            rates = _per_client(value, f"Availability's {name}", "one number, or one per client")
            wrong = [rate for rate in np.atleast_1d(rates).tolist() if not 0 <= rate <= 1]
            if wrong:
                raise InputError(f"Availability's {name} must be between 0 and 1, for it is a probability: not {wrong[0]}.")
            _set(self, **{name: rates})
        _set(self, over_invite=_number(self.over_invite, "over_invite"))
        if self.over_invite < 1:
            raise InputError(f"over_invite must be at least 1, not {self.over_invite}: at 1 as many are invited as are needed.")
        for name, kind in (("wave", Wave), ("delay", Delay)):
            value = getattr(self, name)
            if not (value is None or isinstance(value, kind)):
                raise InputError(f"Availability's {name} must be a {kind.__name__}(...) or None, not {value!r}.")

    def check(self, count: int) -> None:
        """Raise an :class:`InputError` unless there is one number of a kind for all clients, or one for each."""
        phase = self.wave.phase if self.wave is not None else None
        given = {
            "probabilities": self.probability,
            "dropout rates": self.dropout,
            "vanish rates": self.vanish,
            "phases of its wave": phase,
        }
        for name, values in given.items():
            if isinstance(values, tuple) and len(values) != count:
                raise InputError(
                    f"Availability has {len(values)} {name}, but there are {count} clients: give one number, or one each."
                )

    def invitations(self, needed: int, count: int | None) -> int:
        """Return how many clients to invite so as to keep ``needed`` of ``count`` (None: each may be drawn again)."""
        wanted = math.ceil(self.over_invite * needed)
        return wanted if count is None else min(count, wanted)

    def chance(self, run: keys.Key, t: Count, ids: jax.Array) -> jax.Array:
        """Return the probabilities with which clients answer at round t, if they are still there; ``run`` is the run's key."""
        chance = _of(self.probability, ids)
        return chance if self.wave is None else jnp.clip(chance * self.wave.factor(run, t, ids), 0.0, 1.0)

    def remains(self, run: keys.Key, t: Count, ids: jax.Array) -> jax.Array:
        """Return which clients have not dropped out before round t; ``run`` is the run's key."""
        # A geometric lifetime is an exponential one cut to whole rounds: P(E / -log(1 - rate) >= t) = (1 - rate)^t.
        with np.errstate(divide="ignore"):
            mean = np.asarray(1 / -np.log1p(-np.asarray(self.dropout)), np.float32)
        level = _level(keys.words_for(keys.derive(run, _NEVER, _LIFETIME), ids))
        return jnp.asarray(_exponential())[level] * _of(mean, ids) >= jnp.asarray(t).astype(jnp.float32)

    def answers(self, run: keys.Key, request: keys.Key, t: Count, ids: jax.Array, *, again: bool = False) -> jax.Array:
        """Return which of the clients answer, however late, each by a draw of its own.

        Args:
            run: the run's key.
            request: the request's key.
            t: the round.
            ids: the clients' numbers.
            again: whether they answered a request of this cohort before.
        """
        draw = keys.uniform(keys.words_for(request, ids))
        if again and self.vanish is not None:
            return draw >= _of(self.vanish, ids)
        answers = draw < self.chance(run, t, ids)
        return answers if self.dropout == 0 or again else answers & self.remains(run, t, ids)


def _set(made: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(made, name, value)


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} must be a finite number, not {value!r}.")
    return number


def _per_client(value: Any, name: str, allowed: str) -> PerClient:
    """Return one number or a tuple of them, which can be hashed."""
    try:
        values = np.asarray(value, float)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be {allowed}, not {value!r}.") from None
    if values.ndim > 1 or not np.isfinite(values).all():
        raise InputError(f"{name} must be {allowed}, all of them finite.")
    return float(values) if values.ndim == 0 else tuple(values.tolist())


def _of(values: Any, ids: jax.Array) -> jax.Array:
    """Return the one value for all, or the clients' own."""
    values = jnp.asarray(values)
    return jnp.broadcast_to(values, ids.shape) if values.ndim == 0 else values[ids]


def _angle(days: Any) -> np.ndarray:
    """Return times as 32-bit fractions of a day."""
    return (np.round(np.asarray(days) % 1 * 2**32) % 2**32).astype(np.uint32)


def _level(words: jax.Array) -> jax.Array:
    """Map random words to levels of probability: fine where values are common, and finer towards both tails.

    The last bit says which tail, and 23 others how far out. The exponent of a float and its first bits are a scale of ratios:
    as many levels for each halving of the probability, down to 2^-25, so that rare values have theirs.
    """
    far_out = ((words >> 9) * 2 + 1).astype(jnp.float32)  # 24 bits: exact
    bits = jax.lax.bitcast_convert_type(far_out, jnp.uint32)
    return ((bits >> (23 - _FINE)) - (127 << _FINE) + (words & 1) * _TAIL).astype(jnp.int32)


def _tail() -> np.ndarray:
    """Return the probability at the middle of each level, from the rarest to 1/2."""
    halving, part = np.divmod(np.arange(_TAIL), 1 << _FINE)
    return 2.0 ** (halving - 25) * (1 + (part + 0.5) / (1 << _FINE))


@functools.cache
def _normal() -> np.ndarray:
    """Return the standard normal quantile at each level."""
    lower = np.array([NormalDist().inv_cdf(p) for p in _tail()])
    return np.concatenate([lower, -lower])


@functools.cache
def _exponential() -> np.ndarray:
    """Return the standard exponential quantile at each level."""
    return np.concatenate([-np.log(_tail()), -np.log1p(-_tail())]).astype(np.float32)


@functools.lru_cache(maxsize=32)
def _lognormal(median: float, spread: float) -> np.ndarray:
    """Return the log-normal quantile at each level."""
    return (median * np.exp(spread * _normal())).astype(np.float32)


@functools.lru_cache(maxsize=32)
def _sine(amplitude: float) -> np.ndarray:
    """Return 1 + a sin(...) at each angle of a day."""
    return (1 + amplitude * np.sin(2 * np.pi * np.arange(1 << _ANGLES) / (1 << _ANGLES))).astype(np.float32)
