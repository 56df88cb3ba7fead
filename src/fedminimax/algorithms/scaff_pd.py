"""SCAFF-PD. Y. Yu et al., "SCAFF-PD: communication efficient fair and robust federated learning", Algorithms 1 and 2."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import S, algorithm, state, static
from fedminimax.algorithms.robust import LossReport, RobustMethod, Update, descend, heard
from fedminimax.errors import InputError
from fedminimax.federation.client import Client, Reply
from fedminimax.federation.cohort import Clients
from fedminimax.players import Tree
from fedminimax.problems.forms import RobustClientProblem
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar


@state
class ScaffPDState(NamedTuple):
    """The players; the losses of the round before; gamma_r / gamma_0, and its last ratio (0 before the first round)."""

    x: Tree
    w: Tree
    losses: jax.Array
    growth: jax.Array
    ratio: jax.Array

    @property
    def y(self) -> Tree:
        """The max player is w."""
        return self.w


@dataclasses.dataclass(frozen=True, repr=False)
class PrimalDual(RobustMethod[S]):
    """The hyper-parameters and the clients' programs of SCAFF-PD, which its variants share."""

    tau: Scalar
    sigma: Scalar
    theta: Scalar = 1.0
    mu_x: Scalar = 0.0
    lr_x: Scalar | None = None
    report_size: int | None = static(default=None, kw_only=True)

    def steps_at(self, growth: jax.Array, ratio: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return tau_r, sigma_r and theta_r, from gamma_r / gamma_0 and the last ratio of two gammas (0 in the first round)."""
        return self.tau / jnp.sqrt(growth), self.sigma * jnp.sqrt(growth), self.theta * jnp.sqrt(ratio)

    def report(self, problem: RobustClientProblem, client: Client, x: Tree) -> Reply[LossReport]:
        """Return f_i(x), and keep c_i, the gradient there."""
        loss, gradient = problem.value_and_grad(x, client.batch(self.report_size))
        return Reply(LossReport(loss), note=gradient)

    def local_update(self, problem: RobustClientProblem, client: Client, x: Tree, x_variate: Tree, tau: jax.Array) -> Update:
        """Return Delta u_i, the mean direction of the client's corrected local steps."""
        steps = self.steps_of(client)
        lr = tau / steps if self.lr_x is None else self.lr_x
        correction = players.sub(x_variate, client.note)
        end = descend(problem, client, x, lr, steps, self.batch_size, correction=correction)
        return Update(players.scale(players.sub(x, end), 1.0 / (lr * steps)))


@algorithm
class ScaffPD(PrimalDual[ScaffPDState]):
    r"""An accelerated primal-dual method whose local steps are corrected by fresh control variates.

    Everybody takes part. Each round:

    1. client i reports f_i(x) and keeps c_i, its gradient at x;
    2. the server extrapolates the losses and takes a proximal step on the weights

       .. math:: s = (1 + \theta_r) f(x^r) - \theta_r f(x^{r-1}),\quad
                 w^{r+1} = \arg\min_{w \in W} \psi(w) - \langle s, w \rangle + \frac{1}{2 \sigma_r} \|w - w^r\|^2

    3. with :math:`c = \sum_i w_i^{r+1} c_i` client i takes K steps :math:`u \leftarrow u - \eta (g_i(u) - c_i + c)` from x, and

       .. math:: x^{r+1} = x^r - \tau_r \sum_i w_i^{r+1} \Delta u_i,\quad \Delta u_i = (x^r - u_i) / (\eta K)

    The server's program needs each number f_i, and of the vectors c_i and :math:`\Delta u_i` two sums with weights w. What
    travels is another matter: each reply is that client's own c_i, its exact gradient, or :math:`\Delta u_i`, and is added up
    on arrival (docs/fairness.md).

    With psi strongly convex it converges linearly (Theorem 5.5, constant steps), else as 1/R^2 (Theorem 5.1, with
    :math:`\gamma_{r+1} = \gamma_r (1 + \mu \tau_r)`, :math:`\tau_r = \tau_0 (\gamma_0 / \gamma_r)^{1/2}`,
    :math:`\sigma_r = \sigma_0 (\gamma_r / \gamma_0)^{1/2}`,
    :math:`\theta_r = \sigma_{r-1} / \sigma_r`). In the first round the previous losses are those of x^0.

    A client whose loss is lost or refused by the guard counts for nothing in that round, and the method stops at a distance
    from the solution: where silos may be away, use :class:`ScaffPDStale`.

    Args:
        tau: tau_0, the step of x on the server.
        sigma: sigma_0, the step of w.
        theta: the extrapolation; with ``mu_x`` > 0 it is multiplied by sigma_{r-1} / sigma_r.
        mu_x: mu above: 0 for constant steps (Condition 5.2), or the strong convexity of the f_i (Condition 5.1, which wants a
            quarter of it: Remark B.4).
        lr_x: eta, the clients' step size; None: tau_r / K, so that x^{r+1} = sum_i w_i u_i.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a local step; None: the full local batch.
        report_size: examples for f_i and c_i; None: all.
    """

    @classmethod
    def from_theory(cls, L_xx: float, L_wx: float, mu_x: float, mu_w: float = 0.0, **static_fields: Any) -> ScaffPD:
        """Return the paper's steps for L_xx-smooth, mu_x-strongly convex f_i whose vector is L_wx-Lipschitz in x.

        With mu_w > 0, psi's strong convexity: Condition 5.2 by Lemma B.8 and (B.54) with C = 1. With mu_w = 0: Condition 5.1
        with (B.35) for delta = c_alpha = 1/2, tau_0 = 1 / (48 L_xx) and sigma_0 = 3 L_xx / L_wx^2.

        The proof also wants tau / (K lr_x) >= 6.9 (Condition 5.2) or 3.5 (5.1), for (B.18); with lr_x = None it is 1. For K > 1
        the steps are therefore the paper's but not covered by it: ``lr_x=tau / (7 K)`` is, for Condition 5.2.
        """
        if not (L_xx > 0 and L_wx > 0 and mu_x > 0 and mu_w >= 0):
            raise InputError(
                f"from_theory needs L_xx, L_wx, mu_x > 0 and mu_w >= 0, not {L_xx}, {L_wx}, {mu_x}, {mu_w}: where the losses "
                "are not strongly convex, add mu/2 ||x||^2 to them or give tau and sigma."
            )
        if mu_w == 0:
            return cls(tau=1 / (48 * L_xx), sigma=3 * L_xx / L_wx**2, theta=1.0, mu_x=mu_x / 4, **static_fields)
        half = 0.5 + 24 * L_xx / mu_x
        omega = half + math.sqrt(half**2 + 16 * L_wx**2 / (mu_x * mu_w))
        theta = 1 - 1 / omega
        tau, sigma = 4 * (1 - theta) / (mu_x * theta), (1 - theta) / (mu_w * theta)
        return cls(tau=tau, sigma=sigma, theta=theta, **static_fields)

    def init(self, problem: RobustProblem) -> ScaffPDState:
        """Return (x_0, w_0), before any loss is known."""
        x, w = problem.start
        one = jnp.ones((), w.dtype)
        return ScaffPDState(x, w, losses=jnp.zeros_like(w), growth=one, ratio=0 * one)

    def round(self, problem: RobustProblem, state: ScaffPDState, clients: Clients) -> ScaffPDState:
        """Collect losses, step the weights, then the model."""
        tau, sigma, theta = self.steps_at(state.growth, state.ratio)
        cohort = clients.all()
        reports = heard(cohort.map(self.report, state.x), clients.count)
        slope = reports.neutral(reports.losses + theta * (reports.losses - state.losses))
        w = problem.penalty.prox(state.w, slope, sigma)
        shares = reports.weights(w, cohort.ids)
        x_variate = cohort.sum(self.send_variate, weights=shares).x
        update = cohort.sum(self.local_update, state.x, x_variate, tau, weights=shares)
        x = problem.project_x(players.add(state.x, update.x, -tau))
        growth = state.growth * (1 + self.mu_x * tau)
        known = jnp.where(reports.present | (state.ratio == 0), reports.losses, state.losses)
        moved = ScaffPDState(x, w, known, growth, state.growth / growth)
        return players.select(reports.anybody, moved, state)

    def send_variate(self, problem: RobustClientProblem, client: Client) -> Update:
        """Return c_i, to be summed with the weights w."""
        return Update(client.note)
