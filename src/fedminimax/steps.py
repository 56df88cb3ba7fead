"""How many local steps each client takes: the same for all, its own, or drawn anew each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.errors import InputError
from fedminimax.players import Count
from fedminimax.random.sampling import below

STEPS, EPOCHS = "steps", "epochs"


@dataclass(frozen=True)
class UniformSteps:
    """tau_i drawn each round, for each client, uniformly from {low, ..., high} (both included).

    With ``unit="epochs"`` the draw counts passes over the client's data: tau_i = draw * ceil(n_i / batch_size).
    """

    low: int
    high: int
    unit: str = STEPS

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise InputError(f"UniformSteps needs 1 <= low <= high, not low = {self.low}, high = {self.high}.")
        _check_unit(self.unit)


@dataclass(frozen=True)
class ClientSteps:
    """tau_i fixed: one number per client, in steps or epochs."""

    counts: tuple[int, ...]
    unit: str = STEPS

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(int(c) for c in self.counts))
        if not self.counts or min(self.counts) < 1:
            raise InputError("ClientSteps needs one number per client, each at least 1.")
        _check_unit(self.unit)


Steps = int | UniformSteps | ClientSteps
"""What `local_steps` may be."""


def draw(spec: Steps, bits: jax.Array, client: Count, size: Count, batch_size: int | None) -> Count:
    """Return tau for one client (an int where it is known at compile time).

    Args:
        spec: what the algorithm asks for.
        bits: the client's random word for this purpose and round.
        client: the client's number.
        size: how many examples the client has.
        batch_size: the batch size, which turns epochs into steps; None: the full batch, one step an epoch.
    """
    if isinstance(spec, int):
        return spec
    if isinstance(spec, UniformSteps):
        count = spec.low + below(bits, spec.high - spec.low + 1)
    else:
        count = jnp.asarray(spec.counts, jnp.int32)[client]
    if spec.unit == EPOCHS and batch_size is not None:
        count = count * (-(-size // batch_size))
    return count


def most_steps(spec: Steps) -> int | None:
    """Return the most steps a client may take; None where that depends on its data."""
    if isinstance(spec, int):
        return spec
    if spec.unit == EPOCHS:
        return None
    return spec.high if isinstance(spec, UniformSteps) else max(spec.counts)


def most(spec: Steps, sizes: Any, batch_size: int | None) -> np.ndarray:
    """Return the most steps that each client may take, [N].

    Args:
        spec: what the algorithm asks for.
        sizes: how many examples each client has, [N].
        batch_size: the batch size, which turns epochs into steps.
    """
    sizes = np.asarray(sizes)
    if isinstance(spec, int):
        return np.full(len(sizes), spec)
    counts = np.full(len(sizes), spec.high) if isinstance(spec, UniformSteps) else np.asarray(spec.counts)
    return counts * -(-sizes // batch_size) if spec.unit == EPOCHS and batch_size is not None else counts


def bounds(spec: Steps, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the fewest and the most steps of each of so many clients, [N] each, for step sizes that are set in advance."""
    check(spec)
    if isinstance(spec, int):
        return np.full(clients, spec), np.full(clients, spec)
    if spec.unit == EPOCHS:
        raise InputError("The theory's step sizes depend on the number of steps, not of epochs: give local_steps in steps.")
    if isinstance(spec, UniformSteps):
        return np.full(clients, spec.low), np.full(clients, spec.high)
    if len(spec.counts) != clients:
        raise InputError(f"ClientSteps has {len(spec.counts)} numbers, but there are {clients} clients: give one each.")
    return np.asarray(spec.counts), np.asarray(spec.counts)


def check(spec: Steps, name: str = "local_steps") -> None:
    """Raise an :class:`InputError` unless ``spec`` says how many steps to take."""
    if isinstance(spec, bool) or not isinstance(spec, (int, UniformSteps, ClientSteps)):
        raise InputError(f"{name} must be a whole number, UniformSteps or ClientSteps, not {spec!r}.")
    if isinstance(spec, int) and spec < 1:
        raise InputError(f"{name} must be at least 1, not {spec}.")


def _check_unit(unit: str) -> None:
    if unit not in (STEPS, EPOCHS):
        raise InputError(f"unit must be 'steps' or 'epochs', not {unit!r}.")
