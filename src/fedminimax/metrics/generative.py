"""How good generated images are, by a classifier of the real ones.

T. Salimans et al., "Improved techniques for training GANs", NeurIPS 2016. There the classifier is an ImageNet network; here it
is one trained on the data set that the generator learns, and its accuracy goes with every score.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import wire
from fedminimax.data.clients import ClientData
from fedminimax.data.datasets import Arrays, Dataset, folder_of, load, resized
from fedminimax.errors import InputError
from fedminimax.metrics import base
from fedminimax.metrics.base import HIGHER, in_batches, metric_class
from fedminimax.metrics.parts import STATE
from fedminimax.players import Tree
from fedminimax.problems.examples import check_outputs, weights_at_start
from fedminimax.problems.robust import Problem

SCORE = {"score": HIGHER}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Classifier:
    """A trained network and how good it is. :func:`train_classifier` makes one.

    Attributes:
        module: the Flax module, from images to one score a class.
        params: its weights.
        accuracy: its share of right answers on test images.
    """

    module: Any = field(metadata={"static": True})
    params: Tree
    accuracy: Any

    def __call__(self, images: Tree) -> jax.Array:
        """Return the scores, [images, classes]."""
        return self.module.apply({"params": self.params}, images)


@metric_class
class InceptionScore:
    r"""The Inception score of what the min player generates: exp(E_a KL(p(b | a) || p(b))), from 1 to the number of classes.

    It is high when the classifier is sure of every image a, and when all classes b occur equally often. "score" is the mean,
    "spread" the standard deviation over splits of the images, with p(b) the mean of p(b | a) over a split. A score depends on
    its classifier: "classifier_accuracy" is the classifier's on real test images.

    The problem must have ``generate(x, key, count)``, whose images are in the range of those that the classifier learned.

    Args:
        classifier: a :class:`Classifier`.
        samples: how many images; the same noise at every evaluation.
        splits: into how many equal parts they are divided.
        seed: of the noise.
    """

    classifier: Any
    samples: int = field(default=5000, metadata={"static": True})
    splits: int = field(default=10, metadata={"static": True})
    seed: int = field(default=0, metadata={"static": True})
    name = "inception"
    needs = STATE
    better = SCORE

    def __post_init__(self) -> None:
        if self.splits < 1 or self.samples < 1 or self.samples % self.splits:
            raise InputError(f"{self.samples} samples do not make {self.splits} equal splits: give a multiple of the splits.")

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the score, its spread and the classifier's accuracy."""
        if not isinstance(self.classifier, Classifier):
            raise InputError(
                "InceptionScore needs a Classifier, a trained network with its accuracy: make one with "
                f"metrics.train_classifier(...), not {type(self.classifier).__name__}."
            )
        generate = getattr(problem, "generate", None)
        if generate is None:
            raise InputError(f"{problem.name} has no `generate`: give MinimaxProblem one, generate(x, key, count) -> images.")
        batches = -(-self.samples // base.BATCH)
        size = -(-self.samples // batches)
        keys = jax.random.split(jax.random.key(self.seed), batches)
        scores = jax.lax.map(lambda key: self.classifier(generate(state.x, key, size)), keys)
        log_p = jax.nn.log_softmax(scores.reshape(batches * size, -1)[: self.samples])
        log_p = log_p.reshape(self.splits, self.samples // self.splits, -1)
        log_mean = jax.nn.logsumexp(log_p, axis=1, keepdims=True) - math.log(log_p.shape[1])
        divergence = jnp.sum(jnp.exp(log_p) * (log_p - log_mean), axis=2)
        parts = jnp.exp(jnp.mean(divergence, axis=1))
        accuracy = jnp.asarray(self.classifier.accuracy)
        return {"score": jnp.mean(parts), "spread": jnp.std(parts), "classifier_accuracy": accuracy}


def train_classifier(
    data: str | Dataset | tuple[Arrays, Arrays],
    model: Any = None,
    *,
    epochs: int = 5,
    batch_size: int = 100,
    learning_rate: float = 1e-3,
    size: int | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> Classifier:
    """Train a classifier with Adam, or read it from the cache where the same has been trained before.

    The cache knows a classifier by its training and test examples, its module's printed form and the settings. (A module whose
    code changes and whose fields do not is taken for the same: remove the file then.)

    Args:
        data: the name of a data set (see :func:`fedminimax.data.datasets.load`), whose images are then mapped from [0, 1] to
            [-1, 1], where generators that end in tanh make theirs; or a :class:`~fedminimax.data.datasets.Dataset`, or two
            dicts {"inputs", "labels"} of arrays to train and to test on, which are taken as they are.
        model: a Flax module; by default :class:`fedminimax.models.CNN`.
        epochs: passes over the training examples, each in a new order, less a remainder that fills no batch.
        batch_size: examples a step.
        learning_rate: Adam's.
        size: the height and width to give the images of a named data set, by means over squares; None: as they are.
        seed: of the initial weights and of the orders.
        cache: the folder of classifiers; by default ``classifiers`` in the folder of data sets: the one that the environment
            variable FEDMINIMAX_DATA names, or the user's cache.

    Returns:
        The classifier, with its accuracy on the test examples.
    """
    from fedminimax import models

    train, test = _examples(data, size)
    if epochs < 1 or batch_size < 1 or not learning_rate > 0:
        raise InputError(
            "epochs and batch_size must be at least 1 and learning_rate above zero, but are "
            f"{epochs}, {batch_size} and {learning_rate}."
        )
    classes = int(max(train["labels"].max(), test["labels"].max())) + 1
    model = models.CNN(classes) if model is None else model
    settings = (epochs, min(batch_size, len(train["labels"])), learning_rate, seed)
    folder = Path(cache or folder_of() / "classifiers")
    path = folder / f"{_digest(train, test, repr(model), repr(settings))}.fmx"
    found = _read(path)
    if found is None:
        params = _train(model, train, classes, *settings)
        found = {"params": jax.tree.map(np.asarray, params), "accuracy": _accuracy(model, params, test)}
        _write(path, found)
    return Classifier(model, jax.tree.map(jnp.asarray, found["params"]), found["accuracy"])


def _train(model: Any, data: Arrays, classes: int, epochs: int, batch_size: int, learning_rate: float, seed: int) -> Tree:
    """Return the weights after some epochs of Adam on the cross-entropy."""
    import optax

    adam = optax.adam(learning_rate)
    begin, order = jax.random.split(jax.random.key(seed))
    count = len(data["labels"])
    steps = count // batch_size

    @jax.jit
    def epoch(data: Tree, params: Tree, memory: Tree, key: jax.Array) -> tuple[Tree, Tree]:
        def step(carry: tuple[Tree, Tree], rows: jax.Array) -> tuple[tuple[Tree, Tree], None]:
            params, memory = carry

            def loss(params: Tree) -> jax.Array:
                scores = model.apply({"params": params}, data["inputs"][rows])
                return optax.softmax_cross_entropy_with_integer_labels(scores, data["labels"][rows]).mean()

            updates, memory = adam.update(jax.grad(loss)(params), memory, params)
            return (optax.apply_updates(params, updates), memory), None

        rows = jax.random.permutation(key, count)[: steps * batch_size].reshape(steps, batch_size)
        return jax.lax.scan(step, (params, memory), rows)[0]

    arrays = jax.tree.map(jnp.asarray, data)
    params = weights_at_start(model, begin, arrays["inputs"][:1])
    check_outputs(model, params, arrays["inputs"][:1], classes)
    memory = adam.init(params)
    for key in jax.random.split(order, epochs):
        params, memory = epoch(arrays, params, memory, key)
    return params


def _accuracy(model: Any, params: Tree, data: Arrays) -> float:
    """Return the share of right answers."""
    scores = jax.jit(lambda params, inputs: in_batches(lambda batch: model.apply({"params": params}, batch), inputs))
    return float(np.mean(np.argmax(np.asarray(scores(params, data["inputs"])), axis=-1) == data["labels"]))


def _examples(data: str | Dataset | tuple[Arrays, Arrays], size: int | None = None) -> tuple[Arrays, Arrays]:
    """Return the examples to train and to test on."""
    parts: Any = data
    if isinstance(data, str):
        data = load(data)
        smaller = (lambda images: images) if size is None else (lambda images: resized(images, size))
        between = lambda part: {**part, "inputs": 2 * smaller(part["inputs"]) - 1} if part["inputs"].ndim == 4 else part
        parts = (between(data.train), between(data.test))
    elif isinstance(data, Dataset):
        parts = (data.train, data.test)
    if len(parts) != 2 or not all(isinstance(part, dict) and {"inputs", "labels"} <= set(part) for part in parts):
        raise InputError("Give the name of a data set, a Dataset, or two dicts {'inputs', 'labels'}: to train and to test on.")
    train, test = ({name: np.asarray(part[name]) for name in ("inputs", "labels")} for part in parts)
    for part in (train, test):
        labels = part["labels"]
        whole = labels.ndim == 1 and labels.size and np.issubdtype(labels.dtype, np.integer) and labels.min() >= 0
        if not whole or len(part["inputs"]) != labels.size:
            raise InputError("Labels must be whole numbers from 0, one for each input, and there must be some.")
    return train, test


def _digest(train: Arrays, test: Arrays, *texts: str) -> str:
    """Return a short name for all that a classifier depends on."""
    found = hashlib.sha256()
    for part in (train, test):
        for name in ("inputs", "labels"):
            array = np.ascontiguousarray(part[name])
            found.update(f"{name} {array.dtype} {array.shape} ".encode())
            found.update(array.data)
    found.update("\n".join(texts).encode())
    return found.hexdigest()[:32]


def _read(path: Path) -> Any:
    """Return what the file has; None where there is none, or a damaged one."""
    try:
        found = wire.decode(path.read_bytes())
    except (OSError, InputError):
        return None
    return found if isinstance(found, dict) and {"params", "accuracy"} <= set(found) else None


def _write(path: Path, value: Any) -> None:
    """Write the file as a whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(wire.encode(value))
        part.replace(path)
    except OSError as error:  # the classifier is there all the same
        warnings.warn(
            f"The classifier was not kept in {path.parent} ({error}): give a `cache` that can be written.", stacklevel=3
        )
