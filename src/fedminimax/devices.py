"""Cores as devices.

On a CPU, XLA's own threads gain nothing on a federation's small matrices, while clients split over host devices run at the
speed of the cores (design measurements: benchmarks/README.md). JAX fixes the number of host devices when it starts, so it must
be asked before anybody uses it: when fedminimax is imported, or, where JAX comes later, when JAX is.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from fedminimax.errors import InputError

VARIABLE = "FEDMINIMAX_DEVICES"


def offer_cores() -> None:
    """Ask JAX for one host device a core: now, or as soon as it is imported."""
    wanted = os.environ.get(VARIABLE)
    if wanted is not None and (not wanted.isdigit() or int(wanted) < 1):
        raise InputError(f"{VARIABLE} must be a whole number of at least 1, not {wanted!r}.")
    if "jax" in sys.modules:
        _ask()
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported:
    """Finds JAX where Python does, and asks for the cores after it is loaded.

    fedminimax does not import JAX itself before it is needed, because that takes longer than ``fedminimax --help`` may. The
    variable JAX_NUM_CPU_DEVICES would do as well, but every process that this one starts would inherit it.
    """

    _searching = False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return JAX's spec, with a loader that asks."""
        if fullname != "jax" or self._searching:
            return None
        self._searching = True  # the others are asked, and not this one again
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_ask(module: ModuleType) -> None:
            load(module)
            _ask()

        spec.loader.exec_module = load_and_ask  # type: ignore[method-assign]
        return spec


def _ask() -> None:
    """Ask JAX for one host device a core, unless JAX has started or somebody has said how many there should be."""
    import jax

    wanted = os.environ.get(VARIABLE)
    said = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if wanted is None and (said or getattr(jax.config, "jax_num_cpu_devices", -1) != -1):
        return
    try:
        jax.config.update("jax_num_cpu_devices", int(wanted) if wanted else cores())
    except RuntimeError:  # JAX runs already: one device then, unless the user chose otherwise.
        return


def cores() -> int:
    """Return how many cores this process may use (not every system can tell them from those of the machine)."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


@functools.cache
def compiler_options() -> dict[str, int] | None:
    """Return what XLA is told when it compiles rounds: on CPUs, to use vectors as wide as the processor has.

    Its own choice is half of that where there are 512 bits, as suited processors that slow down when they use them. Random
    words, which are a third of a small round, take two thirds of the time with all of it; large products do not change.
    """
    import jax

    wide = {"xla_cpu_prefer_vector_width": 512}
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda: 0, compiler_options=wide).lower().compile()
    except jax.errors.JaxRuntimeError:  # a version that does not know the option, which is for XLA's developers
        return None
    return wide


def offer_recorded(folder: str | os.PathLike[str]) -> None:
    """Ask for as many devices as runs in a folder were carried out on, where that is more than there are; before JAX starts."""
    said = os.environ.get(VARIABLE, "")
    wanted = [int(said) if said.isdigit() else cores()]
    for found in Path(folder).rglob("run.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):  # whoever reads the folder says what is wrong with it
            wanted.append(int(json.loads(found.read_bytes())["notes"]["layout"]["devices"]))
    if max(wanted) > wanted[0]:
        os.environ[VARIABLE] = str(max(wanted))


def usable(asked: int | None, worthwhile: bool) -> int:
    """Return how many devices a run should use.

    Args:
        asked: what the user asked for; None: all, where it pays.
        worthwhile: whether a round is large enough to be worth splitting.
    """
    import jax

    there = len(jax.local_devices())
    if asked is None:
        return there if worthwhile else 1
    if not 1 <= asked <= there:
        raise InputError(
            f"devices is {asked}, but JAX offers {there}: ask for fewer, or set {VARIABLE} before starting Python."
        )
    return asked
