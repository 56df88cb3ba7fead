"""The comparison: tuning, training, the tables, what is kept, and the figures."""

import dataclasses
import json
import types

import numpy as np
import pandas as pd
import pytest

import fedminimax as fm
from fedminimax import fairness, plots
from fedminimax.data import datasets, federate, silos
from fedminimax.data.tabular import Table
from fedminimax.fairness import contests, page, sheets, threshold, tuning
from fedminimax.fairness.outputs import labels_of

SHORT = {"rounds": 20, "local_steps": 5, "batch_size": 8, "progress": False, "draws": 200}


@pytest.fixture(scope="module")
def comparison(balanced):
    told = []
    found = fairness.contest(balanced, ["ScaffPD", "FedAvg"], penalty=fm.ChiSquare(0.02), seeds=2, tell=told.append, **SHORT)
    return found, told


@pytest.fixture(scope="module")
def few(rare):
    """A comparison with a rare class, of which only the first method learns anything; with groups."""
    groups = np.random.default_rng(0).choice(["f", "m"], rare.test.total)
    settings = {"ScaffPD": {"tau": 5.0, "sigma": 0.1}, "FedAvg": {"lr_x": 1e-6}, "FedAvg:size": {"lr_x": 1e-6}}
    return fairness.contest(
        dataclasses.replace(rare, groups=groups), ["ScaffPD", "FedAvg", "FedAvg:size"], settings=settings, **SHORT
    )


def test_the_comparison_is_what_its_parts_say(comparison):
    found, told = comparison
    table = found.table()
    assert list(table.index) == ["ScaffPD", "FedAvg", "majority", "pooled", "local"]
    assert "ScaffPD: tau = " in told[-2]
    assert f"the best of {found.tuned['FedAvg'].tried} on the training objective (lr_x " in told[-1]
    for method in found.results:
        result = found.results[method][0]
        test = found.federation.test
        scores = [np.argmax(found.problem.predict(result.x, c["inputs"]), axis=1) for c in test]
        right = [np.mean(s == c["labels"]) for s, c in zip(scores, test, strict=True)]
        np.testing.assert_allclose(found.values[method][0], right, atol=1e-6)
        ordered = np.sort(found.values[method], axis=1)
        for column in ("mean", "accuracy/average"):
            np.testing.assert_allclose(table.loc[method, column], ordered.mean(), rtol=1e-5)
        for column in ("worst20", "accuracy/worst20", "accuracy/worst"):
            np.testing.assert_allclose(table.loc[method, column], ordered[:, 0].mean(), rtol=1e-5)
        np.testing.assert_allclose(table.loc[method, "variance"], ordered.var(axis=1).mean(), rtol=1e-4, atol=1e-9)
        flat = np.concatenate(scores) == test.fields["labels"]
        assert found.scores[method].points["accuracy"]["all"][0] == pytest.approx(flat.mean())
    assert table.loc["FedAvg", "w_entropy"] == pytest.approx(1.0)
    assert table.loc["ScaffPD", "w_entropy"] < 0.999
    assert table.loc["ScaffPD", "train_objective"] < table.loc["FedAvg", "train_objective"] + 1e-3
    assert (table["accuracy/all_low"] <= table["accuracy/all"]).all()


def test_every_method_has_the_same_budget_and_the_least_objective_is_picked(comparison):
    found, _ = comparison
    assert found.tuned["ScaffPD"].tried == found.tuned["FedAvg"].tried >= fairness.BUDGET
    tuned = found.tuned["ScaffPD"]
    ends = [np.nan_to_num(s.values("worst_case")[:, 0, -2:].mean(axis=1), nan=np.inf) for s in tuned.searches]
    best = int(np.argmin([e.min() for e in ends]))
    assert found.settings["ScaffPD"] == tuned.searches[best].settings[int(np.argmin(ends[best]))]
    assert max(e[np.isfinite(e)].max() for e in ends) > min(e.min() for e in ends) * 1.05, "settings that matter"


def test_a_rare_class_is_not_won_by_predicting_nobody(few, rare):
    assert few.label == "AUC"
    assert few.table().loc["majority", "auc/average"] == 0.5
    assert few.winner == "ScaffPD"
    assert few.number("ScaffPD", "auc", "all").value > 0.8
    assert few.number("majority", "accuracy", "all").value > 0.9
    assert few.number("majority", "recall", "all").value == 0
    assert few.number("ScaffPD", "recall", "all").value > 0.6
    assert few.threshold < 0.4
    p = np.exp(few.problem.predict(few.kept.x, rare.train.fields["inputs"]))
    whole = threshold.histogram(p[:, 1] / p.sum(axis=1), labels_of(rare.train, rare))
    assert few.threshold == pytest.approx(threshold.best_threshold(whole), rel=0.03)
    assert any("e has test rows of one class only, so no AUC" in note for note in few.notes)
    assert [(lead.other, lead.part) for lead in few.leads] == [
        ("FedAvg", "worst20"), ("FedAvg", "average"), ("FedAvg:size", "worst20"),
    ]  # fmt: skip


def test_the_summary_is_plain_and_whole(few, comparison):
    kept = json.loads(json.dumps(few.summary_dict(), allow_nan=False))
    assert kept["winner"] == "ScaffPD"
    assert "no test row has a say" in kept["rule"]
    assert kept["threshold"] == few.threshold
    assert kept["positive"] == "yes"
    assert kept["scores"]["pooled"]["auc"]["average"]["low"] <= kept["scores"]["pooled"]["auc"]["average"]["value"]
    assert kept["scores"]["majority"]["precision"]["all"]["value"] is None
    assert kept["verdicts"] == [lead.sentence for lead in few.leads]
    assert set(kept["baselines"]) == {"majority", "pooled", "local"}
    assert kept["asked"]["penalty"] == "chi2:0.1"
    assert kept["asked"]["loss"] == "entropy"
    assert kept["groups"]["ScaffPD"]["groups"]["f"]["positive"] > 0
    assert [site["test"] for site in kept["sites"]] == np.asarray(few.federation.test.sizes).tolist()
    assert comparison[0].summary_dict()["threshold"] is None


def test_the_winner_is_chosen_by_training_rows(comparison):
    found, _ = comparison
    train = found.federation.train
    worst = {}
    for name, results in found.results.items():
        right = [
            [np.mean(np.argmax(found.problem.predict(r.x, c["inputs"]), axis=1) == c["labels"]) for c in train] for r in results
        ]
        worst[name] = np.mean(np.min(right, axis=1))
        assert found.training(name) == pytest.approx(worst[name])
    assert worst[found.winner] == max(worst.values())
    assert found.kept is found.results[found.winner][found.winning_run]


def test_the_tables_say_what_the_numbers_are(few, comparison):
    first = sheets.first_sheet(few)
    value, low, high, _ = few.number("ScaffPD", "auc", "average")
    assert first.rows[0][:2] == ["ScaffPD", f"{100 * value:.1f}% ({100 * low:.1f}–{100 * high:.1f})"]
    assert [row[0] for row in first.rows[3:]] == ["majority (no model)", "pooled (not federated)", "local (each alone)"]
    assert (0, 1) in first.best
    other = sheets.other_sheet(few)
    assert other.columns[1:] == ["balanced accuracy", "recall", "precision", "accuracy", "log loss", "Brier score"]
    assert f"ScaffPD {few.threshold:.3f}" in other.caption
    assert "±" in sheets.first_sheet(comparison[0]).rows[0][1], "two seeds"
    worst = sheets.worst_sheet(few)
    values = few.values["ScaffPD"][0]
    assert worst.rows[0][0] == few.federation.names[int(np.nanargmin(values))]
    assert len(worst.rows) == 4, "the site without an AUC is not among them"
    rates, gaps = sheets.group_sheets(few)
    assert [row[0] for row in rates.rows] == ["f", "m"]
    assert [row[0] for row in gaps.rows[:3]] == list(few.results)
    assert sheets.sentences(few)[-1].endswith(f"It is ScaffPD's ({100 * few.training('ScaffPD'):.1f}%).")


def test_the_page_is_whole(few, tmp_path):
    figures = few.figures(tmp_path)
    text = page.render(few, "a <title>", figures, "fedminimax fair --data x")
    assert "a &lt;title&gt;" in text
    assert text.count("data:image/png;base64,") == len(figures)
    for sentence in (few.choice.sentence, few.leads[0].sentence, few.notes[0]):
        assert sentence.replace("'", "&#x27;") in text
    assert "pooled (not federated)" in text
    assert "fedminimax fair --data x" in text
    assert "http" not in text.replace("http-equiv", "")


def test_figures_are_written_and_show_every_client(comparison, tmp_path):
    found, _ = comparison
    files = found.figures(tmp_path)
    assert {p.stem for p in files} >= {"clients", "intervals", "scatter", "rounds_worst20", "rounds_mean", "weights_ScaffPD"}
    assert all(p.stat().st_size > 5000 for p in files)
    values = {m: v.mean(axis=0) for m, v in found.values.items()}
    ax = plots.client_bars(values, found.federation.names)
    heights = np.array([bar.get_height() for bar in ax.patches]).reshape(2, -1)
    order = np.argsort(values["FedAvg"], kind="stable")
    np.testing.assert_allclose(heights, [values["ScaffPD"][order], values["FedAvg"][order]])
    assert [t.get_text() for t in ax.get_xticklabels()] == [found.federation.names[i] for i in order]
    with pytest.raises(fm.InputError, match="ClientWeights"):
        plots.weight_history(fm.run(found.problem, found.federation.train, fm.FedAvg(0.1), rounds=1))


def test_more_sites_than_have_names_on_an_axis(tmp_path):
    sites = plots.MOST_NAMES + 1
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(np.arange(sites), 8), "age": rng.normal(size=8 * sites)})
    frame["ill"] = np.where(frame["age"] + rng.normal(size=len(frame)) > 0, "yes", "no")
    federation = federate(Table("many", frame, "ill", "site", "classification"), min_rows=4)
    found = fairness.contest(
        federation, ["ScaffPD", "FedAvg"], **SHORT | {"rounds": 2},
        settings={"ScaffPD": {"tau": 0.5, "sigma": 0.1}, "FedAvg": {"lr_x": 0.1}},
    )  # fmt: skip
    assert "weights_ScaffPD" in {path.stem for path in found.figures(tmp_path)}
    result = found.results["ScaffPD"][0]
    ax = plots.weight_history(result)
    assert len(ax.lines) == sites
    drawn = sorted((line.get_ydata() for line in ax.lines), key=lambda w: w[-1])
    w = result.vectors["w/each"].T
    np.testing.assert_array_equal(drawn, sorted(w, key=lambda w: w[-1]))
    named = {line.get_label() for line in ax.lines if not line.get_label().startswith("_")}
    assert named == {str(i) for i in np.argsort(-w[:, -1])[:5]}
    curves = plots.sorted_sites({"a": [0.5, 0.1, 0.9]}, dashed=["a"]).lines[0]
    np.testing.assert_allclose(curves.get_ydata(), [0.1, 0.5, 0.9])
    assert curves.get_linestyle() == "--"
    np.testing.assert_allclose(plots.sorted_sites({"a": [5, 1, 9]}, higher_is_better=False).lines[0].get_ydata(), [9, 5, 1])


def test_weights_by_size_are_those_of_the_average_and_of_fedavg(rare):
    settings = {"FedAvg": {"lr_x": 0.5}, "FedAvg:size": {"lr_x": 0.5}, "FedAvg:equal": {"lr_x": 0.5}}
    options = {**SHORT, "baselines": (), "batch_size": None}
    by_size = fairness.contest(rare, ["FedAvg", "FedAvg:equal"], weights="size", settings=settings, **options)
    equal = fairness.contest(rare, ["FedAvg", "FedAvg:size"], settings=settings, **options)
    same = lambda a, b: np.allclose(a.x["Dense_0"]["kernel"], b.x["Dense_0"]["kernel"], atol=1e-5)
    assert same(by_size.results["FedAvg"][0], equal.results["FedAvg:size"][0])
    assert same(by_size.results["FedAvg:equal"][0], equal.results["FedAvg"][0])
    assert not same(by_size.results["FedAvg"][0], equal.results["FedAvg"][0])
    sizes, each = np.asarray(rare.train.sizes), by_size.values["FedAvg"][0]
    there = np.isfinite(each)
    assert by_size.number("FedAvg", "auc", "average").value == pytest.approx(np.average(each[there], weights=sizes[there]))
    assert equal.number("FedAvg", "auc", "average").value == pytest.approx(equal.values["FedAvg"][0][there].mean())
    assert "average by size" in sheets.first_sheet(by_size).columns
    assert equal.baselines == []


def test_all_penalties_can_be_trained_with(rare):
    """QFair's weights do not sum to one: steps in units of their sum keep it from diverging."""
    for text in ("qfair:1", "cvar:0.5"):
        penalty = fairness.penalty_of(text)
        found = fairness.contest(
            rare, ["ScaffPD"], penalty=penalty, baselines=(), **SHORT, settings={"ScaffPD": {"theta": 1.0, "lr_x": 0.2}}
        )
        assert found.settings["ScaffPD"]["lr_x"] == 0.2
        assert set(found.tuned["ScaffPD"].settings) == {"sigma"}, "what has no default and is not given is searched"
        losses = found.problem.losses(found.results["ScaffPD"][0].x, rare.train)
        start = found.problem.losses(found.problem.x0, rare.train)
        value = lambda f: float(f @ penalty.maximize(f) - penalty.value(penalty.maximize(f)))  # noqa: B023
        assert value(losses) < 0.8 * value(start)


def test_a_search_goes_on_beyond_the_edge(rare):
    """FedAvg from far too small steps: the best is the greatest tried, until the grid has moved on."""
    problem = fm.problems.robust_model(fm.models.Linear(2), rare.train, 2, loss="entropy")
    how = {"rounds": 4, "local_steps": 2, "batch_size": 8}
    tuned = tuning.tune(problem, rare.train, "FedAvg", {"lr_x": [0.01, 0.02, 0.04]}, **how)
    assert tuned.edges == {"lr_x": "greatest"}
    assert "on the edge of what was tried: lr_x the greatest" in tuned.sentence("FedAvg")
    grid = tuning.further(tuned)
    np.testing.assert_allclose(grid["lr_x"], [0.04, 0.08, 0.16])
    again = tuning.tune(problem, rare.train, "FedAvg", grid, tuned, **how)
    assert again.tried == 6
    assert again.settings["lr_x"] == 0.16
    assert "lr_x 0.01 to 0.16" in again.sentence("FedAvg")


def test_half_a_search_chooses_nothing(monkeypatch):
    stopped = types.SimpleNamespace(interrupted=True)
    monkeypatch.setattr(tuning, "search", lambda *given, **how: stopped)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(None, None, "FedAvg", {"lr_x": [0.1]})


def test_the_next_grid_is_beyond_edges_and_closer_elsewhere():
    of = lambda best, edges: tuning.Tuned(({"tau": [1.0, 2.0, 4.0], "sigma": [0.1, 1.0, 10.0]},), (), best, edges)
    grid = tuning.further(of({"tau": 1.0, "sigma": 1.0}, {"tau": "least"}))
    np.testing.assert_allclose(sorted(grid["tau"]), [0.25, 0.5, 1.0])
    assert len(grid["sigma"]) == 3
    assert 0.1 < grid["sigma"][0] < grid["sigma"][1] < grid["sigma"][2] < 10
    assert grid["sigma"][1] == pytest.approx(1.0)
    assert tuning.edges_of({"alpha": 0.8, "mu": 2.0}, [{"alpha": [0.2, 0.8], "mu": [1, 2, 3]}]) == {"alpha": "greatest"}
    assert tuning.edges_of({"alpha": 1.0}, [{"alpha": [0.2, 1.0]}]) == {}, "more cannot be"
    assert tuning.edges_of({"alpha": 0.2}, [{"alpha": [0.2, 1.0]}]) == {"alpha": "least"}
    share = tuning.Tuned(({"alpha": [0.2, 0.5, 0.8]},), (), {"alpha": 0.8}, {"alpha": "greatest"})
    assert max(tuning.further(share)["alpha"]) == 1.0, "a share is at most one"


def test_every_method_has_a_space_of_the_same_size():
    methods = [n for n, cls in fm.algorithms.ALGORITHMS.items() if getattr(cls, "solves", None) is fm.RobustProblem]
    assert len(methods) == 9
    for name in methods:
        space = fairness.search_space(name, 3.0, 0.5, 10, 5)
        assert np.prod([len(v) for v in space.values()]) == fairness.BUDGET
        fairness.make(name, {k: v[0] for k, v in space.items()} | {"local_steps": 5, "batch_size": 4})


def test_steps_are_in_units_of_the_weights_sum():
    for name, key, other in (("ScaffPD", "tau", "sigma"), ("AFL", "lr_x", "lr_w")):
        one, four = (fairness.search_space(name, 3.0, 0.5, 10, 5, total) for total in (1.0, 4.0))
        np.testing.assert_allclose(four[key], np.array(one[key]) / 4)
        np.testing.assert_allclose(four[other], np.array(one[other]) * 4)


def test_smoothness_is_the_largest_eigenvalue(x64):
    task = fm.problems.robust_regression(4, 3, 30, sigma=0.3)
    inputs = np.asarray(task.clients.fields["inputs"])
    exact = np.linalg.eigvalsh(2 * inputs.T @ inputs / len(inputs) + 0.1 * np.eye(3)).max()
    assert fairness.smoothness(task.problem, task.clients) == pytest.approx(exact, rel=0.02)


def test_regressions_report_errors_in_the_labels_units(quantity):
    found = fairness.contest(quantity, ["FedAvg"], settings={"FedAvg": {"lr_x": 0.05}}, **SHORT | {"rounds": 30})
    assert found.label == "RMSE"
    assert found.asked["loss"] == "squared"
    assert not found.higher_is_better
    assert 20 < found.summary("FedAvg")["mean"] < 150, "a few dozen units, not standard deviations"
    assert found.summary("FedAvg")["worst"] >= found.summary("FedAvg")["worst20"] - 1e-6
    every, mean = (found.number(name, "rmse", "all").value for name in ("pooled", "majority"))
    assert every < found.number("FedAvg", "rmse", "all").value * 1.05
    assert mean == pytest.approx(quantity.target_scale[1], rel=0.3), "the mean errs by the labels' deviation"
    assert found.number("local", "mae", "worst").value > found.number("local", "mae", "average").value
    assert not found.leads


def test_an_interrupted_comparison_keeps_what_there_is(balanced, monkeypatch):
    told = []
    stopped = lambda *args, **options: dataclasses.replace(fm.run(*args, **options), interrupted=True)
    monkeypatch.setattr(contests, "run", stopped)
    settings = {"FedAvg": {"lr_x": 0.05}, "FedProx": {"lr_x": 0.05}}
    part = fairness.contest(
        balanced, ["FedAvg", "FedProx"], settings=settings, tell=told.append, **SHORT | {"rounds": 2, "baselines": ()}
    )
    assert list(part.table().index) == ["FedAvg"]
    assert "Interrupted: FedAvg" in told[-1]


def test_wrong_names_are_told(balanced):
    with pytest.raises(fm.InputError, match=r"There is no method 'FessGDA'.*ScaffPD"):
        fairness.contest(balanced, ["FessGDA"])
    with pytest.raises(fm.InputError, match=r"a baseline is 'poold' \(did you mean 'pooled'\?\)"):
        fairness.contest(balanced, ["FedAvg"], baselines=["poold"])
    with pytest.raises(fm.InputError, match=r"weights is 'sizes'"):
        fairness.contest(balanced, ["FedAvg"], weights="sizes")


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
