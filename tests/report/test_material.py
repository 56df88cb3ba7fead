"""What reports are made from: folders, several of them, results in memory."""

import dataclasses

import numpy as np
import pytest

import fedminimax as fm
from fedminimax import folders
from fedminimax.report import gather


def labels(material):
    return [(record.label, record.seed) for record in material.records]


def test_an_experiments_folder(experiment):
    found = gather(experiment)
    assert found.labels == ["A", "B & <b>co</b>"], "in the order of the spec"
    assert found.name == "Silos"
    (source,) = found.sources
    assert source.command == "fedminimax run silos.toml --seeds 3"
    assert source.environment["packages"]["numpy"] == np.__version__
    assert source.missing == 0
    assert [path.name for _, path in found.pictures] == ["samples.png"]
    alone = gather(experiment / "runs" / "1" / "seed-2")
    assert labels(alone) == [("A", 2)]


def test_what_is_called_alike_in_two_folders_is_told_apart(run, tmp_path):
    for place in ("x/one", "y/one", "z"):
        run("A", 0).write(tmp_path / place / "A" / "seed-0")
    run("B", 0).write(tmp_path / "z" / "B")
    found = gather([tmp_path / "x" / "one", tmp_path / "z"])
    assert found.labels == ["A (one)", "A (z)", "B"]
    assert gather([tmp_path / "x" / "one", str(tmp_path / "y" / "one")]).labels == ["A (x/one)", "A (y/one)"]
    with pytest.raises(fm.InputError, match="is given twice"):
        gather([tmp_path / "z", tmp_path / "z"])


def test_the_same_seed_twice_is_two_methods(run, tmp_path):
    for place in ("lr-1/seed-0", "lr-1/seed-1", "lr-2/seed-0"):
        run("A", int(place[-1])).write(tmp_path / place)
    assert labels(gather(tmp_path)) == [("A (lr-1)", 0), ("A (lr-1)", 1), ("A (lr-2)", 0)]
    assert labels(gather([run("A", 0), run("A", 0), run("B", 0)])) == [("A", 0), ("A (2)", 0), ("B", 0)]


def test_a_damaged_run_is_left_out_and_said(run, tmp_path):
    run("A", 0).write(tmp_path / "a")
    run("A", 1).write(tmp_path / "b")
    (tmp_path / "b" / "history.csv").write_text("round,score\n0")
    found = gather(tmp_path)
    assert labels(found) == [("A", 0)]
    assert "damaged or missing. It is left out." in found.notes[0]
    with pytest.raises(fm.InputError, match="damaged or missing"):
        gather(tmp_path / "b")


def test_what_cannot_be_reported_is_a_sentence(tmp_path, run):
    with pytest.raises(fm.InputError, match="There is no folder"):
        gather(tmp_path / "nowhere")
    with pytest.raises(fm.InputError, match="There is no run in"):
        gather(tmp_path)
    with pytest.raises(fm.InputError, match="nothing to report"):
        gather([])
    for wrong in (3, [3], {"A": [3]}):
        with pytest.raises(fm.InputError, match="made of folders or results, not of int"):
            gather(wrong)
    with pytest.raises(fm.InputError, match="must be 'lower' or 'higher'"):
        gather([run("A")], better={"score": "up"})


@pytest.fixture(scope="module")
def result():
    task = fm.problems.quadratic(3, examples=4)
    return fm.run(
        task.problem, task.clients, fm.LocalSGDA(0.1, 0.1, local_steps=1), rounds=2, metrics=[fm.metrics.ClientLoss(each=True)]
    )


def test_results_in_memory(result):
    again = dataclasses.replace(result, seed=1)
    for what in (result, [result], {"LocalSGDA": result}, {"LocalSGDA": [result, again]}):
        assert gather(what).labels == ["LocalSGDA"]
    curves = fm.Curves({"mine": [result, again], "yours": [result]}, {})
    found = gather(curves)
    assert labels(found) == [("mine", 0), ("mine", 1), ("yours", 0)]
    assert found.name == "mine and yours"
    # What the library's own metrics say of themselves is known without the objects.
    assert found.records[0].better["client_loss/mean"] == "lower"
    assert found.records[0].better["client_loss/each"] == "lower"
    assert gather(result, better={"client_loss/mean": "higher"}).records[0].better["client_loss/mean"] == "higher"


def test_a_sweep_in_memory_brings_its_best_setting():
    t, loss = np.array([0, 5, 10]), np.array([[[3.0, 2.0, 1.0]] * 2, [[3.0, 1.0, 0.5]] * 2])
    sweep = fm.Sweep("FedAvg", [{"lr_x": 0.1}, {"lr_x": 0.2}], [0, 4], {"round": t, "loss": loss}, {"loss": "lower"})
    found = gather(sweep)
    assert labels(found) == [("FedAvg", 0), ("FedAvg", 4)]
    assert found.records[0].history["loss"].tolist() == [3.0, 1.0, 0.5]
    assert found.records[0].hyper == {"lr_x": 0.2}
    assert list(found.sweeps) == ["FedAvg"]


def test_a_sweeps_folder_and_one_in_an_experiment(run, tmp_path):
    t, loss = np.array([0, 5, 10]), np.array([[[3.0, 2.0, 1.0]], [[3.0, 1.0, 0.5]]])
    sweep = fm.Sweep("FedAvg", [{"lr_x": 0.1}, {"lr_x": 0.2}], [0], {"round": t, "loss": loss}, {"loss": "lower"})
    sweep.save(tmp_path / "sweeps" / "mine")
    alone = gather(tmp_path / "sweeps" / "mine")
    assert alone.labels == ["mine"]
    assert alone.records[0].history["loss"].tolist() == [3.0, 1.0, 0.5], "the best setting's runs"
    run("mine", 0).write(tmp_path / "runs" / "mine" / "seed-0")
    both = gather(tmp_path)
    assert list(both.sweeps) == ["mine"]
    assert both.records[0].metrics == ["score", "loss"], "the runs themselves, where they are there"
    assert list(gather([tmp_path, tmp_path / "sweeps"]).sweeps) == [f"mine ({tmp_path.name})", "mine (sweeps)"]


def test_runs_that_failed_or_never_began_are_said(run, tmp_path):
    run("A", 0).write(tmp_path / "runs" / "A" / "seed-0")
    kept = {"labels": ["A", "B"], "seeds": [0, 1], "failed": {"B/seed-0": "ValueError:\n no"}}
    folders.write_json(tmp_path / "experiment.json", {"format": 1, "version": "0", **kept})
    found = gather(tmp_path)
    folders.write_json(tmp_path / "environment.json", {"format": 1, "version": "0", "command": "mine.py --fast"})
    assert gather(tmp_path).sources[0].command == "python mine.py --fast"
    assert found.notes == ["B/seed-0 failed: ValueError: no"]
    assert found.sources[0].missing == 3
