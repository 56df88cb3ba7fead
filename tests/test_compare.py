"""Several methods at equal cost."""

import dataclasses
import importlib
import warnings

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.compare import at_upload, upload

compare_module = importlib.import_module("fedminimax.compare")  # fm.compare is the function
LOCAL = {"lr_x": 0.02, "lr_y": 0.02, "local_steps": 2, "batch_size": 2, "cohort_size": 8}


@pytest.fixture(scope="module")
def task():
    return fm.problems.quadratic(20, examples=4, noise=0.1)


METHODS = {
    "CD-MA": fm.CDMA(**LOCAL),
    "CD-MAGE": fm.CDMAGE(**LOCAL),
    "CODASCA": fm.CODASCA(**LOCAL),
}


@pytest.fixture(scope="module")
def curves(task):
    return fm.compare(
        task.problem, task.clients, METHODS, rounds=4, seeds=(0, 1), match_upload=True, metrics=fm.metrics.Value(), eval_every=2
    )


def test_methods_that_upload_twice_as_much_get_half_the_cohort(curves):
    assert [m.cohort_size for m in curves.algorithms.values()] == [8, 4, 4]
    sent = {name: [r.costs["floats_up"].tolist() for r in results] for name, results in curves.results.items()}
    assert sent["CD-MA"] == sent["CD-MAGE"] == sent["CODASCA"] == [[8 * 7] * 4] * 2


def test_what_a_round_uploads_is_known_without_running_it(task):
    for method in (*METHODS.values(), fm.SAGDA(**LOCAL), fm.ParallelSGDA(0.1, 0.1)):
        done = fm.run(task.problem, task.clients, method, rounds=1)
        assert upload(task.problem, task.clients, method) == done.costs["floats_up"][0]


def test_everything_can_be_the_x_axis(curves):
    for against in ("round", "floats_up", "floats_down", "grad_evals", "replies", "waited"):
        ax = curves.plot("value", against=against)
        lines = {line.get_label(): line.get_xdata() for line in ax.get_lines()}
        assert set(lines) == set(METHODS)
        expected = np.mean([r.history[against] for r in curves.results["CD-MAGE"]], axis=0)
        np.testing.assert_allclose(lines["CD-MAGE"], expected)


def test_table_and_frame_have_every_method_and_seed(curves):
    table = curves.table("value")
    last = [r.history["value"][-1] for r in curves.results["CD-MA"]]
    np.testing.assert_allclose(table.loc["CD-MA", ["value", "spread"]].astype(float), [np.mean(last), np.std(last)])
    assert table["floats up a round"].tolist() == [56.0] * 3
    assert len(curves.frame()) == 3 * 2 * 3
    assert set(curves.frame()["method"]) == set(METHODS)


def test_a_named_method_or_a_number_can_set_the_budget(task):
    by = lambda budget: fm.compare(task.problem, task.clients, METHODS, rounds=0, match_upload=budget).algorithms
    assert [m.cohort_size for m in by("CODASCA").values()] == [16, 8, 8]
    assert [m.cohort_size for m in by(28).values()] == [4, 2, 2]
    assert [m.cohort_size for m in by(False).values()] == [8, 8, 8]


def test_a_budget_that_no_cohort_meets_is_said(task):
    with pytest.warns(UserWarning, match="no cohort comes nearer"):
        assert at_upload(task.problem, task.clients, METHODS["CODASCA"], 21).cohort_size == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at_upload(task.problem, task.clients, METHODS["CODASCA"], 28)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"match_upload": "FedAvg"}, "names 'FedAvg'"),
        ({"match_upload": 0}, "must be True"),
        ({"match_upload": [1]}, "must be True"),
        ({"seed": 3}, "give seeds="),
        ({"seeds": 3}, "seeds must be several"),
        ({"match_upload": 10_000}, "there are 20 clients"),
    ],
)
def test_wrong_budgets_are_named(task, options, message):
    with pytest.raises(fm.InputError, match=message):
        fm.compare(task.problem, task.clients, METHODS, rounds=1, **options)


def test_a_part_of_a_cohort_uploads_a_part():
    task = fm.problems.robust_regression(clients=12, seed=0)
    method = fm.DeltaFL(0.01, alpha=0.25, local_steps=1, cohort_size=8)
    done = fm.run(task.problem, task.clients, method, rounds=1)
    everybody = sum(m.places * sum(m.up.values()) for m in done.messages)
    assert upload(task.problem, task.clients, method) == done.costs["floats_up"][0] < everybody


def test_metrics_from_an_iterator_serve_every_run(task):
    twice = fm.compare(
        task.problem, task.clients, METHODS, rounds=1, seeds=range(2), metrics=iter([fm.metrics.Value()]), eval_every=1
    )
    assert all("value" in result.history for results in twice.results.values() for result in results)
    with pytest.raises(fm.InputError, match=r"no 'loss' in the history of CDMA: there are round, value"):
        twice.table("loss")
    with pytest.raises(fm.InputError, match="no 'loss'"):
        twice.plot("loss")


def test_nothing_run_is_a_table_too(task):
    none = fm.compare(task.problem, task.clients, METHODS, rounds=0, metrics=fm.metrics.Value())
    assert none.table("value")["gradients"].tolist() == [0.0] * 3


def test_a_run_that_was_stopped_is_drawn_as_far_as_it_went(task, curves):
    shorter = fm.run(task.problem, task.clients, METHODS["CD-MA"], rounds=2, metrics=fm.metrics.Value(), eval_every=2)
    ax = fm.plots.bands({"CD-MA": [*curves.results["CD-MA"], shorter]}, "value")
    assert ax.get_lines()[0].get_xdata().tolist() == [0, 2]
    assert ax.get_lines()[0].get_label() == "CD-MA (all seeds up to round 2)"


@pytest.fixture(scope="module")
def short(task):
    """A run of two rounds of four."""
    return fm.run(task.problem, task.clients, METHODS["CD-MA"], rounds=2, metrics=fm.metrics.Value(), eval_every=1, seed=1)


def uneven(curves, **changed):
    """The comparison with another second run of CD-MA."""
    first, second = curves.results["CD-MA"]
    second = dataclasses.replace(second, **changed) if changed else None
    return dataclasses.replace(curves, results={**curves.results, "CD-MA": [first, second] if second else [first]})


def test_runs_of_different_lengths_are_compared_where_all_are(curves, short):
    stopped = uneven(curves, history=short.history, costs=short.costs, rounds=2, stopped="enough")
    (said,) = stopped.notes
    assert said.startswith("The runs are not equally long (2 to 4 rounds). They are compared at round 2")
    assert said.endswith("Shorter than others: CD-MA, seed 1, at 2 (stopped).")
    with pytest.warns(UserWarning, match="not equally long"):
        table = stopped.table("value")
    assert table.attrs["notes"] == [said]
    assert table["round"].tolist() == [2] * 3
    at_two = [stopped.results["CD-MA"][0].history["value"][1], short.history["value"][2]]
    assert table.loc["CD-MA", "value"] == pytest.approx(np.mean(at_two))
    assert table.loc["CODASCA", "value"] == np.mean([r.history["value"][1] for r in curves.results["CODASCA"]])
    whole = curves.table("value")
    assert table.loc["CODASCA", "gradients"] == whole.loc["CODASCA", "gradients"] / 2
    shown = [text.get_text() for text in stopped.plot("value").texts]
    assert "not equally long" in shown[0]
    assert not curves.plot("value").texts, "nothing is said of runs that are alike"
    assert not curves.notes
    assert whole["round"].tolist() == [4] * 3


def test_a_run_that_was_interrupted_is_not_averaged(curves, short, tmp_path):
    cut = uneven(curves, history=short.history, costs=short.costs, rounds=2, interrupted=True)
    assert cut.notes[0] == "CD-MA has unfinished runs that are not counted (seed 1: interrupted at round 2 of 4)."
    with pytest.warns(UserWarning, match="unfinished runs that are not counted"):
        table = cut.table("value")
    assert table["seeds"].tolist() == [1, 2, 2]
    assert table.loc["CD-MA", "value"] == curves.results["CD-MA"][0].history["value"][-1]
    page = fm.report(cut, tmp_path / "page.html", only_page=True, better={"value": "lower"}).read_text(encoding="utf-8")
    assert "CD-MA has unfinished runs that are not counted (seed 1: interrupted at round 2 of 4)." in page
    missing = uneven(curves)
    assert missing.notes[0] == "These runs were not begun: CD-MA, seed 1."
    alone = dataclasses.replace(cut, results={**cut.results, "CD-MA": cut.results["CD-MA"][1:]})
    labels = [line.get_label() for line in alone.plot("value").get_lines()]
    assert labels == ["CD-MA (unfinished)", "CD-MAGE", "CODASCA"]
    with pytest.warns(UserWarning, match="unfinished"):
        assert np.isnan(alone.table("value").loc["CD-MA", "value"])


def test_ctrl_c_keeps_what_was_run_and_says_where_it_ended(task, monkeypatch):
    run, calls = compare_module.run, []

    def pressed(*arguments, **options):
        calls.append(options["seed"])
        if len(calls) == 4:
            raise KeyboardInterrupt
        result = run(*arguments, **options)
        return dataclasses.replace(result, interrupted=True) if len(calls) == 5 else result

    monkeypatch.setattr(compare_module, "run", pressed)
    one = {"A": METHODS["CD-MA"], "B": METHODS["CD-MA"]}
    options = {"rounds": 0, "metrics": fm.metrics.Value()}
    with pytest.warns(UserWarning, match=r"interrupted before B, seed 1: with folder=\.\.\. the same call would go on"):
        curves = fm.compare(task.problem, task.clients, one, seeds=range(3), **options)
    assert {name: len(results) for name, results in curves.results.items()} == {"A": 2, "B": 1}
    assert curves.notes[0] == "These runs were not begun: A, seed 2; B, seed 1; B, seed 2."
    with pytest.warns(UserWarning, match="interrupted in A, seed 0, after 0 of 0 rounds"):
        assert set(fm.compare(task.problem, task.clients, one, **options).results) == {"A"}
    calls[:] = [0] * 3
    with pytest.raises(KeyboardInterrupt):  # there is nothing to keep
        fm.compare(task.problem, task.clients, one, **options)


def test_every_run_has_a_folder_of_its_own_for_its_clients_states(task, tmp_path):
    methods = {"a": METHODS["CODASCA"], "b": METHODS["CODASCA"]}
    fm.compare(task.problem, task.clients, methods, rounds=1, seeds=(0, 1), engine=fm.Simulator(client_store=tmp_path))
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["a-0", "a-1", "b-0", "b-1"]


def test_methods_need_names_of_their_own(task):
    with pytest.raises(fm.InputError, match="must be a list of algorithms"):
        fm.compare(task.problem, task.clients, METHODS["CD-MA"], rounds=1)
    with pytest.raises(fm.InputError, match="same name"):
        fm.compare(task.problem, task.clients, [METHODS["CD-MA"]] * 2, rounds=1)
    with pytest.raises(fm.InputError, match="nothing to compare"):
        fm.compare(task.problem, task.clients, {}, rounds=1)
