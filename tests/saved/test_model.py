"""What a loaded model predicts: in which words, units and bits."""

import jax
import numpy as np
import pandas as pd
import pytest
from patients import weights
from sklearn.metrics import balanced_accuracy_score, precision_score, recall_score, roc_auc_score

import fedminimax as fm
from fedminimax.models import LeNet5, Linear
from fedminimax.saved.outputs import probabilities


def test_predictions_are_the_networks_with_the_rows_own_index(save, frame, federation):
    model = fm.load_model(save())
    rows = frame.set_index(pd.Index([f"p{k}" for k in range(len(frame))]))
    x = model.x["Dense_0"]
    scores = federation.encoder.inputs(frame) @ x["kernel"] + x["bias"]
    likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    found = model.predict_proba(rows)
    np.testing.assert_allclose(found, likely, rtol=1e-5)
    assert list(found.columns) == ["no", "yes"] == model.classes
    predicted = model.predict(rows)
    assert predicted.name == "back"
    assert predicted.index.equals(rows.index)
    np.testing.assert_array_equal(predicted, np.array(["no", "yes"])[scores.argmax(axis=1)])
    assert repr(model) == "Model(linear by ScaffPD: predicts 'back', no or yes)"
    assert (model.positive, model.threshold, model.task) == ("yes", None, "classification")


def test_a_row_is_predicted_the_same_to_the_last_bit_whatever_is_beside_it(save_mlp, frame):
    model = fm.load_model(save_mlp())
    many = pd.concat([frame] * 10, ignore_index=True)  # more than a block
    all_at_once = model.scores(many)
    assert len(all_at_once) == 1200
    assert np.ptp(all_at_once[:, 0]) > 0.1
    np.testing.assert_array_equal(all_at_once[1080:], all_at_once[:120])
    np.testing.assert_array_equal(model.scores(frame.iloc[::-1])[::-1], all_at_once[:120])
    for k in (0, 7, 119):
        np.testing.assert_array_equal(model.scores(frame.iloc[[k]]), all_at_once[[k]])
    assert model.predict_proba(frame.head(0)).shape == (0, 2)


@pytest.mark.parametrize("positive", [0, 1])
def test_from_its_threshold_on_the_positive_class_is_predicted(save, frame, positive):
    model = fm.load_model(save(threshold=0.2, positive=positive))
    assert model.threshold == 0.2
    assert model.positive == ["no", "yes"][positive]
    share = model.predict_proba(frame)[model.positive]
    assert ((share > 0.2) & (share < 0.5)).any(), "a threshold that matters"
    np.testing.assert_array_equal(model.predict(frame) == model.positive, share >= 0.2)


def test_squared_scores_are_clipped_and_normalised(save, frame):
    model = fm.load_model(save(loss="squared"))
    scores = model.scores(frame)
    found = model.predict_proba(frame).to_numpy()
    clipped = np.maximum(scores, 0)
    some = clipped.sum(axis=1) > 0
    np.testing.assert_allclose(found[some], clipped[some] / clipped[some].sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(probabilities(np.array([[-1.0, -2.0], [0.5, -1.0]]), "squared"), [[0.5, 0.5], [1.0, 0.0]])


def test_a_quantity_is_in_the_labels_units(save, quantity, frame):
    d = len(quantity.features)
    x = weights([(d, 1)])
    model = fm.load_model(save(network=Linear(1), x=x, encoder=quantity.encoder))
    mean, deviation = quantity.target_scale
    scores = quantity.encoder.inputs(frame) @ x["Dense_0"]["kernel"] + x["Dense_0"]["bias"]
    predicted = model.predict(frame)
    np.testing.assert_allclose(predicted, mean + deviation * scores[:, 0], rtol=1e-5)
    assert predicted.name == "stay"
    error = predicted - frame["stay"]
    found = model.evaluate(frame)
    assert found == pytest.approx({"rows": 120, "rmse": np.sqrt((error**2).mean()), "mae": error.abs().mean()})
    with pytest.raises(fm.InputError, match="predicts a quantity, which has no classes"):
        model.predict_proba(frame)


def test_scores_against_the_label_are_scikit_learns(save, frame):
    model = fm.load_model(save(threshold=0.3))
    rows = frame.copy()
    rows.loc[:4, "back"] = None
    found, known = model.evaluate(rows), rows["back"].notna()
    true, called = rows["back"][known] == "yes", model.predict(rows)[known] == "yes"
    assert found == pytest.approx(
        {
            "rows": 115,
            "accuracy": (true == called).mean(),
            "balanced accuracy": balanced_accuracy_score(true, called),
            "auc": roc_auc_score(true, model.predict_proba(rows)["yes"][known]),
            "recall": recall_score(true, called),
            "precision": precision_score(true, called),
        }
    )
    assert "auc" not in model.evaluate(rows[rows["back"] == "no"]), "one class"
    with pytest.raises(fm.InputError, match="'maybe' of column 'back' is none of the model's classes: no, yes"):
        model.evaluate(frame.assign(back="maybe"))
    with pytest.raises(fm.InputError, match="no column 'back', which says what is true"):
        model.evaluate(frame.drop(columns="back"))
    with pytest.raises(fm.InputError, match="has no label in any row"):
        model.evaluate(frame.assign(back=None))


def test_what_is_noticed_is_a_warning_or_an_error(save, frame):
    model = fm.load_model(save())
    rows = frame.head(3).assign(ward="Mars")
    with pytest.warns(UserWarning, match="3 rows have the new value 'Mars'") as seen:
        model.predict(rows)
    assert seen[0].filename == __file__
    for ask in (model.predict, model.predict_proba, model.evaluate):
        with pytest.raises(fm.InputError, match="'Mars'"):
            ask(rows, strict=True)


def test_a_model_without_a_table_takes_arrays(tmp_path, save):
    images = np.random.default_rng(0).normal(size=(6, 16, 16, 1)).astype("float32")
    clients = fm.ClientData.from_list([{"inputs": images[k : k + 3], "labels": np.array([0, 1, 2], np.int32)} for k in (0, 3)])
    federation = fm.data.Federation(clients, clients, ["a", "b"], [], list("xyz"), "classification", None, {}, {})
    network = LeNet5(3)
    x = network.init(jax.random.key(0), images[:1])["params"]
    model = fm.load_model(save(network=network, x=x, encoder=None, federation=federation))
    np.testing.assert_allclose(model.scores(images), network.apply({"params": x}, images), atol=1e-5)
    assert set(model.predict(images)) <= set("xyz")
    with pytest.raises(fm.InputError, match=r"shape \(6, 256\): give an array \[n, 16, 16, 1\]"):
        model.predict(images.reshape(6, -1))


def test_double_precision_is_kept(save, frame, federation, x64):
    x = {"Dense_0": {k: v.astype("float64") for k, v in weights([(len(federation.features), 2)])["Dense_0"].items()}}
    x["Dense_0"]["bias"][0] += 1e-12
    path = save(x=x)
    with jax.enable_x64(False):
        model = fm.load_model(path)
        found = model.scores(frame)
    assert model.x["Dense_0"]["bias"][0] == x["Dense_0"]["bias"][0]
    wanted = federation.encoder.inputs(frame, np.float64) @ x["Dense_0"]["kernel"] + x["Dense_0"]["bias"]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
