"""Shared by all tests: two host devices, so that sharding is tested, and float64 on request."""

import os

os.environ.setdefault("FEDMINIMAX_DEVICES", "2")

import jax
import pytest

import fedminimax  # noqa: F401  (asks JAX for the devices before anything starts it)

# Tests compile hundreds of small programs and run each for an instant.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def x64():
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield
