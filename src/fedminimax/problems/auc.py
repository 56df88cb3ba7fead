"""Maximising the area under the ROC curve: Xie et al., CD-MAGE, section 5.1 and appendix B.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.problems.base import MinimaxProblem, client_weights, over_all
from fedminimax.problems.examples import check_signs, labelled, output_shape, weights_at_start

SOFTMAX, SIGMOID, LINEAR = "softmax", "sigmoid", "linear"


def auc(
    model: Any,
    clients: ClientData,
    *,
    score: str | Callable[[jax.Array], jax.Array] = SOFTMAX,
    output: int = 0,
    tau: float | None = None,
    weights: Any = None,
    seed: int = 0,
) -> MinimaxProblem:
    r"""The l2-relaxed AUC of any scoring network h, in its minimax form: x = (theta, a, b), y one number.

    .. math:: f = \mathrm{mean}_j \{(1 - \tau)(h_j - a)^2 [\ell_j > 0] + \tau (h_j - b)^2 [\ell_j \le 0]
              + 2 (1 + y) (\tau h_j [\ell_j \le 0] - (1 - \tau) h_j [\ell_j > 0])\} - \tau (1 - \tau) y^2

    with tau the share of positive examples. At the best a, b and y it is tau (1 - tau) (E (1 - h(w+) + h(w-))^2 - 1), over
    pairs of a positive and a negative example. Strongly concave in y, with modulus 2 tau (1 - tau).

    Args:
        model: a Flax module that maps inputs to outputs (see :mod:`fedminimax.models`).
        clients: data with the fields "inputs" and "labels"; positive examples are those with a label above zero.
        score: how outputs become the score h: "softmax" (component ``output`` of the softmax), "sigmoid" (of output
            ``output``), "linear" (that output itself), or a function of the outputs [n, k] that returns [n].
        output: which output is the score.
        tau: the share of positive examples; by default what the clients report of theirs, under the weights p_i. To be given
            where ``clients`` are only some of those that the problem is for.
        weights: p_i; None: equal.
        seed: of the model's initial weights.
    """
    fields = labelled(clients, "auc")
    if isinstance(score, str) and score not in (SOFTMAX, SIGMOID, LINEAR):
        raise InputError(f"score must be 'softmax', 'sigmoid', 'linear' or a function of the outputs, not {score!r}.")
    check_signs(fields["labels"])
    tau = positive_share(clients, weights) if tau is None else checks.real(tau)
    if not 0 < tau < 1:
        raise InputError(f"tau is {tau}: it is the share of positive examples, above 0 and below 1.")
    example = jnp.asarray(fields["inputs"][:1])
    theta = weights_at_start(model, jax.random.key(seed), example)
    if not callable(score):
        score = _score_of(score, output, output_shape(model, theta, example))

    def scores(x: Any, inputs: Any) -> jax.Array:
        return score(model.apply({"params": x["theta"]}, inputs))

    scored = jax.eval_shape(lambda t: scores({"theta": t}, jnp.concatenate([example, example])), theta).shape
    if scored != (2,):
        raise InputError(f"score returns {scored} for two examples: it must be a function from outputs [n, k] to scores [n].")

    def linear_part(h: jax.Array, positive: jax.Array) -> jax.Array:
        """Return tau h for a negative example, -(1 - tau) h for a positive one."""
        return jnp.where(positive, -(1 - tau) * h, tau * h)

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        h, positive = scores(x, batch["inputs"]), batch["labels"] > 0
        squares = jnp.where(positive, (1 - tau) * (h - x["a"]) ** 2, tau * (h - x["b"]) ** 2)
        return jnp.mean(squares + 2 * (1 + y) * linear_part(h, positive)) - tau * (1 - tau) * y**2

    def best_response(x: Any, data: ClientData, p: Any) -> jax.Array:
        mean = lambda x, batch: jnp.mean(linear_part(scores(x, batch["inputs"]), batch["labels"] > 0))
        return over_all(mean, (x,), data, p) / (tau * (1 - tau))

    zero = jnp.zeros(())
    return MinimaxProblem(
        loss,
        {"theta": theta, "a": zero, "b": zero},
        zero,
        weights=weights,
        best_response=best_response,
        predict=scores,
        name="AUC",
    )


def _score_of(name: str, output: int, shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    """Return a score by its name, of one of the outputs, whose shape for one example is given."""
    if len(shape) != 1:
        raise InputError(f"The model returns outputs of shape {shape} for each example: it must return a vector.")
    if not 0 <= output < shape[0]:
        raise InputError(f"output is {output}, but the model has {shape[0]} outputs: choose one from 0 to {shape[0] - 1}.")
    if name == SOFTMAX and shape[0] == 1:
        raise InputError("The softmax of a single output is always one: use score='sigmoid', or a model with more outputs.")
    if name == SOFTMAX:
        return lambda outputs: jax.nn.softmax(outputs)[:, output]
    return lambda outputs: jax.nn.sigmoid(outputs[:, output]) if name == SIGMOID else outputs[:, output]


def positive_share(clients: ClientData, weights: Any = None) -> float:
    """Return tau = sum_i p_i tau_i, the share of positive examples, from what each client reports: its own share tau_i."""
    p = client_weights(weights, clients)
    reports = [float(np.mean(np.asarray(client["labels"]) > 0)) for client in clients]
    tau = float(np.dot(p, reports))
    if not 0 < tau < 1:
        raise InputError(f"All labels are {'positive' if tau else 'not positive'}: AUC needs both kinds (above zero, and not).")
    return tau
