r"""What privacy has been spent: epsilon after so many messages, for the client that has sent the most.

A message with noise is a Gaussian mechanism, :math:`\mu`-GDP with mu = s/z for each of its parts (J. Dong, A. Roth and W. Su,
"Gaussian differential privacy", 2022). Mechanisms one after another, each chosen by what came of those before, compose to
:math:`\mu^2 = \sum_k \mu_k^2`, and nothing is lost. Then

.. math::
    \delta(\epsilon) = \Phi(-\epsilon/\mu + \mu/2) - e^\epsilon \Phi(-\epsilon/\mu - \mu/2)

(B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018); ``dp-accounting`` inverts it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fedminimax.errors import InputError
from fedminimax.federation.privacy import Privacy, Sent

EPSILON, OF_SUMS = "epsilon", "epsilon_of_sums"
"""The columns of a history: against whoever sees every message, and against whoever sees sums over cohorts alone."""
SPENT = "privacy"
"""Where a result's ``info``, and the notes of a run's record, say how private it is."""
_MISSING = "Epsilon is computed by dp-accounting, which is not installed: pip install 'fedminimax[privacy]'."


class Spending:
    """What each client has spent, as the square of its mu.

    Args:
        privacy: what messages are protected by.
        clients: how many clients there are.
        before: what was spent before, from :meth:`record`; None: nothing.
    """

    def __init__(self, privacy: Privacy, clients: int, before: Mapping[str, Any] | None = None):
        self._privacy = privacy
        start = (np.zeros(clients), np.zeros(clients)) if before is None else (before["messages"], before["sums"])
        self._messages, self._sums = (np.array(spent, np.float64) for spent in start)

    @classmethod
    def after(cls, privacy: Privacy, clients: int, info: Mapping[str, Any] | None, rounds: int) -> Spending:
        """Return what has been spent when a result is gone on with: what was sent without noise cannot be taken back.

        Args:
            privacy: what messages are protected by from now on.
            clients: how many clients there are.
            info: of the result that is gone on with; None: there is none.
            rounds: how many rounds it had.
        """
        if info is None or (SPENT not in info and not rounds):
            return cls(privacy, clients)
        everything = np.full(clients, math.inf)
        return cls(privacy, clients, info.get(SPENT, {"messages": everything, "sums": everything}))

    def add(self, sent: tuple[Sent, ...]) -> None:
        """Count the exchanges of some rounds: arrays [rounds, ...]."""
        for one in sent:
            ids, weights = np.asarray(one.ids), np.asarray(one.weights, np.float64)
            for row, parts, summed in zip(ids, np.asarray(one.parts), weights, strict=True):
                self._exchange(row, float(parts) * self._privacy.cost, summed)

    def _exchange(self, ids: np.ndarray, cost: float, weights: np.ndarray) -> None:
        asked = ids >= 0
        np.add.at(self._messages, ids[asked], cost)
        square = float(np.sum(weights[asked] ** 2))
        if not square:
            np.add.at(self._sums, ids[asked], cost)
            return
        # w_i C of a sum is client i's, and the noise of all has variance (z C)^2 sum_j w_j^2. One that is there twice moves it
        # by both.
        clients, places = np.unique(ids[asked], return_inverse=True)
        own = np.bincount(places, weights[asked], len(clients))
        moved = own != 0  # (what is not in the sum is not seen, though it may have been sent without noise)
        self._sums[clients[moved]] += cost * own[moved] ** 2 / square

    def epsilons(self) -> dict[str, float]:
        """Return epsilon at the privacy's delta, of the client that has spent the most."""
        delta = self._privacy.delta
        return {EPSILON: epsilon(self._messages.max(), delta), OF_SUMS: epsilon(self._sums.max(), delta)}

    def record(self) -> dict[str, Any]:
        """Return what has been spent, and by what rules, as a tree that a result can keep."""
        return {"settings": asdict(self._privacy), "messages": self._messages.copy(), "sums": self._sums.copy()}


def epsilon(spent: float, delta: float) -> float:
    """Return epsilon for the square of mu: what is (epsilon, delta)-private for this delta.

    Args:
        spent: the square of mu.
        delta: the chance for which it need not hold.
    """
    if not 0 < spent < math.inf:
        return 0.0 if spent == 0 else math.inf
    return float(_accounting().get_epsilon_gaussian(1 / math.sqrt(spent), delta))


def check_installed() -> None:
    """Raise an :class:`InputError` where epsilon could not be computed."""
    _accounting()


def _accounting() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise InputError(_MISSING) from None
    return dp_accounting
