"""A whole experiment through the command line: one folder, that goes on wherever it was stopped."""

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedminimax as fm
from fedminimax import cli
from fedminimax.commands.experiment import run_file, write_spec
from fedminimax.experiments import execute
from fedminimax.experiments.execute import resume
from fedminimax.experiments.outcome import outcome_of
from fedminimax.folders import Record
from fedminimax.runfolder import locked

SPEC = """\
# The comment stays.
rounds = 6
seeds = 2
eval_every = 2
checkpoint_every = 1

[problem]
name = "fair_classification"
model = "logistic"

[data]
name = "digits"
train = 300
validation = 60
test = 60

[partition]
name = "dirichlet"
clients = 4
alpha = 0.5

[methods.FessGDA]
lr_x = 0.1
lr_y = 0.01
local_steps = 2
batch_size = 8

[methods."with several"]
method = "LocalSGDA"
lr_x = [0.01, 0.1]
lr_y = 0.01
local_steps = 2
batch_size = 8

[metrics.accuracy]
metric = "ClassAccuracy"
on = "test"

[metrics.held]
metric = "ClientAccuracy"
on = "validation"
each = true

[search]
select = "held/mean"
samples = 7
"""


def call(*arguments, cwd):
    """Call the command line in this process, as a user would; return how it left."""
    before = sys.argv, os.getcwd()
    try:
        sys.argv = ["fedminimax", *map(str, arguments)]
        os.chdir(cwd)
        with pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
    return left.value.code or 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The experiment, carried out without a stop."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "spec.toml").write_text(SPEC)
    assert call("run", "spec.toml", cwd=folder) == 0
    return folder / "runs" / "spec"


@pytest.fixture(autouse=True)
def without_reports(monkeypatch):
    """The page and its figures are of another room, and take their time: the one of ``finished`` is enough."""
    monkeypatch.setattr(execute, "_report", lambda home: None)


def same(one, other):
    """Whether two experiments have the same runs, to the last bit."""
    runs = [{(r.label, r.seed): r for r in outcome_of(folder).records} for folder in (one, other)]
    assert runs[0].keys() == runs[1].keys()
    for key, record in runs[0].items():
        again = runs[1][key]
        assert (record.status, record.rounds, record.settings, record.on) == (
            again.status,
            again.rounds,
            again.settings,
            again.on,
        )
        assert record.history.keys() == again.history.keys()
        for name, values in record.history.items():
            np.testing.assert_array_equal(values, again.history[name], err_msg=f"{key} {name}")


def test_the_folder_has_everything(finished):
    known = json.loads((finished / "experiment.json").read_text())
    assert known["labels"] == ["FessGDA", "with several"]
    assert known["seeds"] == [0, 1]
    assert (known["status"], known["failed"]) == ("finished", {})
    assert known["selected_by"] == {"with several": {"metric": "held/mean", "on": "validation"}}
    assert known["command"] == "fedminimax run spec.toml"
    assert (finished / "spec.toml").read_text() == SPEC
    assert (finished / "report.html").is_file()
    assert (finished / "environment.json").is_file()
    assert "finished" in (finished / "log.txt").read_text()
    record = Record.read(finished / "runs" / "FessGDA" / "seed-1")
    assert (record.seed, record.rounds, record.status) == (1, 6, "finished")
    assert record.on["accuracy/worst"] == "test"
    assert record.on["held/each"] == "validation"
    assert record.better["held/mean"] == "higher"
    np.testing.assert_array_equal(record.history["round"], [0, 2, 4, 6])
    assert {r.data for r in outcome_of(finished).records} == {record.data}, "all had the same clients, and say so"
    assert record.data.startswith("4 clients, ")


def test_the_winner_is_the_best_on_held_out_data_and_its_runs_are_runs(finished):
    found = fm.Sweep.load(finished / "sweeps" / "with several")
    best = found.best("held/mean")
    known = json.loads((finished / "experiment.json").read_text())
    assert known["chosen"]["with several"]["setting"] == found.settings[best]
    assert list(found.settings) == [{"lr_x": 0.01}, {"lr_x": 0.1}], "two values, however many samples are wanted"
    order = list(Record.read(finished / "runs" / "FessGDA" / "seed-0").history)
    assert list(Record.read(finished / "runs" / "with several" / "seed-0").history) == order, "and not by the alphabet"
    for place, seed in enumerate((0, 1)):
        record = Record.read(finished / "runs" / "with several" / f"seed-{seed}")
        assert record.notes["from"] == "sweep"
        assert record.hyper["lr_x"] == found.settings[best]["lr_x"]
        np.testing.assert_array_equal(record.history["accuracy/all"], found.history["accuracy/all"][best, place])
        np.testing.assert_array_equal(record.history["held/each"], found.history["held/each"][best, place])


def test_methods_are_compared_on_equal_terms(finished):
    records = outcome_of(finished).records
    first = {(r.label, r.seed): r.history["accuracy/all"][0] for r in records}
    assert len(set(first.values())) == 1  # the same data and the same start for every method and seed


def test_running_it_again_runs_nothing_and_another_is_refused(finished, capsys):
    stamp = lambda: (finished / "runs" / "FessGDA" / "seed-0" / "run.json").stat().st_mtime_ns
    before = stamp()
    assert call("run", "spec.toml", cwd=finished.parent.parent) == 0
    assert stamp() == before
    changes = ["--set", "methods.FessGDA.beta=0.1", "--set", "rounds=8"]
    assert call("run", "spec.toml", *changes, cwd=finished.parent.parent) == 2
    said = capsys.readouterr().err
    assert "rounds was 6, and is 8" in said
    assert "methods.FessGDA.beta is new" in said
    (finished.parent / "other").mkdir()
    (finished.parent / "other" / "thesis.tex").write_text("")
    assert call("run", "spec.toml", "--out", "runs/other", cwd=finished.parent.parent) == 2
    assert "has other files in it" in capsys.readouterr().err


KILLED = """
import os, signal, sys
from fedminimax.experiments import progress
from fedminimax.cli import main

done = progress.Bar.done
rounds = {}
def count(bar, what, more, metric=""):
    rounds[what] = rounds.get(what, 0) + more
    done(bar, what, more, metric)
    if what == "FessGDA, seed 1" and rounds[what] >= 3:
        os.kill(os.getpid(), signal.SIGKILL)

progress.Bar.done = count
main()
"""


def test_killed_and_resumed_it_is_the_same(finished, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    arguments = ["run", "spec.toml", "--out", "here"]
    env = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "here"
    records = outcome_of(folder).records
    assert [(r.label, r.seed) for r in records if r.rounds == 6] == [("FessGDA", 0)]
    result = fm.resume(folder / "runs" / "FessGDA" / "seed-1")  # from Python, with what the spec says
    assert result.rounds == 6
    outcome = resume(folder)
    assert (outcome.status, outcome.failed) == ("finished", {})
    same(finished, folder)


QUICK = """
rounds = 4
eval_every = 2
seeds = 2
[problem]
name = "quadratic"
clients = 4
[methods.fine]
method = "ParallelSGDA"
lr_x = 0.1
lr_y = 0.1
[methods.wild]
method = "ParallelSGDA"
lr_x = 1e30
lr_y = 1e30
[methods.broken]
method = "own.py:Broken"
lr_x = 0.1
lr_y = 0.1
[metrics.Distance]
"""
OWN = """
import fedminimax as fm
from fedminimax.authoring import algorithm


@algorithm
class Broken(fm.ParallelSGDA):
    def round(self, problem, state, clients):
        raise ValueError("I am broken")
"""


def test_interrupted_it_goes_on_run_by_run(tmp_path, monkeypatch, capsys):
    from fedminimax.experiments import progress

    (tmp_path / "spec.toml").write_text(QUICK.partition("[methods.wild]")[0] + "[metrics.Distance]\n")
    assert call("run", "spec.toml", "--out", "whole", cwd=tmp_path) == 0
    done = progress.Bar.done

    def interrupt(bar, what, rounds, metric=""):
        done(bar, what, rounds, metric)
        if what == "fine, seed 0" and rounds:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.Bar, "done", interrupt)
        assert call("run", "spec.toml", "--out", "here", cwd=tmp_path) == 1
    assert "To go on:  fedminimax resume here" in capsys.readouterr().out
    assert outcome_of(tmp_path / "here").status == "interrupted"
    one = tmp_path / "here" / "runs" / "fine" / "seed-0"
    assert Record.read(one).rounds < 4
    assert call("resume", one, cwd=tmp_path) == 0  # that run, and no other
    assert [(r.label, r.seed, r.rounds) for r in outcome_of(tmp_path / "here").records] == [("fine", 0, 4)]
    assert outcome_of(tmp_path / "here").status == "interrupted"  # since the other has not been run
    assert call("resume", "here", cwd=tmp_path) == 0
    same(tmp_path / "whole", tmp_path / "here")


def test_a_table_is_of_runs_that_are_alike(finished):
    outcome = outcome_of(finished)
    assert outcome.table()["runs"].tolist() == [2, 2]
    assert not outcome.table().attrs["notes"]
    cut = {name: values[:2] for name, values in outcome.records[1].history.items()}
    short = dataclasses.replace(outcome.records[1], history=cut, rounds=2, status="interrupted")
    uneven = dataclasses.replace(outcome, records=[outcome.records[0], short, *outcome.records[2:]])
    table = uneven.table()
    assert (table["runs"].tolist(), table["rounds"].tolist()) == ([1, 2], [6, 6])
    assert table.loc["FessGDA", "accuracy/all"] == outcome.records[0].history["accuracy/all"][-1]
    assert "FessGDA has unfinished runs that are not counted (seed 1: interrupted at round 2 of 6)." in table.attrs["notes"]


def pressed(arguments, there, cwd):
    """Press Ctrl-C in a process of its own when a file is there; return its code and what it said."""
    # Processes in the background are started with Ctrl-C ignored: this one is to hear it wherever the tests run.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from fedminimax.cli import main; main()"
    command = [sys.executable, "-c", heard, *arguments]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not there() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, said


SEARCH = """\
rounds = 1000000
[problem]
name = "quadratic"
clients = 3
[methods.plain]
method = "ParallelSGDA"
lr_x = [0.01, 0.02]
lr_y = 0.01
[metrics.Distance]
[search]
select = "Distance/total"
"""


def test_ctrl_c_in_a_search_keeps_it(tmp_path):
    (tmp_path / "spec.toml").write_text(SEARCH)
    progress = tmp_path / "runs" / "spec" / "sweeps" / "plain" / "progress.json"
    begun = lambda: progress.exists() and json.loads(progress.read_text()).get("rounds", 0) > 0
    code, said = pressed(["run", "spec.toml"], begun, tmp_path)
    assert code == 1, said
    assert "To go on:  fedminimax resume runs/spec" in said
    assert "Traceback" not in said
    assert outcome_of(tmp_path / "runs" / "spec").status == "interrupted"
    assert 0 < json.loads(progress.read_text())["rounds"] < 2_000_000
    assert list(progress.parent.glob("parts/*.npz")), "it goes on from there"


def test_ctrl_c_while_the_report_is_written_leaves_the_runs(finished, monkeypatch):
    monkeypatch.undo()  # of the report that is not written

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("fedminimax.report"), "report", interrupt)
    with pytest.warns(UserWarning, match=r"The report was not written \(interrupted\).*fedminimax report .* writes it"):
        outcome = resume(finished)
    assert outcome.status == "finished"


def test_a_run_that_fails_or_diverges_does_not_take_the_others_with_it(tmp_path, capsys):
    (tmp_path / "spec.toml").write_text(QUICK)
    (tmp_path / "own.py").write_text(OWN)
    assert call("run", "spec.toml", "--out", "here", "--seeds", "1", cwd=tmp_path) == 1
    said = capsys.readouterr().out
    assert "broken/seed-0: ValueError: I am broken" in said
    outcome = outcome_of(tmp_path / "here")
    assert outcome.failed == {"broken/seed-0": "ValueError: I am broken"}
    stands = {record.label: record.status for record in outcome.records}
    assert stands["fine"] == "finished"
    assert stands["wild"] == "diverged"
    assert (tmp_path / "here" / "own.py").read_text() == OWN  # so that the folder can be gone on with by itself
    (tmp_path / "own.py").write_text(OWN.replace("broken", "worse"))
    assert call("run", "spec.toml", "--out", "here", "--seeds", "1", cwd=tmp_path) == 2
    assert "own.py has other contents" in capsys.readouterr().err


def test_more_rounds_go_on_where_the_others_ended(tmp_path):
    longer = QUICK.partition("[methods.wild]")[0] + "[metrics.Distance]\n"
    for name, rounds in (("short", 4), ("long", 8)):
        (tmp_path / "spec.toml").write_text(longer.replace("rounds = 4", f"rounds = {rounds}"))
        fm.Experiment.from_toml(tmp_path / "spec.toml").run(tmp_path / name)
    resume(tmp_path / "short", 8)
    same(tmp_path / "long", tmp_path / "short")
    assert "rounds = 8" in (tmp_path / "short" / "spec.toml").read_text()
    with pytest.raises(fm.InputError, match="--rounds is 6, but the experiment has 8"):
        resume(tmp_path / "short", 6)


def test_objects_run_as_their_file_does(tmp_path):
    """The same experiment in Python, once with names and once with objects that no file can describe."""
    task = fm.problems.quadratic(4)
    common = {"rounds": 4, "eval_every": 2, "seeds": 2}
    method = fm.ParallelSGDA(0.1, 0.1)
    named = fm.Experiment(problem={"name": "quadratic", "clients": 4}, methods={"fine": method}, metrics=["Distance"], **common)
    given = fm.Experiment(
        problem=task.problem,
        clients=task.clients,
        methods=[method],
        metrics={"Distance": fm.metrics.Distance(task.solution)},
        **common,
    )
    one, other = named.run(tmp_path / "named"), given.run(tmp_path / "given")
    for mine, theirs in zip(one.records, other.records, strict=True):
        np.testing.assert_array_equal(mine.history["Distance/total"], theirs.history["Distance/total"])
        plain = fm.run(task.problem, task.clients, method, rounds=4, seed=mine.seed, eval_every=2, metrics=task_metrics(task))
        np.testing.assert_array_equal(plain.history["distance/total"], mine.history["Distance/total"])
    assert fm.Experiment.from_toml(tmp_path / "named" / "spec.toml") == named
    assert not (tmp_path / "given" / "spec.toml").exists()
    assert given.run(tmp_path / "given").status == "finished"  # and again, which runs nothing
    with pytest.raises(fm.InputError, match="was begun in Python"):
        resume(tmp_path / "given")
    with locked(tmp_path / "given"), pytest.raises(fm.InputError, match="is being written by process"):
        given.run(tmp_path / "given")
    assert set(one.table().loc["fine"].index) >= {"runs", "Distance/total", "Distance/total (sd)"}
    assert len(one.frame()) == 2 * 3


def task_metrics(task):
    return fm.metrics.Distance(task.solution)


def test_matched_uploads(tmp_path):
    made = fm.Experiment(
        problem={"name": "quadratic", "clients": 8},
        methods={"CDMA": fm.CDMA(0.1, 0.1, cohort_size=4), "CDMAGE": fm.CDMAGE(0.1, 0.1, cohort_size=4)},
        rounds=1,
        match_upload=True,
    )
    assert {line.label: line.floats_up for line in made.outline().lines} == {"CDMA": 28, "CDMAGE": 28}
    assert made.ready.methods["CDMAGE"].algorithm.cohort_size == 2


def test_a_dry_run_says_what_would_be_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "spec.toml").write_text(SPEC)
    assert call("run", "spec.toml", "--dry-run", "--seeds", "5", "--set", "methods.FessGDA.local_steps=3", cwd=tmp_path) == 0
    said = capsys.readouterr().out
    assert "15 runs" in said
    rows = {line.split("│")[1].strip(): [c.strip() for c in line.split("│")[2:-1]] for line in said.splitlines() if "│" in line}
    assert rows["FessGDA"] == ["1", "5", "1", "30", "2,640", "-"]  # 4 clients, 650 parameters and 10 weights each
    assert rows["with several"] == ["2", "10", "1", "60", "2,640", "lr_x"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("data", ["digits", "fashion_mnist"])
def test_init_writes_a_file_that_runs(tmp_path, data, capsys):
    path = tmp_path / "here" / "spec.toml"
    write_spec(path, data)
    text = path.read_text()
    assert data in text
    assert all(line.startswith("#") or "=" in line or line.startswith("[") or not line for line in text.splitlines())
    made = fm.Experiment.from_toml(path)
    assert len(made.plan().methods) == 3
    assert made.plan().spec.chosen_seeds == [0, 1, 2]
    start = text.index("# [metrics.validation]")  # the lines to take marks off
    more = text[:start] + "\n".join(line.removeprefix("#").removeprefix(" ") for line in text[start:].splitlines())
    path.with_name("search.toml").write_text(
        more.replace("lr_x = 0.01", "lr_x = [0.01, 0.03]").replace("lr_x = 0.1", "lr_x = [0.1]")
    )
    assert fm.Experiment.from_toml(path.with_name("search.toml")).plan().spec.search.select == "validation/worst20"
    with pytest.raises(fm.InputError, match="is there already"):
        write_spec(path, data)
    with pytest.raises(fm.InputError, match="choose one of digits, fashion_mnist"):
        write_spec(tmp_path / "a.toml", "cifar10")
    if data == "digits":
        assert run_file(path, [], None, dry_run=True)  # all is read, made and traced, and nothing compiled
        assert "9 runs" in capsys.readouterr().out


def test_folders_that_are_none(tmp_path):
    with pytest.raises(fm.InputError, match="There is no folder"):
        resume(tmp_path / "nowhere")
    with pytest.raises(fm.InputError, match="is not the folder of an experiment"):
        resume(tmp_path)
