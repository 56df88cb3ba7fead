"""The Inception score against cases by hand, the classifier behind it, and the grid of images."""

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from flax import linen as nn

import fedminimax as fm
from fedminimax import metrics, plots
from fedminimax.data.datasets import Dataset
from fedminimax.metrics import base, generative


class Echo(nn.Module):
    """Takes the image for the scores, times a weight."""

    @nn.compact
    def __call__(self, images):
        return images * self.param("scale", nn.initializers.ones, ())


def score(images, sharpness=1.0, **options):
    """The score of a generator that makes these images, in this order, whatever the noise."""
    images = jnp.asarray(images)

    def generate(x, key, count):
        assert count == len(images)
        return images * x

    problem = fm.MinimaxProblem(lambda x, y, batch: x + y, 1.0, 0.0, generate=generate)
    classifier = metrics.Classifier(Echo(), {"scale": jnp.asarray(sharpness)}, 0.9)
    metric = metrics.InceptionScore(classifier, samples=len(images), **options)
    compute = jax.jit(lambda metric, z: metric(problem, None, z))
    return {k: float(v) for k, v in compute(metric, problem.start).items()}


def test_sure_and_balanced_is_the_number_of_classes():
    got = score(np.tile(np.eye(5), (8, 1)), sharpness=1000.0, splits=4)
    assert got == {
        "score": pytest.approx(5.0, rel=1e-5),
        "spread": pytest.approx(0.0, abs=1e-5),
        "classifier_accuracy": pytest.approx(0.9),
    }


@pytest.mark.parametrize("images", [np.zeros((12, 4)), np.tile(1000 * np.eye(4)[:1], (12, 1))])
def test_unsure_or_all_alike_is_one(images):
    assert score(images, splits=3)["score"] == pytest.approx(1.0, abs=1e-6)


def test_splits_by_hand():
    """Two sure classes in the first split and one in the second: scores 2 and 1."""
    got = score(np.eye(3)[[0, 1, 0, 1, 2, 2, 2, 2]], sharpness=1000.0, splits=2)
    assert (got["score"], got["spread"]) == (pytest.approx(1.5, rel=1e-6), pytest.approx(0.5, rel=1e-5))


def test_the_formula_on_random_scores(x64):
    images = np.random.default_rng(0).normal(size=(30, 4))
    parts = []
    for part in np.split(images, 3):
        p = np.exp(2 * part) / np.exp(2 * part).sum(axis=1, keepdims=True)
        parts.append(np.exp(np.mean(np.sum(p * np.log(p / p.mean(axis=0)), axis=1))))
    got = score(images, sharpness=2.0, splits=3)
    assert (got["score"], got["spread"]) == (pytest.approx(np.mean(parts)), pytest.approx(np.std(parts)))


def test_images_come_in_batches_with_noise_of_their_own(monkeypatch):
    monkeypatch.setattr(base, "BATCH", 4)
    made = []

    def generate(x, key, count):
        images = jax.random.normal(key, (count, 3)) * x
        jax.debug.callback(lambda a: made.append(np.asarray(a)), images)
        return images

    problem = fm.MinimaxProblem(lambda x, y, batch: x + y, 2.0, 0.0, generate=generate)
    metric = metrics.InceptionScore(metrics.Classifier(Echo(), {"scale": jnp.ones(())}, 1.0), samples=10, splits=2)
    first = metric(problem, None, problem.start)
    assert [m.shape for m in made] == [(4, 3)] * 3
    assert len(np.unique(np.concatenate(made).round(6), axis=0)) == 12
    assert first["score"] == metric(problem, None, problem.start)["score"], "the same noise each time"
    assert float(first["score"]) > 1.1


def test_what_cannot_generate_says_so():
    problem = fm.MinimaxProblem(lambda x, y, batch: x + y, 1.0, 0.0)
    classifier = metrics.Classifier(Echo(), {"scale": jnp.ones(())}, 1.0)
    with pytest.raises(fm.InputError, match="has no `generate`"):
        metrics.InceptionScore(classifier)(problem, None, problem.start)
    with pytest.raises(fm.InputError, match=r"make one with metrics\.train_classifier\(\.\.\.\), not NoneType"):
        metrics.InceptionScore(None)(problem, None, problem.start)
    with pytest.raises(fm.InputError, match="10 samples do not make 3 equal splits"):
        metrics.InceptionScore(None, samples=10, splits=3)


# -- the classifier ----------------------------------------------------------------------------------------------------


def blobs(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count).astype(np.int32)
    return {"inputs": (3 * np.eye(3)[labels] + rng.normal(size=(count, 3))).astype(np.float32), "labels": labels}


TRAIN, TEST = blobs(200, 0), blobs(101, 1)
SETTINGS = {"epochs": 4, "batch_size": 16, "learning_rate": 0.02}


def test_a_classifier_is_trained_once(tmp_path, monkeypatch):
    def make(data=(TRAIN, TEST), model=None, **changes):
        return metrics.train_classifier(data, model or fm.models.Logistic(3), cache=tmp_path, **{**SETTINGS, **changes})

    first = make()
    right = np.mean(np.argmax(first(TEST["inputs"]), axis=1) == TEST["labels"])
    assert first.accuracy == pytest.approx(right)
    assert 0.85 < first.accuracy < 1.0

    trained = []
    monkeypatch.setattr(generative, "_train", lambda *a: trained.append(a) or first.params)
    again = make(Dataset("blobs", TRAIN, TEST, 3))
    assert not trained, "the second is read"
    assert again.accuracy == first.accuracy
    jax.tree.map(np.testing.assert_array_equal, again.params, first.params)
    hash(jax.tree.structure(again))  # a part of a compiled program

    make(({**TRAIN, "labels": np.roll(TRAIN["labels"], 1)}, TEST))
    make((TRAIN, {**TEST, "labels": np.roll(TEST["labels"], 1)}))
    make(learning_rate=0.05)
    make(model=fm.models.Linear(3))
    assert len(trained) == 4, "other data, settings or networks are other classifiers"

    files = list(tmp_path.iterdir())
    assert len(files) == 5
    for file in files:
        file.write_bytes(file.read_bytes()[:-7])
    assert make().accuracy == first.accuracy
    assert len(trained) == 5, "a damaged file is replaced"
    make()
    assert len(trained) == 5


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="was not kept"):
        made = metrics.train_classifier(
            (TRAIN, TEST), fm.models.Logistic(3), epochs=1, batch_size=500, cache=tmp_path / "file" / "folder"
        )
    assert made.accuracy > 0


def test_named_images_are_between_minus_one_and_one_and_kept_with_the_data(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    part = lambda n: {"inputs": rng.random((n, 8, 8, 1), np.float32), "labels": (np.arange(n) % 2).astype(np.int32)}
    images = Dataset("tiny", part(20), part(10), 2)
    monkeypatch.setattr(generative, "load", lambda name: images)
    monkeypatch.setenv("FEDMINIMAX_DATA", str(tmp_path))
    seen = []
    monkeypatch.setattr(generative, "_train", lambda model, data, *a: seen.append(data) or {"w": np.zeros(1)})
    monkeypatch.setattr(generative, "_accuracy", lambda *a: 0.5)
    made = metrics.train_classifier("tiny")
    assert isinstance(made.module, fm.models.CNN)
    assert made.module.classes == 2
    np.testing.assert_allclose(seen[0]["inputs"], 2 * images.train["inputs"] - 1, rtol=1e-6)
    assert [p.suffix for p in (tmp_path / "classifiers").iterdir()] == [".fmx"]


def test_wrong_examples_and_settings_say_so():
    with pytest.raises(fm.InputError, match="Give the name of a data set"):
        metrics.train_classifier(TRAIN)
    with pytest.raises(fm.InputError, match="Labels must be whole numbers"):
        metrics.train_classifier((TRAIN, {**TEST, "labels": TEST["labels"] - 1}))
    with pytest.raises(fm.InputError, match="epochs and batch_size must be at least 1"):
        metrics.train_classifier((TRAIN, TEST), epochs=0)


# -- the grid ----------------------------------------------------------------------------------------------------------


def test_a_grid_of_images(tmp_path):
    images = np.stack([np.full((4, 6), v) for v in np.linspace(-1, 1, 7)])
    images[0, 0, 0], images[6, 0, 0] = -9, np.nan
    ax = plots.sample_grid(images, columns=3, path=tmp_path / "grid.png", zoom=2)
    picture = matplotlib.image.imread(tmp_path / "grid.png")
    assert picture.shape[:2] == (2 * (3 * 5 + 1), 2 * (3 * 7 + 1))
    small = picture[::2, ::2, 0]
    for k in range(7):
        top, left = 5 * (k // 3) + 1, 7 * (k % 3) + 1
        np.testing.assert_allclose(small[top + 1 : top + 4, left : left + 6], k / 6, atol=1 / 255)
    assert small[1, 1] == 0
    assert small[11, 1] == 0
    np.testing.assert_array_equal(small[5], 1.0)  # between rows
    np.testing.assert_array_equal(small[11:, 8:], 1.0)  # where there is no image
    assert ax.images[0].get_array().shape == (16, 22, 3)


def test_a_grid_in_colour_on_given_axes(tmp_path):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    images = np.zeros((2, 5, 5, 3)) - 1
    images[1, ..., 2] = 1
    assert plots.sample_grid(images, ax=axes) is axes
    np.testing.assert_array_equal(axes.images[0].get_array()[3, [3, 9]], [[0, 0, 0], [0, 0, 1]])
    grey = plots.sample_grid(images[..., :1]).images[0].get_array()
    assert grey.shape == (7, 13, 3)
    with pytest.raises(fm.InputError, match="1 or 3 colours"):
        plots.sample_grid(np.zeros((2, 5, 5, 2)))
    with pytest.raises(fm.InputError, match="columns and zoom must be at least 1"):
        plots.sample_grid(images, columns=0)
