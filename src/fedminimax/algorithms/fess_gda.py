"""FESS-GDA and Smoothed-GDA.

W. Shen, M. Huang, J. Zhang and C. Shen, "Stochastic smoothed gradient descent ascent for federated minimax optimization",
AISTATS 2024 (Algorithms 1 and 2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedminimax import players
from fedminimax.algorithms.base import ALGORITHMS, algorithm, state, static
from fedminimax.algorithms.local import server_step
from fedminimax.algorithms.solvers import LocalUpdates
from fedminimax.errors import InputError
from fedminimax.federation.cohort import Clients
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.schedules import Scalar


@state
class SmoothedState(NamedTuple):
    """The players, and the point z that x is held near to."""

    x: Tree
    y: Tree
    z: Tree


@algorithm
class FessGDA(LocalUpdates[SmoothedState]):
    r"""Federated stochastic smoothed gradient descent ascent (Algorithm 1).

    The cohort takes K simultaneous local steps, y projected after each, and the server smooths x:

    .. math::
        x_{t+1} &= x_t + \eta_{x,g} (\bar x - x_t) - \eta_{x,l} \eta_{x,g} K p (x_t - z_t) \\
        y_{t+1} &= P_Y(y_t + \eta_{y,g} (\bar y - y_t)) \\
        z_{t+1} &= z_t + \beta (x_{t+1} - z_t)

    with :math:`z_0 = x_0`, which is descent ascent on f(x, y) + p/2 ||x - z||^2 with a slowly moving z. With p = 0 it is FSGDA.
    The p-term is applied once a round at (x_t, z_t). An x_set is projected on as y is (the paper has none).

    Args:
        lr_x: eta_{x,l}, the clients' step size for x.
        lr_y: eta_{y,l}, the clients' step size for y.
        server_lr_x: eta_{x,g}.
        server_lr_y: eta_{y,g}.
        p: the strength of the smoothing.
        beta: how fast z follows x, in [0, 1].
        local_steps: K.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    server_lr_x: Scalar = 1.0
    server_lr_y: Scalar = 1.0
    p: Scalar = 1.0
    beta: Scalar = 0.05
    local_steps: int = static(default=10, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local_steps, int):
            raise InputError("FessGDA.local_steps must be one whole number: its server step holds K (use FedNormSGDA).")
        if isinstance(self.beta, float) and self.beta > 1:
            raise InputError(f"FessGDA.beta must be between 0 and 1, not {self.beta}.")

    @classmethod
    def from_theory(
        cls,
        L: float,
        mu: float | None = None,
        *,
        mu_x: float | None = None,
        epsilon: float | None = None,
        diameter: float | None = None,
        maximum: bool = False,
        gamma: float | None = None,
        local_steps: int = 1,
        sigma: float = 0.0,
        gap: float = 1.0,
        clients: int | None = None,
        rounds: int | None = None,
        cohort_size: int | None = None,
        batch_size: int | None = None,
    ) -> FessGDA:
        """Return the paper's step sizes (appendices D, F, H and I) for L-smooth client losses.

        The setting follows from what is given: ``mu`` alone, f is mu-PL (or strongly concave) in y (Theorem 3.1); ``mu`` and
        ``mu_x``, PL in both (Theorem 3.5, where p = 0); neither, but ``epsilon`` and the ``diameter`` D(Y), one-point
        concave in y (Theorem 3.2); ``maximum``, a maximum of losses (Theorem 3.4), for which beta must also be below a multiple
        of the delta of Lemma H.1 that the paper does not print. eta_x and eta_y are products of client and server steps; the
        clients' are the largest allowed by the terms that have constants.

        Args:
            L: smoothness l.
            mu: the PL constant in y.
            mu_x: the PL constant in x.
            epsilon: the accuracy wanted (one-point concave).
            diameter: the diameter D(Y) (one-point concave).
            maximum: whether f is sum_j y_j f_j(x) with y on the simplex (``problems.pointwise_maximum``).
            gamma: gamma_3 of Lemma H.1, the error bound of such a maximum, where it is known.
            local_steps: K.
            sigma: the standard deviation of stochastic gradients; above 0 it needs ``rounds`` and ``cohort_size``.
            gap: Delta, the initial value of the potential above its minimum.
            rounds: T.
            cohort_size: m.
            clients: M; with m < M (and unlike clients) the noise bound on eta_x is smaller by sqrt(K).
            batch_size: examples a step.
        """
        if maximum and not (mu is mu_x is epsilon is diameter is None):
            raise InputError("FessGDA.from_theory(maximum=True) is Theorem 3.4: leave out mu, mu_x, epsilon and diameter.")
        if gamma is not None and not maximum:
            raise InputError("FessGDA.from_theory takes gamma with maximum=True alone (Theorem 3.4).")
        if mu is not None and mu_x is not None:
            if sigma > 0:
                raise InputError(
                    "FessGDA.from_theory has no constants for noise when f is PL in both players: leave sigma out."
                )
            rates = _pl_in_both(L, mu, mu_x, local_steps)
        else:
            eta_x = 1.0 / (1000.0 * local_steps * L)
            if sigma > 0:
                if rounds is None or cohort_size is None:
                    raise InputError("FessGDA.from_theory with sigma > 0 needs rounds and cohort_size.")
                partial = clients is not None and cohort_size < clients
                noise = sigma * math.sqrt(rounds * L) * (local_steps if partial else math.sqrt(local_steps))
                eta_x = min(eta_x, math.sqrt(cohort_size * gap) / noise)
            if mu is not None:
                bend = mu
            elif epsilon is not None and diameter is not None:
                bend = epsilon**2 / diameter
            elif maximum:
                bend = L
            else:
                raise InputError("FessGDA.from_theory needs mu, or epsilon and the diameter of Y, or maximum=True.")
            rates = _smoothed(L, eta_x, bend, gamma, local_steps)
        return cls(**rates, local_steps=local_steps, batch_size=batch_size, cohort_size=cohort_size)

    def init(self, problem: MinimaxProblem) -> SmoothedState:
        """Return (x_0, y_0) with z_0 = x_0."""
        return SmoothedState(problem.start.x, problem.start.y, z=problem.start.x)

    def round(self, problem: MinimaxProblem, state: SmoothedState, clients: Clients) -> SmoothedState:
        """Step along the mean of the cohort's local updates, held near z."""
        clients.equal_steps(self.local_steps)  # the server's step holds one K
        cohort = clients.sample(self.cohort_size)
        update = cohort.mean(self.local_update, state.x, state.y)
        # - eta_{x,l} eta_{x,g} K p (x_t - z_t), the server's step size being applied below
        pull = players.scale(players.sub(state.z, state.x), self.lr_x * self.local_steps * self.p)
        update = Point(players.add(update.x, pull), update.y)
        x, y = server_step(problem, Point(state.x, state.y), update, self.server_lr_x, self.server_lr_y)
        z = players.add(state.z, players.sub(x, state.z), self.beta)
        return SmoothedState(x, y, z)


def _pl_in_both(L: float, mu: float, mu_x: float, K: int) -> dict[str, float]:
    """Return the steps of Theorem 3.5, where the player with the smaller constant takes the larger ones."""
    fast = 1.0 / (4.0 * L * K)
    slow = fast * min(mu, mu_x) ** 2 / (64.0 * L**2)
    eta_x, eta_y = (slow, fast) if mu_x >= mu else (fast, slow)
    local = lambda eta: min(_drift(L, K), math.sqrt(eta / (1536.0 * fast)) / (L * K))
    return _split(eta_x, eta_y, local(eta_x), local(eta_y), p=0.0, beta=0.0)


def _smoothed(L: float, eta_x: float, bend: float, gamma: float | None, K: int) -> dict[str, float]:
    """Return the steps that Theorems 3.1, 3.2 and 3.4 share: beta is eta_y K ``bend`` / 80000, of which each has its own."""
    eta_y, p = eta_x / 256.0, 2.0 * L
    beta = eta_y * K * bend / 80000.0
    if gamma is not None:
        beta = min(beta, 1.0 / (6144.0 * p * eta_y * K * gamma**2))
    lr_x = min(_drift(L, K), math.sqrt(beta / (6144.0 * eta_x * p * L**2 * K**3)))
    lr_y = min(_drift(L, K), math.sqrt(eta_y / (3072.0 * eta_x * L**2 * K**2)))
    return _split(eta_x, eta_y, lr_x, lr_y, p=p, beta=beta)


def _drift(L: float, K: int) -> float:
    """Return the largest client step at which K of them stay near where they began."""
    return math.inf if K == 1 else 1.0 / (2.0 * L * math.sqrt(2.0 * (2 * K - 1) * (K - 1)))


def _split(eta_x: float, eta_y: float, lr_x: float, lr_y: float, *, p: float, beta: float) -> dict[str, float]:
    """Return the products eta as client steps and the server steps that are left."""
    return {"lr_x": lr_x, "lr_y": lr_y, "server_lr_x": eta_x / lr_x, "server_lr_y": eta_y / lr_y, "p": p, "beta": beta}


def SmoothedGDA(lr_x: Scalar, lr_y: Scalar, p: Scalar = 1.0, beta: Scalar = 0.05) -> FessGDA:
    r"""Smoothed-GDA (Algorithm 2): FESS-GDA with K = 1 and the full batch, meant for one client.

    .. math::
        x_{t+1} &= x_t - \eta_x [\nabla_x f(x_t, y_t) + p (x_t - z_t)] \\
        y_{t+1} &= P_Y(y_t + \eta_y \nabla_y f(x_t, y_t)) \\
        z_{t+1} &= z_t + \beta (x_{t+1} - z_t)
    """
    return FessGDA(lr_x=lr_x, lr_y=lr_y, p=p, beta=beta, local_steps=1)


ALGORITHMS["SmoothedGDA"] = SmoothedGDA  # type: ignore[assignment]
