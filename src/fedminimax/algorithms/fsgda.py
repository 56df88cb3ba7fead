"""FSGDA and SAGDA.

H. Yang, Z. Liu, X. Zhang and J. Liu, "SAGDA: achieving O(eps^-2) communication complexity in federated min-max learning",
NeurIPS 2022.
"""

from __future__ import annotations

from fedminimax import players
from fedminimax.algorithms.base import Algorithm, algorithm
from fedminimax.algorithms.local import server_step
from fedminimax.algorithms.settings import WithCohorts, WithSteps
from fedminimax.algorithms.solvers import LocalUpdates, Plain
from fedminimax.federation.client import Client, Reply
from fedminimax.federation.cohort import Clients
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar


@algorithm
class FSGDA(LocalUpdates[Point]):
    r"""Federated SGDA: Local SGDA with step sizes on the server.

    .. math:: x_{t+1} = x_t + \eta_{x,g} (\bar x - x_t),\quad y_{t+1} = P_Y(y_t + \eta_{y,g} (\bar y - y_t))

    where a bar is the p-weighted mean of the cohort's local models after K steps of descent ascent.

    Args:
        lr_x: the clients' step size for x.
        lr_y: the clients' step size for y.
        server_lr_x: the server's step size for x; 1.0 is plain averaging.
        server_lr_y: the server's step size for y.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    server_lr_x: Scalar = 1.0
    server_lr_y: Scalar = 1.0

    def init(self, problem: MinimaxProblem) -> Point:
        """Return (x_0, y_0)."""
        return problem.start

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        """Step along the mean of the cohort's local updates."""
        cohort = clients.sample(self.cohort_size)
        update = cohort.mean(self.local_update, state.x, state.y)
        return server_step(problem, state, update, self.server_lr_x, self.server_lr_y)


@algorithm
class SAGDA(WithCohorts, WithSteps, Algorithm[MinimaxProblem, Point]):
    r"""Stochastic sampling averaging gradient descent ascent: FSGDA whose local steps are corrected for drift.

    Phase 1: each client of the cohort reports :math:`v_i`, its stochastic gradient at :math:`z_t = (x_t, y_t)`, and keeps it.
    Phase 2: the same clients take K local steps along

    .. math:: g_i(z^{(k)}; \xi) - v_i + \bar v

    where :math:`\bar v` is the cohort's mean, and the server steps as in FSGDA.

    Args:
        lr_x: the clients' step size for x.
        lr_y: the clients' step size for y.
        server_lr_x: the server's step size for x; 1.0 is plain averaging.
        server_lr_y: the server's step size for y.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step and in phase 1; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    server_lr_x: Scalar = 1.0
    server_lr_y: Scalar = 1.0

    def init(self, problem: MinimaxProblem) -> Point:
        """Return (x_0, y_0)."""
        return problem.start

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        """Collect gradients, then step along the mean of the corrected local updates."""
        cohort = clients.sample(self.cohort_size)
        v_bar = cohort.mean(self.report_gradient, state.x, state.y)
        update = cohort.mean(self.local_update, state.x, state.y, v_bar)
        return server_step(problem, state, update, self.server_lr_x, self.server_lr_y)

    def report_gradient(self, problem: ClientProblem, client: Client, x: Tree, y: Tree) -> Reply[Point]:
        """Return v_i, and keep it for phase 2."""
        v = problem.grad(x, y, client.batch(self.batch_size))
        return Reply(v, note=v)

    def local_update(self, problem: ClientProblem, client: Client, x: Tree, y: Tree, v_bar: Point) -> Point:
        """Return how far the client's corrected local steps lead."""
        start = Point(x, y)
        correction = players.sub(v_bar, client.note)
        end = Plain().run(
            problem, client, start, self.lr_x, self.lr_y, self.local_steps, self.batch_size, correction=correction
        )
        return players.sub(end, start)
