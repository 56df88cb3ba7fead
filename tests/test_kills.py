"""``kill -9``: of methods after seven rounds, and of three methods at random moments.

Of the methods every third is killed, and one of each kind; with ``FEDMINIMAX_ALL=1`` every one.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "algorithms"))
from roster import CLASSES, KINDS

EVERY = 1 if os.environ.get("FEDMINIMAX_ALL") else 3
NAMES = list(dict.fromkeys(row.name for row in [*KINDS, *[*CLASSES.values()][::EVERY]]))
HERE = Path(__file__).parent


def child(command, place, **options):
    """Begin a process that has the tests' settings, and keeps what it compiles for the next one."""
    script = (
        "import jax, pathlib, sys, warnings\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "warnings.simplefilter('ignore')\n"
        "import killing\n"
        f"killing.{command}"
    )
    paths = os.pathsep.join([str(HERE), str(HERE / "algorithms"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": paths, "FEDMINIMAX_CACHE": str(place / "programs")}
    return subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """What differs, by method: all are begun in one process, which is killed, and resumed in another."""
    place = tmp_path_factory.mktemp("killed")
    runs = f"(pathlib.Path({str(place)!r}), {NAMES})"
    with child(f"hang{runs}", place) as victim:
        assert victim.stdout.readline() == "all hang\n"
        victim.send_signal(signal.SIGKILL)
    assert victim.returncode == -signal.SIGKILL
    with child(f"survivors{runs}", place) as heir:
        found = dict(json.loads(line) for line in heir.stdout)
    assert heir.returncode == 0
    logs = {name: (place / name / "log.txt").read_text() for name in NAMES}
    return {name: (found[name], logs[name]) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_is_killed_after_seven_rounds_ends_as_if_it_had_not_been(verdicts, name):
    differs, log = verdicts[name]
    assert not differs
    assert "Going on after 7 of 20 rounds" in log


def test_runs_that_are_killed_at_random_moments_end_as_if_they_had_not_been(tmp_path):
    """Two kills here; ``python tests/killing.py 20`` kills as often as it is told to."""
    with child(f"main(pathlib.Path({str(tmp_path)!r}), 2)", tmp_path) as process:
        told = process.stdout.read()
    assert process.returncode == 0
    assert told.count("killed after rounds") == 2
    assert told.count(": the same") == 3, told
    assert "Going on after" in told
