"""FedSGDA+ and FedSGDA-M.

X. Wu, J. Sun, Z. Hu, A. Zhang and H. Huang, "Solving a class of non-convex minimax optimization in federated learning",
NeurIPS 2023: the rivals in Table 1 of the FESS-GDA paper (Shen et al., AISTATS 2024).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import ALGORITHMS, Algorithm, algorithm, state
from fedminimax.algorithms.fed_norm_sgda import FedNormSGDAPlus
from fedminimax.algorithms.local import descent_ascent, server_step
from fedminimax.algorithms.settings import WithCohorts, WithSteps
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar


def FedSGDAPlus(
    lr_x: Scalar,
    lr_y: Scalar,
    server_lr_x: Scalar = 1.0,
    server_lr_y: Scalar = 1.0,
    snapshot_every: int = 1,
    *,
    local_steps: int = 10,
    batch_size: int | None = None,
    cohort_size: int | None = None,
) -> FedNormSGDAPlus:
    r"""FedSGDA+: Local SGDA+ with step sizes on the server, which is Fed-Norm-SGDA+ with equal steps and plain local solvers.

    .. math:: x \leftarrow x + \eta_{x,g} (\bar x - x),\quad y \leftarrow P_Y(y + \eta_{y,g} (\bar y - y))

    after K local steps, whose means are x-bar and y-bar and whose y-gradients are taken at a snapshot of x
    that changes every ``snapshot_every`` rounds, on the same minibatch (as in the authors' published code, which has one server
    step for both players). With server steps of 1 it is Local SGDA+.
    """
    return FedNormSGDAPlus(
        lr_x=lr_x,
        lr_y=lr_y,
        server_lr_x=server_lr_x,
        server_lr_y=server_lr_y,
        snapshot_every=snapshot_every,
        local_steps=local_steps,
        batch_size=batch_size,
        cohort_size=cohort_size,
    )


ALGORITHMS["FedSGDAPlus"] = FedSGDAPlus  # type: ignore[assignment]


@state
class EstimateState(NamedTuple):
    """The players, the estimate v of both gradients there, and whether there is any yet."""

    x: Tree
    y: Tree
    estimate: Point
    begun: jax.Array


@state
class EstimateUpdate(NamedTuple):
    """How far a client's steps led, and how its estimate changed on the way."""

    z: Point
    estimate: Point


@algorithm
class FedSGDAM(WithCohorts, WithSteps, Algorithm[MinimaxProblem, EstimateState]):
    r"""FedSGDA-M: local descent ascent along momentum-based estimates of the gradient, which are averaged with the models.

    On client i, from the averages :math:`z^{(0)} = z_t = (x_t, y_t)` and :math:`v^{(0)} = v_t`, for k = 0, ..., K-1

    .. math::
        x^{(k+1)} &= x^{(k)} - \eta_x v_x^{(k)},\quad y^{(k+1)} = P_Y(y^{(k)} + \eta_y v_y^{(k)}) \\
        v_x^{(k+1)} &= \nabla_x f_i(z^{(k+1)}; \xi) + (1 - \alpha) (v_x^{(k)} - \nabla_x f_i(z^{(k)}; \xi)) \\
        v_y^{(k+1)} &= \nabla_y f_i(z^{(k+1)}; \xi) + (1 - \beta) (v_y^{(k)} - \nabla_y f_i(z^{(k)}; \xi))

    with one minibatch for both points (the estimator of A. Cutkosky and F. Orabona, "Momentum-based variance reduction in
    non-convex SGD", NeurIPS 2019), and :math:`z_{t+1}, v_{t+1}` are means over the cohort. Two gradients a step; models and
    estimates travel both ways.

    How we read it: the paper keeps alpha and beta of the order of the step size squared; here they are plain numbers or
    schedules. The first estimate of all is the gradient on the first step's minibatch: that step does not move. Y is projected
    on after each step (the paper has Y = R^d).

    With alpha = beta = 1 clients follow their own minibatch gradients from their second step on, as in Local SGDA. A client's
    own gradient comes into its estimate at every step with the weight alpha, so that clients drift when K > 1, the less the
    smaller alpha is; and with alpha = 0 errors are never forgotten.

    Args:
        lr_x: eta_x.
        lr_y: eta_y.
        alpha: how much of the old estimate of grad_x is forgotten at each step, from 0 to 1.
        beta: the same for grad_y.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    alpha: Scalar = 0.1
    beta: Scalar = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if isinstance(value, float) and value > 1:
                raise InputError(f"FedSGDAM.{name} must be between 0 and 1, not {value}.")

    def init(self, problem: MinimaxProblem) -> EstimateState:
        """Return (x_0, y_0), and no estimate yet."""
        return EstimateState(*problem.start, players.zeros_like(problem.start), begun=jnp.zeros((), bool))

    def round(self, problem: MinimaxProblem, state: EstimateState, clients: Clients) -> EstimateState:
        """Average the cohort's models and estimates."""
        cohort, z = clients.sample(self.cohort_size), Point(state.x, state.y)
        update = cohort.mean(self.local_update, z, state.estimate, state.begun)
        z = server_step(problem, z, update.z, 1.0, 1.0)
        return EstimateState(*z, players.add(state.estimate, update.estimate), begun=state.begun | (cohort.heard > 0))

    def local_update(
        self, problem: ClientProblem, client: Client, start: Point, estimate: Point, begun: jax.Array
    ) -> EstimateUpdate:
        """Return how far the client's steps lead, and what they make of the estimate."""

        def step(z: Point, v: Point, begun: jax.Array) -> tuple[Point, Point, jax.Array]:
            new = descent_ascent(problem, z, v, self.lr_x, self.lr_y)
            batch = client.batch(self.batch_size)
            error = players.sub(v, problem.grad(*z, batch))
            g = problem.grad(*new, batch)
            keep = jnp.where(begun, 1.0, 0.0)
            v = Point(players.add(g.x, error.x, keep * (1.0 - self.alpha)), players.add(g.y, error.y, keep * (1.0 - self.beta)))
            return new, v, jnp.ones_like(begun)

        steps = client.steps(self.local_steps, self.batch_size)
        end, v, _ = client.repeat(steps, step, start, estimate, begun)
        return EstimateUpdate(players.sub(end, start), players.sub(v, estimate))
