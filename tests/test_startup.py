"""What is imported, and when: each in a process of its own."""

import os
import subprocess
import sys

import pytest

HEAVY = ("pandas", "networkx", "matplotlib", "sklearn", "scipy", "optax", "flax", "pooch", "pydantic", "tomlkit")


def python(script, *arguments, **env):
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("--help", ("init", "run", "resume", "demo", "fair", "predict", "check", "list", "--version")),
        ("--version", ("fedminimax ",)),
    ],
)
def test_the_command_line_answers_without_jax(option, shown):
    script = "import sys, fedminimax.cli\ntry: fedminimax.cli.main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, option], capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in shown)
    loaded = done.stderr.split()
    assert "fedminimax.cli" in loaded
    assert not {"jax", "numpy", "fedminimax.run", *HEAVY} & set(loaded)


def test_a_plain_run_loads_jax_and_little_else(tmp_path):
    script = f"""
import sys
import fedminimax as fm
assert "jax" not in sys.modules
import numpy as np
clients = fm.ClientData.from_list([{{"a": np.ones((2, 1))}}, {{"a": np.zeros((2, 1))}}])
problem = fm.MinimaxProblem(lambda x, y, batch: ((x - batch["a"]) ** 2).mean() - (y**2).sum(), np.ones(1), np.ones(1))
result = fm.run(problem, clients, fm.FessGDA(0.1, 0.1, local_steps=1), rounds=1)
result.save(sys.argv[1])
print([name for name in {HEAVY} if name in sys.modules])
"""
    file = str(tmp_path / "run.fmx")
    assert python(script, file) == "[]\n"
    # Somebody who has imported no method can read what it wrote.
    loaded = python("import sys\nfrom fedminimax.result import Result\nprint(type(Result.load(sys.argv[1]).state))", file)
    assert "fess_gda" in loaded


def test_every_name_is_found_when_it_is_asked_for():
    script = """
import jax, fedminimax.run, fedminimax.sweep, fedminimax.compare  # the modules first
import fedminimax as fm
assert len(jax.devices()) == 3, jax.devices()
assert all(callable(f) for f in (fm.run, fm.sweep, fm.compare)), "functions, and not the modules that hold them"
assert set(fm.__all__) <= set(dir(fm))
names = {}
exec("from fedminimax import *", names)
assert all(names[name] is getattr(fm, name) for name in fm.__all__)
assert callable(fm.fairness.contest)
assert fm.data.federate is fm.data.tabular.federate
for holder in (fm, fm.data):
    try:
        holder.FesGDA
    except AttributeError as error:
        print(error)
"""
    assert python(script, FEDMINIMAX_DEVICES="3").splitlines() == [
        "module 'fedminimax' has no attribute 'FesGDA'",
        "module 'fedminimax.data' has no attribute 'FesGDA'",
    ]
