"""SCAFF-PD for silos that are not always there: a variant of ours.

What it varies has everybody take part: Y. Yu et al., "SCAFF-PD: communication efficient fair and robust federated learning".
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm, state
from fedminimax.algorithms.robust import Heard, Update, heard
from fedminimax.algorithms.scaff_pd import PrimalDual
from fedminimax.federation.client import Client, Reply
from fedminimax.federation.cohort import Clients
from fedminimax.players import Tree
from fedminimax.problems.forms import RobustClientProblem
from fedminimax.problems.robust import RobustProblem


@state
class ScaffPDStaleState(NamedTuple):
    """The players; v; the losses last heard, and of whom there is one; growth and ratio as in :class:`ScaffPDState`."""

    x: Tree
    w: Tree
    x_variate: Tree
    losses: jax.Array
    known: jax.Array
    growth: jax.Array
    ratio: jax.Array

    @property
    def y(self) -> Tree:
        """The max player is w."""
        return self.w


@algorithm
class ScaffPDStale(PrimalDual[ScaffPDStaleState]):
    r"""SCAFF-PD where some silos are away: of those the last loss and the last weighted gradient are kept.

    Let S be who answers. The server keeps f, the losses last heard, and v = sum_i v_i; client i keeps v_i, from 0. Each round:

    1. client i in S reports f_i = f_i(x), and keeps c_i, its gradient at x, until the end of the round;
    2. the server steps the weights as :class:`ScaffPD` does, with :math:`s = f + \theta_r (f - f^-)`, where f^- are the losses
       that it had before (so that s_i = f_i of whoever is away; a client never heard yet has the mean of the others);
    3. client i in S is told its weight and sends the change of its weighted gradient,

       .. math:: v \leftarrow v + \sum_{i \in S} (w_i c_i - v_i),\quad v_i \leftarrow w_i c_i

    4. client i in S takes K steps :math:`u \leftarrow u - \eta (g_i(u) - c_i + v)` from x, and

       .. math:: x \leftarrow x - \tau_r \Big(\sum_j w_j\Big) \frac{\sum_{i \in S} w_i \Delta u_i}{\sum_{i \in S} w_i},\quad
                 \Delta u_i = (x - u_i) / (\eta K)

       (where none of them has weight, x stays).

    With everybody in S, v is sum_i w_i c_i and this is ScaffPD, to rounding. At the solution (x*, w*), with f_i = f_i(x*) and
    v_i = w*_i grad f_i(x*), a round changes nothing, whoever answers: s = f(x*) leaves w* where it is, v is the gradient
    sum_i w*_i grad f_i(x*) = 0, so that no local step moves. Nowhere else does that hold (for small eta). What is kept
    follows x and w within a few answers, whatever the steps; with steps that are small enough x and w then follow ScaffPD's
    path. That is no proof of a rate: what was measured, linear convergence to the last digit with half of the silos answering,
    and at which steps, is in docs/fairness.md. Where clients differ much, ``sigma`` must be several times smaller.

    The server's memory does not grow with the number of silos but for one loss each, and of vectors it needs two sums. It is
    only right while what it adds is what clients keep: ``Guard(max_norm=...)`` or an ``aggregate`` other than the mean would
    leave v apart from sum_i v_i for good. A silo that leaves for ever keeps its last word: start anew without it.

    Args:
        tau: tau_0, the step of x on the server.
        sigma: sigma_0, the step of w.
        theta: the extrapolation; with ``mu_x`` > 0 it is multiplied by sigma_{r-1} / sigma_r.
        mu_x: as in :class:`ScaffPD`: 0 for constant steps.
        lr_x: eta, the clients' step size; None: tau_r / K.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a local step; None: the full local batch.
        report_size: examples for f_i and c_i; None: all.
    """

    def init(self, problem: RobustProblem) -> ScaffPDStaleState:
        """Return (x_0, w_0), before anything is known of anybody."""
        x, w = problem.start
        one = jnp.ones((), w.dtype)
        return ScaffPDStaleState(x, w, players.zeros_like(x), jnp.zeros_like(w), jnp.zeros(w.shape, bool), one, 0 * one)

    def init_client(self, problem: RobustProblem) -> Tree:
        """Return v_i = 0."""
        return players.zeros_like(problem.x0)

    def round(self, problem: RobustProblem, state: ScaffPDStaleState, clients: Clients) -> ScaffPDStaleState:
        """Collect the losses of those present, step all weights, then the model along what is known of everybody."""
        tau, sigma, theta = self.steps_at(state.growth, state.ratio)
        cohort = clients.all()
        reports = heard(cohort.map(self.report, state.x), clients.count)
        losses = jnp.where(reports.present, reports.losses, state.losses)
        before = jnp.where(state.known, state.losses, losses)
        known = Heard(losses, state.known | reports.present)
        w = problem.penalty.prox(state.w, known.neutral(losses + theta * (losses - before)), sigma)
        shares = w[cohort.ids]
        # A mean times how many were heard, not a sum: what was lost on the way must not be made up for by the others.
        change = cohort.mean(self.send_change, per_client=(shares,), weights=jnp.ones_like(shares))
        x_variate = players.add(state.x_variate, change.x, cohort.heard)
        update = cohort.mean(self.local_update, state.x, x_variate, tau, weights=shares)
        x = problem.project_x(players.add(state.x, update.x, -tau * jnp.sum(w)))
        growth = state.growth * (1 + self.mu_x * tau)
        moved = ScaffPDStaleState(x, w, x_variate, losses, known.present, growth, state.growth / growth)
        return players.select(reports.anybody, moved, state)

    def send_change(self, problem: RobustClientProblem, client: Client, share: jax.Array) -> Reply[Update]:
        """Return w_i c_i - v_i, and keep w_i c_i as the new v_i."""
        own = players.scale(client.note, share)
        return Reply(Update(players.sub(own, client.state)), state=own)
