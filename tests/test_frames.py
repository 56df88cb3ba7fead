"""Tables write LaTeX with nothing else installed."""

import sys

import pytest

import fedminimax as fm
from fedminimax.frames import Table


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)  # as if it were not installed
    rows = [{"method": "Fess_GDA", "loss & more": 0.123456, "rounds": 20, "cohort": "all"}]
    return Table(rows).set_index("method")


def test_a_table_is_latex_without_jinja2(table):
    assert table.to_latex().splitlines() == [
        r"\begin{tabular}{lrrl}",
        r"\toprule",
        r"method & loss \& more & rounds & cohort \\",
        r"\midrule",
        r"Fess\_GDA & 0.1235 & 20 & all \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert isinstance(table.round(2), Table)
    assert "0.12 & 20" in table.round(2).to_latex()
    assert table.to_latex(index=False, float_format="%.1f").splitlines()[4] == r"0.1 & 20 & all \\"


def test_a_table_with_a_caption_floats_and_goes_to_a_file(table, tmp_path):
    assert table.to_latex(tmp_path / "t.tex", caption="What came of it", label="tab:it") is None
    lines = (tmp_path / "t.tex").read_text().splitlines()
    assert lines[:4] == [r"\begin{table}", r"\centering", r"\caption{What came of it}", r"\label{tab:it}"]
    assert lines[-1] == r"\end{table}"
    with pytest.raises(fm.InputError, match="no longtable here"):
        table.to_latex(longtable=True)


def test_what_is_compared_comes_as_such_a_table():
    task = fm.problems.quadratic(3)
    found = fm.compare(task.problem, task.clients, {"a_b": fm.ParallelSGDA(0.1, 0.1)}, rounds=1, metrics=fm.metrics.Value())
    assert r"a\_b &" in found.table("value").to_latex()
