"""The area under the ROC curve against scikit-learn's, and the histograms' stated error."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import fedminimax as fm
from fedminimax import metrics
from fedminimax.data import ClientData
from fedminimax.metrics import base


def scorer(predict=lambda x, inputs: inputs[:, 0] * x):
    return fm.MinimaxProblem(lambda x, y, batch: x + y, 1.0, 0.0, predict=predict)


PLAIN = scorer()


def federation(scores, labels, clients=7):
    """The scores as inputs, divided unequally: client i has a share of about 2i / N^2."""
    owner = (clients * np.sqrt(np.arange(len(scores)) / len(scores))).astype(int)
    return ClientData.from_owner({"inputs": np.asarray(scores)[:, None], "labels": np.asarray(labels)}, owner)


@functools.partial(jax.jit, static_argnums=2)
def measure(metric, clients, problem=PLAIN):
    return metric(problem, clients, problem.start)


def draw(count, seed, ties=False, shift=1.0, share=0.3):
    rng = np.random.default_rng(seed)
    labels = (rng.random(count) < share).astype(np.int32)
    labels[:2] = 0, 1
    scores = (rng.normal(size=count) + shift * labels).astype(np.float32)
    return (np.round(scores, 1) if ties else scores), labels


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [2, 37, 400])
def test_auc_is_scikit_learns(count, ties, monkeypatch):
    monkeypatch.setattr(base, "BATCH", 16)
    scores, labels = draw(count, seed=count, ties=ties)
    clients = federation(scores, labels, clients=min(count, 7))
    expected = roc_auc_score(labels, scores)
    assert float(measure(metrics.AUC(), clients)) == pytest.approx(expected, abs=1e-7)
    assert metrics.auc_score(scores, labels) == pytest.approx(expected, abs=1e-14)


def test_held_out_examples_of_clients_or_of_nobody():
    scores, labels = draw(37, seed=8, ties=True)
    training = federation(-scores, labels, clients=2)
    for held_out in (federation(scores, labels), {"inputs": scores[:, None], "labels": 2 * labels - 1}):  # -1 and +1 as well
        assert float(measure(metrics.AUC(held_out), training)) == pytest.approx(roc_auc_score(labels, scores), abs=1e-7)


def test_cases_by_hand():
    score = metrics.auc_score
    assert score([1, 2, 3, 4], [0, 0, 1, 1]) == 1.0
    assert score([1, 2, 3, 4], [1, 1, -1, -1]) == 0.0
    assert score([5, 5, 5], [0, 1, 1]) == 0.5
    assert score([1, 2, 2, 3], [0, 0, 1, 1]) == 3.5 / 4
    assert score([0.0, -0.0], [0, 1]) == 0.5
    for scores, labels in [
        ([1, 2, 3, 4], [1, 1, 0, 0]),
        ([5, 5, 5], [0, 1, 1]),
        ([1, 2, 2, 3], [0, 0, 1, 1]),
        ([0.0, -0.0], [0, 1]),
    ]:
        clients = federation(np.array(scores, np.float32), labels, clients=2)
        assert float(measure(metrics.AUC(), clients)) == score(scores, labels)


@pytest.mark.parametrize(("ties", "share", "shift"), [(False, 0.5, 0.05), (False, 0.5, 4.0), (True, 0.1, 0.5)])
def test_auc_is_exact_for_sixty_thousand(ties, share, shift):
    """In float32 and 32-bit integers, where a plain sum of ranks is wrong in the fourth digit."""
    scores, labels = draw(60_000, seed=3, ties=ties, share=share, shift=shift)
    got = measure(metrics.AUC(), federation(scores, labels))
    assert got.dtype == jnp.float32
    assert abs(float(got) - roc_auc_score(labels, scores)) < 1e-7


def test_auc_is_exact_beyond_32_bits():
    """200,000 examples: 2 U has 34 bits."""
    scores, labels = draw(200_000, seed=4, share=0.5, shift=1.0)
    got = float(jax.jit(metrics.auc._exact)(scores, labels > 0))
    assert abs(got - roc_auc_score(labels, scores)) < 1e-7


@pytest.mark.parametrize("bins", [1, 10, 64])
def test_the_histograms_error_holds(bins, x64):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        labels = (rng.random(300) < 0.4).astype(int)
        scores = np.clip(0.5 + 0.2 * rng.normal(size=300) + 0.1 * labels, -0.2, 1.1)  # some beyond the range
        got = measure(metrics.AUC(bins=bins), federation(scores, labels))
        place = np.clip(np.floor(scores * bins), 0, bins - 1)
        p, n = (np.bincount(place[labels == k].astype(int), minlength=bins) / np.sum(labels == k) for k in (1, 0))
        assert float(got["auc"]) == pytest.approx(roc_auc_score(labels, place), abs=1e-12)  # a bin is one tie
        assert float(got["auc_error"]) == pytest.approx(p @ n / 2, abs=1e-12)
        assert abs(roc_auc_score(labels, scores) - float(got["auc"])) <= float(got["auc_error"]) + 1e-12


def test_the_histograms_error_is_attained():
    """Within each bin all positives are above all negatives: the estimate is too low by all of the error."""
    scores, labels = np.array([0.1, 0.2, 0.6, 0.9], np.float32), np.array([0, 1, 0, 1])
    got = measure(metrics.AUC(bins=2), federation(scores, labels, clients=2))
    assert (float(got["auc"]), float(got["auc_error"])) == (0.5, 0.25)
    assert roc_auc_score(labels, scores) == 0.75
    fine = measure(metrics.AUC(bins=20), federation(scores, labels, clients=2))
    assert (float(fine["auc"]), float(fine["auc_error"])) == (0.75, 0.0)


def test_the_histograms_range(x64):
    scores, labels = draw(500, seed=1)
    got = measure(metrics.AUC(bins=400, low=-3.0, high=5.0), federation(scores, labels))
    assert 0 < float(got["auc_error"]) < 2e-3
    assert abs(roc_auc_score(labels, scores) - float(got["auc"])) <= float(got["auc_error"]) + 1e-12
    missed = measure(metrics.AUC(bins=400, low=50.0, high=60.0), federation(scores, labels))
    assert (float(missed["auc"]), float(missed["auc_error"])) == (0.5, 0.5)


def test_auc_in_a_run():
    scores, labels = draw(60, seed=5)
    clients = federation(scores, labels, clients=3)
    problem = scorer().replace(loss=lambda x, y, batch: jnp.mean(batch["inputs"]) * x * y - y**2)
    judges = {"auc": metrics.AUC(), "binned": metrics.AUC(clients, bins=8, low=-4, high=4)}
    result = fm.run(problem, clients, fm.ParallelSGDA(0.01, 0.01), rounds=1, metrics=judges, progress=False)
    assert result.history["auc"][-1] == pytest.approx(roc_auc_score(labels, scores), abs=1e-7)
    assert set(result.history) >= {"binned/auc", "binned/auc_error"}


def test_what_has_no_auc_says_so():
    scores, labels = draw(20, seed=0)
    one_kind = federation(scores, np.ones(20, int), clients=2)
    for act in (
        lambda: metrics.AUC()(scorer(), one_kind, scorer().start),
        lambda: metrics.AUC(one_kind),
        lambda: metrics.auc_score(scores, np.ones(20)),
    ):
        with pytest.raises(fm.InputError, match="All labels are positive"):
            act()
    assert np.isnan(measure(metrics.AUC(), one_kind))
    assert np.isnan(measure(metrics.AUC(bins=3), one_kind)["auc"])
    broken = scorer(lambda x, inputs: jnp.where(inputs[:, 0] > scores.max() - 1e-3, jnp.nan, inputs[:, 0]))
    both = federation(scores, labels, clients=2)
    assert np.isnan(measure(metrics.AUC(), both, broken))
    assert np.isnan(measure(metrics.AUC(bins=3), both, broken)["auc"])
    assert np.isnan(metrics.auc_score([np.nan, 1.0], [0, 1]))
    with pytest.raises(fm.InputError, match=r"returns \(20, 2\) for 20: return the positive class's score"):
        measure(metrics.AUC(), both, scorer(lambda x, inputs: jnp.repeat(inputs, 2, axis=1)))
    with pytest.raises(fm.InputError, match="has no `predict`"):
        measure(metrics.AUC(), both, scorer(None))
    with pytest.raises(fm.InputError, match="need the fields 'inputs' and 'labels'"):
        measure(metrics.AUC({"inputs": scores}), both)
    for wrong in (["yes", "no"], [np.nan, 1.0]):
        with pytest.raises(fm.InputError, match="labels must be one number for each example, none of them NaN"):
            metrics.auc_score([1.0, 2.0], wrong)
    with pytest.raises(fm.InputError, match="are a list: give arrays"):
        measure(metrics.AUC({"inputs": scores[:, None], "labels": labels.tolist()}), both)
    with pytest.raises(fm.InputError, match="There are 20 inputs and 19 labels"):
        measure(metrics.AUC({"inputs": scores[:, None], "labels": labels[1:]}), both)
    with pytest.raises(fm.InputError, match="bins must be at least 1"):
        metrics.AUC(bins=0)
    with pytest.raises(fm.InputError, match="range of the bins is empty"):
        metrics.AUC(bins=2, low=1.0)
