"""Fed-Norm-SGDA and Fed-Norm-SGDA+.

P. Sharma, R. Panda and G. Joshi, "Federated minimax optimization with client heterogeneity", TMLR 2023
(papers/fed-norm-sgda.txt, Algorithm 1, equations (2) and (3), appendix A.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import Algorithm, algorithm, static
from fedminimax.algorithms.local import refresh, server_step
from fedminimax.algorithms.local_sgda import SnapshotState
from fedminimax.algorithms.solvers import Plain, Solver, one_or_each
from fedminimax.errors import InputError
from fedminimax.players import Point, Tree
from fedminimax.schedules import Scalar
from fedminimax.steps import Steps, most_steps


class _Normalised(Algorithm):
    """What both methods share: local updates divided by ||a_i||_1, put together by (3), multiplied by tau_eff."""

    lr_x: Scalar
    lr_y: Scalar
    server_lr_x: Scalar
    server_lr_y: Scalar
    solver: Solver | Sequence[Solver]
    local_steps: Steps
    batch_size: int | None
    cohort_size: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "solver", one_or_each(self.solver))
        super().__post_init__()
        if (longest := most_steps(self.local_steps)) is not None:
            self._solver.check(getattr(self.local_steps, "counts", longest), (self.lr_x, self.lr_y))

    def check(self, clients: Any, steps: Any = None) -> None:
        """Raise an :class:`InputError` for what these clients, with their solvers, cannot carry out."""
        super().check(clients, steps)
        self._solver.check(self.most_steps(clients, steps), (self.lr_x, self.lr_y))

    @property
    def _solver(self) -> Solver:
        """All clients' solvers as one."""
        return cast(Solver, self.solver)

    def _server_step(self, problem: Any, z: Point, clients: Any, *x_snapshot: Tree) -> Point:
        cohort = clients.sample(self.cohort_size)
        # (3): cohort weights p_i n / |C|, which need not sum to one
        weights = cohort.weights * (clients.count / jnp.maximum(cohort.members, 1))
        g = cohort.sum(self.normalised_update, z.x, z.y, *x_snapshot, weights=weights)
        # tau_eff = sum_i p_i ||a_i||_1 over all n clients, also under partial participation
        steps = clients.steps(self.local_steps, self.batch_size)
        tau_eff_x, tau_eff_y = (
            jnp.sum(clients.weights * _defined(self._solver.norms(clients.count, steps, lr))) for lr in (self.lr_x, self.lr_y)
        )
        return server_step(problem, z, g, self.server_lr_x * tau_eff_x, self.server_lr_y * tau_eff_y)

    def normalised_update(self, problem: Any, client: Any, x: Tree, y: Tree, x_snapshot: Tree | None = None) -> Point:
        """Return the client's local update over ||a_i||_1: (-eta_x g_{x,i}, +eta_y g_{y,i})."""
        start = Point(x, y)
        end = self._solver.run(
            problem, client, start, self.lr_x, self.lr_y, self.local_steps, self.batch_size, x_snapshot=x_snapshot
        )
        steps = client.steps(self.local_steps, self.batch_size)
        moved = players.sub(end, start)
        return Point(
            players.scale(moved.x, 1.0 / self._solver.norm(steps, self.lr_x, client.id)),
            players.scale(moved.y, 1.0 / self._solver.norm(steps, self.lr_y, client.id)),
        )


def _defined(norms: Any) -> Any:
    """Return the norms, zero where one is no number: the guard refuses what such a client sends, and its place in tau_eff must
    not undo that."""
    return jnp.where(jnp.isfinite(norms), norms, 0.0)


@algorithm
class FedNormSGDA(_Normalised):
    r"""Fed-Norm-SGDA: local updates are normalised, so that unequal work does not change what is solved.

    Client i takes :math:`\tau_i` local steps with its solver and reports

    .. math:: g_{x,i} = \frac{1}{\|a_i\|_1} \sum_k a_i^{(k)} \nabla_x f_i(x^{(k)}, y^{(k)}; \xi),

    g_y likewise; with :math:`\tau_{eff} = \sum_i p_i \|a_i\|_1` over all clients the server steps

    .. math:: x_{t+1} = x_t - \tau_{eff} \gamma_x \sum_{i \in C} \frac{p_i n}{|C|} g_{x,i},\quad
              y_{t+1} = P_Y\Big(y_t + \tau_{eff} \gamma_y \sum_{i \in C} \frac{p_i n}{|C|} g_{y,i}\Big)

    ``server_lr_x`` is relative: gamma_x = server_lr_x * lr_x, so 1.0 is plain averaging when all tau_i are equal. y is
    projected after each local step and after the server's.

    Args:
        lr_x: eta_x, the clients' step size for x.
        lr_y: eta_y, the clients' step size for y.
        server_lr_x: gamma_x / eta_x.
        server_lr_y: gamma_y / eta_y.
        solver: the local solver: :class:`Plain`, :class:`Momentum`, :class:`Proximal`, :class:`Weighted` or one of your own
            (:class:`Solver`); or a tuple with one for each client, whose a_i then differ.
        local_steps: tau_i, the same for all or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    server_lr_x: Scalar = 1.0
    server_lr_y: Scalar = 1.0
    solver: Solver | Sequence[Solver] = Plain()
    local_steps: Steps = static(default=10)
    batch_size: int | None = static(default=None)
    cohort_size: int | None = static(default=None)

    @classmethod
    def from_theory(
        cls,
        L: float,
        mu: float,
        *,
        clients: int,
        local_steps: int,
        cohort_size: int | None = None,
        beta_local: float = 1.0,
        beta_global: float = 1.0,
        batch_size: int | None = None,
    ) -> FedNormSGDA:
        """Return the largest steps that Lemmas B.3 to B.5 allow for equal weights, equal tau and the plain solver.

        As printed the lemmas leave gamma_y unbounded when everybody takes part and beta_L = 0; the missing bound
        tau_eff gamma_y L (n/P) (P-1)/(n-1) <= 1/16 is that of Theorem 3.

        Args:
            L: smoothness L_f.
            mu: strong concavity in y.
            clients: n.
            local_steps: tau.
            cohort_size: P.
            beta_local: beta_L, the growth of the local variance.
            beta_global: beta_G, the growth of the heterogeneity.
            batch_size: examples a step.
        """
        if not beta_global > 0:
            raise InputError(f"beta_global must be positive (1 when clients differ by a constant), not {beta_global}.")
        n, P, tau, kappa = clients, cohort_size or clients, local_steps, L / mu
        absent = (n - P) / (n - 1) / n if n > 1 else 0.0  # (n-P)/(n-1) max_i w_i
        noise = beta_local**2 / (n * tau)  # beta_L^2 max_i w_i ||a_i||_2^2 / ||a_i||_1^2
        together = (P - 1) / (n - 1) if n > 1 else 1.0
        step_y = (
            1.0
            / (n / P * L)
            / max(64.0 * kappa * beta_global**2 * max(noise, absent), 8.0 * max(noise, absent), 16.0 * together)
        )
        L_phi = L * (1.0 + kappa)
        most = max(64.0 * beta_global**2 * noise, 8.0 * absent * max(8.0 * beta_global**2, 1.0), 8.0 * noise)
        step_x = min(step_y / (81.0 * kappa**2), 1.0 / (n / P * L_phi) / most if most else math.inf)
        M = (tau - 1) ** 2 + beta_local**2 * (tau - 1)
        close = 1.0 / (2.0 * L * tau * math.sqrt(2.0 * (1.0 + beta_local**2)))
        lr_y = min(close, 1.0 / (16.0 * math.sqrt(kappa * M) * L * beta_global) if M else math.inf)
        lr_x = min(close, 1.0 / (64.0 * kappa * math.sqrt(M) * L * beta_global) if M else math.inf)
        return cls(
            lr_x=lr_x,
            lr_y=lr_y,
            server_lr_x=step_x / (tau * lr_x),
            server_lr_y=step_y / (tau * lr_y),
            local_steps=local_steps,
            batch_size=batch_size,
            cohort_size=cohort_size,
        )

    def init(self, problem: Any) -> Point:
        """Return (x_0, y_0)."""
        return problem.start

    def round(self, problem: Any, state: Point, clients: Any) -> Point:
        """Step along the normalised updates."""
        return self._server_step(problem, state, clients)


@algorithm
class FedNormSGDAPlus(_Normalised):
    r"""Fed-Norm-SGDA+: Fed-Norm-SGDA whose y-gradients are taken at a snapshot of x.

    :math:`g_{y,i}` uses :math:`\nabla_y f_i(\hat x, y^{(k)}; \xi)` with :math:`\hat x = x_t` refreshed when t is a multiple of
    ``snapshot_every`` (S).

    Args:
        lr_x: eta_x, the clients' step size for x.
        lr_y: eta_y, the clients' step size for y.
        server_lr_x: gamma_x / eta_x.
        server_lr_y: gamma_y / eta_y.
        solver: the local solver, or one for each client.
        snapshot_every: S, in rounds.
        local_steps: tau_i.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    server_lr_x: Scalar = 1.0
    server_lr_y: Scalar = 1.0
    solver: Solver | Sequence[Solver] = Plain()
    snapshot_every: int = static(default=1)
    local_steps: Steps = static(default=10)
    batch_size: int | None = static(default=None)
    cohort_size: int | None = static(default=None)

    @classmethod
    def from_theory(
        cls,
        L: float,
        *,
        rounds: int,
        clients: int,
        local_steps: int,
        cohort_size: int | None = None,
        **static_fields: Any,
    ) -> FedNormSGDAPlus:
        """Return the step sizes of Theorem 3 (nonconvex-concave) with the constants of its Theta(.) set to one.

        eta = 1 / (L tau T^(3/8)), gamma_x = P^(1/4) / (tau T)^(3/4), gamma_y = P^(3/4) / (tau T)^(1/4) and
        S = sqrt(T / (tau P)). Where the theorem's conditions (with beta_L = 0, beta_G = 1) ask for less, they are cut:
        16 tau gamma_y L (n/P) max((P-1)/(n-1), (n-P)/(n(n-1))) <= 1 and 64 eta^2 (tau-1)^2 L^2 n/P <= 1.
        """
        P, T, tau = cohort_size or clients, rounds, local_steps
        n = clients
        together = n / P * max((P - 1) / (n - 1), (n - P) / (n - 1) / n) if n > 1 else 1.0
        M = (tau - 1) ** 2
        lr = min(1.0 / (L * tau * T**0.375), 1.0 / (8.0 * L * math.sqrt(M * n / P)) if M else math.inf)
        gamma_x = P**0.25 / (tau * T) ** 0.75
        gamma_y = min(P**0.75 / (tau * T) ** 0.25, 1.0 / (16.0 * tau * L * together) if together else math.inf)
        return cls(
            lr_x=lr,
            lr_y=lr,
            server_lr_x=gamma_x / lr,
            server_lr_y=gamma_y / lr,
            snapshot_every=max(1, round(math.sqrt(T / (tau * P)))),
            local_steps=local_steps,
            cohort_size=cohort_size,
            **static_fields,
        )

    def init(self, problem: Any) -> SnapshotState:
        """Return (x_0, y_0) with x-hat = x_0."""
        return SnapshotState(problem.start.x, problem.start.y, x_snapshot=problem.start.x)

    def round(self, problem: Any, state: SnapshotState, clients: Any) -> SnapshotState:
        """Step along the normalised updates."""
        x_snapshot = refresh(clients.round, self.snapshot_every, state.x, state.x_snapshot)
        x, y = self._server_step(problem, Point(state.x, state.y), clients, x_snapshot)
        return SnapshotState(x, y, x_snapshot)
