"""CODA+ and CODASCA.

Z. Yuan, Z. Guo, Y. Xu, Y. Ying and T. Yang, "Federated deep AUC maximization for heterogeneous data with a constant
communication complexity", ICML 2021; with a cohort a round, as the CD-MAGE paper compares with.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from fedminimax import checks, players
from fedminimax.algorithms.base import Algorithm, S, algorithm, state, static
from fedminimax.algorithms.local import descent_ascent, server_step
from fedminimax.algorithms.settings import WithCohorts, WithSteps
from fedminimax.federation.client import Client, Reply
from fedminimax.federation.cohort import Clients
from fedminimax.players import Count, Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar


def restarted(before: Count, after: Count, every: int, x: Tree, x_reference: Tree) -> Tree:
    """Return the prox center for the next round: x where the count of local steps has passed a multiple of ``every``."""
    return players.select(jnp.asarray(after // every > before // every), x, x_reference)


class ProximalSteps(WithCohorts, WithSteps, Algorithm[MinimaxProblem, S]):
    """Local descent ascent on f_i + theta/2 ||x - x_ref||^2, the subproblem of the proximal-point methods."""

    lr_x: Scalar
    lr_y: Scalar
    theta: Scalar
    restart_every: int
    local_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("restart_every", "local_steps"):
            checks.integer(f"{type(self).__name__}.{name}", getattr(self, name), least=1)

    def rates(self, client: Client) -> tuple[Scalar, Scalar]:
        """Return the step sizes of x and y in this round."""
        return self.lr_x, self.lr_y

    def gradient(self, problem: ClientProblem, client: Client, z: Point, x_reference: Tree) -> Point:
        """Return the stochastic gradient of the subproblem."""
        g = problem.grad(z.x, z.y, client.batch(self.batch_size))
        return Point(players.add(g.x, players.sub(z.x, x_reference), self.theta), g.y)


class StagedSteps(ProximalSteps[S]):
    """Local steps whose size shrinks from stage to stage: K_0 local steps make a stage, and a round belongs to one."""

    stage_decay: Scalar

    def rates(self, client: Client) -> tuple[Scalar, Scalar]:
        """Return eta times stage_decay^s in stage s = 0, 1, ..."""
        stage = client.round * self.local_steps // self.restart_every
        factor = self.stage_decay**stage
        return self.lr_x * factor, self.lr_y * factor


@state
class ProximalState(NamedTuple):
    """The players, and the center x_ref of the proximal term."""

    x: Tree
    y: Tree
    x_reference: Tree


@algorithm
class CODAPlus(StagedSteps[ProximalState]):
    r"""Local SGDA on proximal subproblems.

    .. math:: x^{(k+1)} = x^{(k)} - \eta_s [\nabla_x f_i(z^{(k)}; B) + \theta (x^{(k)} - x_{ref})],\quad
              y^{(k+1)} = y^{(k)} + \eta_s \nabla_y f_i(z^{(k)}; B)

    and the p-weighted mean over the cohort. After every :math:`K_0` local steps, at the end of the round that completes them,
    a stage ends: :math:`x_{ref} \leftarrow x`, and the step :math:`\eta_s = \eta\, d^s` of stage s is multiplied by d,
    ``stage_decay``. With theta = 0 and d = 1 it is Local SGDA. (The runs of the CD-MAGE paper have d = 1/3, by
    its authors' code; the paper does not say so.)

    Args:
        lr_x: eta for x.
        lr_y: eta for y (the paper has one for both).
        theta: the strength of the proximal term.
        restart_every: K_0, in local steps.
        local_steps: K.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
        stage_decay: d, what eta is multiplied by at the end of a stage; 1.0: eta stays.
    """

    lr_x: Scalar
    lr_y: Scalar
    theta: Scalar = 0.0
    restart_every: int = static(default=2000)
    local_steps: int = static(default=10, kw_only=True)
    stage_decay: Scalar = dataclasses.field(default=1.0, kw_only=True)

    def init(self, problem: MinimaxProblem) -> ProximalState:
        """Return (x_0, y_0) with x_ref = x_0."""
        z = problem.start
        return ProximalState(z.x, z.y, z.x)

    def round(self, problem: MinimaxProblem, state: ProximalState, clients: Clients) -> ProximalState:
        """Average the cohort's local updates; restart where it is time."""
        cohort = clients.sample(self.cohort_size)
        update = cohort.mean(self.proximal_update, state.x, state.y, state.x_reference)
        x, y = server_step(problem, Point(state.x, state.y), update, 1.0, 1.0)
        before = clients.round * self.local_steps
        return ProximalState(x, y, restarted(before, before + self.local_steps, self.restart_every, x, state.x_reference))

    def proximal_update(self, problem: ClientProblem, client: Client, x: Tree, y: Tree, x_reference: Tree) -> Point:
        """Return how far the client's local steps lead."""
        start, (lr_x, lr_y) = Point(x, y), self.rates(client)
        step = lambda z: descent_ascent(problem, z, self.gradient(problem, client, z, x_reference), lr_x, lr_y)
        return players.sub(client.repeat(self.local_steps, step, start), start)


@state
class ControlledReply(NamedTuple):
    """How far a client's players and its control variates moved."""

    update: Point
    variate: Point


class ControlledSteps(ProximalSteps[S]):
    """Local steps on the proximal subproblem, corrected by SCAFFOLD's control variates, which the clients keep."""

    def init_client(self, problem: MinimaxProblem) -> Tree:
        """Return c_i = 0."""
        return players.zeros_like(problem.start)

    def controlled_update(
        self,
        problem: ClientProblem,
        client: Client,
        x: Tree,
        y: Tree,
        x_reference: Tree,
        variate: Point,
        steps: Count | None = None,
    ) -> Reply[ControlledReply]:
        """Return how far the corrected local steps lead, and how the client's variates change.

        The new c_i is the mean of the gradients that the client met. Without projections that is SCAFFOLD's option II,
        c_i - c + (z_t - z^(K)) / (K eta); with them, it is still a gradient.
        """
        start, correction = Point(x, y), players.sub(variate, client.state)
        lr_x, lr_y = self.rates(client)
        steps = self.local_steps if steps is None else steps

        def step(z: Point, total: Point) -> tuple[Point, Point]:
            g = self.gradient(problem, client, z, x_reference)
            moved = descent_ascent(problem, z, players.add(g, correction), lr_x, lr_y)
            return moved, players.add(total, g)

        end, total = client.repeat(steps, step, start, players.zeros_like(start))
        variate = players.scale(total, 1.0 / steps)
        reply = ControlledReply(players.sub(end, start), players.sub(variate, client.state))
        return Reply(reply, state=variate)


@state
class ControlledState(NamedTuple):
    """The players, the center x_ref, and the server's control variates c = sum_i p_i c_i."""

    x: Tree
    y: Tree
    x_reference: Tree
    variate: Point


@algorithm
class CODASCA(StagedSteps[ControlledState], ControlledSteps[ControlledState]):
    r"""CODA+ with control variates for both players and a step size on the server.

    With :math:`g_i` the stochastic gradient of :math:`f_i + \frac\theta2 \|x - x_{ref}\|^2`, for k = 0, ..., K-1

    .. math:: x^{(k+1)} = x^{(k)} - \eta_s [g_{i,x}(z^{(k)}) - c_{i,x} + c_x],\quad
              y^{(k+1)} = y^{(k)} + \eta_s [g_{i,y}(z^{(k)}) - c_{i,y} + c_y]

    .. math:: c_i^+ = \frac1K \sum_k g_i(z^{(k)}),\quad z_{t+1} = z_t + \eta_g\,\mathrm{mean}_S (z^{(K)} - z_t),\quad
              c \leftarrow c + \sum_{i \in S} p_i (c_i^+ - c_i)

    From c = c_i = 0. The c_i are the clients' own: the engine keeps them where the client is. After every
    :math:`K_0` local steps :math:`x_{ref} \leftarrow x`, and :math:`\eta_s = \eta\, d^s` is multiplied by d, as in CODA+.

    Args:
        lr_x: eta for x.
        lr_y: eta for y (the paper has one for both).
        theta: the strength of the proximal term.
        server_lr_x: eta_g for x; 1.0 is plain averaging.
        server_lr_y: eta_g for y.
        restart_every: K_0, in local steps.
        local_steps: K.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
        stage_decay: d, what eta is multiplied by at the end of a stage; 1.0: eta stays.
    """

    lr_x: Scalar
    lr_y: Scalar
    theta: Scalar = 0.0
    server_lr_x: Scalar = 1.0
    server_lr_y: Scalar = 1.0
    restart_every: int = static(default=2000)
    local_steps: int = static(default=10, kw_only=True)
    stage_decay: Scalar = dataclasses.field(default=1.0, kw_only=True)

    def init(self, problem: MinimaxProblem) -> ControlledState:
        """Return (x_0, y_0) with x_ref = x_0 and c = 0."""
        z = problem.start
        return ControlledState(z.x, z.y, z.x, players.zeros_like(z))

    def round(self, problem: MinimaxProblem, state: ControlledState, clients: Clients) -> ControlledState:
        """Step along the mean update; move c by what the clients' variates moved; restart where it is time."""
        cohort = clients.sample(self.cohort_size)
        mean = cohort.mean(self.controlled_update, state.x, state.y, state.x_reference, state.variate)
        x, y = server_step(problem, Point(state.x, state.y), mean.update, self.server_lr_x, self.server_lr_y)
        before = clients.round * self.local_steps
        reference = restarted(before, before + self.local_steps, self.restart_every, x, state.x_reference)
        return ControlledState(x, y, reference, players.add(state.variate, mean.variate, cohort.heard))
