"""Compiled programs are kept where they should be, and found again by the next process."""

import os
import subprocess
import sys

import pytest

import fedminimax as fm
from fedminimax import cache

RUN = """
import jax, fedminimax as fm
from jax._src import monitoring
hits = []
monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
task, run = fm.problems.quadratic(3), fm.run
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # it may be compiled sooner than is worth keeping
run(task.problem, task.clients, fm.ParallelSGDA(0.1, 0.1), rounds=2, progress=False)
print(len(hits))
"""


def run(folder):
    env = {**os.environ, "FEDMINIMAX_CACHE": str(folder)}
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_the_next_process_finds_what_was_compiled(tmp_path):
    assert run(tmp_path / "programs") == 0
    assert any((tmp_path / "programs").iterdir())
    assert run(tmp_path / "programs") > 0


def test_off_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMINIMAX_CACHE", "off")
    assert cache.keep_programs() is None
    cache.keep_if_asked()


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(fm.InputError, match="set FEDMINIMAX_CACHE to a folder, or to off"):
        cache.keep_programs(tmp_path / "file" / "programs")


def test_reproduce_keeps_programs_and_its_list_needs_none(monkeypatch):
    from typer.testing import CliRunner

    from fedminimax import cli
    from fedminimax.commands import reproduce

    done = []
    monkeypatch.setattr(cache, "keep_programs", lambda: done.append("kept"))
    monkeypatch.setattr(reproduce, "carry_out", lambda *given: done.append("carried out") or True)
    assert CliRunner().invoke(cli.app, ["reproduce", "--list"]).exit_code == 0
    assert done == []
    assert CliRunner().invoke(cli.app, ["reproduce", "scaff-pd/figure-2"]).exit_code == 0
    assert done == ["kept", "carried out"]
