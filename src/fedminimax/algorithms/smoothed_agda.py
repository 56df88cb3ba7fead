"""Smoothed-AGDA, the ancestor of FESS-GDA.

J. Zhang, P. Xiao, R. Sun and Z.-Q. Luo, "A single-loop smoothed gradient descent-ascent algorithm for nonconvex-concave min-max
problems", NeurIPS 2020; J. Yang, A. Orvieto, A. Lucchi and N. He, "Faster single-loop algorithms for minimax optimization
without strong concavity", AISTATS 2022 (with stochastic gradients).
"""

from __future__ import annotations

from fedminimax import players
from fedminimax.algorithms.base import Algorithm, algorithm
from fedminimax.algorithms.fess_gda import SmoothedState
from fedminimax.algorithms.settings import WithBatches, WithCohorts
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar


@algorithm
class SmoothedAGDA(WithCohorts, WithBatches, Algorithm[MinimaxProblem, SmoothedState]):
    r"""Smoothed alternating gradient descent ascent: the max player answers the x of the same round.

    .. math::
        x_{t+1} &= x_t - \eta_x [\nabla_x f(x_t, y_t; \xi_1) + p (x_t - z_t)] \\
        y_{t+1} &= P_Y(y_t + \eta_y \nabla_y f(x_{t+1}, y_t; \xi_2)) \\
        z_{t+1} &= z_t + \beta (x_{t+1} - z_t)

    with :math:`z_0 = x_0` and two independent minibatches. The gradients are means over the cohort, so that a round is one step
    in two exchanges; with one client it is the published method. SmoothedGDA is the same with both gradients at
    :math:`(x_t, y_t)`, and FESS-GDA takes K such steps on clients (both simultaneous: the pull to z is the server's there, so
    that clients could not answer the smoothed x).

    Args:
        lr_x: eta_x.
        lr_y: eta_y.
        p: the strength of the smoothing.
        beta: how fast z follows x, in [0, 1].
        batch_size: examples a gradient; None: the full local batch.
        cohort_size: clients a round, the same in both exchanges; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    p: Scalar = 1.0
    beta: Scalar = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.beta, float) and self.beta > 1:
            raise InputError(f"SmoothedAGDA.beta must be between 0 and 1, not {self.beta}.")

    def init(self, problem: MinimaxProblem) -> SmoothedState:
        """Return (x_0, y_0) with z_0 = x_0."""
        return SmoothedState(problem.start.x, problem.start.y, z=problem.start.x)

    def round(self, problem: MinimaxProblem, state: SmoothedState, clients: Clients) -> SmoothedState:
        """Step x, then y at the new x, then z."""
        cohort = clients.sample(self.cohort_size)
        g_x = cohort.mean(self.report_x, state.x, state.y).x
        slope = players.add(g_x, players.sub(state.x, state.z), self.p)
        x = problem.project_x(players.add(state.x, slope, -self.lr_x))
        g_y = cohort.mean(self.report_y, x, state.y).y
        y = problem.project_y(players.add(state.y, g_y, self.lr_y))
        return SmoothedState(x, y, z=players.add(state.z, players.sub(x, state.z), self.beta))

    def report_x(self, problem: ClientProblem, client: Client, x: Tree, y: Tree) -> Point:
        """Return the client's grad_x alone."""
        return Point(problem.grad_x(x, y, client.batch(self.batch_size)), None)

    def report_y(self, problem: ClientProblem, client: Client, x: Tree, y: Tree) -> Point:
        """Return the client's grad_y alone."""
        return Point(None, problem.grad_y(x, y, client.batch(self.batch_size)))
