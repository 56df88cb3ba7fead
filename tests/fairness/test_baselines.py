"""The majority, the pooled and the local models, and the threshold that histograms give."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from fedminimax import models
from fedminimax.data.clients import ClientData
from fedminimax.fairness import baselines, measures, outputs, threshold
from fedminimax.problems import robust_model

RIDGE = 0.01


def logistic(inputs, labels):
    """scikit-learn's: softmax of two classes with ridge/2 |W|^2 is a logistic loss with ridge/4 |v|^2, bias included."""
    design = np.column_stack([inputs, np.ones(len(inputs))])
    fitted = LogisticRegression(C=2 / (RIDGE * len(labels)), fit_intercept=False, tol=1e-8, max_iter=2000).fit(design, labels)
    return lambda rows: fitted.predict_proba(np.column_stack([rows, np.ones(len(rows))]))


@pytest.fixture(scope="module")
def problem(rare):
    return robust_model(models.Linear(2), rare.train, 2, loss="entropy", ridge=RIDGE)


def test_the_pooled_model_is_the_optimum_over_all_rows(rare, problem):
    x = baselines.pooled(problem, rare.train)
    found = outputs.outputs(problem, x, rare.test, rare, "entropy", 1)
    exact = logistic(rare.train.fields["inputs"], rare.train.fields["labels"])(rare.test.fields["inputs"])
    np.testing.assert_allclose(found.probabilities, exact, atol=2e-3)
    np.testing.assert_allclose(
        found.margin, np.log(found.probabilities[:, 1] / found.probabilities[:, 0]), rtol=1e-4, atol=1e-5
    )


def test_each_local_model_is_its_sites_optimum(rare, problem):
    found = baselines.Local(problem, rare, "entropy", 1).outputs(rare.test)
    ends = np.cumsum(np.asarray(rare.test.sizes))[:-1]
    for train, test, p in zip(rare.train, rare.test, np.split(found.probabilities, ends), strict=True):
        if len(set(train["labels"])) == 1:
            np.testing.assert_array_equal(p, np.tile([1.0, 0.0], (len(p), 1)), "a site with one class knows no other")
            continue
        np.testing.assert_allclose(p, logistic(train["inputs"], train["labels"])(test["inputs"]), atol=5e-3)


def test_local_models_of_a_quantity_are_least_squares(quantity):
    problem = robust_model(models.Linear(1), quantity.train, None, ridge=RIDGE)
    found = baselines.Local(problem, quantity, "squared", None).outputs(quantity.test).probabilities[:, 0]
    mean, scale = quantity.target_scale
    ends = np.cumsum(np.asarray(quantity.test.sizes))[:-1]
    for train, test, p in zip(quantity.train, quantity.test, np.split(found, ends), strict=True):
        design = np.column_stack([train["inputs"], np.ones(len(train["labels"]))]).astype(float)
        inner = design.T @ design / len(design) + RIDGE * np.eye(design.shape[1])
        x = np.linalg.solve(inner, design.T @ train["labels"] / len(design))
        np.testing.assert_allclose(p, mean + scale * (test["inputs"] @ x[:-1] + x[-1]), atol=0.02 * scale)


def test_the_majority_says_the_training_shares(rare, quantity):
    found = baselines.majority(rare, rare.test).probabilities
    np.testing.assert_allclose(found, np.tile(measures.shares(rare), (rare.test.total, 1)))
    np.testing.assert_allclose(baselines.majority(quantity, quantity.test).probabilities, quantity.target_scale[0])


def test_clients_of_like_size_are_laid_side_by_side():
    sizes = [3, 50, 4, 11, 200, 12]
    data = ClientData.from_list([{"a": np.arange(n) + 1000 * k} for k, n in enumerate(sizes)])
    groups = baselines.alike(data)
    assert sorted(np.concatenate([sites for sites, _, _ in groups])) == list(range(6))
    for sites, places, inside in groups:
        for site, place, there in zip(sites, places, inside, strict=True):
            np.testing.assert_array_equal(data.fields["a"][place[there]], data[site]["a"])
        assert inside.sum(axis=1).max() <= 4 * inside.sum(axis=1).min()


def test_histograms_of_sites_give_the_best_threshold():
    rng = np.random.default_rng(0)
    y = rng.random(3000) < 0.05
    p = 1 / (1 + np.exp(-(-4 + 1.5 * y + rng.normal(size=3000))))
    whole = threshold.histogram(p, y)
    assert whole.sum(axis=1).tolist() == [np.sum(~y), np.sum(y)]
    parts = [threshold.histogram(p[k::7], y[k::7]) for k in range(7)]
    np.testing.assert_array_equal(np.sum(parts, axis=0), whole)
    edge = threshold.best_threshold(whole)
    best = max(balanced_accuracy_score(y, p >= t) for t in np.quantile(p, np.linspace(0, 1, 500)))
    assert balanced_accuracy_score(y, p >= edge) == pytest.approx(best, abs=0.003)
    assert edge < 0.2, "far below one half"
    assert np.mean(p >= 0.5) < 0.02
    assert threshold.best_threshold(threshold.histogram(p[~y], y[~y])) == 0.5
    # certain predictions fall into the outermost bins
    assert threshold.histogram([0.0, 1.0], [0, 1])[0, 0] == threshold.histogram([0.0, 1.0], [0, 1])[1, -1] == 1
