"""Epsilon: against the formula, for whoever was asked the most, over runs that are stopped and gone on with."""

import functools
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

import fedminimax as fm
from fedminimax import folders, problems
from fedminimax.federation import spending
from fedminimax.federation.privacy import Sent
from fedminimax.federation.spending import Spending, epsilon
from fedminimax.report import privacy as told
from fedminimax.report.evidence import Evidence

DELTA = 1e-5


def exact(mu, delta=DELTA):
    """Epsilon of mu-GDP, by Balle and Wang's formula, written here again."""
    log_sf = lambda e: (
        stats.norm.logcdf(-e / mu + mu / 2)
        + np.log1p(-np.exp(np.minimum(e + stats.norm.logcdf(-e / mu - mu / 2) - stats.norm.logcdf(-e / mu + mu / 2), -1e-18)))
    )
    return optimize.brentq(lambda e: log_sf(e) - np.log(delta), 0, 50 + 20 * mu + mu**2, xtol=1e-12)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0, 10.0])
def test_epsilon_is_that_of_the_formula(mu):
    assert epsilon(mu**2, DELTA) == pytest.approx(exact(mu), rel=1e-6)


def test_epsilon_is_not_below_what_the_distributions_of_losses_give():
    import dp_accounting

    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 12))
    assert epsilon(12 / 16, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


def test_nothing_costs_nothing_and_no_noise_everything():
    assert epsilon(0.0, DELTA) == 0
    assert epsilon(np.inf, DELTA) == np.inf
    assert epsilon(1e-12, DELTA) == 0
    assert fm.Privacy(1.0, 0.0).cost == np.inf
    assert fm.Privacy(1.0, 2.0).cost == 4 * fm.Privacy(1.0, 2.0, adjacency="zero").cost == 1.0


def test_what_each_client_has_spent():
    spent = Spending(fm.Privacy(1.0, 2.0, adjacency="zero"), 4)  # a part costs 1/4
    row = lambda *ids: np.array([ids])
    spent.add((Sent(row(0, 1, -1), np.array([2]), np.zeros((1, 3))),))  # seen one by one, losses and vectors
    np.testing.assert_allclose(spent.record()["messages"], [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(spent.record()["sums"], [0.5, 0.5, 0, 0])
    spent.add((Sent(row(1, 2, 3), np.array([1]), np.array([[1.0, 2.0, 0.0]])),))  # a sum, in which 3 did not arrive
    np.testing.assert_allclose(spent.record()["messages"], [0.5, 0.75, 0.25, 0.25])
    np.testing.assert_allclose(spent.record()["sums"], [0.5, 0.5 + 0.25 / 5, 0.25 * 4 / 5, 0])
    spent.add((Sent(row(3, 3, 0), np.array([1]), np.ones((1, 3))),))  # one that is there twice
    np.testing.assert_allclose(spent.record()["messages"], [0.75, 0.75, 0.25, 0.75])
    np.testing.assert_allclose(spent.record()["sums"][3], 0.25 * 4 / 3)
    assert spent.epsilons()["epsilon"] == pytest.approx(exact(np.sqrt(0.75)), rel=1e-6)
    most = max(0.5 + 0.25 / 3, 0.5 + 0.25 / 5)
    assert spent.epsilons()["epsilon_of_sums"] == pytest.approx(exact(np.sqrt(most)), rel=1e-6)


@functools.cache
def task():
    return problems.robust_regression(4, 4, 6, rho=0.1, sigma=0.5)


PRIVACY = fm.Privacy(clip=1.0, noise=8.0, clip_loss=2.0)
AFL, FEDAVG = fm.AFL(0.02, 0.02), fm.FedAvg(0.02)


def go(method=FEDAVG, rounds=4, **given):
    given = {"eval_every": 2, "progress": False, "privacy": PRIVACY, **given}
    return fm.run(task().problem, task().clients, method, rounds=rounds, **given)


def test_a_history_has_epsilon_after_the_messages_that_were_sent():
    history = go(AFL).history  # a loss, and an update, to all: two mechanisms a round, of mu = 2/8
    np.testing.assert_allclose(history["epsilon"], [0, exact(np.sqrt(4) / 4), exact(np.sqrt(8) / 4)], rtol=1e-6)
    history = go().history  # one; and in a mean of four equal weights a quarter of it
    np.testing.assert_allclose(history["epsilon"], [0, exact(np.sqrt(2) / 4), exact(np.sqrt(4) / 4)], rtol=1e-6)
    np.testing.assert_allclose(history["epsilon_of_sums"][-1], exact(np.sqrt(4) / 8), rtol=1e-6)


def test_the_client_that_was_asked_the_most_counts():
    result = go(fm.FedAvg(0.02, cohort_size=1), rounds=6, record=True)
    asked = np.bincount(np.ravel(result.trace.cohorts[0]), minlength=4)
    assert 2 <= asked.max() < 6
    assert result.history["epsilon"][-1] == pytest.approx(exact(np.sqrt(asked.max()) / 4), rel=1e-6)
    np.testing.assert_allclose(result.info["privacy"]["messages"], asked / 16)


def test_those_who_do_not_answer_send_nothing():
    result = go(availability=fm.Availability(0.5), rounds=4, record=True)
    ids = result.trace.cohorts[0]
    np.testing.assert_allclose(result.info["privacy"]["messages"], [(ids == k).sum() / 16 for k in range(4)])
    heard = (ids >= 0).sum(axis=1)
    sums = [sum(1 / heard[t] for t in range(4) if k in ids[t]) / 16 for k in range(4)]
    np.testing.assert_allclose(result.info["privacy"]["sums"], sums)


@pytest.mark.parametrize("guard", [fm.Guard(aggregate="median"), fm.Guard(max_norm=1.0), fm.Guard(max_loss=1.0)])
def test_what_is_no_plain_sum_hides_nobody(guard):
    history = go(guard=guard, rounds=2).history
    assert history["epsilon_of_sums"][-1] == history["epsilon"][-1] > 0


def test_a_run_that_goes_on_has_spent_what_it_had(tmp_path):
    whole, half = go(), go(rounds=2)
    on = go(rounds=2, start=half)
    np.testing.assert_allclose(on.history["epsilon"], whole.history["epsilon"])
    np.testing.assert_array_equal(on.x, whole.x)
    assert on.save(tmp_path / "run.fmx")
    kept = fm.Result.load(tmp_path / "run.fmx")
    np.testing.assert_array_equal(kept.info["privacy"]["messages"], on.info["privacy"]["messages"])
    open_ = go(rounds=2, privacy=None)
    assert np.isinf(go(rounds=2, start=open_).history["epsilon"][-1])  # what was sent then cannot be taken back
    other = go(rounds=2, start=half, privacy=fm.Privacy(clip=1.0, noise=4.0))
    assert other.history["epsilon"][-1] == pytest.approx(exact(np.sqrt(2 / 16 + 2 / 4)), rel=1e-6)


def test_a_folder_remembers_and_a_report_tells(tmp_path):
    go(rounds=2, folder=tmp_path / "run")
    on = go(rounds=4, folder=tmp_path / "run")
    assert on.history["epsilon"][-1] == pytest.approx(exact(np.sqrt(4) / 4), rel=1e-6)
    with pytest.raises(fm.InputError, match="the privacy differs"):
        go(rounds=6, folder=tmp_path / "run", privacy=fm.Privacy(clip=2.0, noise=8.0, clip_loss=2.0))
    record = folders.Record.read(tmp_path / "run")
    assert record.notes["privacy"]["noise"] == 8.0
    page = fm.report(tmp_path / "run", tmp_path / "out")
    text = (page if page.is_file() else page / "report.html").read_text()
    assert "clipped to a length of 1.00, reported losses to 2.00, and got Gaussian noise of 8.00 times the bound" in text
    assert f"epsilon = {on.history['epsilon'][-1]:.2f} at delta = 1e-05" in text
    assert "no epsilon covers them" in text
    assert '<th scope="col">epsilon</th>' in text


def test_a_report_tells_who_is_not_protected():
    private, open_ = (folders.Record.of(go(rounds=2, **given), label) for label, given in (("P", {}), ("O", {"privacy": None})))
    other = folders.Record.of(go(rounds=2, privacy=fm.Privacy(1.0, 9.0)), "P")
    section = told.section(Evidence.of([private, open_]))
    assert "O: messages left their clients as they are" in section
    assert "not protected alike" in told.section(Evidence.of([private, other]))
    assert told.section(Evidence.of([open_])) == ""
    assert [told.shown(value) for value in (np.nan, np.inf, 2.0)] == ["–", "∞", "2.00"]


def test_a_run_stops_when_it_has_spent_enough():
    result = go(rounds=40, eval_every=1, observers=fm.StopWhen("epsilon", above=2.0))
    assert result.history["epsilon"][-2] <= 2.0 < result.history["epsilon"][-1]


def test_a_sweep_and_a_file_take_privacy_too():
    swept = fm.sweep(
        task().problem, task().clients, FEDAVG, rounds=2, grid={"lr_x": [0.02]}, metrics=fm.metrics.Value(), privacy=PRIVACY
    )
    alone = go(rounds=2, metrics=fm.metrics.Value())
    np.testing.assert_allclose(swept.history["value"][0, 0, -1], alone.history["value"][-1], rtol=1e-5)


def test_a_file_says_it_in_a_table(tmp_path):
    spec = """
rounds = 2
problem = "robust_regression"
privacy = {clip = 1.0, noise = 8.0}
[methods.FedAvg]
lr_x = 0.02
"""
    experiment = fm.Experiment.from_text(spec)
    experiment.run(tmp_path / "out", progress=False, report=False)
    (path,) = folders.runs_in(tmp_path / "out")
    record = folders.Record.read(path)
    assert record.history["epsilon"][-1] == pytest.approx(exact(np.sqrt(2) / 4), rel=1e-6)


def test_without_dp_accounting_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(fm.InputError, match=r"fedminimax\[privacy\]"):
        go(rounds=1)
    with pytest.raises(fm.InputError, match=r"fedminimax\[privacy\]"):
        spending.check_installed()


def test_the_pages_python_prints_what_it_shows(capsys):
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.S):
        exec(block, names)
    assert [line.strip() for shown in re.findall(r"```text\n(.*?)```", page, flags=re.S) for line in shown.splitlines()] == [
        line.strip() for line in capsys.readouterr().out.splitlines()
    ]
