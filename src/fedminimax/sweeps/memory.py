"""How much memory there is to run side by side in."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import jax

SHARE = 0.5
"""The share of the free memory that a sweep takes: the rest is for the compiler, for what comes back, and for others."""
_UNKNOWN = 4 << 30


def budget() -> float:
    """Return how many bytes runs side by side may take: on the accelerator, or of the host's memory."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            return SHARE * len(jax.local_devices()) * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return SHARE * free_on_host()


def free_on_host() -> int:
    """Return the bytes of memory that nobody uses, as far as the system says so and this process may have them."""
    free = _UNKNOWN
    with suppress(OSError, ValueError, AttributeError):  # not every system knows these names
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()  # which counts what is kept only as long as there is room
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with suppress(OSError, ValueError):  # a container may have less than its machine
        folder = Path("/sys/fs/cgroup")
        free = min(free, int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text()))
    return max(free, 0)
