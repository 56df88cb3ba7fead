"""Fed-Norm-SGDA and Fed-Norm-SGDA+.

P. Sharma, R. Panda and G. Joshi, "Federated minimax optimization with client heterogeneity", TMLR 2023
(Algorithm 1, equations (2) and (3), appendix A.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks, players
from fedminimax.algorithms.base import Algorithm, S, algorithm, static
from fedminimax.algorithms.local import refresh, server_step
from fedminimax.algorithms.local_sgda import SnapshotState
from fedminimax.algorithms.settings import WithCohorts, WithSteps
from fedminimax.algorithms.solvers import Plain, Solver, one_or_each
from fedminimax.data.clients import ClientSource
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Array, Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar
from fedminimax.steps import Steps, bounds, most_steps


class _Normalised(WithCohorts, WithSteps, Algorithm[MinimaxProblem, S]):
    """What both methods share: local updates divided by ||a_i||_1, put together by (3), multiplied by tau_eff."""

    lr_x: Scalar
    lr_y: Scalar
    server_lr_x: Scalar
    server_lr_y: Scalar
    solver: Solver | Sequence[Solver]

    def __post_init__(self) -> None:
        object.__setattr__(self, "solver", one_or_each(self.solver))
        super().__post_init__()
        if (longest := most_steps(self.local_steps)) is not None:
            self._solver.check(getattr(self.local_steps, "counts", longest), (self.lr_x, self.lr_y))

    def check(self, clients: ClientSource, steps: Array | None = None) -> None:
        """Raise an :class:`InputError` for what these clients, with their solvers, cannot carry out."""
        super().check(clients, steps)
        self._solver.check(self.most_steps(clients, steps), (self.lr_x, self.lr_y))

    @property
    def _solver(self) -> Solver:
        """All clients' solvers as one."""
        return cast(Solver, self.solver)

    def _server_step(self, problem: MinimaxProblem, z: Point, clients: Clients, *x_snapshot: Tree) -> Point:
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

    def normalised_update(
        self, problem: ClientProblem, client: Client, x: Tree, y: Tree, x_snapshot: Tree | None = None
    ) -> Point:
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


def _defined(norms: jax.Array) -> jax.Array:
    """Return the norms, zero where one is no number: the guard refuses what such a client sends, and its place in tau_eff must
    not undo that."""
    return jnp.where(jnp.isfinite(norms), norms, 0.0)


def _federation(
    clients: int, local_steps: Steps, weights: Sequence[float] | Array | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return p, and the fewest and the most steps of each client, [n] each."""
    few, many = bounds(local_steps, checks.integer("clients", clients))
    p = np.ones(clients) if weights is None else np.asarray(weights, float)
    if p.shape != (clients,) or not np.isfinite(p).all() or p.min() < 0 or p.sum() <= 0:
        raise InputError(f"weights must be {clients} numbers that are finite, not negative and not all zero, not {weights!r}.")
    return p / p.sum(), few, many


def _largest(factor: float) -> float:
    """Return the largest step with factor * step <= 1."""
    return 1.0 / factor if factor > 0 else math.inf


@algorithm
class FedNormSGDA(_Normalised[Point]):
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

    @classmethod
    def from_theory(
        cls,
        L: float,
        mu: float,
        *,
        clients: int,
        local_steps: Steps,
        weights: Sequence[float] | Array | None = None,
        cohort_size: int | None = None,
        beta_local: float = 1.0,
        beta_global: float = 1.0,
        pl: bool = False,
        rounds: int | None = None,
        gap: float = 1.0,
        sigma_local: float = 0.0,
        sigma_global: float = 0.0,
        batch_size: int | None = None,
    ) -> FedNormSGDA:
        r"""Return the largest steps that Lemmas B.3 to B.5 allow for the plain solver, whatever tau and p.

        With w_i = p_i, a_i = (1, ..., 1), :math:`\tau_{eff} = \sum_i p_i \tau_i`, n clients and cohorts of P,

        .. math:: noise = \beta_L^2 \max_i \frac{p_i}{\tau_i},\quad absent = \frac{n-P}{n-1} \max_i p_i,\quad
                  M = \max_i (\tau_i - 1)^2 + \beta_L^2 (\tau_i - 1),\quad \kappa = L / \mu

        - y on the server (B.5): :math:`64 \kappa \beta_G^2 s` and :math:`8 s` are at most 1 for
          :math:`s = \tau_{eff} \gamma_y L \frac nP \max(noise, absent)`. As printed this leaves gamma_y unbounded when
          everybody takes part and beta_L = 0; the missing
          :math:`16 \tau_{eff} \gamma_y L \frac nP \frac{P-1}{n-1} \le 1` is Theorem 3's.
        - x on the server: :math:`\gamma_x \le \gamma_y / (81 \kappa^2)` (B.5), and (B.3) with :math:`L_\Phi = L (1 + \kappa)`.
        - on clients: :math:`\eta \le 1 / (2 L \max_i \tau_i \sqrt{2 (1 + \beta_L^2)})` (B.4),
          :math:`\eta_y L \beta_G \le 1 / (16 \sqrt{\kappa M})` and :math:`\eta_x L \beta_G \le 1 / (64 \kappa \sqrt M)` (B.5).

        ``pl``: F need only be Polyak-Lojasiewicz in y (appendix B.5), where in addition
        :math:`\eta_y L \beta_G \le 1 / (16 \kappa \sqrt M)` and
        :math:`64 \tau_{eff} \gamma_y \kappa L \beta_G^2 \frac nP \max(\kappa\, noise, \max_i p_i) \le 1`. The paper prints 1/P
        where this has n/P and the p_i, which is the same for p_i = 1/n; for unequal p it is read as in Lemma B.5, which it
        modifies.

        ``rounds``: the steps of Theorem 1 for T rounds, the constants of its Theta(.) set to one,

        .. math:: \gamma_y = \sqrt{\frac{P}{\tau_{eff} L T [\Delta + A \sigma_L^2 + (B \beta_L^2 + \frac{n-P}{n-1} E \tau_{eff})
                  \sigma_G^2]}},\quad \eta_x \le \eta_y = \frac{1}{L \bar\tau \sqrt T}

        with :math:`A = n \tau_{eff} \sum_i p_i^2 / \tau_i`, :math:`B = n \tau_{eff} \max_i p_i / \tau_i`,
        :math:`E = n \max_i p_i` and the mean :math:`\bar\tau` of the tau_i. Where the lemmas ask for less, they are cut to
        that, and gamma_x is the largest that gamma_y then allows.

        Where tau is drawn (:class:`UniformSteps`) the lemmas hold for every draw: noise is that of the fewest steps, tau_eff
        and M are those of the most. Theorem 1's rates take the mean.

        Args:
            L: smoothness L_f.
            mu: strong concavity in y, or the PL constant.
            clients: n.
            local_steps: tau_i: a number, :class:`ClientSteps` or :class:`UniformSteps`, in steps.
            weights: p_i; None: equal.
            cohort_size: P.
            beta_local: beta_L, the growth of the local variance.
            beta_global: beta_G, the growth of the heterogeneity.
            pl: whether F is only PL in y.
            rounds: T; None: the largest steps that the lemmas allow.
            gap: Delta_Phi = Phi(x_0) - min Phi, with ``rounds``.
            sigma_local: sigma_L, the noise of a gradient, with ``rounds``.
            sigma_global: sigma_G, the heterogeneity, with ``rounds``.
            batch_size: examples a step.
        """
        if not beta_global > 0:
            raise InputError(f"beta_global must be positive (1 when clients differ by a constant), not {beta_global}.")
        p, few, many = _federation(clients, local_steps, weights)
        n, P, kappa = clients, cohort_size or clients, L / mu
        away, together = ((n - P) / (n - 1), (P - 1) / (n - 1)) if n > 1 else (0.0, 1.0)
        tau_eff = float(p @ many)
        noise, absent = beta_local**2 * float((p / few).max()), away * float(p.max())
        worst_y = [64.0 * kappa * beta_global**2 * max(noise, absent), 8.0 * max(noise, absent), 16.0 * together]
        if pl:
            worst_y.append(64.0 * kappa * beta_global**2 * max(kappa * noise, float(p.max())))
        worst_x = [64.0 * beta_global**2 * noise, 8.0 * absent * max(8.0 * beta_global**2, 1.0), 8.0 * noise]
        L_phi = L * (1.0 + kappa)
        gamma_y = _largest(n / P * L * tau_eff * max(worst_y))
        M = float(((many - 1) ** 2 + beta_local**2 * (many - 1)).max())
        close = 1.0 / (2.0 * L * many.max() * math.sqrt(2.0 * (1.0 + beta_local**2)))
        lr_y = min(close, _largest(16.0 * (kappa if pl else math.sqrt(kappa)) * math.sqrt(M) * L * beta_global))
        lr_x = min(close, _largest(64.0 * kappa * math.sqrt(M) * L * beta_global))
        if rounds is not None:
            rounds, mean = checks.integer("rounds", rounds), (few + many) / 2
            eff = float(p @ mean)
            A, B, E = n * eff * float((p**2 / mean).sum()), n * eff * float((p / mean).max()), n * float(p.max())
            spread = gap + A * sigma_local**2 + (B * beta_local**2 + away * E * eff) * sigma_global**2
            if not spread > 0:
                raise InputError("The steps for some rounds need a gap Phi(x_0) - min Phi above zero, or noise: give gap.")
            gamma_y = min(gamma_y, math.sqrt(P / (eff * L * rounds * spread)))
            lr_y = min(lr_y, 1.0 / (L * float(mean.mean()) * math.sqrt(rounds)))
            lr_x = min(lr_x, lr_y)
        gamma_x = min(gamma_y / (81.0 * kappa**2), _largest(n / P * L_phi * tau_eff * max(worst_x)))
        return cls(
            lr_x=lr_x,
            lr_y=lr_y,
            server_lr_x=gamma_x / lr_x,
            server_lr_y=gamma_y / lr_y,
            local_steps=local_steps,
            batch_size=batch_size,
            cohort_size=cohort_size,
        )

    def init(self, problem: MinimaxProblem) -> Point:
        """Return (x_0, y_0)."""
        return problem.start

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        """Step along the normalised updates."""
        return self._server_step(problem, state, clients)


@algorithm
class FedNormSGDAPlus(_Normalised[SnapshotState]):
    r"""Fed-Norm-SGDA+: Fed-Norm-SGDA whose y-gradients are taken at a snapshot of x.

    .. math:: g_{y,i} = \frac{1}{\|a_i\|_1} \sum_k a_i^{(k)} \nabla_y f_i(\hat x, y^{(k)}; \xi)

    with :math:`\hat x = x_t` refreshed when t is a multiple of ``snapshot_every`` (S); all else is Fed-Norm-SGDA's.

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

    @classmethod
    def from_theory(
        cls,
        L: float,
        *,
        rounds: int,
        clients: int,
        local_steps: Steps,
        weights: Sequence[float] | Array | None = None,
        cohort_size: int | None = None,
        **static_fields: Any,
    ) -> FedNormSGDAPlus:
        r"""Return the step sizes of Theorem 3 (nonconvex-concave, or one-point-concave) with the constants of its Theta(.) one.

        :math:`\eta = 1 / (L \bar\tau T^{3/8})`, :math:`\gamma_x = P^{1/4} / (\tau_{eff} T)^{3/4}`,
        :math:`\gamma_y = P^{3/4} / (\tau_{eff} T)^{1/4}` and :math:`S = \sqrt{T / (\tau_{eff} P)}`, with the mean
        :math:`\bar\tau` of the tau_i and :math:`\tau_{eff} = \sum_i p_i \tau_i`. Where the theorem's conditions (with
        beta_L = 0, beta_G = 1) ask for less, they are cut:
        :math:`16 \tau_{eff} \gamma_y L \frac nP \max(\frac{P-1}{n-1}, \frac{n-P}{n-1} \max_i p_i) \le 1` and
        :math:`64 \eta^2 \max_i (\tau_i - 1)^2 L^2 \frac nP \le 1`. Where tau is drawn, the rates take its mean and the
        conditions its most.

        Args:
            L: smoothness L_f.
            rounds: T.
            clients: n.
            local_steps: tau_i: a number, :class:`ClientSteps` or :class:`UniformSteps`, in steps.
            weights: p_i; None: equal.
            cohort_size: P.
            static_fields: others of the method's arguments.
        """
        p, few, many = _federation(clients, local_steps, weights)
        n, P, T, mean = clients, cohort_size or clients, checks.integer("rounds", rounds), (few + many) / 2
        tau_eff = float(p @ mean)
        together = n / P * max((P - 1) / (n - 1), (n - P) / (n - 1) * float(p.max())) if n > 1 else 1.0
        drift = 8.0 * L * float(many.max() - 1) * math.sqrt(n / P)
        lr = min(1.0 / (L * float(mean.mean()) * T**0.375), _largest(drift))
        gamma_x = P**0.25 / (tau_eff * T) ** 0.75
        gamma_y = min(P**0.75 / (tau_eff * T) ** 0.25, _largest(16.0 * float(p @ many) * L * together))
        return cls(
            lr_x=lr,
            lr_y=lr,
            server_lr_x=gamma_x / lr,
            server_lr_y=gamma_y / lr,
            snapshot_every=max(1, round(math.sqrt(T / (tau_eff * P)))),
            local_steps=local_steps,
            cohort_size=cohort_size,
            **static_fields,
        )

    def init(self, problem: MinimaxProblem) -> SnapshotState:
        """Return (x_0, y_0) with x-hat = x_0."""
        return SnapshotState(problem.start.x, problem.start.y, x_snapshot=problem.start.x)

    def round(self, problem: MinimaxProblem, state: SnapshotState, clients: Clients) -> SnapshotState:
        """Step along the normalised updates."""
        x_snapshot = refresh(clients.round, self.snapshot_every, state.x, state.x_snapshot)
        x, y = self._server_step(problem, Point(state.x, state.y), clients, x_snapshot)
        return SnapshotState(x, y, x_snapshot)
