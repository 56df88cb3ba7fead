"""The estimators keep scikit-learn's conventions: its own checks, pipelines, searches, clones, pickles, tables with names."""

import io

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from fairlearn.metrics import MetricFrame
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedminimax as fm
from fedminimax.sklearn import AUCClassifier, FairClassifier, FairRegressor, client_scores, worst_client_score

ESTIMATORS = [FairClassifier(), FairRegressor(), AUCClassifier()]
QUICK = {"rounds": 5, "local_steps": 2}
SITES = np.repeat(["north", "south", "west"], [20, 40, 60])


@pytest.fixture(scope="module")
def table():
    """Rows with names, classes that are words, and three sites."""
    X, y = make_classification(120, 4, random_state=0)
    return pd.DataFrame(X, columns=["age", "dose", "time", "size"]), np.array(["well", "ill"])[y]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_scikit_learns_own_checks_pass(estimator):
    results = check_estimator(estimator, on_skip=None)
    passed = [result["check_name"] for result in results if result["status"] == "passed"]
    assert len(passed) > 40
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}  # an extra of SciPy's
    assert not any(result["expected_to_fail"] for result in results)


@pytest.mark.parametrize("routing", [True, False])
def test_clients_reach_fit_through_a_pipeline_in_a_search(table, routing):
    X, y = table
    with sklearn.config_context(enable_metadata_routing=routing):
        grid = {"fairclassifier__strength": [0.1, 1.0]}
        search = GridSearchCV(make_pipeline(StandardScaler(), FairClassifier(**QUICK)), grid, cv=2)
        search.fit(X, y, **{"clients" if routing else "fairclassifier__clients": SITES})
    best = search.best_estimator_[-1]
    assert list(best.clients_) == ["north", "south", "west"]
    np.testing.assert_allclose(best.client_weights_.sum(), 1, rtol=1e-5)
    assert search.predict(X).shape == (120,)


def test_a_search_can_choose_by_the_worst_site(table):
    X, y = table
    with sklearn.config_context(enable_metadata_routing=True):
        model = FairClassifier(**QUICK).set_fit_request(clients=True)
        scorer = make_scorer(worst_client_score).set_score_request(clients=True)
        search = GridSearchCV(model, {"ridge": [1e-3, 10.0]}, cv=2, scoring=scorer).fit(X, y, clients=SITES)
    first = next(StratifiedKFold(2).split(X, y))[1]
    trained = FairClassifier(**QUICK).fit(X.drop(first), np.delete(y, first), np.delete(SITES, first))
    by_hand = client_scores(y[first], trained.predict(X.iloc[first]), SITES[first]).min()
    assert search.cv_results_["split0_test_score"][0] == by_hand
    assert search.best_params_ == {"ridge": 1e-3}  # the other one has no coefficient to speak of


def test_a_model_is_cloned_and_pickled_as_arrays(table):
    X, y = table
    model = FairClassifier("cvar", 0.5, **QUICK).fit(X, y, clients=SITES)
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert not hasattr(again, "coefs_")
    store = io.BytesIO()
    joblib.dump(model, store)
    store.seek(0)
    loaded = joblib.load(store)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    pd.testing.assert_series_equal(loaded.client_weights_, model.client_weights_)
    kept = [value for name, value in vars(model).items() if name.endswith("_")]
    assert not any(type(value).__module__.startswith("jax") for value in [*kept, *model.coefs_, *model.intercepts_])
    objects = clone(FairClassifier(fm.CVaR(0.5), method=fm.ScaffPD(0.1, 0.1, local_steps=2), rounds=5))
    assert objects.penalty == fm.CVaR(0.5)
    assert objects.fit(X, y, SITES).method_ == fm.ScaffPD(0.1, 0.1, local_steps=2)


def test_names_of_columns_are_kept_and_checked(table):
    X, y = table
    model = FairClassifier(**QUICK).fit(X, y, clients=pd.Series(SITES, index=X.index[::-1]))  # by place, whatever the index
    assert list(model.feature_names_in_) == list(X.columns)
    assert model.n_features_in_ == 4
    assert model.client_weights_.index.tolist() == ["north", "south", "west"]
    assert list(model.history_.columns) == ["round", "objective", "gap", "mean_loss", "worst_loss"]
    assert model.n_iter_ == model.history_["round"].iloc[-1] == 5
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X[["dose", "age", "time", "size"]])


def test_fairlearns_metric_frame_takes_the_predictions(table):
    X, y = table
    model = FairClassifier(**QUICK).fit(X, y, clients=SITES)
    frame = MetricFrame(metrics=accuracy_score, y_true=y, y_pred=model.predict(X), sensitive_features=SITES)
    expected = client_scores(y, model.predict(X), SITES)
    assert frame.by_group.to_dict() == expected.to_dict()
    assert frame.group_min() == worst_client_score(y, model.predict(X), SITES)
    assert frame.overall == model.score(X, y)


def test_scores_of_errors_are_worst_where_they_are_largest():
    error = lambda y, p: float(np.abs(y - p).mean())
    assert worst_client_score([1, 2, 3], [1, 4, 3], ["a", "b", "b"], error, higher_is_better=False) == 1.0
    assert worst_client_score([1, 2, 3], [1, 4, 3], ["a", "b", "b"], error) == 0.0
    with pytest.raises(fm.InputError, match="y_true has 2 rows and y_pred 1"):
        client_scores([1, 2], [1])
