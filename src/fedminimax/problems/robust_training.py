"""Training against one perturbation that all clients share.

Xie et al., CD-MAGE, section 5.2; Sharma et al., TMLR 2023, equation (7).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.examples import check_classes, check_outputs, labelled, weights_at_start
from fedminimax.sets import L2Ball


def robust_training(
    model: Any,
    clients: ClientData,
    classes: int,
    *,
    penalty: float | None = None,
    radius: float | None = None,
    weights: Any = None,
    seed: int = 0,
) -> MinimaxProblem:
    r"""A classifier against a perturbation y of its inputs, one for all examples of all clients.

    .. math:: \min_x \max_y \sum_i p_i\, \mathrm{mean}_j\, \ell(h_x(a_{ij} + y), b_{ij}) - \frac\lambda2 \|y\|^2
              \quad\text{or}\quad \max_{\|y\| \le r}\text{ without the last term}

    Args:
        model: a Flax module that maps inputs to one score a class (see :mod:`fedminimax.models`). Where the first layer is
            dense, as in MLP, y's gradient costs one example's work instead of the batch's.
        clients: data with the fields "inputs" and "labels".
        classes: how many classes.
        penalty: lambda; by default 0.001 where there is no radius.
        radius: r, of the ball that y is kept in; None: y is held by the penalty alone.
        weights: p_i; None: equal.
        seed: of the model's initial weights.
    """
    import optax

    from fedminimax.models.layers import shifted

    fields = labelled(clients, "robust_training")
    check_classes(fields["labels"], classes)
    strength = (0.001 if radius is None else 0.0) if penalty is None else penalty
    if not (strength > 0 or (strength == 0 and radius is not None)):
        raise InputError(f"The perturbation must be held: give a penalty above zero (not {penalty}) or a radius.")

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        scores = model.apply({"params": x}, shifted(model, batch["inputs"], y))
        fit = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch["labels"]))
        return fit if strength == 0 else fit - strength / 2 * jnp.sum(y**2)

    example = jnp.asarray(fields["inputs"][:1])
    x0 = weights_at_start(model, jax.random.key(seed), example)
    check_outputs(model, x0, example, classes)
    y0 = jnp.zeros(example.shape[1:], jnp.result_type(example, jnp.float32))
    return MinimaxProblem(
        loss,
        x0,
        y0,
        y_set=None if radius is None else L2Ball(radius),
        weights=weights,
        predict=lambda x, inputs: model.apply({"params": x}, inputs),
        name="robust training",
    )
