"""The catalogue: every item can be read, its experiments can be planned at all scales, and it runs at the smallest."""

import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import fedminimax as fm
from fedminimax.data import datasets
from fedminimax.problems.personalized_quadratic import ill_conditioned
from fedminimax.reproductions import Item, find, items, reproduce
from fedminimax.reproductions.conduct import PAGE, SUMMARY
from fedminimax.reproductions.item import SCALES, extended, merged
from fedminimax.reproductions.page import columns, end

NAMES = sorted(items())
saved = Figure.savefig


def test_there_are_items_and_a_wrong_name_is_told_its_nearest():
    assert "scaff-pd/figure-2" in NAMES
    with pytest.raises(fm.InputError, match=r"no 'scaff-pd/figur-2' to reproduce \(did you mean 'scaff-pd/figure-2'\?\)"):
        find("scaff-pd/figur-2")
    with pytest.raises(fm.InputError, match="no scale 'tiny': choose small, paper, smoke"):
        find("scaff-pd/figure-2").experiments("tiny")


def test_changes_are_merged_table_by_table():
    base = {"rounds": 10, "model": {"name": "mlp", "hidden": [3]}, "methods": {"A": {"lr": 1}, "B": {}}}
    changes = {"rounds": 5, "model": {"name": "linear"}, "methods": {"A": {"K": 2}, "B": False}}
    assert merged(base, changes) == {"rounds": 5, "model": {"name": "linear"}, "methods": {"A": {"lr": 1, "K": 2}}}
    assert base["rounds"] == 10
    assert merged(base, {"methods": {"*": {"K": 3}, "B": {"K": 4}}})["methods"] == {"A": {"lr": 1, "K": 3}, "B": {"K": 4}}


def test_what_is_expected_of_methods_that_a_scale_leaves_out_is_not_looked_at():
    whole = find("cd-mage/figure-1")
    item = whole.model_copy(update={"smoke": {"methods": {"CD-MAGE+": False, "CD-MA": False, "CODASCA": {"lr_x": 1.0}}}})
    assert item.expected("small") == item.expect
    left = item.expected("smoke")
    kinds = {"CD-MAGE": ["lead", "bound", "bound"], "CD-MAGE, one cohort": ["lead"]}  # on test data CD-MA was the rival
    assert {m: ["lead" if one.than else "bound" for one in left if one.method == m] for m in (o.method for o in left)} == kinds
    assert left[0].than == [name for name in item.expect[0].than if name != "CD-MA"]
    none = item.model_copy(update={"smoke": {"methods": dict.fromkeys(item.expect[0].than, False)}})
    assert [one.method for one in none.expected("smoke") if one.than] == ["CD-MAGE+", "CD-MAGE, one cohort"]


@pytest.mark.parametrize("name", NAMES)
def test_every_item_can_be_planned_at_every_scale(name):
    item = items()[name]
    for scale in SCALES:
        for panel, experiments in item.experiments(scale).items():
            assert experiments, panel
            experiments[0].plan()
    labels = set(item.experiment["methods"])
    sides = [side.partition("@") for one in item.expect for side in (one.method, *one.than)]
    assert {side[0].strip() for side in sides} <= labels
    assert {side[2].strip() for side in sides if side[1]} <= set(item.panels)
    assert set(item.printed) <= set(item.panels or ["all"])
    for numbers in item.printed.values():
        assert set(numbers) <= labels
        assert {metric for metrics in numbers.values() for metric in metrics} <= set(item.shows)


def test_the_first_round_of_vgg11_at_the_scale_of_the_paper(monkeypatch):
    def images(folder):
        drawn = np.random.default_rng(0)
        part = lambda n: {"inputs": drawn.random((n, 32, 32, 3), np.float32), "labels": (np.arange(n) % 10).astype(np.int32)}
        return datasets.Dataset("cifar10", part(10), part(10), 10)

    monkeypatch.setitem(datasets.DATASETS, "cifar10", images)
    whole = find("fed-norm-sgda/figure-3").experiments("paper")["E = 5, tau redrawn"][0]
    label, method = next(iter(whole.tables["methods"].items()))
    changes = {"rounds": 1, "eval_every": 1, "partition": {"clients": 2, "alpha": 10.0, "min_size": 1}, "metrics": {}}
    changes["methods"] = {label: {**method, "batch_size": 5}}  # a few steps of each client
    made = fm.Experiment(**merged(whole.tables, changes))
    assert made.tables["problem"]["model"] == "vgg11"
    ready = made.ready
    result = fm.run(ready.problem, ready.clients, ready.methods[label].algorithm, rounds=1)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), result.x, ready.problem.start.x)
    assert all(0 < change < 1 for change in jax.tree.leaves(moved))  # every layer has learnt something, and none has blown up


@pytest.mark.parametrize("name", NAMES)
def test_every_item_runs_at_the_smallest_scale(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMINIMAX_DATA", str(tmp_path))  # nothing of the user's is needed, or written to
    item = items()[name]
    made = reproduce(name, "smoke", tmp_path / "out")
    assert made.finished
    assert made.verdict == ""  # it was only tried
    looked = [one.says for one in item.expected("smoke") if not one.panels or {*one.panels} & {*made.outcomes}]
    assert looked
    assert {found.says for found in made.findings} == {*looked}
    known = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert (known["item"], known["scale"], known["version"]) == (name, "smoke", item.digest("smoke"))
    page = (tmp_path / "out" / PAGE).read_text()
    assert "Only tried" in page
    assert "data:image/png" in page
    there = {(panel, record.label) for panel, records in made.records.items() for record in records}
    printed = {(p, m, k): v for p, m in there for k, v in item.printed.get(p, {}).get(m, {}).items()}
    assert {(n["panel"], n["method"], n["metric"]): n["printed"] for n in known["numbers"] if n["printed"]} == printed
    assert {n["metric"] for n in known["numbers"]} == set(item.shows)
    assert ("in the paper" in page) == bool(printed)
    if name == NAMES[0]:
        with pytest.raises(fm.InputError, match="has something in it already: go on with it by --resume"):
            reproduce(name, "smoke", tmp_path / "out")
        before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("history*")}
        assert reproduce(name, "smoke", tmp_path / "out", resume=True).finished
        assert before == {path: path.read_bytes() for path in (tmp_path / "out").rglob("history*")}


def test_the_table_of_the_end_has_what_the_paper_prints_beside_what_came_out():
    line = lambda method, metric, mean, spread, printed: {
        "panel": "p", "method": method, "metric": metric, "mean": mean, "spread": spread, "printed": printed
    }  # fmt: skip
    numbers = [line("A", "acc", 0.5, 0.01, 0.62), line("B", "acc", None, None, None), line("A", "loss", 1.5, None, None)]
    head, rows = end(numbers)
    assert head == ["Method", "Panel", "acc", "in the paper", "loss"]
    assert rows == [["A", "p", "0.500 ± 0.010", "0.62", "1.500"], ["B", "p", "–", "–", "–"]]


def test_every_metric_of_up_to_four_panels_and_of_six_begins_a_row():
    assert [columns(panels) for panels in (1, 2, 3, 4, 6, 7)] == [1, 2, 3, 2, 3, 3]


BASE = {
    "title": "a",
    "claim": "b",
    "also": ["figure-9"],
    "found": ["c"],
    "printed": {"one": {"A": {"Distance/x": 0.5}}},
    "shows": ["Distance/x"],
    "experiment": {
        "rounds": 4,
        "eval_every": 2,
        "checkpoint_every": 1,
        "seeds": 2,
        "problem": {"name": "quadratic", "clients": 4},
        "methods": {name: {"method": "ParallelSGDA", "lr_x": lr, "lr_y": lr} for name, lr in (("A", 0.1), ("B", 0.01))},
        "metrics": {"Distance": {}},
    },
    "panels": {"one": {}, "two": {"problem": {"seed": 1}}},
    "expect": [{"says": "A is ahead", "metric": "Distance/x", "method": "A", "than": ["B"]}],
}


def test_an_item_has_what_the_one_has_that_it_extends():
    other = {"extends": "p/base", "title": "d", "panels": {"two": False}, "experiment": {"methods": {"A": {"lr_x": 0.2}}}}
    made = extended("p/other", {"p/base": BASE, "p/other": {**other, "expect": BASE["expect"]}})
    assert (made["title"], made["claim"], made["panels"]) == ("d", "b", {"one": {}})
    assert made["experiment"]["methods"]["A"] == {"method": "ParallelSGDA", "lr_x": 0.2, "lr_y": 0.1}
    assert not {"extends", "also", "found", "printed"} & made.keys()
    assert "expect" not in extended("p/other", {"p/base": BASE, "p/other": other})
    with pytest.raises(fm.InputError, match=r"p/other extends 'p/bas', which there is not \(did you mean 'p/base'\?\)"):
        extended("p/other", {"p/base": BASE, "p/other": {**other, "extends": "p/bas"}})
    with pytest.raises(fm.InputError, match="p/third extends p/other, which extends another: extend p/base itself"):
        extended("p/third", {"p/base": BASE, "p/other": other, "p/third": {"extends": "p/other"}})


def test_a_version_of_an_item_is_its_experiments_and_what_is_expected_of_them():
    item = Item(name="p/base", **BASE)
    version = item.digest("small")
    assert version == Item(name="p/base", **{**BASE, "found": ["d"], "title": "e"}).digest("small")
    assert version != Item(name="p/base", **merged(BASE, {"experiment": {"rounds": 5}})).digest("small")
    assert version != Item(name="p/base", **{**BASE, "expect": [{**BASE["expect"][0], "by": 0.1}]}).digest("small")
    assert version == Item(name="p/base", **merged(BASE, {"paper": {"rounds": 5}})).digest("small")
    assert version != Item(name="p/base", **merged(BASE, {"small": {"rounds": 5}})).digest("small")


def test_what_is_of_the_same_runs_is_found_by_its_own_name_too():
    assert find("cd-mage/table-4") is find("cd-mage/figure-3")
    taken = [name for item in items().values() for name in item.other_names]
    assert len({*taken, *NAMES}) == len(taken) + len(NAMES)


KILLED = """
import json, os, signal, sys
from fedminimax.experiments import progress
from fedminimax.reproductions import Item, reproduce

told = progress.Bar.done
rounds = []
def count(bar, what, more, metric=""):
    told(bar, what, more, metric)
    rounds.append(more if what == "B, seed 1" else 0)
    if sum(rounds) >= 6:  # in the second panel, after two of four rounds
        os.kill(os.getpid(), signal.SIGKILL)

progress.Bar.done = count
reproduce(Item(**json.loads(sys.argv[1])), "smoke", sys.argv[2])
"""


def test_killed_and_resumed_it_is_the_same(tmp_path):
    item = Item(name="p/base", **BASE)
    whole = reproduce(item, "smoke", tmp_path / "whole")
    env = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    here = str(tmp_path / "here")
    command = [sys.executable, "-c", KILLED, json.dumps({"name": "p/base", **BASE}), here]
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "here" / SUMMARY).exists()
    again = reproduce(item, "smoke", here, resume=True)
    assert again.finished
    assert {r.rounds for records in again.records.values() for r in records} == {4}
    ends = lambda made: {
        (panel, r.label, r.seed): r.history["Distance/x"][-1] for panel in made.records for r in made.records[panel]
    }
    assert ends(again) == pytest.approx(ends(whole), rel=1e-4)  # one of them was compiled otherwise
    assert len(ends(again)) == 8
    assert [found.verdict for found in again.findings] == [found.verdict for found in whole.findings]


@pytest.mark.parametrize("name", ["personalized/theorem-1", "personalized/theorem-2"])
def test_the_steps_of_the_theorems_are_those_of_from_theory(name):
    """The catalogue has numbers; they are the formulas' of the problem that each panel solves."""
    seen = 0
    for (experiment,) in ({k: v[:1] for k, v in items()[name].experiments("small").items()}).values():
        problem, methods = experiment.tables["problem"], experiment.tables["methods"]
        task = ill_conditioned(fm.Network.ring(6, normalized=True), problem["coupling"], problem["L"])
        for label, given in methods.items():
            theory = {
                "Sliding": lambda task=task, L=problem["L"]: fm.Sliding.from_theory(task.problem, L, 1.0),
                "LocalExtraStep": lambda task=task, L=problem["L"]: fm.LocalExtraStep.from_theory(task.problem, L),
                "Extragradient": lambda task=task, L=problem["L"]: fm.DecentralizedExtraGradient.from_theory(task.problem, L),
            }[label]()
            for key in {"gamma", "inner_lr", "p", "lr_x", "lr_y"} & given.keys():
                np.testing.assert_allclose(given[key], getattr(theory, key), rtol=1e-8, err_msg=f"{label} {key}")
                seen += 1
    assert seen == {"personalized/theorem-1": 28, "personalized/theorem-2": 14}[name]


def test_rounds_are_whole_numbers_and_what_panels_differ_in_is_written_out(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path, **options: (drawn.append(figure), saved(figure, path, **options))
    )
    reproduce(Item(name="p/base", **{**BASE, "panels": {}}), "smoke", tmp_path / "curves")
    assert [tick % 1 for tick in drawn.pop().axes[0].get_xticks() if 0 <= tick <= 4] == [0, 0, 0, 0, 0]
    across = {"name": "seed", "log": True, "groups": {"both": {"one": 4, "two": 8}}}
    reproduce(Item(name="p/base", **{**BASE, "across": across}), "smoke", tmp_path / "across")
    assert [label.get_text() for label in drawn.pop().axes[0].get_xticklabels()] == ["4", "8"]
