"""DRFA. Y. Deng, M. M. Kamani and M. Mahdavi, "Distributionally robust federated averaging", NeurIPS 2020."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm, state, static
from fedminimax.algorithms.robust import RobustMethod, Weighed, heard
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Count, Tree
from fedminimax.problems.forms import RobustClientProblem
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar


@state
class DRFAReply(NamedTuple):
    """How far a client had come after all K steps, and after the t' that the server drew."""

    x: Tree
    x_snapshot: Tree


@algorithm
class DRFA(RobustMethod[Weighed]):
    r"""Distributionally robust federated averaging: clients drawn by w, and a snapshot at a random step to update w.

    A cohort of S is drawn by w with replacement and takes K local steps; t' is uniform on 1..K, the same for all.

    .. math:: x \leftarrow \mathrm{mean}\,u_i^{(K)},\quad x' = \mathrm{mean}\,u_i^{(t')}

    A second cohort, uniform without replacement, reports :math:`f_i(x')`; with :math:`v_i = f_i(x') N / S` for those and 0 for
    the others

    .. math:: w \leftarrow \arg\min_{u \in W} \psi(u) - \langle v, u \rangle + \frac{1}{2 K \eta_w} \|u - w\|^2

    which is :math:`P_W(w + \eta_w K v)` without a penalty (with one: the paper's DRFA-Prox).

    Args:
        lr_x: the clients' step size.
        lr_w: eta_w.
        local_steps: K, one whole number for all.
        batch_size: examples a step; None: the full local batch.
        cohort_size: S, of both cohorts; None: N.
    """

    lr_x: Scalar
    lr_w: Scalar
    local_steps: int = static(default=10)
    batch_size: int | None = static(default=None)
    cohort_size: int | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local_steps, int):
            raise InputError(f"DRFA.local_steps must be one whole number for all clients, not {self.local_steps!r}.")

    def init(self, problem: RobustProblem) -> Weighed:
        """Return (x_0, w_0)."""
        return Weighed(*problem.start)

    def round(self, problem: RobustProblem, state: Weighed, clients: Clients) -> Weighed:
        """Average over clients drawn by w; then update w from losses at the snapshot."""
        clients.equal_steps(self.local_steps)  # t' and the step of w count on one K
        size = clients.count if self.cohort_size is None else self.cohort_size
        cohort = clients.sample(size, weights=state.w, replace=True)
        uniform = lambda key: jax.random.randint(key, (), 1, self.local_steps + 1, jnp.int32)
        stop = clients.draw("t", uniform, low=1, high=self.local_steps)
        update = cohort.mean(self.local_update, state.x, stop, weights=jnp.ones(size))
        x = problem.project_x(players.add(state.x, update.x))
        second = clients.sample(size)
        reports = second.map(self.report_loss, players.add(state.x, update.x_snapshot))
        scale = clients.count / jnp.maximum(jnp.sum(reports.accepted), 1)
        w = problem.penalty.prox(state.w, reports.scatter(clients.count).loss * scale, self.lr_w * self.local_steps)
        return Weighed(x, jnp.where(heard(reports, clients.count).anybody, w, state.w))

    def local_update(self, problem: RobustClientProblem, client: Client, x: Tree, stop: Count) -> DRFAReply:
        """Return how far the client has come after K steps and after ``stop`` of them."""

        def step(k: jax.Array, u: Tree, snapshot: Tree) -> tuple[jax.Array, Tree, Tree]:
            g = problem.grad(u, client.batch(self.batch_size))
            u = problem.project_x(players.add(u, g, -self.lr_x))
            return k + 1, u, players.select(k + 1 == stop, u, snapshot)

        _, end, snapshot = client.repeat(self.local_steps, step, jnp.asarray(0), x, x)
        return DRFAReply(players.sub(end, x), players.sub(snapshot, x))
