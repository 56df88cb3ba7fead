"""The command line as a user meets it: in a process of its own."""

import os
import subprocess
import sys

import pytest

import fedminimax as fm

# A folder without files, and a network without a way out: nothing may be fetched by a test.
NOWHERE = {"FEDMINIMAX_DATA": "empty", "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


def call(*arguments, cwd, **env):
    program = "from fedminimax.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
        check=False,
    )


def test_version_and_list(tmp_path):
    assert call("--version", cwd=tmp_path).stdout == f"fedminimax {fm.__version__}\n"
    listed = call("list", cwd=tmp_path, COLUMNS="200")
    assert listed.returncode == 0
    for name in ("FessGDA", "SmoothedGDA", "FedNormSGDAPlus", "wgan", "digits", "cifar10", "dirichlet", "capped_simplex"):
        assert name in listed.stdout
    assert all(len(line.split()) > 2 for line in listed.stdout.splitlines() if line.startswith(("Fed", "Local")))
    shown = {line.split()[0] for line in listed.stdout.splitlines() if len(line.split()) > 2}
    assert {"Value", "Phi", "ClientLoss", "AUC", "InceptionScore", "Consensus", "On"} <= shown, "each metric with a line"


def test_demo_trains_shows_a_table_and_saves_a_figure(tmp_path):
    done = call("demo", "--rounds", "30", "--out", "pictures", cwd=tmp_path, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    for method in ("FESS-GDA", "Local SGDA"):
        average, worst = (float(cell.strip().rstrip("%")) for cell in rows[method].split("│")[2:4])
        assert 100 >= average > 70
        assert average > worst > 0
    picture = tmp_path / "pictures" / "demo.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "rounds/s" not in done.stderr, "no progress bar where nobody looks"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--rounds", "1"], "--rounds is 1, but the demonstration needs at least 5"),
        (["demo", "--out", "a-file"], "--out is a-file, which is a file"),
        (["demo", "--data", "mnits"], "mnits"),
        (["demo", "--data", "mnist"], "FEDMINIMAX_DATA"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, arguments, message):
    (tmp_path / "a-file").write_text("")
    done = call(*arguments, cwd=tmp_path, COLUMNS="200", **NOWHERE)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_debug_shows_where_an_error_came_from(tmp_path):
    done = call("demo", "--rounds", "1", "--debug", cwd=tmp_path)
    assert "Traceback" in done.stderr
    assert "--rounds is 1" in done.stderr


def test_cores_become_devices_unless_told_otherwise(tmp_path):
    script = "import fedminimax, jax; print(len(jax.devices()))"
    run = lambda **env: subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    assert run(FEDMINIMAX_DEVICES="3").stdout.strip() == "3"
    assert "FEDMINIMAX_DEVICES must be a whole number" in run(FEDMINIMAX_DEVICES="many").stderr
