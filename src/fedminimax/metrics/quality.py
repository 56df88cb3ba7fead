"""How good a model is for whom: loss, accuracy and error by client and by class, and the weights on clients."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.metrics.base import HIGHER, LOWER, correct, metric_class, point, predictions
from fedminimax.metrics.parts import PARTS, STATE, Part, Whose
from fedminimax.players import Point
from fedminimax.problems.base import by_client, group_mean, per_example
from fedminimax.problems.robust import Problem

SHARES = {**dict.fromkeys(("all", "mean", "worst", "worst20", "best20"), HIGHER), "variance": LOWER}
"""Which way the numbers of an accuracy are better."""


class _ByClient:
    """One number for each client, which it computes with its own data: all of them, and a summary."""

    needs = PARTS
    higher_is_better = True
    each: bool

    def values(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return every client's number, [N]."""
        raise NotImplementedError

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the summary, and with ``each`` every client's number."""
        return self._of(self.values(problem, clients, state))

    def told(self, problem: Problem, clients: Any, state: Any, client: int) -> Point:
        """Return the model."""
        return Point(state.x, None)

    def part(self, problem: Problem, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return a client's number."""
        return Part(each=self.values(problem, data, told)[0])

    def whole(self, problem: Problem, clients: Any, part: Part, state: Any) -> dict[str, jax.Array]:
        """Return the summary, and with ``each`` every client's number."""
        return self._of(part.each)

    def _of(self, values: jax.Array) -> dict[str, jax.Array]:
        return summary(values, self.higher_is_better) | ({"each": values} if self.each else {})


@metric_class
class ClientLoss(_ByClient):
    """Every client's own loss f_i(x, y): the mean, the worst, the variance, and the mean of the worst and best 20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
        each: also every client's loss, "client_loss/each": one array [N].
    """

    clients: Any = None
    each: bool = field(default=False, metadata={"static": True})
    name = "client_loss"
    better = LOWER
    higher_is_better = False

    def told(self, problem: Problem, clients: Any, state: Any, client: int) -> Point:
        """Return both players."""
        return Point(state.x, state.y)

    def values(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return f_1, ..., f_N."""
        data = clients if self.clients is None else self.clients
        return by_client(per_example(problem.client_loss(state), data.fields, data.total), data)


@metric_class
class ClientAccuracy(_ByClient):
    """Every client's accuracy: mean, worst, variance, worst-20%, best-20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
        each: also every client's accuracy, "client_accuracy/each": one array [N].
    """

    clients: Any = None
    each: bool = field(default=False, metadata={"static": True})
    name = "client_accuracy"
    better = SHARES

    def values(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the accuracy of each client, [N]."""
        data = clients if self.clients is None else self.clients
        return by_client(correct(problem, state.x, data.fields), data)


@metric_class
class ClientError(_ByClient):
    """Every client's root mean squared error, for a regression: mean, worst, variance, worst-20%, best-20%.

    Args:
        clients: held-out :class:`ClientData`; by default the training clients.
        scale: multiplies the errors, to give them in the label's own units.
        each: also every client's error, "client_error/each": one array [N].
    """

    clients: Any = None
    scale: Any = 1.0
    each: bool = field(default=False, metadata={"static": True})
    name = "client_error"
    better = LOWER
    higher_is_better = False

    def values(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the error of each client, [N]."""
        data = clients if self.clients is None else self.clients
        scores = predictions(problem, state.x, data.fields).reshape(data.total, -1)
        squares = jnp.mean((scores - jnp.asarray(data.fields["labels"]).reshape(data.total, -1)) ** 2, axis=1)
        return self.scale * jnp.sqrt(by_client(squares, data))


@metric_class
class ClientWeights:
    """The weights w that the max player has put on the clients: their entropy, the largest, and with ``each`` all of them.

    The entropy is that of w / sum w over its greatest value, log N: 1 for equal weights, 0 for all on one client.

    Args:
        each: also every weight, "w/each": one array [N], whose history is that of w.
    """

    each: bool = field(default=False, metadata={"static": True})
    name = "w"
    needs = STATE

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the numbers."""
        w = point(problem, clients, state).y
        share = w / jnp.sum(w)
        spread = -jnp.sum(jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1.0)), 0.0))
        numbers = {"entropy": spread / jnp.log(max(2, clients.count)), "largest": jnp.max(w)}
        return numbers | ({"each": w} if self.each else {})


class _ByClass:
    """One number for each class, the mean over its examples, whoever has them."""

    data: Any
    classes: int

    @property
    def needs(self) -> str:
        """Held-out arrays are the server's own; examples of clients stay with them."""
        return PARTS if self.data is None else STATE

    def by_example(self, problem: Problem, data: Any, x: Any) -> jax.Array:
        """Return a number for each example."""
        raise NotImplementedError

    def told(self, problem: Problem, clients: Any, state: Any, client: int) -> Point:
        """Return the model."""
        return Point(state.x, None)

    def part(self, problem: Problem, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return a client's sum for each class, and how many examples it has of it."""
        labels, values = _labels(data.fields, self.classes), self.by_example(problem, data.fields, told.x)
        total = jnp.zeros(self.classes, values.dtype).at[labels].add(values)
        return Part(sum={"total": total, "count": jnp.zeros(self.classes, jnp.int32).at[labels].add(1)})


@metric_class
class ClassAccuracy(_ByClass):
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
        right = self.by_example(problem, data, state.x)
        return {"all": jnp.mean(right), **summary(group_mean(right, labels, self.classes))}

    def by_example(self, problem: Problem, data: Any, x: Any) -> jax.Array:
        """Return 1.0 where the model is right."""
        return correct(problem, x, data)

    def whole(self, problem: Problem, clients: Any, part: Part, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        right, count = part.sum["total"], part.sum["count"]
        return {"all": jnp.sum(right) / jnp.sum(count), **summary(right / jnp.maximum(count, 1))}


@metric_class
class ClassLoss(_ByClass):
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
        losses = self.by_example(problem, data, state.x)
        return summary(group_mean(losses, labels, self.classes), higher_is_better=False)

    def by_example(self, problem: Problem, data: Any, x: Any) -> jax.Array:
        """Return the cross-entropy."""
        scores = jax.nn.log_softmax(predictions(problem, x, data))
        return -jnp.take_along_axis(scores, _labels(data, self.classes)[:, None], axis=1)[:, 0]

    def whole(self, problem: Problem, clients: Any, part: Part, state: Any) -> dict[str, jax.Array]:
        """Return the summary."""
        return summary(part.sum["total"] / jnp.maximum(part.sum["count"], 1), higher_is_better=False)


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
