"""FedAvg and FedProx.

B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017; T. Li, A. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated optimization in
heterogeneous networks", MLSys 2020.
"""

from __future__ import annotations

import dataclasses

from fedminimax import players
from fedminimax.algorithms.base import algorithm
from fedminimax.algorithms.robust import LocalDescent, Model
from fedminimax.algorithms.settings import WithCohorts
from fedminimax.federation.cohort import Clients
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar


@algorithm
class FedAvg(WithCohorts, LocalDescent[Model]):
    r"""Federated averaging: K local steps of SGD, then the models are averaged. It minimises sum_i p_i f_i, fair or not.

    .. math:: u_i^{(k+1)} = u_i^{(k)} - \eta g_i(u_i^{(k)}; \xi),\quad
              x_{t+1} = x_t + \eta_g \sum_{i \in S} \frac{p_i}{\sum_{j \in S} p_j} (u_i^{(K)} - x_t)

    Args:
        lr_x: eta, the clients' step size.
        server_lr_x: eta_g; 1.0 is plain averaging.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    server_lr_x: Scalar = 1.0

    def init(self, problem: RobustProblem) -> Model:
        """Return x_0."""
        return Model(problem.project_x(problem.x0))

    def round(self, problem: RobustProblem, state: Model, clients: Clients) -> Model:
        """Step along the mean of the cohort's local updates."""
        update = clients.sample(self.cohort_size).mean(self.local_update, state.x)
        return Model(problem.project_x(players.add(state.x, update.x, self.server_lr_x)))


@algorithm
class FedProx(FedAvg):
    r"""FedAvg whose clients are pulled back to where the round began: local steps on f_i(u) + mu/2 ||u - x_t||^2.

    .. math:: u_i^{(k+1)} = u_i^{(k)} - \eta [g_i(u_i^{(k)}; \xi) + \mu (u_i^{(k)} - x_t)]

    and the server averages as FedAvg's does.

    Args:
        mu: the strength of the pull; 0 is FedAvg.
    """

    mu: Scalar = dataclasses.field(default=0.1, kw_only=True)

    @property
    def pull(self) -> Scalar:
        """Clients are held back by mu."""
        return self.mu
