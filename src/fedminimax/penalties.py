"""Penalties psi on the clients' weights w: how far the adversary of a :class:`RobustProblem` may go, and at what price.

A penalty knows its value, the set W that w lives in, its modulus of strong convexity, the maximiser of <f, w> - psi(w) at
fixed losses f, and its proximal step. Penalties are plain hashable values. Your own needs the methods of :class:`Penalty`.

>>> import jax.numpy as jnp
>>> from fedminimax.penalties import ChiSquare, CVaR
>>> losses = jnp.array([0.1, 0.2, 0.9])
>>> CVaR(0.5).maximize(losses)
Array([0.        , 0.33333334, 0.6666667 ], dtype=float32)
>>> ChiSquare(1e6).maximize(losses).round(3)
Array([0.333, 0.333, 0.333], dtype=float32)
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax.errors import InputError
from fedminimax.sets import CappedSimplex, NonNegative, Set, Simplex

_NEWTON_STEPS = 60
"""More than any root needs: each step at least halves the error's exponent or shrinks it by 1 - 1/p."""


class Penalty(abc.ABC):
    """A convex function psi of the clients' weights w in W. N, the number of clients, is the length of what is given."""

    @abc.abstractmethod
    def value(self, w: jax.Array) -> jax.Array:
        """Return psi(w)."""

    @abc.abstractmethod
    def set(self, count: int) -> Set:
        """Return W for ``count`` clients."""

    @abc.abstractmethod
    def strong_concavity(self, count: int) -> float:
        """Return mu_w, the modulus of strong convexity of psi over W; 0 when it is merely convex."""

    @abc.abstractmethod
    def maximize(self, losses: jax.Array) -> jax.Array:
        """Return argmax_{w in W} <f, w> - psi(w) at fixed losses f."""

    @abc.abstractmethod
    def prox(self, w: jax.Array, slope: jax.Array, sigma: Any) -> jax.Array:
        r"""Return argmin_{u in W} psi(u) - <s, u> + ||u - w||^2 / (2 sigma)."""

    def start(self, count: int) -> jax.Array:
        """Return the weights to start from: equal ones."""
        return jnp.full(count, 1.0 / count)


@dataclasses.dataclass(frozen=True)
class ChiSquare(Penalty):
    r"""The chi-square distance from equal weights: psi(w) = rho/(2N) sum_i (N w_i - 1)^2 on the simplex.

    rho trades the worst client against the average: 0 is agnostic learning, and infinity the average.

    Args:
        rho: the price.
    """

    rho: float

    def __post_init__(self) -> None:
        _check(self, "rho", self.rho, self.rho >= 0, "not negative, and finite")

    def value(self, w: jax.Array) -> jax.Array:
        """Return rho/(2N) sum_i (N w_i - 1)^2."""
        count = w.shape[0]
        return self.rho / (2 * count) * jnp.sum((count * w - 1) ** 2)

    def set(self, count: int) -> Set:
        """Return the simplex."""
        return Simplex(count)

    def strong_concavity(self, count: int) -> float:
        """Return rho N."""
        return self.rho * count

    def maximize(self, losses: jax.Array) -> jax.Array:
        """Return the projection of 1/N + f / (rho N); without a price, all weight on the largest loss."""
        count = losses.shape[0]
        if self.rho == 0:
            return Simplex(count).linear_max(losses)
        return Simplex(count).project(1 / count + losses / (self.rho * count))

    def prox(self, w: jax.Array, slope: jax.Array, sigma: Any) -> jax.Array:
        """Return the projection of (w + sigma s + sigma rho) / (1 + sigma rho N): a quadratic's prox is a shift."""
        count = w.shape[0]
        return Simplex(count).project((w + sigma * _shifted(slope) + sigma * self.rho) / (1 + sigma * self.rho * count))


@dataclasses.dataclass(frozen=True)
class Agnostic(Penalty):
    """No price at all: psi = 0 on the simplex, so the objective is the worst client's loss (Mohri et al. 2019)."""

    def value(self, w: jax.Array) -> jax.Array:
        """Return 0."""
        return jnp.zeros((), w.dtype)

    def set(self, count: int) -> Set:
        """Return the simplex."""
        return Simplex(count)

    def strong_concavity(self, count: int) -> float:
        """Return 0."""
        return 0.0

    def maximize(self, losses: jax.Array) -> jax.Array:
        """Return all weight on the largest loss."""
        return Simplex(losses.shape[0]).linear_max(losses)

    def prox(self, w: jax.Array, slope: jax.Array, sigma: Any) -> jax.Array:
        """Return the projection of w + sigma s."""
        return Simplex(w.shape[0]).project(w + sigma * _shifted(slope))


@dataclasses.dataclass(frozen=True)
class CVaR(Penalty):
    """The conditional value at risk: psi = 0 on {w in the simplex, w_i <= 1/(alpha N)}: the mean of the worst share alpha.

    alpha = 1 is the average, and alpha <= 1/N agnostic learning.

    Args:
        alpha: the share, above 0 and at most 1.
    """

    alpha: float

    def __post_init__(self) -> None:
        _check(self, "alpha", self.alpha, 0 < self.alpha <= 1, "above 0 and at most 1")

    def value(self, w: jax.Array) -> jax.Array:
        """Return 0."""
        return jnp.zeros((), w.dtype)

    def set(self, count: int) -> Set:
        """Return the capped simplex."""
        return CappedSimplex(1 / (self.alpha * count), count)

    def strong_concavity(self, count: int) -> float:
        """Return 0."""
        return 0.0

    def maximize(self, losses: jax.Array) -> jax.Array:
        """Return the cap on the largest losses."""
        return self.set(losses.shape[0]).linear_max(losses)

    def prox(self, w: jax.Array, slope: jax.Array, sigma: Any) -> jax.Array:
        """Return the projection of w + sigma s."""
        return self.set(w.shape[0]).project(w + sigma * _shifted(slope))


@dataclasses.dataclass(frozen=True)
class QFair(Penalty):
    r"""psi(w) = sum_i w_i^(1 + 1/q) on w >= 0, whose objective is, but for a constant, sum_i f_i^(1+q) (q-FFL; Li et al. 2020).

    The weights need not sum to one. Losses must not be negative for the correspondence to hold.

    Args:
        q: how much larger losses count; above 0.
    """

    q: float

    def __post_init__(self) -> None:
        _check(self, "q", self.q, self.q > 0, "above 0, and finite")

    def value(self, w: jax.Array) -> jax.Array:
        """Return sum_i w_i^(1 + 1/q)."""
        return jnp.sum(jnp.maximum(w, 0.0) ** (1 + 1 / self.q))

    def set(self, count: int) -> Set:
        """Return the non-negative orthant."""
        return NonNegative()

    def strong_concavity(self, count: int) -> float:
        """Return 2 for q = 1, else 0: the curvature fades at infinity (q > 1) or at zero (q < 1)."""
        return 2.0 if self.q == 1 else 0.0

    def maximize(self, losses: jax.Array) -> jax.Array:
        """Return (f_i q / (q + 1))^q."""
        return jnp.maximum(losses * (self.q / (self.q + 1)), 0.0) ** self.q

    def prox(self, w: jax.Array, slope: jax.Array, sigma: Any) -> jax.Array:
        """Return the root u_i >= 0 of u + sigma (1 + 1/q) u^(1/q) = w_i + sigma s_i, or 0 where the right side is negative."""
        target = jnp.maximum(w + sigma * slope, 0.0)
        weight = sigma * (1 + 1 / self.q)
        if self.q < 1:
            return _root(1.0, weight, 1 / self.q, target)
        # In t = u^(1/q) the equation is convex, where Newton's steps from above cannot overshoot.
        return _root(weight, 1.0, self.q, target) ** self.q


PENALTIES: dict[str, type[Penalty]] = {"ChiSquare": ChiSquare, "Agnostic": Agnostic, "CVaR": CVaR, "QFair": QFair}
"""The penalties by name."""


def _shifted(slope: jax.Array) -> jax.Array:
    """Return s - max s: the same on the simplex, and exact where large losses differ by little."""
    return slope - jnp.max(slope)


def _root(a: Any, b: Any, power: float, target: jax.Array) -> jax.Array:
    """Return z >= 0 with a z + b z^power = target, for power >= 1: Newton from above, from at most twice the root."""
    tiny = jnp.finfo(target.dtype).tiny
    safe = lambda v: jnp.maximum(jnp.asarray(v, target.dtype), tiny)
    upper = jnp.minimum(target / safe(a), (target / safe(b)) ** (1 / power))

    def step(_: Any, z: jax.Array) -> jax.Array:
        slope = a + b * power * z ** (power - 1)
        excess = a * z + b * z**power - target
        return jnp.maximum(z - jnp.where(slope > 0, excess / jnp.where(slope > 0, slope, 1.0), 0.0), 0.0)

    return jnp.where(target > 0, jax.lax.fori_loop(0, _NEWTON_STEPS, step, upper), 0.0)


def _check(penalty: Penalty, name: str, value: Any, holds: Any, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not holds:
        raise InputError(f"{type(penalty).__name__}({name}={value!r}): {name} must be {wanted}.")
