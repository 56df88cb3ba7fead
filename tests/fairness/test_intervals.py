"""Intervals over test rows: the draws, what is held in them, paired differences; and rates by group."""

import numpy as np
import pytest

from fedminimax.fairness import bootstrap, groups, measures, outputs, scores, verdict
from fedminimax.fairness.rows import Rows

AUC = measures.MEASURES["auc"]


def model(rows, strength, seed=0):
    """Predictions that know so much of the labels."""
    rng = np.random.default_rng(seed)
    margin = np.empty(len(rows))
    margin[rows.order] = strength * rows.is_positive + rng.normal(size=len(rows)) - 1
    p = 1 / (1 + np.exp(-margin))
    return outputs.Outputs(np.column_stack([1 - p, p]), margin)


def appraised(federation, strengths, draws=300, share=None, runs=1):
    rows = Rows.of(federation.test, federation)
    judges = {
        name: [scores.judge(rows, model(rows, s, seed=10 * k + r), 0.5) for r in range(runs)]
        for k, (name, s) in enumerate(strengths.items())
    }
    share = np.ones(rows.sites) / rows.sites if share is None else share
    return rows, judges, bootstrap.appraise(judges, measures.measures_of(federation), AUC, share=share, draws=draws)


def test_a_draw_keeps_the_weight_of_each_site_and_class(rare):
    rows = Rows.of(rare.test, rare)
    assert (rows.cell_sizes == 1).any()
    counts = np.concatenate(list(bootstrap.drawn(rows, 4000)))
    assert counts.shape == (4000, len(rows))
    several = rows.cell_sizes > 1
    sums = np.add.reduceat(counts, rows.cells, axis=1)
    np.testing.assert_allclose(sums[:, several], np.tile(rows.cell_sizes[several], (4000, 1)))
    np.testing.assert_allclose(sums[:, ~several].mean(axis=0), 1, atol=0.06)
    np.testing.assert_allclose(sums[:, ~several].var(axis=0), 1, atol=0.15)
    assert (sums > 0).all()


def test_the_draws_of_a_mean_vary_as_its_unbiased_variance(rare):
    rows = Rows.of(rare.test, rare)
    values = np.random.default_rng(0).normal(size=len(rows))
    counts = np.concatenate(list(bootstrap.drawn(rows, 4000)))
    cells = [slice(start, start + size) for start, size in zip(rows.cells, rows.cell_sizes, strict=True)]
    for cell in cells:
        if (size := cell.stop - cell.start) > 1:
            means = (counts[:, cell] * values[cell]).sum(axis=1) / size
            assert means.var() == pytest.approx(values[cell].var(ddof=1) / size, rel=0.12)
            assert means.mean() == pytest.approx(values[cell].mean(), abs=4 * means.std() / 60)


def test_an_interval_holds_the_middle_of_the_draws(rare):
    _, _, scored = appraised(rare, {"a": 1.5})
    number = scored["a"].number("recall", "all")
    draws = np.sort(scored["a"].draws["recall"]["all"])
    assert np.mean((draws >= number.low) & (draws <= number.high)) == pytest.approx(0.95, abs=0.03)
    assert number.low < number.value < number.high
    assert np.isnan(number.spread)


def test_summaries_are_of_the_sites_that_have_the_number(rare):
    share = np.array([0.4, 0.3, 0.2, 0.1, 0.0])
    rows, judges, scored = appraised(rare, {"a": 1.0}, share=share)
    each = scored["a"].sites["auc"][0]
    assert np.isnan(each).tolist() == [False] * 4 + [True]
    number = scored["a"].number
    assert number("auc", "average").value == pytest.approx(np.average(each[:4], weights=share[:4]))
    assert number("auc", "worst").value == number("auc", "worst20").value == pytest.approx(each[:4].min())
    assert number("auc", "all").value == pytest.approx(judges["a"][0](np.ones((1, len(rows)))).all["auc"][0])
    low, high = scored["a"].intervals
    assert (low[:4] <= each[:4]).all()
    assert (each[:4] <= high[:4]).all()
    assert np.isnan(low[4])
    # a loss is worst where it is greatest
    losses = scored["a"].sites["log_loss"][0]
    assert number("log_loss", "worst").value == pytest.approx(losses.max())


def test_the_worst_sites_are_held_in_the_draws_and_what_picking_costs_is_told(rare):
    _, judges, scored = appraised(rare, {"a": 0.3})
    found = scored["a"]
    draws = found.draws["auc"]["worst20"]
    assert abs(draws.mean() - found.points["auc"]["worst20"][0]) < 0.02, "centred"
    each = np.concatenate([judges["a"][0](c).sites["auc"] for c in bootstrap.drawn(judges["a"][0].rows, 300)])[:, :4]
    assert found.picking == pytest.approx(each.min(axis=1).mean() - found.points["auc"]["worst20"][0])
    assert found.picking < -0.005


def test_seeds_are_averaged_and_their_spread_is_told(rare):
    _, _, scored = appraised(rare, {"a": 1.0}, runs=3)
    values = scored["a"].points["auc"]["average"]
    number = scored["a"].number("auc", "average")
    assert number.value == pytest.approx(values.mean())
    assert number.spread == pytest.approx(values.std(ddof=1))


def test_a_lead_is_judged_on_the_same_rows(rare):
    _, _, scored = appraised(rare, {"good": 3.0, "poor": 0.3, "too": 0.3})
    found = verdict.lead("good", "poor", scored, AUC, "average")
    value = scored["good"].points["auc"]["average"][0] - scored["poor"].points["auc"]["average"][0]
    assert found.value == pytest.approx(value)
    assert found.more_than_noise
    assert found.sentence.startswith(f"good's average AUC is {100 * value:.1f} points above poor's (95% interval")
    assert "better, by more than noise" in found.sentence
    back = verdict.lead("poor", "good", scored, AUC, "average")
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))
    assert "below good's" in back.sentence
    assert "worse" in back.sentence
    same = verdict.lead("poor", "too", scored, AUC, "worst20")
    assert not same.more_than_noise
    assert "not more than noise over these test rows" in same.sentence
    loss = verdict.lead("good", "poor", scored, measures.MEASURES["log_loss"], "all")
    assert loss.value > 0, "a lead is a lead, though the number is lower"
    assert "below poor's" in loss.sentence
    assert loss.low < loss.value < loss.high


def test_a_lead_within_the_spread_over_seeds_is_not_called_real(rare):
    _, _, scored = appraised(rare, {"a": 3.0, "b": 0.3}, runs=2)
    scored["a"].points["auc"]["average"][:] = [0.99, 0.5]
    found = verdict.lead("a", "b", scored, AUC, "average")
    assert found.low > 0
    assert not found.more_than_noise
    assert "spread over seeds" in found.sentence


def test_rates_by_group_are_counts(rare):
    rows = Rows.of(rare.test, rare)
    found = model(rows, 1.0)
    judge = scores.judge(rows, found, 0.4)
    flat = np.array([None if k % 31 == 0 else "fm"[k % 2] for k in range(len(rows))], object)
    rates = groups.group_rates(judge, flat, draws=200)
    assert rates.names == ["None", "f", "m"]
    y, called = outputs.labels_of(rare.test, rare), found.probabilities[:, 1] >= 0.4
    for k, name in enumerate(rates.names):
        mine = np.array([str(g) for g in flat]) == name
        assert rates.counts[k].tolist() == [np.sum(mine & (y == 1)), np.sum(mine & (y == 0))]
        assert rates.fpr[k].value == pytest.approx(np.mean(called[mine & (y == 0)]))
        if rates.counts[k, 0]:
            assert rates.tpr[k].value == pytest.approx(np.mean(called[mine & (y == 1)]))
            assert rates.tpr[k].low <= rates.tpr[k].value <= rates.tpr[k].high
    assert rates.few["TPR"] == [n for n, c in zip(rates.names, rates.counts[:, 0], strict=True) if c < groups.FEW]
    assert "None" in rates.few["TPR"], "a group of so few is left out of the gap"
    enough = [r.value for r, c in zip(rates.fpr, rates.counts[:, 1], strict=True) if c >= groups.FEW]
    assert rates.gaps["FPR"].value == pytest.approx(max(enough) - min(enough))


def test_sites_that_are_better_off_alone_are_told_so():
    def scored(value, noise):
        part = {"average": np.array([value])}
        draws = {"average": value + noise * np.linspace(-1, 1, 101)}
        return bootstrap.Scored({}, {"auc": part}, {"auc": draws}, np.zeros((2, 0)), 0.0)

    known = {"local": scored(0.8, 0.01), "FedAvg": scored(0.7, 0.0), "ScaffPD": scored(0.799, 0.0)}
    (said,) = verdict.alone("FedAvg", "local", known, AUC)
    assert said.startswith(
        "Sites are better off alone: models of their own have an average AUC 10.0 points better than FedAvg's"
    )
    assert not verdict.alone("ScaffPD", "local", known, AUC), "no more than noise"
    assert not verdict.alone("local", "FedAvg", known, AUC), "worse"
    assert not verdict.alone("FedAvg", "absent", known, AUC)
