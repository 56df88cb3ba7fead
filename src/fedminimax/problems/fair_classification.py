"""Classification that is fair to the worst class.

Shen et al., AISTATS 2024, section 4.2; Sharma et al., TMLR 2023, equation (8).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.players import Point
from fedminimax.problems.base import MinimaxProblem, client_weights, over_all
from fedminimax.problems.examples import check_classes, check_outputs, labelled, weights_at_start
from fedminimax.sets import Simplex


def fair_classification(
    model: Any, clients: ClientData, classes: int, *, penalty: float = 0.0, weights: Any = "size", seed: int = 0
) -> MinimaxProblem:
    r"""A model against weights on the classes.

    .. math:: \min_x \max_{y \in \Delta_C} \sum_c y_c F_c(x) - \frac{\lambda}{2} \|y\|^2

    where F_c is the mean cross-entropy over the examples of class c. As a mean over a batch this is
    mean_j (y_{c_j} / pi_{c_j}) loss_j, with pi_c the share of class c among all clients' examples (each client reports its
    class counts once).

    Args:
        model: a Flax module that maps inputs to one score a class (see :mod:`fedminimax.models`).
        clients: data with the fields "inputs" and "labels".
        classes: C.
        penalty: lambda; 0 for the problem of fess-gda, positive for (8).
        weights: p_i; by default by size, so that F_c is the mean over all examples of the class.
        seed: of the model's initial weights.
    """
    import optax

    fields = labelled(clients, "fair_classification")
    labels = check_classes(fields["labels"], classes)
    if penalty < 0:
        raise InputError(f"penalty must not be negative, but is {penalty}.")
    p = client_weights(weights, clients)
    owner = np.repeat(np.arange(clients.count), np.asarray(clients.sizes))
    share = np.bincount(labels, weights=(p / np.asarray(clients.sizes))[owner], minlength=classes)
    if share.min() <= 0:
        raise InputError(f"Nobody has an example of class {int(np.argmin(share))}: lower `classes`, or relabel.")
    scale = jnp.asarray(1.0 / share, jnp.zeros(()).dtype)

    def entropy(x: Any, batch: Any) -> jax.Array:
        scores = model.apply({"params": x}, batch["inputs"])
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch["labels"])

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        importance = (y * scale)[batch["labels"]]
        return jnp.mean(importance * entropy(x, batch)) - penalty / 2 * jnp.sum(y**2)

    def best_response(x: Any, data: ClientData, p: Any) -> jax.Array:
        def by_class(x: Any, _: Any, batch: Any) -> jax.Array:
            one_hot = jax.nn.one_hot(batch["labels"], classes)
            return jnp.mean(one_hot * (scale[batch["labels"]] * entropy(x, batch))[:, None], axis=0)

        losses = over_all(by_class, Point(x, None), data, p)  # F_1, ..., F_C
        simplex = Simplex(classes)
        return simplex.linear_max(losses) if penalty == 0 else simplex.project(losses / penalty)

    example = jax.tree.map(lambda a: jnp.asarray(a[:1]), fields["inputs"])
    x0 = weights_at_start(model, jax.random.key(seed), example)
    check_outputs(model, x0, example, classes)
    return MinimaxProblem(
        loss,
        x0,
        jnp.full(classes, 1.0 / classes),
        y_set=Simplex(classes),
        weights=weights,
        best_response=best_response,
        predict=lambda x, inputs: model.apply({"params": x}, inputs),
        name="fair classification",
    )
