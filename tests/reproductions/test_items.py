"""The catalogue: every item can be read, its experiments can be planned at all scales, and it runs at the smallest."""

import json

import pytest

import fedminimax as fm
from fedminimax.reproductions import find, items, reproduce
from fedminimax.reproductions.conduct import PAGE, SUMMARY
from fedminimax.reproductions.item import SCALES, merged

NAMES = sorted(items())


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
    assert [one.method for one in left] == ["CD-MAGE", "CD-MAGE"]  # the lead, and the bound
    assert left[0].than == [name for name in item.expect[0].than if name != "CD-MA"]
    none = item.model_copy(update={"smoke": {"methods": dict.fromkeys(item.expect[0].than, False)}})
    assert [one.above for one in none.expected("smoke")] == [0.998]


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


@pytest.mark.parametrize("name", NAMES)
def test_every_item_runs_at_the_smallest_scale(name, tmp_path):
    made = reproduce(name, "smoke", tmp_path / "out")
    assert made.finished
    assert made.verdict == ""  # it was only tried
    assert len(made.findings) >= len(items()[name].expect)
    known = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert (known["item"], known["scale"]) == (name, "smoke")
    page = (tmp_path / "out" / PAGE).read_text()
    assert "Only tried" in page
    assert "data:image/png" in page
    if name == NAMES[0]:
        with pytest.raises(fm.InputError, match="has something in it already: go on with it by --resume"):
            reproduce(name, "smoke", tmp_path / "out")
        before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("history*")}
        assert reproduce(name, "smoke", tmp_path / "out", resume=True).finished
        assert before == {path: path.read_bytes() for path in (tmp_path / "out").rglob("history*")}
