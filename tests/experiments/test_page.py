"""What docs/experiments.md shows is read, called and run as it stands."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

import fedminimax as fm
from fedminimax import cli
from fedminimax.experiments import execute
from fedminimax.experiments.experiment import Experiment
from fedminimax.experiments.writing import write
from fedminimax.folders import Record, runs_in

PAGE = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, flags=re.S | re.M)


WHOLE, *PARTS = blocks("toml")


def test_every_table_that_it_shows_is_right(tmp_path):
    own, _ = blocks("python")
    (tmp_path / "own.py").write_text(own)
    base = tomllib.loads(WHOLE)
    Experiment.from_text(WHOLE).plan()
    for part in PARTS:
        tables = tomllib.loads(part)
        whole = {"rounds": 20} | ({} if "problem" in tables else base) | tables
        made = Experiment.from_text(write(whole), folders=[tmp_path])
        assert made.tables == whole
        if "own.py" in part:
            assert made.ready.columns == {"length": ()}


def test_the_mistakes_that_it_shows_are_told_so(tmp_path):
    shown = next(block for block in blocks("text") if "did you mean" in block)
    wrong = WHOLE.replace("lr_x = 0.1\n", "lrx = 0.1\n", 1).replace('on = "test"', 'on = "tests"')
    with pytest.raises(fm.InputError) as caught:
        Experiment.from_text(wrong, "spec.toml")
    assert str(caught.value) == shown.strip()


def test_its_commands_do_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(line):
        monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code, line
        return capsys.readouterr().out

    lines = [line for block in blocks("sh") for line in block.splitlines()]
    for line in lines:
        said = call(line)
        if line.startswith("fedminimax init"):  # whose file is the longer one, and of which another test runs a part
            (tmp_path / "spec.toml").write_text(WHOLE)
        elif line.startswith("fedminimax run") and "--dry-run" not in line:
            assert Path("runs/spec/report.html").is_file()
            monkeypatch.setattr(execute, "_report", lambda home: None)  # once is enough
        elif "--dry-run" in line:
            assert ("10 runs" if "--seeds 5" in line else "4 runs") in said
    assert [Record.read(folder).rounds for folder in runs_in("runs/spec")] == [20] * 4
    assert not Path("runs/five").exists()


def test_its_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, script = blocks("python")
    names = {}
    monkeypatch.setattr(execute, "_report", lambda home: None)
    exec(script, names)
    said = capsys.readouterr().out
    assert "'lr_x':" in said
    assert names["outcome"].table().loc["slow", "runs"] == 2
