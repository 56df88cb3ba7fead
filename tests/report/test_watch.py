"""An experiment while it runs."""

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from urllib.request import urlopen

import pytest
from rich.console import Console

import fedminimax as fm
from fedminimax import folders
from fedminimax.report.standing import duration, look
from fedminimax.report.watch import serve, watch


@pytest.fixture
def going(run, tmp_path):
    """One run finished, one at half, one that has not begun."""
    run("A", 0, 0.9, seconds=10.0).write(tmp_path / "runs/A/seed-0")
    run("A", 1, 0.4, rounds=10, wanted=20, status=folders.RUNNING, seconds=5.0).write(tmp_path / "runs/A/seed-1")
    kept = {"format": 1, "version": "0", "name": "live", "labels": ["A"], "seeds": [0, 1, 2], "status": "running"}
    folders.write_json(tmp_path / "experiment.json", kept)
    return tmp_path


def finish(folder, run):
    for seed in (1, 2):
        run("A", seed, 0.8).write(folder / f"runs/A/seed-{seed}")
    kept = folders.read_json(folder / "experiment.json")
    folders.write_json(folder / "experiment.json", {**kept, "status": "finished"})


def test_how_it_stands(going, run):
    standing = look(going)
    assert [(r.seed, r.status, r.rounds, r.wanted) for r in standing.runs] == [
        (0, "finished", 20, 20), (1, "running", 10, 20), (2, "waiting", 0, 20)
    ]  # fmt: skip
    assert standing.runs[1].words == "running, about 5 s left"
    assert standing.words == "1 of 3 runs finished, 50% of the rounds, about 15 s left.", "half a run, and one of 10 s"
    data = standing.payload()
    assert [line["label"] for line in data["lines"]] == ["A", "A, seed 1 (running)"]
    assert data["runs"][1]["newest"]["score"] == "0.4000"
    old = time.time() - 1000
    os.utime(going / "runs/A/seed-1/run.json", (old, old))
    assert "no news for 16 min 40 s: is it still running?" in look(going).runs[1].words
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    (going / "runs/A/seed-1/lock").write_text(f"process {int(gone.stdout)} on {socket.gethostname()}")
    assert look(going).runs[1].words == "its process is gone; it can be resumed"
    (going / "runs/A/seed-1/lock").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    assert look(going).runs[1].words.startswith("running")
    kept = folders.read_json(going / "experiment.json")
    folders.write_json(going / "experiment.json", {**kept, "failed": {"A/seed-2": "no"}})
    assert look(going).runs[2].status == "failed"
    folders.write_json(going / "experiment.json", kept)
    finish(going, run)
    assert look(going).ended
    assert look(going).words == "3 of 3 runs finished; nothing is running any more."


PROGRESS = {"format": 1, "version": "0", "settings": 12, "seeds": 3, "length": 20, "total": 720}


def test_a_search_says_how_far_it_is(going):
    """One row for all its settings and seeds: which are done, and the time that its rounds so far let one expect."""
    kept = folders.read_json(going / "experiment.json")
    folders.write_json(going / "experiment.json", {**kept, "labels": ["A", "B"]})
    search = going / "sweeps" / "B"
    search.mkdir(parents=True)
    assert [(r.label, r.status) for r in look(going).runs][2:] == [("A", "waiting"), ("B", "searching hyper-parameters")]
    (row,) = (r for r in look(going).runs if r.seed is None)
    assert (row.label, row.words, row.stands_for) == ("B", "searching hyper-parameters", 3), "it has only just begun"
    assert look(going).left is None
    told = {"finished": 4, "early": 2, "rounds": 240, "timed": 200, "seconds": 50.0}
    folders.write_json(search / "progress.json", PROGRESS | told)
    (row,) = (r for r in look(going).runs if r.seed is None)
    assert (row.rounds, row.wanted) == (240, 720)
    assert row.words == (
        "searching hyper-parameters: 4 of 12 settings with 3 seeds each done, 2 ended early, about 2 min 00 s left"
    )
    standing = look(going)
    assert standing.share == pytest.approx((20 + 10 + 0 + 240) / (3 * 20 + 720))
    assert standing.words == "1 of 6 runs finished, 35% of the rounds, about 2 min 15 s left."
    assert [r["seed"] for r in standing.payload()["runs"] if r["label"] == "B"] == ["all"]
    out = io.StringIO()
    watch(going, once=True, console=Console(file=out, width=160))
    assert "240 / 720" in out.getvalue()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    for folder in (going, search):
        (folder / "lock").write_text(f"process {int(gone.stdout)} on {socket.gethostname()}")
    assert look(going).words.endswith("its process is gone: fedminimax resume goes on with it.")
    assert [r.words for r in look(going).runs if r.seed is None] == ["its process is gone; it can be resumed"]
    kept = folders.read_json(going / "experiment.json")
    folders.write_json(going / "experiment.json", {**kept, "failed": {"B/sweep": "no"}})
    assert [r.status for r in look(going).runs if r.label == "B"] == ["failed"] * 3


def test_a_search_of_its_own_can_be_watched(tmp_path):
    folders.write_json(tmp_path / "plan.json", {"format": 1, "version": "0"})
    folders.write_json(tmp_path / "progress.json", PROGRESS | {"rounds": 72})
    assert look(tmp_path).words == "0 of 3 runs finished, 10% of the rounds."
    assert not look(tmp_path).ended
    folders.write_json(tmp_path / "sweep.json", {"format": 1, "version": "0", "interrupted": True})
    assert (look(tmp_path).runs[0].words, look(tmp_path).ended) == ("interrupted", True)
    (tmp_path / "lock").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    assert (look(tmp_path).runs[0].status, look(tmp_path).ended) == ("searching hyper-parameters", False), "it goes on"
    folders.write_json(tmp_path / "sweep.json", {"format": 1, "version": "0", "interrupted": False})
    (tmp_path / "progress.json").unlink()
    assert look(tmp_path).words == "1 of 1 runs finished; nothing is running any more."


def test_folders_without_an_experiment_and_runs_half_written(run, tmp_path):
    assert look(tmp_path).words == "No run has begun yet."
    assert not look(tmp_path).ended
    run("A", 0, status=folders.INTERRUPTED).write(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text("{")
    standing = look(tmp_path)
    assert len(standing.runs) == 1
    assert standing.words == "0 of 1 runs finished; none is running just now.", "a script may begin another"
    assert not standing.ended
    old = time.time() - 1000
    os.utime(tmp_path / "a" / "run.json", (old, old))
    assert look(tmp_path).ended
    assert look(tmp_path / "a").ended
    assert standing.left == 0.0


def test_the_live_page_answers_this_machine_only(going):
    with serve(going) as server:
        assert server.address.startswith("http://127.0.0.1:")
        assert "<h1" in urlopen(server.address).read().decode()
        state = json.loads(urlopen(server.address + "state").read())
        assert (state["name"], state["share"], state["ended"]) == ("live", 0.5, False)
        assert urlopen(server.address + "plotly.js").read(4) == b"/**\n"
        port = server.server.server_address[1]
        for path, host, status in (("/etc/passwd", f"127.0.0.1:{port}", 404), ("/state", f"evil.example:{port}", 403)):
            connection = HTTPConnection("127.0.0.1", port)
            connection.request("GET", path, headers={"Host": host})
            assert connection.getresponse().status == status
            connection.close()
        with pytest.raises(fm.InputError, match=f"The port {port} cannot be had"):
            serve(going, port)


def test_watching_ends_when_all_has_ended(going, run):
    out = io.StringIO()
    console = Console(file=out, width=120)
    watch(going, once=True, console=console)
    assert "1 of 3 runs finished" in out.getvalue()
    assert "waiting" in out.getvalue()
    for how in ({"terminal": True}, {"terminal": False, "browser": False}):
        later = threading.Timer(0.2, finish, (going, run))
        later.start()
        watch(going, every=0.05, console=console, **how)
        later.join()
    assert "3 of 3 runs finished" in out.getvalue()
    assert "fedminimax report" in out.getvalue()
    with pytest.raises(fm.InputError, match="There is no folder"):
        watch(going / "nowhere")


def test_durations():
    assert [duration(s) for s in (3.4, 61, 3725)] == ["3 s", "1 min 01 s", "1 h 02 min"]
