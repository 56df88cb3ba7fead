"""What the README and the examples show must run as it stands."""

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.metrics import METRICS
from fedminimax.reproductions import items

sys.path.insert(0, str(Path(__file__).parent / "algorithms"))
from roster import ROSTER

ROOT = Path(__file__).parent.parent


def run(arguments, cwd):
    env = {**os.environ, "MPLBACKEND": "Agg"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=env, check=False)


def test_the_readmes_python_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(blocks) == 2
    done = run(["-W", "error::UserWarning", "-c", "\n".join(blocks)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run.fmx").is_file()
    assert "lr_x" in done.stdout


def test_the_fairness_pages_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "fairness.md").read_text(), flags=re.S)
    assert len(blocks) == 2
    names = {}
    exec("\n".join(blocks), names)
    assert names["result"].final()["client_accuracy/worst20"] > 0.6
    assert abs(names["result"].w.sum() - 1) < 1e-5


def test_the_cross_device_pages_python_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "cross_device.md").read_text(), flags=re.S)
    names = {}
    exec(block, names)
    history = names["result"].history
    assert history["robust/accuracy"][-1] > history["robust/accuracy"][0] + 0.1
    assert history["waited"][-1] > 0


def test_the_personalised_pages_python_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "personalized.md").read_text(), flags=re.S)
    names = {}
    exec(block, names)
    final = names["result"].final()
    assert final["distance/total"] < 1e-3
    assert final["gossip_rounds"] == 300


def test_the_federation_pages_python_runs(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "federation.md").read_text(), flags=re.S)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    assert np.asarray(names["result"].trace.answers[0]).all()
    assert len(list((tmp_path / "sites").iterdir())) == 3


def test_the_gossip_pages_python_runs(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "federation_gossip.md").read_text(), flags=re.S)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    assert (names["model"].rounds, names["model"].number) == (20, 0)
    with pytest.raises(fm.InputError, match="at the site"):
        names["result"].x  # noqa: B018


def test_the_reports_pages_python_runs(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "reports.md").read_text(), flags=re.S)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "is best on value (lower is better)" in page
    assert (tmp_path / "table.tex").is_file()


def test_the_solver_that_the_methods_page_shows_is_one():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "methods.md").read_text(), flags=re.S)
    names = {"fm": fm, "jax": jax, "jnp": jnp}
    exec("\n".join(blocks), names)
    fading = names["Fading"]((0.5, 0.9))
    direction, _ = fading.direction(None, fm.Point(jnp.ones(2), jnp.ones(1)), None, None, 2, 0)
    np.testing.assert_allclose(direction.x, 0.25)
    np.testing.assert_allclose(fading.norm(3, 0.1, 0), 1 + 0.5 + 0.25, rtol=1e-6)


def test_the_method_that_contributing_shows_runs_as_it_stands():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.S)
    names = {"__name__": "shown"}
    exec(block, names)
    try:
        task = fm.problems.quadratic(3, examples=4)
        options = {"local_steps": 2, "batch_size": 2, "cohort_size": 2}
        own = fm.run(task.problem, task.clients, names["MyMethod"](0.1, 0.1, **options), rounds=2)
        same = fm.run(task.problem, task.clients, fm.LocalSGDA(0.1, 0.1, **options), rounds=2)
        np.testing.assert_array_equal(own.x, same.x)  # the box that it shows is Local SGDA's
        np.testing.assert_array_equal(own.y, same.y)
    finally:
        fm.algorithms.ALGORITHMS.pop("MyMethod", None)


def test_the_guides_observers_run(tmp_path):
    block = next(
        b for b in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(), flags=re.S) if "StopWhen" in b
    )
    done = run(["-c", block], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is below 0.5" in done.stdout
    assert (tmp_path / "distances.csv").is_file()


def test_the_guides_run_with_a_folder_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(), flags=re.S)
    (block,) = [block for block in blocks if "fm.resume" in block]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    assert (names["result"].rounds, names["longer"].rounds) == (200, 300)
    assert len(list((tmp_path / "runs" / "first" / "checkpoints").iterdir())) == 3


def test_the_guides_search_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(), flags=re.S)
    (block,) = [block for block in blocks if "fm.sweep(" in block]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block.replace("rounds=90", "rounds=20"), names)
    assert "Sweep(FessGDA: 18 settings of beta, lr_x, p, local_steps, 3 seeds" in capsys.readouterr().out
    assert (tmp_path / "runs" / "search" / "sweep.npz").is_file()


def test_the_guides_metric_with_parts_runs_where_the_server_has_no_data():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(), flags=re.S)
    (block,) = [block for block in blocks if "@metric_class" in block]
    names = {}
    try:
        exec(block, names)
    finally:
        del METRICS["Norms"]
    b = np.asarray(names["task"].clients.fields["b"])
    final = names["result"].final()
    expected = np.linalg.norm(b, axis=1)
    np.testing.assert_allclose([final["norms/mean"], final["norms/largest"]], [expected.mean(), expected.max()], rtol=1e-6)


def test_ci_runs_the_readmes_test_command():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "<!-- tests -->" in readme
    assert "<!-- tests -->" in ci


def test_the_page_of_the_papers_is_what_its_script_makes_of_the_committed_table():
    page = runpy.run_path(str(ROOT / "benchmarks" / "reproductions.py"))["page"]
    assert (ROOT / "docs" / "reproductions.md").read_text() == page(), "python benchmarks/reproductions.py writes it again"


def test_runs_of_an_earlier_version_of_an_item_are_said_to_be(tmp_path):
    page = runpy.run_path(str(ROOT / "benchmarks" / "reproductions.py"))["page"]
    name, scale, said = "scaff-pd/figure-2", "small", "These runs are of an earlier version of the item"
    one = {"item": name, "title": "a", "scale": scale, "runs": 1, "verdict": "held", "claim": "b."} | {
        "findings": [],
        "differs": [],
    }
    page.__globals__["TABLE"] = tmp_path / "table.json"
    for version, earlier in ((items()[name].digest(scale), False), ("0123", True), (None, True)):
        page.__globals__["TABLE"].write_text(json.dumps({f"{name} {scale}": one | ({"version": version} if version else {})}))
        assert (said in page()) == earlier


def test_what_the_server_sees_is_said_of_every_method():
    section = (ROOT / "docs" / "trust.md").read_text().split("## What a curious server learns")[1].split("\n## ")[0]
    named = set(re.findall(r"\w+", " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| "))))
    served = {type(row.algorithm).__name__ for row in ROSTER}
    assert served - named == set()


def test_the_page_of_all_methods_is_made_of_its_table_and_no_method_has_more_than_its_budget(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    which, page = importlib.import_module("which_method"), importlib.import_module("which_page")
    rows = which.read()
    written = (ROOT / "docs" / "which_method.md").read_text()
    assert written == page.page(rows), "python benchmarks/which_method.py writes it again"
    for workload in which.WORKLOADS.values():
        for budget in which.BUDGETS:
            own = [row for row in rows if (row["workload"], row["budget"]) == (workload.name, budget)]
            assert {row["method"] for row in own} == set(which.contenders(workload))
            assert len(own) == which.DIVISIONS * len(which.contenders(workload))
            most = max(int(row[budget]) for row in own if row["method"] == "Local SGDA")
            assert max(int(row[budget]) for row in own) <= most
