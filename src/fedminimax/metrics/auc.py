"""The area under the ROC curve over all clients, from ranks. J. Hanley and B. McNeil, Radiology 143, 1982.

AUC = P(s+ > s-) + P(s+ = s-) / 2 for the scores of a positive and of a negative example drawn at random: the statistic of
Mann and Whitney over the number of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.metrics.base import HIGHER, LOWER, examples_of, metric_class, predictions
from fedminimax.metrics.parts import PARTS, STATE, TOGETHER, Part, Whose
from fedminimax.players import Point
from fedminimax.problems.examples import check_signs
from fedminimax.problems.robust import Problem

AREA = {"": HIGHER, "auc": HIGHER, "auc_error": LOWER}


@metric_class
class AUC:
    r"""The area under the ROC curve of the scores of all clients' examples together; ties count one half.

    Without ``bins`` the scores of all examples are needed in one place. With them a client sends two histograms of its scores,
    of positive and of negative examples. From the sums of these, with shares p_b and n_b of all positives and negatives in
    bin b,

    .. math:: \mathrm{auc} = \sum_b p_b \Bigl(\sum_{a<b} n_a + \tfrac12 n_b\Bigr), \qquad
              |\mathrm{AUC} - \mathrm{auc}| \le \tfrac12 \sum_b p_b n_b = \mathrm{auc\_error},

    since only the order within a bin is unknown. Positive examples are those with a label above zero.

    ``problem.predict`` must return one score for each example. Numbers are exact but for the last rounding; NaN when a score
    is, or when there is one kind of examples only.

    Args:
        data: held-out :class:`~fedminimax.data.ClientData` or arrays {"inputs", "labels"}; by default the training clients.
        bins: how many bins; None: from all scores, one number. With bins two: "auc" and "auc_error".
        low: where the first bin begins; scores below count as in it.
        high: where the last bin ends; scores above count as in it.
    """

    data: Any = None
    bins: int | None = field(default=None, metadata={"static": True})
    low: float = field(default=0.0, metadata={"static": True})
    high: float = field(default=1.0, metadata={"static": True})
    name = "auc"
    better = AREA
    with_parts = "AUC(bins=...)"

    def __post_init__(self) -> None:
        if self.bins is not None and self.bins < 1:
            raise InputError(f"bins must be at least 1, not {self.bins}: give a number of bins, or None for the exact AUC.")
        if not self.low < self.high:
            raise InputError(f"The range of the bins is empty: low is {self.low}, high is {self.high}; low must be below high.")
        fields = self.data.fields if isinstance(self.data, ClientData) else self.data
        if isinstance(fields, dict) and isinstance(fields.get("labels"), np.ndarray):  # else inside a compiled program
            _both_kinds(check_signs(fields["labels"].reshape(-1)))

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array | dict[str, jax.Array]:
        """Return the area, or with bins the estimate and its greatest error."""
        data = examples_of(clients, self.data)
        labels = data["labels"]
        if not isinstance(labels, jax.core.Tracer):
            _both_kinds(check_signs(np.reshape(labels, -1)))
        scores, positive = _scores(problem, state.x, data)
        if self.bins is None:
            return _exact(scores, positive)
        positives, negatives = _histograms(scores, positive, self.bins, self.low, self.high)
        return _estimate(positives, negatives, positive.size, jnp.isnan(scores).any())

    @property
    def needs(self) -> str:
        """Held-out arrays are the server's own; of clients' examples it is enough to have histograms."""
        return STATE if isinstance(self.data, Mapping) else TOGETHER if self.bins is None else PARTS

    def told(self, problem: Problem, clients: Any, state: Any, client: int) -> Point:
        """Return the model."""
        return Point(state.x, None)

    def part(self, problem: Problem, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return a client's histograms, and how many of its scores are not a number."""
        assert self.bins is not None
        scores, positive = _scores(problem, told.x, examples_of(data, self.data))
        positives, negatives = _histograms(scores, positive, self.bins, self.low, self.high)
        return Part(sum={"positives": positives, "negatives": negatives, "broken": jnp.isnan(scores).sum()})

    def whole(self, problem: Problem, clients: Any, part: Part, state: Any) -> dict[str, jax.Array]:
        """Return the estimate and its greatest error."""
        return _estimate(part.sum["positives"], part.sum["negatives"], clients.total, part.sum["broken"] > 0)


def _scores(problem: Problem, x: Any, data: Any) -> tuple[jax.Array, jax.Array]:
    """Return the score of each example, and whether it is positive."""
    positive = (jnp.asarray(data["labels"]) > 0).reshape(-1)
    scores = predictions(problem, x, data)
    if scores.shape not in ((positive.size,), (positive.size, 1)):
        raise InputError(
            f"AUC needs one score for each example, but {problem.name}'s `predict` returns {scores.shape} for "
            f"{positive.size}: return the positive class's score, such as jax.nn.softmax(scores)[:, 1]."
        )
    return scores.reshape(-1), positive


def _estimate(positives: jax.Array, negatives: jax.Array, total: int, broken: jax.Array) -> dict[str, jax.Array]:
    auc, error = _from_histograms(positives, negatives, total)
    return {"auc": jnp.where(broken, jnp.nan, auc), "auc_error": jnp.where(broken, jnp.nan, error)}


def auc_score(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the area under the ROC curve of some scores: positive where the label is above zero, ties one half.

    Args:
        scores: one number for each example.
        labels: 0 and 1, or -1 and +1, one for each example.
    """
    scores, labels = np.asarray(scores).reshape(-1), check_signs(np.asarray(labels).reshape(-1))
    if scores.shape != labels.shape:
        raise InputError(f"There are {scores.size} scores and {labels.size} labels: give one of both for each example.")
    _both_kinds(labels)
    if np.isnan(scores).any():
        return float("nan")
    positive, negative = scores[labels > 0], np.sort(scores[labels <= 0])
    below = np.searchsorted(negative, positive, "left").sum(dtype=np.int64)
    up_to = np.searchsorted(negative, positive, "right").sum(dtype=np.int64)
    return float(below + up_to) / (2.0 * positive.size * negative.size)


def _both_kinds(labels: npt.NDArray[Any]) -> None:
    share = np.mean(labels > 0) if labels.size else 0.0
    if not 0 < share < 1:
        kind = "positive" if share else "not positive"
        raise InputError(f"All labels are {kind}: AUC needs examples of both kinds (labels above zero, and not).")


def _exact(scores: jax.Array, positive: jax.Array) -> jax.Array:
    ordered, positive = jax.lax.sort((scores, positive), num_keys=1)
    negatives = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(~positive)])  # among the first k
    below, up_to = (negatives[jnp.searchsorted(ordered, ordered, side)] for side in ("left", "right"))
    area = _area(jnp.where(positive, below + up_to, 0), jnp.sum(positive), jnp.sum(~positive))
    return jnp.where(jnp.isnan(scores).any(), jnp.nan, area)


def _histograms(scores: jax.Array, positive: jax.Array, bins: int, low: float, high: float) -> tuple[jax.Array, jax.Array]:
    """Return how many positive, and how many negative, examples are in each bin: the sums of the clients' histograms."""
    place = jnp.clip((scores - low) * (bins / (high - low)), 0, bins - 1)
    place = jnp.where(jnp.isnan(place), 0, place).astype(int)
    count = lambda which: jnp.zeros(bins, int).at[place].add(which.astype(int))
    return count(positive), count(~positive)


def _from_histograms(positives: jax.Array, negatives: jax.Array, most: int) -> tuple[jax.Array, jax.Array]:
    """Return the area with all examples of a bin tied, and how far from it the true one can be."""
    p, n, up_to = jnp.sum(positives), jnp.sum(negatives), jnp.cumsum(negatives)

    def of_each(bins: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(most) < p, jnp.repeat(bins, positives, total_repeat_length=most), 0)

    error = _share(*_mean(of_each(negatives), p), p, n)
    return _area(of_each(2 * up_to - negatives), p, n), error


def _area(twice: jax.Array, p: jax.Array, n: jax.Array) -> jax.Array:
    """Return sum(twice) / (2 p n), where ``twice`` is two for each negative below a positive and one for each tie."""
    whole, rest = _mean(twice, p)
    return 0.5 + _share(whole - n, rest, p, n)  # about a half: the two roundings are then of half the size


def _share(whole: jax.Array, rest: jax.Array, p: jax.Array, n: jax.Array) -> jax.Array:
    return jnp.where((p > 0) & (n > 0), (whole + rest / jnp.maximum(p, 1)) / (2 * jnp.maximum(n, 1)), jnp.nan)


def _mean(counts: jax.Array, times: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return sum(counts) / times as a whole number and a rest, exactly.

    The sum can be beyond a float's 24 bits from 6,000 examples on, and beyond 31 from 65,537: so what is summed are quotients
    and remainders.
    """
    times = jnp.maximum(times, 1)

    def add(total: tuple[jax.Array, jax.Array], more: tuple[jax.Array, jax.Array]) -> tuple[tuple[jax.Array, jax.Array], None]:
        whole, rest = total[0] + more[0], total[1] + more[1]
        return (whole + (rest >= times), jnp.where(rest >= times, rest - times, rest)), None

    width = math.isqrt(counts.size) + 1
    table = jnp.pad(counts, (0, -counts.size % width)).reshape(-1, width)
    zero = jnp.zeros(width, counts.dtype)
    columns, _ = jax.lax.scan(add, (zero, zero), (table // times, table % times))
    return jax.lax.scan(add, (zero[0], zero[0]), columns)[0]
