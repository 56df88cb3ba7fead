"""What is trained is the solution: against closed forms, optimality conditions and scikit-learn; and steps that are safe."""

import jax
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import fedminimax as fm
from fedminimax.data.clients import ClientData
from fedminimax.problems import robust_model
from fedminimax.sklearn import AUCClassifier, FairClassifier, FairRegressor
from fedminimax.sklearn.auc import calibrated
from fedminimax.sklearn.constants import coupling, curvature
from fedminimax.sklearn.layers import Layers, Scaling
from fedminimax.sklearn.training import Training


@pytest.fixture(scope="module")
def diabetes():
    """Numbers to predict, in units of their own, and sites of unequal size, each with an offset."""
    X, y = load_diabetes(return_X_y=True)
    X = X[:, :4] * [1.0, 1e3, 1e-3, 1.0] + [0, 5e3, 0, 1]  # units that differ
    sites = np.repeat([7, 3, 5], [250, 100, 92])
    return X, 1000 + y + 80 * (sites == 3), sites


@pytest.fixture(scope="module")
def cancer():
    """Two classes, and sites of unequal size."""
    X, y = load_breast_cancer(return_X_y=True)
    return X[:, :6], y, np.repeat(["a", "b"], [400, 169])


def standard(values):
    return (values - values.mean(axis=0)) / values.std(axis=0)


def test_one_site_is_ridge_regression_in_the_tables_units(diabetes):
    X, y, _ = diabetes
    model = FairRegressor(ridge=0.1, tol=0).fit(X, y)
    z, t = standard(X), standard(y)
    exact = np.linalg.solve(z.T @ z / len(z) + 0.1 * np.eye(4), z.T @ t / len(z))
    np.testing.assert_allclose(model.coef_ * X.std(axis=0) / y.std(), exact, atol=1e-5)
    np.testing.assert_allclose(model.predict(X), y.mean() + y.std() * z @ exact, rtol=1e-5)
    np.testing.assert_allclose(X @ model.coef_ + model.intercept_, model.predict(X))
    assert model.client_weights_.to_dict() == {0: 1.0}


def test_weights_and_coefficients_are_the_saddle_point(diabetes):
    X, y, sites = diabetes
    ridge, rho = 0.1, 0.05
    model = FairRegressor("chi2", rho, ridge=ridge, tol=0, rounds=400).fit(X, y, clients=sites)
    z, t = standard(X), standard(y)
    theta = np.append(
        model.coef_ * X.std(axis=0) / y.std(), (model.intercept_ + model.coef_ @ X.mean(axis=0) - y.mean()) / y.std()
    )
    rows = np.c_[z, np.ones(len(z))]
    names = [3, 5, 7]
    assert model.client_weights_.index.tolist() == names
    w = model.client_weights_.to_numpy()
    slopes, losses = [], []
    for name in names:
        own = sites == name
        rest = rows[own] @ theta - t[own]
        slopes.append(rows[own].T @ rest / own.sum() + ridge * theta)
        losses.append(0.5 * np.mean(rest**2) + ridge / 2 * theta @ theta)
    np.testing.assert_allclose(w @ np.array(slopes), 0, atol=2e-4)  # x minimises sum_i w_i f_i
    f = np.array(losses)
    np.testing.assert_allclose(w, 1 / 3 + (f - f.mean()) / (3 * rho), atol=2e-4)  # w maximises <f, w> - psi(w), inside of W
    assert w.max() > 0.36  # and is not equal weights
    at_start = np.array([-rows[sites == name].T @ t[sites == name] / (sites == name).sum() for name in names])
    pull = np.linalg.norm(at_start - at_start.mean(axis=0), 2) ** 2
    np.testing.assert_allclose(model.method_.tau * model.method_.sigma * pull, 1, rtol=1e-3)  # as large as it may be
    last = model.history_.iloc[-1]
    np.testing.assert_allclose([last["mean_loss"], last["worst_loss"]], [f.mean(), f.max()], rtol=1e-4)
    np.testing.assert_allclose(last["objective"], w @ f - rho / 6 * np.sum((3 * w - 1) ** 2), rtol=1e-4)


def test_the_worst_site_is_served_better_than_by_the_average(diabetes):
    X, y, sites = diabetes
    fair, average = (FairRegressor(method=m, penalty="agnostic").fit(X, y, sites) for m in ("ScaffPD", "FedAvg"))
    assert fair.history_["worst_loss"].iloc[-1] < 0.9 * average.history_["worst_loss"].iloc[-1]
    assert fair.history_["mean_loss"].iloc[-1] > average.history_["mean_loss"].iloc[-1]
    assert average.client_weights_.tolist() == [1 / 3] * 3
    afl = FairRegressor(method="AFL", penalty="agnostic", local_steps=1, rounds=1000).fit(X, y, sites)
    np.testing.assert_allclose(afl.history_["objective"].iloc[-1], fair.history_["objective"].iloc[-1], rtol=0.05)


def test_one_site_of_classes_is_logistic_regression(cancer):
    X, y, _ = cancer
    ridge = 0.05
    model = FairClassifier(ridge=ridge, tol=0, rounds=400).fit(X, y)
    z = standard(X)
    kernel, bias = model.coefs_[0] * X.std(axis=0)[:, None], model.intercepts_[0] + X.mean(axis=0) @ model.coefs_[0]
    rest = (model.predict_proba(X) - np.eye(2)[y]) / len(X)
    np.testing.assert_allclose(z.T @ rest, -ridge * kernel, atol=1e-5)  # the gradient is zero
    np.testing.assert_allclose(rest.sum(axis=0), -ridge * bias, atol=1e-5)
    np.testing.assert_allclose(X @ model.coef_[0] + model.intercept_, model.decision_function(X))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-model.decision_function(X))))
    # Two outputs share a log-odds' coefficient, so that its square has ridge/4. Intercepts have no ridge there.
    same = LogisticRegression(C=2 / (ridge * len(X))).fit(z, y)
    np.testing.assert_allclose(model.coef_ * X.std(axis=0), same.coef_, rtol=0.05)


def test_three_classes_have_a_row_of_coefficients_each(cancer):
    X, y, sites = cancer
    kinds = np.array(["c", "a", "b"])[y + (X[:, 0] > 15)]
    model = FairClassifier(rounds=20).fit(X, kinds, clients=sites)
    assert model.coef_.shape == (3, 6)
    assert model.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(X @ model.coef_.T + model.intercept_, model.decision_function(X))
    assert (model.predict(X) == model.classes_[model.predict_proba(X).argmax(axis=1)]).all()
    assert model.score(X, kinds) > 0.8


def test_a_network_predicts_as_the_layers_that_it_was_trained_as(diabetes, cancer):
    X, y, sites = diabetes
    model = FairRegressor(hidden=(8,), rounds=30, random_state=0).fit(X, y, clients=sites)
    network = fm.models.MLP((8,), 1)
    inputs, scale = standard(X).astype(np.float32), Scaling.of(y[:, None])
    # The layers of the table's units, taken back to those of the training.
    kernel = model.coefs_[0] * X.std(axis=0)[:, None]
    back = {
        "Dense_0": {"kernel": kernel, "bias": model.intercepts_[0] + X.mean(axis=0) @ model.coefs_[0]},
        "Dense_1": {"kernel": model.coefs_[1] / y.std(), "bias": (model.intercepts_[1] - y.mean()) / y.std()},
    }
    outputs = np.asarray(network.apply({"params": jax.tree.map(np.float32, back)}, inputs))
    np.testing.assert_allclose(model.predict(X), scale.mean + scale.deviation * outputs[:, 0], rtol=1e-4)
    assert not hasattr(model, "coef_")
    again = FairRegressor(hidden=8, rounds=30, random_state=0).fit(X, y, clients=sites)
    np.testing.assert_array_equal(model.predict(X), again.predict(X))
    assert model.score(X, y) > 0.2


def test_steps_of_a_method_that_are_too_large_are_said(cancer):
    X, y, sites = cancer
    far = fm.ScaffPD(tau=1e4, sigma=1e3, local_steps=3)
    with pytest.warns(ConvergenceWarning, match=r"ScaffPD\(tau=10000.*give it smaller ones"):
        FairRegressor(method=far, rounds=40).fit(X, y, clients=sites)


@pytest.mark.parametrize(("tau", "sigma"), [(16.0, 0.1), (8.0, 30.0)])
def test_steps_that_are_too_large_are_halved(diabetes, tau, sigma):
    """With the first x diverges, with the second x and w chase each other."""
    X, y, sites = diabetes
    fields = {"inputs": standard(X).astype(np.float32), "labels": standard(y).astype(np.float32)}
    data = ClientData.from_owner(fields, np.searchsorted([3, 5, 7], sites))
    problem = robust_model(fm.models.Linear(1), data, penalty=fm.ChiSquare(0.05), ridge=0.1)
    measure = lambda problem, clients, state: {"objective": fm.metrics.WorstCase()(problem, clients, state), "gap": gap(state)}
    gap = lambda state: fm.metrics.WorstCase()(problem.bind(data)[0], data, state) - value(state)
    value = lambda state: problem.losses(state.x, data) @ state.w - problem.penalty.value(state.w)
    tried = []

    def method(factor):
        tried.append(factor)
        return fm.ScaffPD(tau=factor * tau, sigma=factor * sigma, local_steps=3)

    result, chosen = Training(40, 0.0, 0, False)(problem, data, method, measure, "objective")
    assert tried == [0.5**k for k in range(len(tried))]
    assert 1 < len(tried) < 6
    assert chosen.tau == tau * tried[-1]
    exact = FairRegressor("chi2", 0.05, ridge=0.1, tol=0).fit(X, y, clients=sites).history_["objective"].iloc[-1]
    values = result.history["training/objective"]
    assert values[-1] - exact < 0.1 * (values[0] - exact)


def test_training_ends_when_the_objective_has_settled(diabetes):
    X, y, sites = diabetes
    model = FairRegressor(tol=1e-3, rounds=400).fit(X, y, clients=sites)
    assert model.n_iter_ < 400
    values = model.history_["objective"].to_numpy()
    assert abs(values[-1] - values[-2]) <= 1e-3 * values[-1]
    assert abs(values[-2] - values[-3]) > 1e-3 * values[-2]


def test_the_curvature_is_the_largest_eigenvalue():
    rows = np.random.default_rng(0).normal(size=(90, 5)) * [3, 1, 1, 1, 1]
    owner = np.repeat([0, 1], [60, 30])
    data = ClientData.from_owner({"inputs": rows}, owner)
    each = [np.linalg.eigvalsh(rows[owner == k].T @ rows[owner == k] / (owner == k).sum())[-1] for k in (0, 1)]
    average = np.linalg.eigvalsh(
        sum(p * rows[owner == k].T @ rows[owner == k] / (owner == k).sum() for k, p in enumerate((0.2, 0.8)))
    )
    found = curvature(rows, data, np.array([0.2, 0.8]))
    np.testing.assert_allclose([found.average, found.largest], [average[-1], max(each)], rtol=1e-4)
    assert found.cautious == found.largest
    pulls = np.random.default_rng(1).normal(size=(90, 2))
    jacobian = np.stack([np.ravel(rows[owner == k].T @ pulls[owner == k] / (owner == k).sum(), "F") for k in (0, 1)])
    np.testing.assert_allclose(coupling(rows, pulls, data, False), np.linalg.norm(jacobian, 2) ** 2, rtol=1e-4)
    np.testing.assert_allclose(
        coupling(rows, pulls, data, True), np.linalg.norm(jacobian - jacobian.mean(0), 2) ** 2, rtol=1e-4
    )
    assert found._replace(largest=1e6).cautious == 10 * found.average


def test_auc_ranks_as_well_as_its_rivals_and_is_calibrated(cancer):
    X, y, sites = cancer
    rare = np.flatnonzero((y == 0) | (np.arange(len(y)) % 12 == 0))  # one in eight is positive
    X, y, sites = X[rare], y[rare], sites[rare]
    model = AUCClassifier().fit(X, y, clients=sites)
    rival = LogisticRegression().fit(standard(X), y)
    assert roc_auc_score(y, model.decision_function(X)) > roc_auc_score(y, rival.decision_function(standard(X))) - 0.003
    chance = model.predict_proba(X)
    np.testing.assert_allclose(chance.sum(axis=1), 1)
    np.testing.assert_allclose(chance[:, 1].mean(), y.mean(), atol=0.01)  # calibrated: as many as there are
    np.testing.assert_allclose(X @ model.coef_[0] + model.intercept_, model.decision_function(X))
    assert (model.predict(X) == (chance[:, 1] > 0.5)).all()
    equal = AUCClassifier("equal", rounds=20).fit(X, y, clients=sites)
    size = AUCClassifier("size", rounds=20).fit(X, y, clients=sites)
    assert not np.allclose(equal.coef_, size.coef_, rtol=0.01)


def test_auc_reaches_a_stationary_point_of_the_surrogate_over_all_pairs(cancer):
    X, y, _ = cancer
    sites = X[:, 1] > 24  # few, and of another kind than the others
    model = AUCClassifier(ridge=0.01, tol=0, rounds=400).fit(X, y, clients=sites)
    z, positive = standard(X), y == 1
    theta = model.coef_[0] * X.std(axis=0)
    bias = model.intercept_[0] + model.coef_[0] @ X.mean(axis=0)
    share = positive.mean()

    def surrogate(v):  # of theta and bias before calibration
        h = 1 / (1 + np.exp(-(z @ v[:-1] + v[-1])))
        gap = 1 - h[positive][:, None] + h[~positive][None]
        return share * (1 - share) * np.mean(gap**2) + 0.005 * v @ v

    # Calibration multiplies and shifts the outputs: look along the line for the point that was trained.
    slope = lambda v: np.array([(surrogate(v + e) - surrogate(v - e)) / 2e-4 for e in 1e-4 * np.eye(len(v))])
    undo = lambda q: np.append(theta, bias) * q[0] + np.append(np.zeros_like(theta), q[1])
    best = minimize(lambda q: surrogate(undo(q)), [0.5, 0.0])
    at, start = slope(undo(best.x)), slope(np.zeros(len(theta) + 1))
    assert np.linalg.norm(at) < 1e-4 * np.linalg.norm(start)
    method = model.method_  # with steps that were not halved
    np.testing.assert_allclose(method.lr_y * method.local_steps * 2 * share * (1 - share), 0.3, rtol=1e-5)


def test_calibration_is_the_best_logistic_curve_and_keeps_the_order():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=200)
    labels = (scores + generator.normal(size=200) > 0.5).astype(int)
    slope, offset = calibrated(scores, labels)
    chance = 1 / (1 + np.exp(-(slope * scores + offset)))
    target = np.where(labels, (labels.sum() + 1) / (labels.sum() + 2), 1 / ((1 - labels).sum() + 2))
    np.testing.assert_allclose([np.sum(chance - target), np.sum(scores * (chance - target))], 0, atol=1e-6)
    assert calibrated(-scores, labels)[0] > 0
    assert calibrated(np.zeros(200), labels)[0] > 0
    apart = calibrated(np.where(labels, 1.0, -1.0), labels)
    assert np.isfinite(apart).all()
    assert apart[0] < 10


def test_layers_of_standardised_rows_serve_rows_as_they_are():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(7, 3)) * [1, 10, 1e-4] + [5, -100, 0]
    scaling = Scaling.of(rows)
    layers = Layers([generator.normal(size=(3, 4)), generator.normal(size=(4, 1))], [generator.normal(size=4), np.ones(1)])
    hand = np.maximum(scaling(rows) @ layers.kernels[0] + layers.biases[0], 0) @ layers.kernels[1] + 1
    np.testing.assert_allclose(layers.on_raw_inputs(scaling)(rows), hand)
    np.testing.assert_allclose(layers.with_outputs(2.0, 3.0)(scaling(rows)), 2 * hand + 3)
    still = Scaling.of(np.c_[np.full(7, 0.1), rows[:, 0]])
    assert still.deviation[0] == 1
    assert Scaling.of(rows, wanted=False)(rows) is not rows
    np.testing.assert_array_equal(Scaling.of(rows, wanted=False)(rows), rows)
