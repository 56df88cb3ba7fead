"""Clients that are not the same in all runs are not averaged, nor set beside each other."""

import base64

import numpy as np

import fedminimax as fm
from fedminimax.folders import Record
from fedminimax.report import Evidence
from fedminimax.report.payload import bars, weights
from fedminimax.report.populations import populations, strangers


def by_seed(runs, label, ends, data=("zero", "one", "two")):
    made = runs(label, ends, clients=6)
    return [Record(**{**one.__dict__, "data": kind}) for one, kind in zip(made, data, strict=True)]


def test_clients_that_differ_by_seed_are_shown_by_seed(runs, tmp_path, data_of):
    records = [*by_seed(runs, "A", [0.9, 0.5, 0.7]), *by_seed(runs, "B", [0.8, 0.4, 0.6])]
    evidence = Evidence.of(records)
    shown = bars(evidence)
    assert [one.title for one in shown] == ["score/each, seed 0", "score/each, seed 1", "score/each, seed 2"]
    for one, end in zip(shown, (0.9, 0.5, 0.7), strict=True):
        np.testing.assert_allclose(one.values["A"], end + np.linspace(-0.2, 0.2, 6))
        assert one.over == "one seed"
        assert set(one.values) == {"A", "B"}, "methods with the same clients stand side by side"
    assert [w["label"] for w in weights(evidence)] == [f"{label}, seed {seed}" for seed in range(3) for label in "AB"]
    (said,) = (note for note in evidence.notes if "clients" in note)
    assert said.startswith("The clients are not the same in all runs (3 kinds of data: seed 0; seed 1; seed 2).")
    page = fm.report(records, tmp_path)
    assert [entry["title"] for entry in data_of(page)["clients"]] == [one.title for one in shown]
    assert "The clients are not the same in all runs" in page.read_text(encoding="utf-8")
    assert [p.name for p in (tmp_path / "figures").glob("*clients*.png")] == ["report_clients_score_each.png"]


def test_the_same_clients_are_averaged(runs):
    known = Evidence.of(by_seed(runs, "A", [0.9, 0.5, 0.7], ("same",) * 3))
    (one,) = bars(known)
    np.testing.assert_allclose(one.values["A"], 0.7 + np.linspace(-0.2, 0.2, 6))
    assert (one.title, one.over) == ("score/each", "the mean over 3 seeds")
    assert not known.notes
    (unsure,) = bars(Evidence.of(runs("A", [0.9, 0.5], clients=6)))
    assert unsure.over == "the mean over 2 seeds, whose clients are taken to be the same"


def test_methods_with_other_clients_are_said_and_not_set_beside_each_other(runs):
    records = [*by_seed(runs, "A", [0.9, 0.5, 0.7], ("x",) * 3), *by_seed(runs, "B", [0.9, 0.5, 0.7], ("y",) * 3)]
    evidence = Evidence.of(records)
    assert strangers(evidence.counted) == ["B"]
    assert any(
        note.startswith("B had other clients, with the same seed, than A: what sets them apart") for note in evidence.notes
    )
    assert [one.title for one in bars(evidence)] == ["score/each, A", "score/each, B"]
    assert [w["label"] for w in weights(evidence)] == ["A", "B"]
    mixed = Evidence.of([*records[:3], *by_seed(runs, "B", [0.9, 0.5, 0.7], ("x", "x", "y"))])
    assert [group.name for group in populations(mixed.counted)] == ["A and B, seeds 0, 1 and 2", "B, seed 2"]


def test_a_run_in_a_folder_knows_its_clients(tmp_path, data_of):
    """Whether it was run, or read again; those of compare are one."""
    each = fm.metrics.ClientLoss(each=True)
    method = fm.ParallelSGDA(0.1, 0.1)
    first, other = fm.problems.quadratic(3, examples=2, noise=0.1), fm.problems.quadratic(3, examples=2, noise=0.1, seed=1)
    for name, task in (("a", first), ("b", first), ("c", other)):
        fm.run(task.problem, task.clients, method, rounds=1, folder=tmp_path / name, seed=ord(name))
    a, b, c = (Record.read(tmp_path / name).data for name in "abc")
    assert a.startswith("3 clients, ")
    assert a == b != c
    curves = fm.compare(first.problem, first.clients, {"A": method}, rounds=1, seeds=(0, 1), metrics=each)
    (entry,) = data_of(fm.report(curves, tmp_path / "page.html", only_page=True))["clients"]
    assert entry["over"] == "the mean over 2 seeds"
    assert len(base64.b64decode(entry["values"]["A"])) == 4 * 3
