"""What step sizes are measured in: the curvature of the clients' losses, and how differently they pull, by power iteration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.sklearn.layers import Array

_POWER_STEPS = 20
_MOST = 10.0
"""How much more curved than the average a client may be and still decide on the step: one with a freak row would stop all."""


class Curvature(NamedTuple):
    """The largest eigenvalue of E[z z^T], z a row: that of the average over clients, and the largest of a client."""

    average: float
    largest: float

    @property
    def cautious(self) -> float:
        """The largest client's, but no more than ten times the average's."""
        return min(self.largest, _MOST * self.average)


def coupling(rows: Array, pulls: Array, clients: ClientData, centred: bool) -> float:
    """Return the squared norm of the Jacobian of (f_1, ..., f_N), whose rows are the gradients E[z r^T] of a linear model.

    Args:
        rows: z, [total, d], client after client.
        pulls: r, the slope of each row's loss in its outputs, [total, outputs].
        clients: where each client's rows begin, and how many there are.
        centred: whether the mean gradient is taken off: weights that sum to one do not feel it.
    """
    starts, sizes = np.asarray(clients.starts), np.asarray(clients.sizes)
    slopes = [np.add.reduceat(rows * pull[:, None], starts) / sizes[:, None] for pull in pulls.T]
    jacobian = np.concatenate(slopes, axis=1)
    jacobian = jacobian - jacobian.mean(axis=0) if centred else jacobian
    vector, largest = np.random.default_rng(0).normal(size=jacobian.shape[1]), 0.0
    for _ in range(_POWER_STEPS):
        vector /= max(float(np.linalg.norm(vector)), float(np.finfo(float).tiny))
        vector = jacobian.T @ (jacobian @ vector)
        largest = float(np.linalg.norm(vector))
    return largest


def curvature(rows: Array, clients: ClientData, weights: Array) -> Curvature:
    """Return the largest eigenvalues of the rows' second moments, by power iteration for all clients at once.

    Args:
        rows: [total, d], client after client.
        clients: where each client's rows begin, and how many there are.
        weights: the p_i of the average.
    """
    starts, sizes = np.asarray(clients.starts), np.asarray(clients.sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    share = (weights / sizes)[owner]
    generator = np.random.default_rng(0)
    each, all_ = generator.normal(size=(len(sizes), rows.shape[1])), generator.normal(size=rows.shape[1])
    largest = average = 0.0
    for _ in range(_POWER_STEPS):
        each /= np.maximum(np.linalg.norm(each, axis=1, keepdims=True), np.finfo(float).tiny)
        all_ /= max(float(np.linalg.norm(all_)), float(np.finfo(float).tiny))
        along = np.einsum("nd,nd->n", rows, each[owner])
        each = np.add.reduceat(rows * along[:, None], starts) / sizes[:, None]
        all_ = rows.T @ (share * (rows @ all_))
        largest, average = float(np.linalg.norm(each, axis=1).max()), float(np.linalg.norm(all_))
    return Curvature(average, max(largest, average))
