"""Parallel SGDA: single-machine SGDA (T. Lin, C. Jin and M. Jordan, "On gradient descent ascent for nonconvex-concave minimax
problems", ICML 2020) with its gradient averaged over clients, as the CD-MAGE paper compares with."""

from __future__ import annotations

from typing import Any

from fedminimax.algorithms.base import Algorithm, algorithm
from fedminimax.algorithms.local import descent_ascent
from fedminimax.algorithms.settings import WithBatches, WithCohorts
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar


@algorithm
class ParallelSGDA(WithCohorts, WithBatches, Algorithm[MinimaxProblem, Point]):
    r"""One step a round on the cohort's mean gradient; no local steps.

    .. math:: x_{t+1} = x_t - \eta_x \bar g_x,\quad y_{t+1} = P_Y(y_t + \eta_y \bar g_y)

    Args:
        lr_x: eta_x.
        lr_y: eta_y.
        batch_size: examples a client; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar

    @classmethod
    def from_theory(cls, L: float, mu: float, **static_fields: Any) -> ParallelSGDA:
        """Return the steps of Lin et al. (Theorem 4.4) for L-smooth f, mu-strongly concave in y.

        lr_x = 1 / (16 (kappa + 1)^2 L) and lr_y = 1 / L, with kappa = L / mu.
        """
        return cls(lr_x=1.0 / (16.0 * (L / mu + 1.0) ** 2 * L), lr_y=1.0 / L, **static_fields)

    def init(self, problem: MinimaxProblem) -> Point:
        """Return (x_0, y_0)."""
        return problem.start

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        """Step along the cohort's mean gradient."""
        cohort = clients.sample(self.cohort_size)
        mean_gradient = cohort.mean(self.report_gradient, state.x, state.y)
        return descent_ascent(problem, state, mean_gradient, self.lr_x, self.lr_y)

    def report_gradient(self, problem: ClientProblem, client: Client, x: Tree, y: Tree) -> Point:
        """Return the client's stochastic gradient."""
        return problem.grad(x, y, client.batch(self.batch_size))
