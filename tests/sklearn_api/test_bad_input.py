"""What is wrong with rows, clients or settings is said in a sentence."""

import numpy as np
import pandas as pd
import pytest

import fedminimax as fm
from fedminimax.sklearn import AUCClassifier, FairClassifier, FairRegressor
from fedminimax.sklearn.sites import Sites

X = np.random.default_rng(0).normal(size=(12, 2))
Y = np.arange(12) % 2


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        (["a"] * 11, "clients has 11 values, but X has 12 rows"),
        ([*["a"] * 10, None, None], "clients is missing in 2 of 12 rows, first in row 10"),
        ([0.0] * 11 + [np.nan], "clients is missing in 1 of 12 rows, first in row 11"),
        (pd.Series(["a"] * 6 + [pd.NA] * 6, dtype="string"), "clients is missing in 6 of 12 rows, first in row 6"),
        ("site", "clients is 'site': give the client of every row"),
        (3, "clients is 3: give the client of every row"),
        (np.zeros((12, 2)), r"clients has shape \(12, 2\): give one value for each of the 12 rows"),
    ],
)
def test_clients(clients, said):
    with pytest.raises(fm.InputError, match=said):
        FairClassifier().fit(X, Y, clients=clients)


@pytest.mark.parametrize(
    ("clients", "names"),
    [
        (["b", "a", "b"], ["a", "b"]),
        ([10, 9, 10], [9, 10]),
        (pd.Categorical(["x", "y", "x"], categories=["z", "y", "x"]), ["x", "y"]),
        (["a", 1, "a"], ["a", 1]),
        (pd.Series([2, 1, 2], index=[5, 5, 0]), [1, 2]),
        ([True, False, True], [False, True]),
    ],
)
def test_clients_of_any_type_have_their_names(clients, names):
    sites = Sites.of(clients, 3)
    assert list(sites.names) == names
    assert [names[k] for k in sites.owner] == list(clients)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"penalty": "chi"}, "There is no penalty 'chi': choose 'chi2', 'cvar', 'qfair', 'agnostic'"),
        ({"penalty": fm.CVaR(0.3), "strength": 0.5}, "which has its strength: leave strength out"),
        ({"penalty": "cvar", "strength": 2.0}, "alpha must be above 0 and at most 1"),
        ({"method": "DRFA"}, "method is 'DRFA': choose 'ScaffPD', 'AFL', 'FedAvg', or give one with its step sizes"),
        ({"method": fm.FessGDA(0.1, 0.1)}, "FessGDA is for a MinimaxProblem"),
        ({"hidden": "64"}, "hidden is '64': give the widths"),
        ({"hidden": (0,)}, "A width in hidden is 0"),
        ({"ridge": -1.0}, "ridge is -1.0: give a number of at least 0"),
        ({"rounds": 0}, "rounds is 0: give an integer of at least 1"),
        ({"tol": "little"}, "tol is 'little': give a number of at least 0"),
        ({"local_steps": 0}, "local_steps"),
    ],
)
def test_settings(settings, said):
    with pytest.raises(fm.InputError, match=said):
        FairClassifier(**settings).fit(X, Y)


def test_labels():
    with pytest.raises(ValueError, match="one class"):
        FairClassifier().fit(X, np.zeros(12))
    with pytest.raises(ValueError, match="one class"):
        AUCClassifier().fit(X, np.zeros(12))
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        AUCClassifier().fit(X, np.arange(12) % 3)
    with pytest.raises(fm.InputError, match="weights is 'sizes'"):
        AUCClassifier("sizes").fit(X, Y)
    with pytest.raises(fm.InputError, match="method is 'FessGDA': choose 'CODASCA'"):
        AUCClassifier(method="FessGDA").fit(X, Y)
    with pytest.raises(ValueError, match="NaN"):
        FairRegressor().fit(np.where(X > 1, np.nan, X), Y)


def test_a_site_may_have_one_row_or_one_class():
    sites = [*range(6), *["many"] * 6]
    model = FairClassifier(rounds=5, local_steps=2).fit(X, Y, clients=sites)
    assert len(model.client_weights_) == 7
    assert np.isfinite(model.predict_proba(X)).all()
    ranked = AUCClassifier(rounds=5, local_steps=2).fit(X, Y, clients=Y)
    assert np.isfinite(ranked.decision_function(X)).all()
