"""Delta-FL. K. Pillutla, Y. Laguel, J. Malick and Z. Harchaoui, "Federated learning with superquantile aggregation for
heterogeneous data", 2021."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm
from fedminimax.algorithms.robust import LocalDescent, Model
from fedminimax.algorithms.settings import WithCohorts
from fedminimax.errors import InputError
from fedminimax.federation.cohort import Clients
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar


@algorithm
class DeltaFL(WithCohorts, LocalDescent[Model]):
    r"""Averaging over the clients in the tail: it minimises the mean of the worst share alpha of the losses (the CVaR).

    The cohort reports :math:`f_i(x)`; those at or above its (1 - alpha)-quantile (interpolated linearly) take K local steps
    :math:`u_i \leftarrow u_i - \eta g_i(u_i; \xi)` from x, and the model moves by their mean:

    .. math:: T = \{i \in S : f_i(x_t) \ge Q_{1-\alpha}\},\quad
              x_{t+1} = x_t + \eta_g \sum_{i \in T} \frac{p_i}{\sum_{j \in T} p_j} (u_i^{(K)} - x_t)

    alpha = 1 is FedAvg.

    Args:
        lr_x: the clients' step size.
        alpha: the share of the cohort that trains.
        server_lr_x: the server's step size; 1.0 is plain averaging.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    alpha: Scalar = 0.5
    server_lr_x: Scalar = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.alpha, float) and not 0 < self.alpha <= 1:
            raise InputError(f"DeltaFL.alpha must be above 0 and at most 1, not {self.alpha}.")

    def init(self, problem: RobustProblem) -> Model:
        """Return x_0."""
        return Model(problem.project_x(problem.x0))

    def round(self, problem: RobustProblem, state: Model, clients: Clients) -> Model:
        """Find the tail, and average its updates."""
        cohort = clients.sample(self.cohort_size)
        reports = cohort.map(self.report_loss, state.x)
        tail = reports.accepted & (reports.values.loss >= quantile(reports.values.loss, reports.accepted, 1 - self.alpha))
        update = cohort.only(tail).mean(self.local_update, state.x)
        return Model(problem.project_x(players.add(state.x, update.x, self.server_lr_x)))


def quantile(values: jax.Array, present: jax.Array, level: Scalar) -> jax.Array:
    """Return the quantile of the present values, interpolated linearly between the two nearest."""
    ordered = jnp.sort(jnp.where(present, values, jnp.inf))
    last = jnp.maximum(jnp.sum(present) - 1, 0)
    position = jnp.clip(level, 0.0, 1.0) * last
    # 0.2 * 5 may round to just above 1, and the client at the quantile itself would be left out.
    whole = jnp.round(position)
    position = jnp.where(jnp.abs(position - whole) < 1e-5, whole, position)
    low = jnp.floor(position).astype(int)
    high = jnp.minimum(low + 1, last)
    part = position - low
    return jnp.where(part > 0, (1 - part) * ordered[low] + part * ordered[high], ordered[low])
