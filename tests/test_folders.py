"""What a run leaves on disk, and how it is read again."""

import dataclasses
import json

import numpy as np
import pytest

import fedminimax as fm
from fedminimax import folders
from fedminimax.folders import Record


@pytest.fixture
def record():
    return Record(
        label="mine",
        method="FedAvg",
        settings="FedAvg(lr_x=0.1)",
        seed=3,
        rounds=4,
        wanted=8,
        status=folders.RUNNING,
        history={
            "round": np.array([0, 2, 4]),
            "loss": np.array([1 / 3, np.nan, np.inf]),
            "loss/client": np.arange(6.0).reshape(3, 2) / 7,
            "floats_up": np.array([0, 2**53 + 1, 2**60]),
            "waited": np.array([0.0, 0.1, 1e-300]),
        },
        costs=("floats_up", "waited"),
        better={"loss": "lower"},
        hyper={"lr_x": np.float32(0.1), "sizes": np.arange(2)},
    )


def same(a, b):
    for name in (f.name for f in dataclasses.fields(Record)):
        if name in ("history", "folder", "hyper"):
            continue
        assert getattr(a, name) == getattr(b, name), name
    assert list(a.history) == [n for n in a.history if n in b.history]
    for name, values in a.history.items():
        np.testing.assert_array_equal(values, b.history[name], strict=True)


def test_a_record_comes_back_to_the_last_bit(record, tmp_path):
    back = Record.read(record.write(tmp_path / "run"))
    same(record, back)
    assert back.metrics == ["loss"]
    assert list(back.arrays) == ["loss/client"]
    assert back.hyper == {"lr_x": pytest.approx(0.1), "sizes": [0, 1]}


def test_of_a_result(tmp_path):
    task = fm.problems.quadratic(3, examples=4)
    value = fm.metrics.Value()
    result = fm.run(task.problem, task.clients, fm.LocalSGDA(0.1, 0.1, local_steps=1), rounds=2, metrics=value)
    record = Record.of(result, "here", wanted=5)
    assert (record.label, record.status, record.wanted, record.metrics) == ("here", folders.FINISHED, 5, ["value"])
    same(record, Record.read(record.write(tmp_path)))


def test_a_failed_write_leaves_the_old_record(record, tmp_path, monkeypatch):
    record.write(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        dataclasses.replace(record, rounds=8).write(tmp_path)
    same(record, Record.read(tmp_path))
    assert not list(tmp_path.glob(".*"))


def test_runs_are_found_at_any_depth_in_order(record, tmp_path):
    for name in ("b/seed-0", "a/seed-1", "a/seed-0"):
        record.write(tmp_path / name)
    assert [p.relative_to(tmp_path).as_posix() for p in folders.runs_in(tmp_path)] == ["a/seed-0", "a/seed-1", "b/seed-0"]
    with pytest.raises(fm.InputError, match="There is no folder"):
        list(folders.runs_in(tmp_path / "nowhere"))


def test_what_cannot_be_read_is_a_sentence(record, tmp_path):
    with pytest.raises(fm.InputError, match=r"no run\.json"):
        Record.read(tmp_path)
    record.write(tmp_path)
    (tmp_path / "history.csv").write_text("round,loss\n0")
    with pytest.raises(fm.InputError, match="damaged or missing"):
        Record.read(tmp_path)
    kept = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**kept, "format": 99, "version": "9.1"}))
    with pytest.raises(fm.InputError, match=r"written by fedminimax 9\.1, which is later"):
        Record.read(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(fm.InputError, match="cannot be read"):
        Record.read(tmp_path)


def test_the_environment_and_the_log(tmp_path):
    folders.write_environment(tmp_path)
    kept = folders.read_json(tmp_path / "environment.json")
    assert kept["packages"]["numpy"] == np.__version__
    assert kept["version"] == fm.__version__
    folders.log(tmp_path, "It began.")
    folders.log(tmp_path, "It ended.")
    assert [line[21:] for line in (tmp_path / "log.txt").read_text().splitlines()] == ["It began.", "It ended."]
