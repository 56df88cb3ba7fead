"""The scores against scikit-learn's, site by site, and what is shown first."""

import dataclasses
import warnings

import numpy as np
import pytest
from sklearn import metrics as sk

from fedminimax.data import datasets, silos
from fedminimax.fairness import measures, outputs, scores
from fedminimax.fairness.rows import Rows


def predictions(rows, classes, seed=0):
    """Probabilities in the flat order, with ties."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(classes), len(rows)).round(1) + 0.05
    return outputs.Outputs(p / p.sum(axis=1, keepdims=True))


def by_site(federation, found):
    """Each site's labels and predictions, in the flat order, and all of them at the end."""
    ends = np.cumsum(np.asarray(federation.test.sizes))[:-1]
    labels = outputs.labels_of(federation.test, federation)
    yield from zip(np.split(labels, ends), np.split(found.probabilities, ends), strict=True)
    yield labels, found.probabilities


def test_two_classes_are_scored_as_scikit_learn_does(rare):
    rows = Rows.of(rare.test, rare)
    found = predictions(rows, 2)
    assert rows.positive == 1
    judged = scores.judge(rows, found, threshold=0.3)(np.ones((1, len(rows))))
    ones = {name: [*values[0], judged.all[name][0]] for name, values in judged.sites.items()}
    assert set(ones) == {m.name for m in measures.measures_of(rare)}
    for k, (y, p) in enumerate(by_site(rare, found)):
        called = (p[:, 1] >= 0.3).astype(int)
        assert ones["accuracy"][k] == pytest.approx(sk.accuracy_score(y, called))
        assert ones["log_loss"][k] == pytest.approx(sk.log_loss(y, p, labels=[0, 1]))
        assert ones["brier"][k] == pytest.approx(np.mean((p[:, 1] - y) ** 2))
        if len(set(y)) == 1:
            assert np.isnan(ones["auc"][k])
            assert np.isnan(ones["balanced_accuracy"][k])
            assert np.isnan(ones["recall"][k])
            continue
        assert ones["brier"][k] == pytest.approx(sk.brier_score_loss(y, p[:, 1]))
        assert ones["auc"][k] == pytest.approx(sk.roc_auc_score(y, p[:, 1]))
        assert ones["balanced_accuracy"][k] == pytest.approx(sk.balanced_accuracy_score(y, called))
        assert ones["recall"][k] == pytest.approx(sk.recall_score(y, called))
        assert ones["precision"][k] == pytest.approx(sk.precision_score(y, called))
    assert np.isnan(ones["auc"]).sum() == 1, "the site that has seen one class"


def test_rows_that_count_twice_are_scored_as_scikit_learn_weighs_them(rare):
    rows = Rows.of(rare.test, rare)
    found = predictions(rows, 2, seed=3)
    flat = np.random.default_rng(0).integers(0, 3, len(rows)).astype(float)
    counts = flat[rows.order]
    judged = scores.judge(rows, found, threshold=0.4)(np.stack([np.ones(len(rows)), counts]))
    y, p = outputs.labels_of(rare.test, rare), found.probabilities[:, 1]
    called = p >= 0.4
    assert judged.all["auc"][1] == pytest.approx(sk.roc_auc_score(y, p, sample_weight=flat))
    assert judged.all["precision"][1] == pytest.approx(sk.precision_score(y, called, sample_weight=flat))
    assert judged.all["balanced_accuracy"][1] == pytest.approx(sk.balanced_accuracy_score(y, called, sample_weight=flat))
    assert judged.all["log_loss"][1] == pytest.approx(sk.log_loss(y, found.probabilities, sample_weight=flat))
    first = slice(0, int(rare.test.sizes[0]))
    assert judged.sites["auc"][1, 0] == pytest.approx(sk.roc_auc_score(y[first], p[first], sample_weight=flat[first]))


def test_more_classes_are_scored_without_an_area(three):
    rows = Rows.of(three.test, three)
    found = predictions(rows, 3)
    judged = scores.judge(rows, found)(np.ones((1, len(rows))))
    assert set(judged.sites) == {"balanced_accuracy", "accuracy", "log_loss", "brier"}
    for k, (y, p) in enumerate(by_site(three, found)):
        one = {name: [*values[0], judged.all[name][0]][k] for name, values in judged.sites.items()}
        called = p.argmax(axis=1)
        assert one["accuracy"] == pytest.approx(sk.accuracy_score(y, called))
        assert one["log_loss"] == pytest.approx(sk.log_loss(y, p, labels=[0, 1, 2]))
        assert one["brier"] == pytest.approx(np.mean(np.sum((p - np.eye(3)[y]) ** 2, axis=1)))
        with warnings.catch_warnings():  # a class that was called and is not there
            warnings.simplefilter("ignore")
            assert one["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, called))


def test_quantities_are_scored_in_their_units(quantity):
    rows = Rows.of(quantity.test, quantity)
    scale = quantity.target_scale
    found = outputs.from_scores(np.random.default_rng(0).normal(size=(len(rows), 1)), quantity, "squared", None)
    judged = scores.judge(rows, found)(np.ones((1, len(rows))))
    for k, (y, p) in enumerate(by_site(quantity, found)):
        root, absolute = ([*judged.sites[name][0], judged.all[name][0]][k] for name in ("rmse", "mae"))
        assert root == pytest.approx(sk.root_mean_squared_error(y, p[:, 0]))
        assert absolute == pytest.approx(sk.mean_absolute_error(y, p[:, 0]))
    assert 300 < rows.labels.mean() < 700
    assert found.probabilities.mean() == pytest.approx(scale[0], abs=scale[1] / 2)


def test_scores_become_probabilities(rare):
    raw = np.array([[2.0, 0.0], [-1.0, -3.0], [0.2, 0.6]])
    np.testing.assert_allclose(outputs.softmax(raw)[0], [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))])
    np.testing.assert_allclose(outputs.softmax(1000 * raw).sum(axis=1), 1)
    np.testing.assert_allclose(outputs.clipped(raw), [[1, 0], [0.5, 0.5], [0.25, 0.75]])
    squared, entropy = (outputs.from_scores(raw, rare, loss, 0) for loss in ("squared", "entropy"))
    np.testing.assert_allclose(squared.probabilities, outputs.clipped(raw))
    np.testing.assert_allclose(entropy.probabilities, outputs.softmax(raw))
    np.testing.assert_allclose(squared.margin, raw[:, 0] - raw[:, 1])


def test_what_comes_first_follows_the_label(rare, balanced, three, quantity):
    names = {"rare": rare, "balanced": balanced, "three": three, "quantity": quantity}
    first = {name: measures.first_measure(federation) for name, federation in names.items()}
    assert {name: choice.measure.name for name, choice in first.items()} == {
        "rare": "auc", "balanced": "accuracy", "three": "balanced_accuracy", "quantity": "rmse",
    }  # fmt: skip
    assert [choice.rare for choice in first.values()] == [True, False, True, False]
    ten = silos(datasets.load("digits"), 5, 10.0, seed=0)
    assert measures.first_measure(ten).measure.name == "accuracy", "a tenth of the rows each: none is rare"
    share = measures.shares(rare)
    assert share[1] == pytest.approx(np.mean(rare.train.fields["labels"]))
    assert f"Only {100 * share[1]:.1f}% of the training rows are 'yes'" in first["rare"].sentence
    assert f"{100 * share[0]:.1f}% accurate" in first["rare"].sentence
    assert f"the majority's, {100 * measures.shares(balanced).max():.1f}%" in first["balanced"].sentence


def test_the_positive_class_is_the_rarer_one_unless_it_is_named(rare, three):
    assert measures.positive_class(rare) == 1
    assert measures.positive_class(dataclasses.replace(rare, positive=0)) == 0
    assert measures.positive_class(three) is None
    flipped = dataclasses.replace(rare.train, fields={"labels": 1 - rare.train.fields["labels"]})
    assert measures.positive_class(dataclasses.replace(rare, train=flipped, positive=None)) == 0
