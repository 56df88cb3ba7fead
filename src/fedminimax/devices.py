"""Cores as devices.

On a CPU, XLA's own threads gain nothing on a federation's small matrices, while clients split over host devices run at the
speed of the cores (design measurements: benchmarks/README.md). JAX fixes the number of host devices when it starts, so this
must happen on import.
"""

from __future__ import annotations

import os

import jax

from fedminimax.errors import InputError

VARIABLE = "FEDMINIMAX_DEVICES"


def offer_cores() -> None:
    """Ask JAX for one host device a core, unless JAX has started or somebody has said how many there should be."""
    wanted = os.environ.get(VARIABLE)
    said = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if wanted is None and (said or getattr(jax.config, "jax_num_cpu_devices", -1) != -1):
        return
    if wanted is not None and (not wanted.isdigit() or int(wanted) < 1):
        raise InputError(f"{VARIABLE} must be a whole number of at least 1, not {wanted!r}.")
    try:
        jax.config.update("jax_num_cpu_devices", int(wanted) if wanted else _cores())
    except RuntimeError:  # JAX runs already: one device then, unless the user chose otherwise.
        return


def _cores() -> int:
    """Return how many cores this process may use (not every system can tell them from those of the machine)."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def usable(asked: int | None, worthwhile: bool) -> int:
    """Return how many devices a run should use.

    Args:
        asked: what the user asked for; None: all, where it pays.
        worthwhile: whether a round is large enough to be worth splitting.
    """
    there = len(jax.devices())
    if asked is None:
        return there if worthwhile else 1
    if not 1 <= asked <= there:
        raise InputError(
            f"devices is {asked}, but JAX offers {there}: ask for fewer, or set {VARIABLE} before starting Python."
        )
    return asked
