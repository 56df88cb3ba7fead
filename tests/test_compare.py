"""Several methods at equal cost."""

import warnings

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.compare import at_upload, upload

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
