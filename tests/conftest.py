"""Shared by all tests: two host devices, so that sharding is tested, float64 on request, and programs that compile fast."""

import ctypes
import gc
import os
import sys
import tempfile
from importlib.metadata import version

os.environ.setdefault("FEDMINIMAX_DEVICES", "2")
os.environ.setdefault("FEDMINIMAX_CACHE", "off")  # what a test compiles is no other's business
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # of processes that tests start, too

if sys.dont_write_bytecode:
    # Every process would parse all of JAX anew, three of its four seconds: what is parsed goes to a folder apart instead.
    parsed = tempfile.TemporaryDirectory(prefix="fedminimax-tests-")  # gone with the first process, which all others come from
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = parsed.name
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests compile hundreds of small programs and run each for an instant. This emitter makes faster code and takes three times as
# long, and thirty-two parts of a program, each compiled by a thread of its own, take a fifth more than one. The flags are for
# XLA's developers, and one that a version does not know ends the process: so only where they were tried.
if tuple(int(part) for part in version("jaxlib").split(".")[:2]) == (0, 10):
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()

import jax
import psutil
import pytest

import fedminimax  # noqa: F401  (asks JAX for the devices before anything starts it)

gc.freeze()  # what was imported stays, and need not be looked through again and again
gc.set_threshold(100_000, 20, 20)


QUICK = {
    "test_rooms", "test_sets", "test_sets_cases", "test_penalty_cases", "test_sampling", "test_wire", "test_trace",
    "test_execution", "test_observers", "test_run", "test_sweep", "test_network", "test_clients", "test_partition",
    "test_identities", "test_theory", "test_quality",
}  # fmt: skip
"""Modules for daily work: one of every room, and together about a minute on two cores. ``pytest -m quick -n 2`` runs them."""


def pytest_collection_modifyitems(items):
    """Mark what is quick."""
    for item in items:
        if item.path.stem in QUICK:
            item.add_marker(pytest.mark.quick)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a module's tests to one process, and in the contract suite a row's: they share what was compiled for the first."""
    from xdist.scheduler import LoadScopeScheduling

    class ByRow(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            module, _, test = nodeid.partition("::")
            row = test.partition("[")[2].rpartition("-")[0]
            return row or module if module.endswith("test_contract.py") else module

    return ByRow(config, log)


MOST_MEMORY = 2 * 2**30
"""Bytes above which a process of tests forgets what it has compiled: kept to the end, that is more than 6 GB a process."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End a module as it began, in float32: a study that is read decides over it. Give memory back, now and then."""
    if nextitem is None or nextitem.path != item.path:
        jax.config.update("jax_enable_x64", False)
    if psutil.Process().memory_info().rss > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":  # what is free goes back to the system only when it is asked for
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def x64():
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _methods_of_a_test():
    """Forget the methods that a test has defined: the list of methods is everybody's."""
    from fedminimax.algorithms import ALGORITHMS

    before = set(ALGORITHMS)
    yield
    for name in set(ALGORITHMS) - before:
        del ALGORITHMS[name]
