"""A robust classifier of its own on every node of a graph.

A. Beznosikov, A. Sadiev, V. Sushko and A. Gasnikov, "Decentralized personalized federated min-max problems", preprint, 2022
section 2.2.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.network import Network
from fedminimax.players import Point
from fedminimax.problems.examples import check_classes, check_outputs, labelled, weights_at_start
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.sets import Set


def personalized_training(
    model: Any,
    clients: ClientData,
    classes: int,
    coupling: float,
    network: Network,
    *,
    beta_x: float = 0.0,
    beta_y: float = 1.0,
    y_set: Set | None = None,
    alike: bool = True,
    seed: int = 0,
) -> PersonalizedProblem:
    r"""Classifiers against noise on their inputs, both of each node's own and near its neighbours'.

    .. math:: f_m(x_m, y_m) = \mathrm{mean}_n\, \ell(h_{x_m}(a_n + y_m), b_n) + \frac{\beta_x}2 \|x_m\|^2
              - \frac{\beta_y}2 \|y_m\|^2

    Args:
        model: a Flax module that maps inputs to one score a class (see :mod:`fedminimax.models`): logistic regression, an MLP,
            a CNN, a ResNet-18 with group normalisation.
        clients: data with the fields "inputs" and "labels", one client for each node.
        classes: how many classes.
        coupling: c.
        network: the graph.
        beta_x: the strength of the l2 regularisation of x.
        beta_y: what holds the noise y.
        y_set: a set that holds the noise, such as ``L2Ball(1.0)``; None: beta_y alone.
        alike: whether all nodes start from the same weights; if not, each draws its own.
        seed: of the models' initial weights.
    """
    import optax

    from fedminimax.models.layers import shifted

    fields = labelled(clients, "personalized_training")
    check_classes(fields["labels"], classes)
    if min(beta_x, beta_y) < 0:
        raise InputError(f"beta_x and beta_y must not be negative, but are {beta_x} and {beta_y}.")
    if beta_y == 0 and y_set is None:
        raise InputError("The noise must be held: give a beta_y above zero, or a y_set such as L2Ball(1.0).")

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        scores = model.apply({"params": x}, shifted(model, batch["inputs"], y))
        fit = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch["labels"]))
        fit = fit if beta_x == 0 else fit + beta_x / 2 * players.sqnorm(x)
        return fit if beta_y == 0 else fit - beta_y / 2 * jnp.sum(y**2)

    example = jnp.asarray(fields["inputs"][:1])
    weights = lambda key: weights_at_start(model, key, example)
    x0 = weights(jax.random.key(seed))
    check_outputs(model, x0, example, classes)
    noise = jnp.zeros(example.shape[1:], jnp.result_type(example, jnp.float32))
    starts = None
    if not alike:
        drawn = jax.vmap(weights)(jax.random.split(jax.random.key(seed), network.count))
        starts = Point(drawn, jnp.zeros((network.count, *noise.shape), noise.dtype))
    return PersonalizedProblem(
        loss,
        x0,
        noise,
        coupling,
        network,
        y_set=y_set,
        starts=starts,
        predict=lambda x, inputs: model.apply({"params": x}, inputs),
        name="personalised training",
    )
