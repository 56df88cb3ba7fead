"""The command line as a user meets it: in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import time

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


def test_demo_shows_whom_the_methods_serve_and_ends_in_a_report(tmp_path):
    done = call("demo", "--rounds", "20", "--seeds", "2", "--out", "here", cwd=tmp_path, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    number = lambda cell: float(cell.strip().rstrip("%").split(" ± ")[0])
    average, worst = ({name: number(line.split("│")[k]) for name, line in rows.items()} for k in (2, 3))
    assert set(rows) == {"SCAFF-PD", "FedAvg", "DRFA", "pooled (not federated)"}
    assert all(100 >= average[name] > worst[name] > 0 for name in rows)
    assert worst["SCAFF-PD"] > worst["FedAvg"] + 5, "it must show something"
    page = (tmp_path / "here" / "report.html").read_text()
    assert "Fair to the worst client" in page
    assert sorted(p.parent.name for p in (tmp_path / "here" / "runs").glob("*/seed-1")) == ["DRFA", "FedAvg", "SCAFF-PD"]
    assert "rounds/s" not in done.stderr, "no progress bar where nobody looks"
    other = call("demo", "--rounds", "20", "--split", "1", "--out", "here", cwd=tmp_path, COLUMNS="300")
    assert other.returncode == 2
    assert "holds another run" in other.stderr


def test_ctrl_c_ends_the_demonstration(tmp_path):
    """It compares nothing then: neither the next method nor a table of runs of different lengths."""
    # Processes in the background are started with Ctrl-C ignored: this one is to hear it wherever the tests run.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from fedminimax.cli import main; main()"
    command = [sys.executable, "-c", heard, "demo", "--rounds", "1000000", "--out", "here"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not (tmp_path / "here/runs/SCAFF-PD/seed-0/run.json").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1, said
    assert re.search(r"Interrupted in SCAFF-PD, seed 0, after \d+ of\s1000000 rounds: the same command", said)
    assert "Test accuracy" not in said
    assert "Traceback" not in said
    assert [p.name for p in (tmp_path / "here/runs").iterdir()] == ["SCAFF-PD"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init", "a-file/spec.toml"], "The folder a-file cannot be made (File exists): give another place."),
        (["run", "[none].toml"], "There is no file [none].toml: give the path of a spec; fedminimax init writes one."),
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
