"""DRFA. Y. Deng, M. M. Kamani and M. Mahdavi, "Distributionally robust federated averaging", NeurIPS 2020."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm, state, static
from fedminimax.algorithms.robust import RobustMethod, heard
from fedminimax.algorithms.settings import WithCohorts
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Count, Tree
from fedminimax.problems.forms import RobustClientProblem
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar


@state
class DRFAState(NamedTuple):
    """The model, the weights on clients, and the snapshot x' at which these were last updated: for those who look."""

    x: Tree
    w: Tree
    x_snapshot: Tree

    @property
    def y(self) -> Tree:
        """The max player is w."""
        return self.w


@state
class DRFAReply(NamedTuple):
    """How far a client had come after all K steps, and after the t' that the server drew."""

    x: Tree
    x_snapshot: Tree


@algorithm
class DRFA(WithCohorts, RobustMethod[DRFAState]):
    r"""Distributionally robust federated averaging: clients drawn by w, and a snapshot at a random step to update w.

    A cohort of S is drawn by w with replacement and takes K local steps; t' is uniform on 1..K, the same for all.

    .. math:: x \leftarrow \mathrm{mean}\,u_i^{(K)},\quad x' = \mathrm{mean}\,u_i^{(t')}

    A second cohort, uniform without replacement, reports :math:`f_i(x')`; with :math:`v_i = f_i(x') N / S` for those and 0 for
    the others

    .. math:: w \leftarrow \arg\min_{u \in W} \psi(u) - \langle v, u \rangle + \frac{1}{2 K \eta_w} \|u - w\|^2

    which is :math:`P_W(w + \eta_w K v)` without a penalty (with one: the paper's DRFA-Prox). The state has the last :math:`x'`
    as ``x_snapshot``; a trace has t' as ``draws["t"]``.

    Args:
        lr_x: the clients' step size.
        lr_w: eta_w.
        local_steps: K, one whole number for all.
        batch_size: examples a step; None: the full local batch.
        cohort_size: S, of both cohorts; None: N.
    """

    lr_x: Scalar
    lr_w: Scalar
    local_steps: int = static(default=10, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local_steps, int):
            raise InputError(f"DRFA.local_steps must be one whole number for all clients, not {self.local_steps!r}.")

    def init(self, problem: RobustProblem) -> DRFAState:
        """Return (x_0, w_0); the snapshot is x_0 too."""
        x, w = problem.start
        return DRFAState(x, w, x)

    def round(self, problem: RobustProblem, state: DRFAState, clients: Clients) -> DRFAState:
        """Average over clients drawn by w; then update w from losses at the snapshot."""
        clients.equal_steps(self.local_steps)  # t' and the step of w count on one K
        size = clients.count if self.cohort_size is None else self.cohort_size
        cohort = clients.sample(size, weights=state.w, replace=True)
        uniform = lambda key: jax.random.randint(key, (), 1, self.local_steps + 1, jnp.int32)
        stop = clients.draw("t", uniform, low=1, high=self.local_steps)
        update = cohort.mean(self.local_update, state.x, stop, weights=jnp.ones(size))
        x = problem.project_x(players.add(state.x, update.x))
        second = clients.sample(size)
        x_snapshot = players.add(state.x, update.x_snapshot)
        reports = second.map(self.report_loss, x_snapshot)
        scale = clients.count / jnp.maximum(jnp.sum(reports.accepted), 1)
        w = problem.penalty.prox(state.w, reports.scatter(clients.count).loss * scale, self.lr_w * self.local_steps)
        return DRFAState(x, jnp.where(heard(reports, clients.count).anybody, w, state.w), x_snapshot)

    def local_update(self, problem: RobustClientProblem, client: Client, x: Tree, stop: Count) -> DRFAReply:
        """Return how far the client has come after K steps and after ``stop`` of them."""

        def step(k: jax.Array, u: Tree, snapshot: Tree) -> tuple[jax.Array, Tree, Tree]:
            g = problem.grad(u, client.batch(self.batch_size))
            u = problem.project_x(players.add(u, g, -self.lr_x))
            return k + 1, u, players.select(k + 1 == stop, u, snapshot)

        _, end, snapshot = client.repeat(self.local_steps, step, jnp.asarray(0), x, x)
        return DRFAReply(players.sub(end, x), players.sub(snapshot, x))
