"""The tables of the experiments' results: what goes in comes out."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import tables

RUN = {"settings": 'A(x=1, "y")', "saturating": False, "round": [0.0, 10.0], "auc": [0.5, 0.123456], "cohort": 10}
OLD = {"round": [0.0, 5.0, 7.0], "train/loss": [1.0, float("inf"), 2e-7], "settings": "B()", "seconds": 1.5}


@pytest.fixture
def table(tmp_path):
    made = tables.Table("runs", r"(?P<task>[^-]+)-(?P<data>[^-]+)-(?P<method>.+)-(?P<seed>\d+)", tmp_path)
    made.folder.mkdir()
    return made


def test_loose_files_are_folded_into_the_table_and_replace_their_runs(table):
    put = lambda name, record: (table.folder / f"{name}.json").write_text(json.dumps(record))
    put("auc-mnist-CD-MAGE+_c=1_rho=third-10", RUN)
    put("auc-mnist-CD-MAGE+_c=1_rho=third-9", RUN)
    put("robust-mnist-CODA+-0", OLD)
    assert table.fold() == 3
    assert not list(table.folder.glob("*.json"))
    name = "CD-MAGE+ c=1 rho=third"
    runs = {("auc", "mnist", name, "9"): RUN, ("auc", "mnist", name, "10"): RUN, ("robust", "mnist", "CODA+", "0"): OLD}
    assert table.read() == runs
    assert list(table.read()) == list(runs), "seeds are in the order of numbers"
    put("robust-mnist-CODA+-0", RUN)
    table.fold()
    assert table.read() == runs | {("robust", "mnist", "CODA+", "0"): RUN}
    put("gan-mnist-CODA+-0", OLD)
    table.fold(anew=True)
    assert table.read() == {("gan", "mnist", "CODA+", "0"): OLD}


def test_what_is_no_run_stays_where_it_is(table):
    (table.folder / "notes.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"notes\.json is no run of runs"):
        table.fold()
    assert (table.folder / "notes.json").exists()
    table.add({("auc", "mnist", "CD-MA", "0"): RUN})
    with pytest.raises(SystemExit, match="cohort is a list in some runs"):
        table.add({("auc", "mnist", "CD-MA", "1"): RUN | {"cohort": [1.0, 2.0]}})
    assert len(table.read()) == 1


def test_the_kept_tables_are_sound():
    for kept in tables.TABLES.values():
        for run, record in kept.read().items():
            lengths = {len(values) for values in record.values() if isinstance(values, list)}
            assert lengths == {len(record["round"])}, (kept.name, run)
            assert record["round"] == sorted(record["round"])
            assert record["settings"]
