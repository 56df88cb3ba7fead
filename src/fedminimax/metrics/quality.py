"""How good a model is for whom: loss, accuracy and error by client and by class, and the weights on clients."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.metrics.base import HIGHER, LOWER, _metric, correct, point, predictions
from fedminimax.problems.base import by_client, group_mean, per_example
from fedminimax.problems.robust import Problem

SHARES = {**dict.fromkeys(("all", "mean", "worst", "worst20", "best20"), HIGHER), "variance": LOWER}
"""Which way the numbers of an accuracy are better."""


@_metric
class ClientLoss:
    """Every client's own loss f_i(x, y): the mean, the worst, the variance, and the mean of the worst and best 20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
    """

    clients: Any = None
    name = "client_loss"
    better = LOWER

    def each(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return f_1, ..., f_N."""
        data = clients if self.clients is None else self.clients
        return by_client(per_example(problem.client_loss(state), data.fields, data.total), data)

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        return summary(self.each(problem, clients, state), higher_is_better=False)


@_metric
class ClientAccuracy:
    """Every client's accuracy: mean, worst, variance, worst-20%, best-20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
    """

    clients: Any = None
    name = "client_accuracy"
    better = SHARES

    def each(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the accuracy of each client, [N]."""
        data = clients if self.clients is None else self.clients
        return by_client(correct(problem, state.x, data.fields), data)

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        return summary(self.each(problem, clients, state))


@_metric
class ClientError:
    """Every client's root mean squared error, for a regression: mean, worst, variance, worst-20%, best-20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
        scale: multiplies the errors, to give them in the label's own units.
    """

    clients: Any = None
    scale: Any = 1.0
    name = "client_error"
    better = LOWER

    def each(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the error of each client, [N]."""
        data = clients if self.clients is None else self.clients
        scores = predictions(problem, state.x, data.fields).reshape(data.total, -1)
        squares = jnp.mean((scores - jnp.asarray(data.fields["labels"]).reshape(data.total, -1)) ** 2, axis=1)
        return self.scale * jnp.sqrt(by_client(squares, data))

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        return summary(self.each(problem, clients, state), higher_is_better=False)


@_metric
class ClientWeights:
    """The weights w that the max player has put on the clients: their entropy, the largest, and with ``each`` all of them.

    The entropy is that of w / sum w over its greatest value, log N: 1 for equal weights, 0 for all on one client.

    Args:
        each: also return every weight, as "w/0", "w/1", ...: the history of w.
    """

    each: bool = field(default=False, metadata={"static": True})
    name = "w"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the numbers."""
        w = point(problem, clients, state).y
        share = w / jnp.sum(w)
        spread = -jnp.sum(jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1.0)), 0.0))
        numbers = {"entropy": spread / jnp.log(max(2, clients.count)), "largest": jnp.max(w)}
        return numbers | ({str(i): w[i] for i in range(clients.count)} if self.each else {})


@_metric
class ClassAccuracy:
    """The accuracy on each class: mean over classes, worst, worst-20%, best-20%; and over all examples.

    Args:
        data: held-out arrays {"inputs", "labels"}; by default the clients' training data.
        classes: how many classes (all must occur in the data).
    """

    data: Any = None
    classes: int = field(default=0, metadata={"static": True})
    name = "accuracy"
    better = SHARES

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        data = clients.fields if self.data is None else self.data
        labels = _labels(data, self.classes)
        right = correct(problem, state.x, data)
        return {"all": jnp.mean(right), **summary(group_mean(right, labels, self.classes))}


@_metric
class ClassLoss:
    """The cross-entropy of the model's predictions on each class: mean, worst, worst-20%, best-20%.

    Args:
        data: held-out arrays {"inputs", "labels"}; by default the clients' training data.
        classes: how many classes (all must occur in the data).
    """

    data: Any = None
    classes: int = field(default=0, metadata={"static": True})
    name = "class_loss"
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        data = clients.fields if self.data is None else self.data
        labels = _labels(data, self.classes)
        scores = jax.nn.log_softmax(predictions(problem, state.x, data))
        losses = -jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
        return summary(group_mean(losses, labels, self.classes), higher_is_better=False)


def summary(values: jax.Array, higher_is_better: bool = True) -> dict[str, jax.Array]:
    """Return mean, worst, variance, and the means of the worst and best 20% (at least one) of some groups' values."""
    ordered = jnp.sort(values if higher_is_better else -values)
    fifth = max(1, round(0.2 * values.shape[0]))
    sign = 1.0 if higher_is_better else -1.0
    return {
        "mean": jnp.mean(values),
        "worst": sign * ordered[0],
        "worst20": sign * jnp.mean(ordered[:fifth]),
        "best20": sign * jnp.mean(ordered[-fifth:]),
        "variance": jnp.var(values),
    }


def _labels(data: Any, classes: int) -> jax.Array:
    if classes < 1:
        raise InputError("Say how many classes there are: ClassAccuracy(test, classes=10).")
    return jnp.asarray(data["labels"])
