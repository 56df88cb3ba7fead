"""q-FedAvg for q-FFL. T. Li, M. Sanjabi, A. Beirami and V. Smith, "Fair resource allocation in federated learning",
ICLR 2020."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm, state
from fedminimax.algorithms.robust import Model, RobustMethod, descend
from fedminimax.algorithms.settings import WithCohorts
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Tree
from fedminimax.problems.forms import RobustClientProblem
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar


@state
class QReply(NamedTuple):
    """f_i^q D_i, the client's term of the denominator, and its loss."""

    x: Tree
    curvature: jax.Array
    loss: jax.Array


@algorithm
class QFedAvg(WithCohorts, RobustMethod[Model]):
    r"""Averaging in which clients with larger losses count more: it minimises sum_i p_i f_i^(q+1) / (q+1).

    With :math:`D_i = (x - u_i^{(K)}) / \eta`

    .. math:: x \leftarrow x - \frac{\sum_i p_i f_i^q D_i}{\sum_i p_i (q f_i^{q-1} \|D_i\|^2 + f_i^q / \eta)}

    The denominator estimates the curvature of f^{q+1}, so that eta, tuned at q = 0, serves every q. q = 0 is FedAvg. Losses
    must not be negative.

    Args:
        lr_x: eta, the clients' step size.
        q: how much larger losses count.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    q: Scalar = 1.0

    def init(self, problem: RobustProblem) -> Model:
        """Return x_0."""
        return Model(problem.project_x(problem.x0))

    def round(self, problem: RobustProblem, state: Model, clients: Clients) -> Model:
        """Step along the weighted updates over the estimated curvature."""
        cohort = clients.sample(self.cohort_size)
        total = cohort.mean(self.local_update, state.x)
        step = jnp.where(total.curvature > 0, 1.0 / jnp.where(total.curvature > 0, total.curvature, 1.0), 0.0)
        return Model(problem.project_x(players.add(state.x, total.x, -step)))

    def local_update(self, problem: RobustClientProblem, client: Client, x: Tree) -> QReply:
        """Return the client's terms of numerator and denominator."""
        loss = problem.value(x, client.full)
        positive = jnp.maximum(loss, jnp.finfo(loss.dtype).tiny ** 0.25)  # f^(q-1) of a client that has nothing left to gain
        end = descend(problem, client, x, self.lr_x, self.steps_of(client), self.batch_size)
        direction = players.scale(players.sub(x, end), 1.0 / self.lr_x)
        power = positive**self.q
        curvature = self.q * positive ** (self.q - 1) * players.sqnorm(direction) + power / self.lr_x
        return QReply(players.scale(direction, power), curvature, loss)
