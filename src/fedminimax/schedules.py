"""Hyper-parameters that change with the round.

Any real hyper-parameter of an algorithm may be a number or a :class:`Schedule`. Before each round the engine replaces every
schedule by its value at that round (:func:`at_round`), so that no algorithm ever sees one. Schedules are pytrees: their
numbers can be swept like any other hyper-parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp

from fedminimax import checks
from fedminimax.errors import InputError

Scalar = Any
"""A real hyper-parameter: a number, a scalar array, or a schedule."""

_T = TypeVar("_T")


@runtime_checkable
class Schedule(Protocol):
    """A hyper-parameter as a function of the round t = 0, 1, 2, ..."""

    is_schedule: bool

    def __call__(self, t: Any) -> Any:
        """Return the value at round t."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Piecewise:
    """Constant between given rounds: ``values[i]`` while t < ``until[i]``, the last value for ever after.

    The step sizes of fed-norm-sgda, Table 3 are ``Piecewise((0.02, 2e-3, 2e-4), until=(100, 200))``.
    """

    values: tuple[Scalar, ...]
    until: tuple[int, ...] = field(metadata={"static": True})
    is_schedule = True

    def __post_init__(self) -> None:
        if len(self.values) != len(self.until) + 1:
            raise InputError(
                f"Piecewise has {len(self.values)} values and {len(self.until)} rounds in `until`, but needs exactly one "
                "value more than rounds."
            )
        for value in self.values:
            checks.not_negative("Piecewise.values", value)
        if list(self.until) != sorted(set(self.until)):
            raise InputError(f"Piecewise needs increasing rounds in `until`, not {self.until}.")

    def __call__(self, t: Any) -> Any:
        """Return the value that holds at round t."""
        index = jnp.searchsorted(jnp.asarray(self.until), t, side="right")
        return jnp.stack([jnp.asarray(v, dtype=float) for v in self.values])[index]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PowerDecay:
    """c / (t + 1)^rho, as in cd-mage's experiments; with ``cap`` never more than that."""

    c: Scalar
    rho: Scalar = 0.5
    cap: Scalar | None = None
    is_schedule = True

    def __post_init__(self) -> None:
        for name in ("c", "rho", "cap"):
            checks.not_negative(f"PowerDecay.{name}", getattr(self, name))

    def __call__(self, t: Any) -> Any:
        """Return min(cap, c / (t + 1)^rho)."""
        value = self.c / (jnp.asarray(t, float) + 1.0) ** self.rho
        return value if self.cap is None else jnp.minimum(value, self.cap)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FromFunction:
    """Any JAX function of the round, such as an optax schedule."""

    function: Callable[[Any], Any] = field(metadata={"static": True})
    is_schedule = True

    def __call__(self, t: Any) -> Any:
        """Return function(t)."""
        return self.function(t)


def as_schedule(value: Any) -> Any:
    """Wrap a plain function of the round; leave numbers and schedules as they are."""
    return FromFunction(value) if callable(value) and not is_schedule(value) else value


def is_schedule(value: Any) -> bool:
    """Tell whether a hyper-parameter changes with the round."""
    return getattr(value, "is_schedule", False) is True


def at_round(algorithm: _T, t: Any) -> _T:
    """Return the algorithm with every schedule replaced by its value at round t."""
    resolved: _T = jax.tree.map(lambda v: v(t) if is_schedule(v) else v, algorithm, is_leaf=is_schedule)
    return resolved
