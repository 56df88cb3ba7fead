"""Fairness over clients: the comparison, its table and figures, the division into silos, and the command line."""

import dataclasses
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedminimax as fm
from fedminimax import fairness, plots
from fedminimax.cli import app
from fedminimax.data import datasets, federate, silos
from fedminimax.data.tabular import Table


def people(rows=240, seed=0):
    """A table of four sites, of which one, the smallest, is unlike the others."""
    rng = np.random.default_rng(seed)
    site = rng.choice(["north", "south", "east", "island"], size=rows, p=[0.4, 0.3, 0.22, 0.08])
    age, blood = rng.normal(60, 10, rows), rng.choice(["A", "B", "0"], rows)
    risk = (age - 60) / 10 * np.where(site == "island", -1.5, 1.0) + (blood == "A") * 0.8 + rng.normal(0, 0.3, rows)
    return pd.DataFrame(
        {"site": site, "age": age, "blood": blood, "outcome": np.where(risk > 0.3, "ill", "well"), "risk": risk}
    )


@pytest.fixture(scope="module")
def comparison():
    table = Table("people", people().drop(columns="risk"), "outcome", "site", "classification")
    federation = federate(table, min_rows=5)
    told = []
    found = fairness.contest(
        federation, ["ScaffPD", "FedAvg"], penalty=fm.ChiSquare(0.02), rounds=20, local_steps=5, batch_size=8, seeds=2,
        progress=False, tell=told.append,
    )  # fmt: skip
    return found, told


def test_the_comparison_is_what_its_parts_say(comparison):
    found, told = comparison
    table = found.table()
    assert list(table.index) == ["ScaffPD", "FedAvg"]
    assert len(told) == 2
    assert "best of 12" in told[0]
    for method in table.index:
        result = found.results[method][0]
        test = found.federation.test
        scores = [np.argmax(found.problem.predict(result.x, c["inputs"]), axis=1) for c in test]
        right = [np.mean(s == c["labels"]) for s, c in zip(scores, test, strict=True)]
        np.testing.assert_allclose(found.values[method][0], right, atol=1e-6)
        ordered = np.sort(found.values[method], axis=1)
        np.testing.assert_allclose(table.loc[method, "mean"], ordered.mean(), rtol=1e-5)
        np.testing.assert_allclose(table.loc[method, "worst20"], ordered[:, 0].mean(), rtol=1e-5)
        np.testing.assert_allclose(table.loc[method, "variance"], ordered.var(axis=1).mean(), rtol=1e-4, atol=1e-9)
    assert table.loc["FedAvg", "w_entropy"] == pytest.approx(1.0)
    assert table.loc["ScaffPD", "w_entropy"] < 0.999
    assert table.loc["ScaffPD", "train_objective"] < table.loc["FedAvg", "train_objective"] + 1e-3


def test_the_search_picks_the_least_training_objective(comparison):
    found, _ = comparison
    search = found.searches["ScaffPD"]
    assert len(search.settings) == fairness.BUDGET
    ends = np.nan_to_num(search.values("worst_case")[:, 0, -2:].mean(axis=1), nan=np.inf)
    assert found.settings["ScaffPD"] == search.settings[int(np.argmin(ends))]
    assert np.nanmax(ends) > ends.min() * 1.05, "a search over settings that do not matter finds nothing"


def test_every_method_has_a_space_of_the_same_size():
    methods = [n for n, cls in fm.algorithms.ALGORITHMS.items() if getattr(cls, "solves", None) is fm.RobustProblem]
    assert len(methods) == 8
    for name in methods:
        space = fairness.search_space(name, 3.0, 0.5, 10, 5)
        assert np.prod([len(v) for v in space.values()]) == fairness.BUDGET
        fairness.make(name, {k: v[0] for k, v in space.items()} | {"local_steps": 5, "batch_size": 4})


def test_figures_are_written_and_show_every_client(comparison, tmp_path):
    found, _ = comparison
    files = found.figures(tmp_path)
    assert {p.stem for p in files} >= {"clients", "scatter", "rounds_worst20", "rounds_mean", "weights_ScaffPD"}
    assert all(p.stat().st_size > 5000 for p in files)
    values = {m: v.mean(axis=0) for m, v in found.values.items()}
    ax = plots.client_bars(values, found.federation.names)
    heights = np.array([bar.get_height() for bar in ax.patches]).reshape(2, -1)
    order = np.argsort(values["FedAvg"], kind="stable")
    np.testing.assert_allclose(heights, [values["ScaffPD"][order], values["FedAvg"][order]])
    assert [t.get_text() for t in ax.get_xticklabels()] == [found.federation.names[i] for i in order]
    with pytest.raises(fm.InputError, match="ClientWeights"):
        plots.weight_history(fm.run(found.problem, found.federation.train, fm.FedAvg(0.1), rounds=1))


def test_the_weights_of_more_sites_than_have_names_on_an_axis_are_drawn(tmp_path):
    sites = plots.MOST_NAMES + 2
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(np.arange(sites), 8), "age": rng.normal(size=8 * sites)})
    frame["ill"] = np.where(frame["age"] + rng.normal(size=len(frame)) > 0, "yes", "no")
    federation = federate(Table("many", frame, "ill", "site", "classification"), min_rows=4)
    found = fairness.contest(
        federation, ["AFL"], rounds=2, local_steps=1, batch_size=None, settings={"AFL": {"lr_x": 0.1, "lr_w": 0.1}},
        progress=False,
    )  # fmt: skip
    assert "weights_AFL" in {path.stem for path in found.figures(tmp_path)}
    result = found.results["AFL"][0]
    ax = plots.weight_history(result)
    assert len(ax.lines) == sites
    drawn = sorted((line.get_ydata() for line in ax.lines), key=lambda w: w[-1])
    w = result.vectors["w/each"].T
    np.testing.assert_array_equal(drawn, sorted(w, key=lambda w: w[-1]))
    named = {line.get_label() for line in ax.lines if not line.get_label().startswith("_")}
    assert named == {str(i) for i in np.argsort(-w[:, -1])[:5]}


def test_smoothness_is_the_largest_eigenvalue(x64):
    task = fm.problems.robust_regression(4, 3, 30, sigma=0.3)
    inputs = np.asarray(task.clients.fields["inputs"])
    exact = np.linalg.eigvalsh(2 * inputs.T @ inputs / len(inputs) + 0.1 * np.eye(3)).max()
    assert fairness.smoothness(task.problem, task.clients) == pytest.approx(exact, rel=0.02)


def test_regressions_report_errors_in_the_labels_units():
    table = Table(
        "people", people().drop(columns="outcome").assign(risk=lambda f: 100 * f["risk"] + 500), "risk", "site", "regression"
    )
    found = fairness.contest(
        federate(table, min_rows=5), ["FedAvg"], rounds=30, local_steps=5, settings={"FedAvg": {"lr_x": 0.05}}, progress=False
    )
    assert not found.higher_is_better
    assert 20 < found.summary("FedAvg")["mean"] < 150, "a few dozen units, not standard deviations"
    assert found.summary("FedAvg")["worst"] >= found.summary("FedAvg")["worst20"] - 1e-6


def test_an_interrupted_comparison_keeps_what_there_is(comparison, monkeypatch):
    found, told = comparison[0], []
    stopped = lambda *args, **options: dataclasses.replace(fm.run(*args, **options), interrupted=True)
    monkeypatch.setattr(fairness, "run", stopped)
    settings = {"FedAvg": {"lr_x": 0.05}, "FedProx": {"lr_x": 0.05}}
    part = fairness.contest(
        found.federation, ["FedAvg", "FedProx"], rounds=2, settings=settings, progress=False, tell=told.append
    )
    assert list(part.table().index) == ["FedAvg"]
    assert "Interrupted: FedAvg" in told[-1]


def test_silos_follow_the_papers_division():
    digits = datasets.load("digits")
    plain = silos(digits, 10, 0.3, client_share=0.0, seed=3)
    fewer = silos(digits, 10, 0.3, seed=3)
    sizes, kept = np.asarray(plain.train.sizes), np.asarray(fewer.train.sizes)
    cut = kept < sizes
    assert cut.sum() == 3, "30% of the clients"
    np.testing.assert_allclose(kept[cut] / sizes[cut], 0.3, atol=0.05)
    assert np.array_equal(np.asarray(plain.test.sizes), np.asarray(fewer.test.sizes)), "tests stay as they were"
    assert plain.test.total == len(digits.test["labels"])
    for train, test in zip(plain.train, plain.test, strict=True):
        share = np.bincount(train["labels"], minlength=10) / len(train["labels"])
        tested = np.bincount(test["labels"], minlength=10) / len(test["labels"])
        assert np.abs(share - tested).max() < 0.2
    with pytest.raises(fm.InputError, match="too many"):
        silos(digits, 200)


def test_wrong_methods_are_named(comparison):
    found, _ = comparison
    with pytest.raises(fm.InputError, match=r"There is no method 'FessGDA'.*ScaffPD"):
        fairness.contest(found.federation, ["FessGDA"])


# -- the command line --------------------------------------------------------------------------------------------------


def test_fair_runs_on_a_table_of_ones_own(tmp_path):
    frame = people()
    frame.loc[::17, "age"] = np.nan
    frame.to_csv(tmp_path / "hospitals.csv", index=False)
    arguments = "--label outcome --client site --ignore risk --methods ScaffPD,FedAvg --rounds 8 --local-steps 4 --min-rows 5"
    folders = ["--data", str(tmp_path / "hospitals.csv"), "--out", str(tmp_path / "out")]
    done = CliRunner(env={"COLUMNS": "140"}).invoke(app, ["fair", *arguments.split(), *folders])
    assert done.exit_code == 0, done.output
    assert "4 clients" in done.stdout
    assert "Missing values: age 15" in done.stdout
    assert "best of 12" in done.stdout
    assert "worst 20%" in done.stdout
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"table.csv", "clients.csv", "clients.png", "scatter.png", "rounds_worst20.png", "weights_ScaffPD.png"} <= written
    clients = pd.read_csv(tmp_path / "out" / "clients.csv", index_col="client")
    assert set(clients.index) == {"north", "south", "east", "island"}
    assert clients[["ScaffPD", "FedAvg"]].to_numpy().min() >= 0


def test_fair_says_what_is_wrong(tmp_path):
    from fedminimax.commands.fair import Request, load

    people().to_csv(tmp_path / "t.csv", index=False)
    table = str(tmp_path / "t.csv")
    for request, message in (
        (Request(data=table), "--label"),
        (Request(data=table, label="outcom", client="site"), "outcome"),
        (Request(data=str(tmp_path / "none.csv"), label="a", client="b"), "none.csv"),
        (Request(data="digitss"), "There is no data 'digitss'"),
        (Request(data="digits", label="x"), "--label is for tables"),
        (Request(data="adult", label="x"), "has a label of its own"),
    ):
        with pytest.raises(fm.InputError, match=message):
            load(request)
    command = [sys.executable, "-m", "fedminimax", "fair", "--methods", "ScafPD"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "There is no method 'ScafPD'" in done.stderr
    assert "Traceback" not in done.stderr
