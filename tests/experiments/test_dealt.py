"""An experiment over real processes of this machine: dealt out, one of them killed, interrupted, and on a mesh."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.experiments.execute import resume
from fedminimax.experiments.outcome import outcome_of

SPEC = """\
rounds = 40
seeds = 2
eval_every = 10
checkpoint_every = 1

[problem]
name = "quadratic"
clients = 4
examples = 5
noise = 0.3

[methods.plain]
method = "LocalSGDA"
lr_x = 0.02
lr_y = 0.02
batch_size = 2

[methods.tried]
method = "LocalSGDA"
lr_x = [0.001, 0.005, 0.01, 0.02]
lr_y = 0.02
batch_size = 2

[metrics.Distance]

[search]
select = "Distance/total"
halving = {factor = 2, rungs = 1}
"""


def started(arguments, cwd, patience=3):
    """Begin two processes through the command line, which hear Ctrl-C wherever the tests run."""
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from fedminimax.cli import main; main()"
    command = [sys.executable, "-c", heard, "launch", "--processes", "2", "--patience", str(patience), *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process, timeout=120):
    """Wait for its end; return its code and what was said."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.terminate()
    return process.returncode, out, err


def until(there, process, seconds=90):
    """Wait for something to be there while a process goes on."""
    end = time.monotonic() + seconds
    while not there() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    assert there()


def same(one, other, **close):
    """Whether two experiments have the same runs: to the last bit, or as close as is said."""
    runs = [{(r.label, r.seed): r for r in outcome_of(folder).records} for folder in (one, other)]
    assert runs[0].keys() == runs[1].keys()
    for key, record in runs[0].items():
        again = runs[1][key]
        assert (record.status, record.rounds, record.settings) == (again.status, again.rounds, again.settings)
        for name, values in record.history.items():
            if close:
                np.testing.assert_allclose(values, again.history[name], **close)
            else:
                np.testing.assert_array_equal(values, again.history[name], err_msg=f"{key} {name}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The experiment over two processes, never stopped; and what was printed."""
    place = tmp_path_factory.mktemp("whole")
    (place / "spec.toml").write_text(SPEC)
    code, out, err = ended(started(["spec.toml", "--out", "here"], place))
    assert code == 0, err
    return place / "here", out, err


def test_two_processes_do_what_one_does(whole, tmp_path):
    folder, out, _ = whole
    alone = fm.Experiment.from_text(SPEC).run(tmp_path / "alone", report=False)
    same(alone.folder, folder, rtol=2e-5, atol=1e-6)
    for seed in range(2):  # to the last bit, where the same program ran
        first, second = (place / "runs" / "plain" / f"seed-{seed}" / "history.csv" for place in (alone.folder, folder))
        assert first.read_bytes() == second.read_bytes()
    one, two = (fm.Sweep.load(place / "sweeps" / "tried") for place in (alone.folder, folder))
    np.testing.assert_allclose(one.history["Distance/total"], two.history["Distance/total"], rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(one.rounds_run, two.rounds_run)  # the same were ended early
    assert out.count("Report: here/report.html") == 1, "process 0 prints, and nobody else"
    assert json.loads((folder / "processes" / "1.json").read_text())["tried"] == {"plain/seed-1": None}
    assert json.loads((folder / "sweeps" / "tried" / "plan.json").read_text())["at_once"] == {"0": 4}


def test_a_process_that_is_killed_costs_its_share_which_is_done_on_resume(whole, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    folder = tmp_path / "here"
    process = started(["spec.toml", "--out", "here"], tmp_path)
    until(lambda: list(folder.glob("runs/plain/seed-1/checkpoints/*/checkpoint.json")), process)
    victim = json.loads((folder / "processes" / "1.json").read_text())["pid"]
    os.kill(victim, signal.SIGKILL)
    code, out, err = ended(process)
    assert code == 1
    assert re.search(rf"lost: Process 1 \(pid {victim} on .*\) was lost: .*start the same again", out), out + err
    assert "To go on:  fedminimax resume here" in out
    assert f"Process 1 (pid {victim}) was ended by signal 9." in err
    outcome = outcome_of(folder)
    assert (outcome.status, outcome.failed) == ("interrupted", {})
    assert {(r.label, r.seed): r.status for r in outcome.records}[("plain", 0)] == "finished"
    assert not (folder / "sweeps" / "tried" / "sweep.json").exists()
    shutil.copytree(folder, tmp_path / "by two")
    outcome = resume(folder, report=False)
    assert (outcome.status, outcome.lost) == ("finished", ())
    same(whole[0], folder)
    code, out, err = ended(started(["by two"], tmp_path))
    assert code == 0, err
    same(whole[0], tmp_path / "by two")


LONG = SPEC.replace("rounds = 40", "rounds = 1000000").replace("eval_every = 10", "eval_every = 1000")


def test_ctrl_c_is_passed_on_once_and_everything_is_kept(tmp_path):
    (tmp_path / "spec.toml").write_text(LONG.replace("[methods.plain]", "[methods.a_plain]"))
    process = started(["spec.toml"], tmp_path, patience=10)
    runs = tmp_path / "runs" / "spec" / "runs" / "a_plain"
    until(lambda: all(list(runs.glob(f"seed-{k}/checkpoints/*/checkpoint.json")) for k in range(2)), process)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 1
    assert "Traceback" not in err
    assert out.count("To go on:  fedminimax resume runs/spec") == 1
    outcome = outcome_of(tmp_path / "runs" / "spec")
    assert outcome.status == "interrupted"
    assert [record.status for record in outcome.records] == ["interrupted"] * 2, "each saved its own"


def test_on_a_mesh_every_run_is_of_all_processes(tmp_path):
    text = (
        SPEC.partition("[methods.tried]")[0].replace("rounds = 40", "rounds = 6").replace("eval_every = 10", "eval_every = 3")
    )
    (tmp_path / "spec.toml").write_text(text + "[metrics.ClientLoss]\n")
    code, out, err = ended(started(["spec.toml", "--set", "engine=mesh", "--out", "mesh"], tmp_path, patience=20))
    assert code == 0, err
    assert out.count("Report: mesh/report.html") == 1
    alone = fm.Experiment.from_toml(tmp_path / "spec.toml").run(tmp_path / "alone", report=False)
    same(alone.folder, tmp_path / "mesh", rtol=1e-5)
    assert not (tmp_path / "mesh" / "processes").exists()
