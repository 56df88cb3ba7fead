"""Agnostic federated learning. M. Mohri, G. Sivek and A. T. Suresh, "Agnostic federated learning", ICML 2019; with local
steps as the SCAFF-PD paper, appendix C.1, runs it."""

from __future__ import annotations

import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm, static
from fedminimax.algorithms.robust import LocalDescent, Weighed, heard
from fedminimax.federation.cohort import Clients
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar
from fedminimax.steps import Steps


@algorithm
class AFL(LocalDescent[Weighed]):
    r"""Descent in the model and ascent in the weights on clients, everybody taking part.

    .. math:: x^{r+1} = \sum_i w_i^r u_i^{(K)},\quad
              w^{r+1} = \arg\min_{w \in W} \psi(w) - \langle f(x^r), w \rangle + \frac{1}{2 \eta_w} \|w - w^r\|^2

    where :math:`u_i^{(K)}` is where K local steps lead from :math:`x^r`; both updates use round r's values. Without a penalty
    the second is :math:`P_W(w + \eta_w f(x^r))`; with K = 1, the default, the first is the gradient step
    :math:`x - \eta \sum_i w_i g_i(x)` of the original method.

    Args:
        lr_x: eta, the step size of x.
        lr_w: eta_w.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
    """

    lr_x: Scalar
    lr_w: Scalar
    local_steps: Steps = static(default=1, kw_only=True)

    def init(self, problem: RobustProblem) -> Weighed:
        """Return (x_0, w_0)."""
        return Weighed(*problem.start)

    def round(self, problem: RobustProblem, state: Weighed, clients: Clients) -> Weighed:
        """Step both players from the same point."""
        cohort = clients.all()
        reports = heard(cohort.map(self.report_loss, state.x), clients.count)
        update = cohort.sum(self.local_update, state.x, weights=reports.weights(state.w, cohort.ids))
        w = problem.penalty.prox(state.w, reports.losses, self.lr_w)
        return Weighed(problem.project_x(players.add(state.x, update.x)), jnp.where(reports.anybody, w, state.w))
