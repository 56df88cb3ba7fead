"""Local SGDA and Local SGDA+.

Y. Deng and M. Mahdavi, "Local stochastic gradient descent ascent: convergence analysis and communication efficiency",
AISTATS 2021; with momentum: P. Sharma, R. Panda, G. Joshi and P. Varshney, "Federated minimax optimization: improved
convergence analyses and algorithms", ICML 2022.
"""

from __future__ import annotations

from typing import NamedTuple

from fedminimax.algorithms.base import algorithm, state, static
from fedminimax.algorithms.local import refresh, server_step
from fedminimax.algorithms.solvers import LocalUpdates, Solver, solver_of
from fedminimax.federation.cohort import Clients
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.schedules import Scalar


@algorithm
class LocalSGDA(LocalUpdates[Point]):
    r"""Local stochastic gradient descent ascent: K local steps, then the models are averaged.

    On client i of the cohort, from :math:`(x^{(0)}, y^{(0)}) = (x_t, y_t)`, for k = 0, ..., K-1, simultaneously

    .. math:: x^{(k+1)} = x^{(k)} - \eta_x \nabla_x f_i(x^{(k)}, y^{(k)}; \xi),\quad
              y^{(k+1)} = P_Y(y^{(k)} + \eta_y \nabla_y f_i(x^{(k)}, y^{(k)}; \xi))

    and :math:`(x_{t+1}, y_{t+1})` is the p-weighted mean over the cohort. With ``momentum`` the steps follow heavy-ball
    buffers, which start at zero in each round. With unequal K it solves a reweighted problem: see FedNormSGDA.

    Args:
        lr_x: eta_x, the step size of the min player.
        lr_y: eta_y, the step size of the max player.
        momentum: rho of the local buffers; None: none.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    momentum: Scalar | None = None

    def init(self, problem: MinimaxProblem) -> Point:
        """Return (x_0, y_0)."""
        return problem.start

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        """Average the cohort's local updates."""
        cohort = clients.sample(self.cohort_size)
        update = cohort.mean(self.local_update, state.x, state.y)
        return server_step(problem, state, update, 1.0, 1.0)

    @property
    def solver(self) -> Solver:
        """Plain steps, or heavy-ball momentum."""
        return solver_of(self.momentum)


@state
class SnapshotState(NamedTuple):
    """The players, and the snapshot x-hat at which the max player's gradients are taken."""

    x: Tree
    y: Tree
    x_snapshot: Tree


@algorithm
class LocalSGDAPlus(LocalUpdates[SnapshotState]):
    r"""Local SGDA+: the max player sees a snapshot of the min player that changes every S rounds.

    .. math:: x^{(k+1)} = x^{(k)} - \eta_x \nabla_x f_i(x^{(k)}, y^{(k)}; \xi),\quad
              y^{(k+1)} = P_Y(y^{(k)} + \eta_y \nabla_y f_i(\hat x, y^{(k)}; \xi))

    with :math:`\hat x = x_t` refreshed by the server when t is a multiple of ``snapshot_every`` (S) and sent to every cohort
    until the next refresh. Both parts use the same minibatch.

    Args:
        lr_x: eta_x.
        lr_y: eta_y.
        momentum: rho of the local buffers; None: none.
        snapshot_every: S, in rounds.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    momentum: Scalar | None = None
    snapshot_every: int = static(default=1)

    def init(self, problem: MinimaxProblem) -> SnapshotState:
        """Return (x_0, y_0) with x-hat = x_0."""
        return SnapshotState(problem.start.x, problem.start.y, x_snapshot=problem.start.x)

    def round(self, problem: MinimaxProblem, state: SnapshotState, clients: Clients) -> SnapshotState:
        """Average the cohort's local updates."""
        x_snapshot = refresh(clients.round, self.snapshot_every, state.x, state.x_snapshot)
        cohort = clients.sample(self.cohort_size)
        update = cohort.mean(self.local_update, state.x, state.y, x_snapshot)
        x, y = server_step(problem, Point(state.x, state.y), update, 1.0, 1.0)
        return SnapshotState(x, y, x_snapshot)

    @property
    def solver(self) -> Solver:
        """Plain steps, or heavy-ball momentum."""
        return solver_of(self.momentum)
