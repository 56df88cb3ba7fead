"""A model that is good for every client: classification or regression, robust over clients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.penalties import ChiSquare, Penalty
from fedminimax.problems.examples import check_classes, check_outputs, labelled, weights_at_start
from fedminimax.problems.robust import RobustProblem

SQUARED, ENTROPY = "squared", "entropy"


def robust_model(
    model: Any,
    clients: ClientData,
    classes: int | None = None,
    *,
    penalty: Penalty | None = None,
    loss: str = SQUARED,
    ridge: float = 0.0,
    weights: Any = None,
    seed: int = 0,
) -> RobustProblem:
    r"""Any network on clients' examples, against weights on the clients.

    f_i is the mean over client i's examples of 1/2 ||scores - one-hot label||^2 (the paper's loss; convex for a linear model on
    frozen features and for a linearised network) or of the cross-entropy, plus ridge/2 ||x||^2. With ``classes=None`` the
    labels are real numbers, the model has one output, and f_i is half the mean squared error.

    Args:
        model: a Flax module that maps inputs to one score a class: ``models.Linear(classes)`` on features, any network of
            :mod:`fedminimax.models`, or ``problems.linearize(network, params)``.
        clients: data with the fields "inputs" and "labels".
        classes: how many classes; None: regression.
        penalty: psi; by default ChiSquare(0.1).
        loss: "squared" or "entropy".
        ridge: the strength of the l2 regularisation, which also makes a convex f_i strongly convex.
        weights: the p_i of the average that FedAvg minimises.
        seed: of the model's initial weights.
    """
    import optax

    fields = labelled(clients, "robust_model")
    if loss not in (SQUARED, ENTROPY):
        raise InputError(f"loss must be 'squared' or 'entropy', not {loss!r}.")
    if ridge < 0:
        raise InputError(f"ridge must not be negative, but is {ridge}.")
    _check_labels(np.asarray(fields["labels"]), classes, loss)

    def of(scores: jax.Array, labels: jax.Array) -> jax.Array:
        if classes is None:
            return 0.5 * jnp.mean((scores.reshape(labels.shape) - labels) ** 2)
        if loss == SQUARED:
            return 0.5 * jnp.mean(jnp.sum((scores - jax.nn.one_hot(labels, classes, dtype=scores.dtype)) ** 2, axis=-1))
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, labels))

    def total(x: Any, batch: Any) -> jax.Array:
        fit = of(model.apply({"params": x}, batch["inputs"]), batch["labels"])
        return fit if ridge == 0 else fit + ridge / 2 * players.sqnorm(x)

    example = jax.tree.map(lambda a: jnp.asarray(a[:1]), fields["inputs"])
    x0 = weights_at_start(model, jax.random.key(seed), example)
    check_outputs(model, x0, example, 1 if classes is None else classes)
    return RobustProblem(
        total,
        x0,
        ChiSquare(0.1) if penalty is None else penalty,
        weights=weights,
        predict=lambda x, inputs: model.apply({"params": x}, inputs),
        name="robust regression" if classes is None else "robust classification",
    )


def _check_labels(labels: np.ndarray, classes: int | None, loss: str) -> None:
    if classes is None:
        if loss != SQUARED:
            raise InputError("Regression (classes=None) has the squared loss only.")
        if labels.ndim != 1:
            raise InputError(f"labels must be one number an example, but have shape {labels.shape}.")
    else:
        check_classes(labels, classes)
