"""Processes that meet in a folder: who is there, who is lost, and what each leaves for the others."""

import json
import sys
import threading
import time

import pytest

from fedminimax import crew, distributed
from fedminimax.commands import launch
from fedminimax.crew import Crew, Ended, Failed, Missing
from fedminimax.distributed import Place
from fedminimax.errors import InputError

LAUNCHED = ("FEDMINIMAX_PROCESSES", "FEDMINIMAX_PROCESS", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_NTASKS",
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")  # fmt: skip


def pair(folder, patience=0.5):
    return Crew(Place(0, 2, patience), folder), Crew(Place(1, 2, patience), folder)


def test_shares_are_dealt_in_turn_and_a_process_alone_has_all_of_them(tmp_path):
    zero, one = pair(tmp_path)
    assert [(zero.mine(k), one.mine(k)) for k in range(3)] == [(True, False), (False, True), (True, False)]
    with Crew(Place(), tmp_path / "alone") as alone:
        assert all(alone.mine(k) for k in range(3))
        alone.say(anything=True)
        alone.begin()
    assert not (tmp_path / "alone").exists(), "and leaves no trace"


def test_they_begin_together_whoever_is_first_and_whatever_an_earlier_start_left(tmp_path):
    for k, left in enumerate(({"began": True, "ended": "", "knows": {"1": "old"}}, {"done": True})):
        (tmp_path / "processes").mkdir(exist_ok=True)
        (tmp_path / "processes" / f"{k}.json").write_text(json.dumps({"token": "old", "beat": 3, **left}))
    zero, one = pair(tmp_path, patience=5)
    with one:
        assert one.facts(0) == {}, "an earlier process 0 does not count"
        begun = threading.Timer(0.3, lambda: (zero.__enter__(), zero.begin()))
        begun.start()
        one.begin()
        begun.join()
        assert "done" not in zero.facts(1)
        assert zero.beside == 2
        one.say(done=True)
        assert zero.wait(lambda: zero.facts(1).get("done"), 1)
        zero.__exit__(None, None, None)
        assert one.wait(lambda: "ended" in one.facts(0) or None, 0)
        assert one.facts(0)["ended"] == ""


def test_who_is_silent_is_named_and_who_ends_or_fails_says_why(tmp_path):
    zero, one = pair(tmp_path)
    with zero:
        with pytest.raises(Missing, match=r"Process 1 \(of which there is no sign in .*processes\) was lost.*go"):
            zero.wait(lambda: None, 1)
        with one:
            one.leave("search", ValueError("out of luck"))
            with pytest.raises(Failed, match=r"Process 1 \(pid \d+ on .*\) failed: ValueError: out of luck"):
                zero.wait(lambda: None, 1, "search")
            one.leave("search", Missing("Process 2 (pid 7 on there) was lost."))
            with pytest.raises(Missing, match=r"^Process 2 "):
                zero.wait(lambda: None, 1, "search")
        with pytest.raises(Ended, match="ended before its share was done"):
            zero.wait(lambda: None, 1)
        assert zero.wait(lambda: "left there before", 1) == "left there before"
    silent = Crew(Place(1, 2, 0.5), tmp_path)
    with zero.__class__(Place(0, 2, 0.5), tmp_path) as again:
        silent.say()
        began = time.monotonic()
        with pytest.raises(Missing, match=r"Process 1 \(pid .*not been heard of"):
            again.wait(lambda: None, 1)
        assert 0.3 < time.monotonic() - began < 5


def test_runs_that_are_dealt_out_need_a_folder(monkeypatch):
    monkeypatch.setattr(distributed, "_APART", [Place(0, 2)])
    with pytest.raises(InputError, match="give folder="), crew.gathered(None):
        pass


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"FEDMINIMAX_PROCESSES": "4", "FEDMINIMAX_PROCESS": "3"}, (3, 4)),
        ({"FEDMINIMAX_PROCESSES": "1"}, (0, 1)),
        ({"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (5, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # the batch script itself, which srun did not start
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3)),
    ],
)
def test_launchers_are_known_by_what_they_set(variables, found, monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "_APART", [])
    assert distributed.launched() == found
    place = distributed.apart()
    assert (place.process, place.processes) == (found or (0, 1))
    assert distributed.leads() == (place.process == 0)


def test_a_number_without_the_others_and_one_too_many_are_said(monkeypatch):
    monkeypatch.setattr(distributed, "_APART", [])
    monkeypatch.setenv("FEDMINIMAX_PROCESSES", "4")
    monkeypatch.delenv("FEDMINIMAX_PROCESS", raising=False)
    with pytest.raises(InputError, match="needs both FEDMINIMAX_PROCESSES and FEDMINIMAX_PROCESS"):
        distributed.apart()
    with pytest.raises(InputError, match="no process 2 of 2"):
        distributed.apart(2, 2)
    with pytest.raises(InputError, match="give both, or neither"):
        distributed.apart(2)


def test_what_is_launched_follows_from_what_is_named(tmp_path, monkeypatch):
    spec, script = tmp_path / "spec.toml", tmp_path / "script.py"
    spec.write_text("rounds = 3\n")
    script.write_text("")
    given = lambda *arguments: launch._command([str(a) for a in arguments])
    assert given(script, "--fast") == ([sys.executable, str(script), "--fast"], False)
    run = [sys.executable, "-m", "fedminimax", "run", str(spec)]
    assert given(spec, "--out", "here") == ([*run, "--out", "here"], True)
    assert given(spec, "--set", "engine=mesh") == ([*run, "--set", "engine=mesh"], False)
    assert given(spec, '--set=engine={name="mesh"}')[1] is False
    spec.write_text('engine = {mesh = "map"}\n')
    assert given(spec)[1] is False
    (tmp_path / "experiment.json").write_text("{}")
    (tmp_path / "runs" / "a" / "seed-0").mkdir(parents=True)
    one = tmp_path / "runs" / "a" / "seed-0"
    (one / "spec.toml").write_text("")
    assert given(one) == ([sys.executable, "-m", "fedminimax", "resume", str(one)], False)
    with pytest.raises(InputError, match=r"There is no .*nothing\.toml"):
        given(tmp_path / "nothing.toml")
