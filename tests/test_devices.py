"""What XLA is told when rounds are compiled."""

import jax
import jax.numpy as jnp
import pytest

import fedminimax as fm
from fedminimax import devices
from fedminimax.engines import program
from fedminimax.sweeps import rounds

UNKNOWN = {"xla_cpu_no_such_option": 512}


@pytest.fixture
def task():
    return fm.problems.quadratic(3, examples=2, seed=1)


def test_wide_vectors_are_asked_for_on_cpus_where_xla_knows_how(monkeypatch):
    devices.compiler_options.cache_clear()
    known = devices.compiler_options()
    assert known is not None
    assert jax.jit(lambda x: x + 1, compiler_options=known)(jnp.ones(64)).sum() == 128
    real = jax.jit
    monkeypatch.setattr(jax, "jit", lambda f, compiler_options: real(f, compiler_options=UNKNOWN))
    devices.compiler_options.cache_clear()
    assert devices.compiler_options() is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "jit", None)  # nothing is tried where it means nothing
    devices.compiler_options.cache_clear()
    assert devices.compiler_options() is None
    devices.compiler_options.cache_clear()


def one_run(task):
    return fm.run(task.problem, task.clients, fm.LocalSGDA(0.01, 0.01, local_steps=3), rounds=1, engine=fm.Simulator(devices=1))


def one_sweep(task):
    grid = {"lr_x": [0.01, 0.02]}
    return fm.sweep(task.problem, task.clients, fm.LocalSGDA(0.01, 0.01, local_steps=3), rounds=1, grid=grid)


@pytest.mark.parametrize(("where", "compiled"), [(program, one_run), (rounds, one_sweep)], ids=["runs", "sweeps"])
def test_rounds_are_compiled_with_what_xla_is_told(where, compiled, task, monkeypatch):
    monkeypatch.setattr(where, "compiler_options", lambda: UNKNOWN)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_cpu_no_such_option"):
        compiled(task)
