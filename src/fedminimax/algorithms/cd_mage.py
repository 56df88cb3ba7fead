"""CD-MA, CD-MAGE and CD-MAGE+: minimax methods for many devices of which few are online.

J. Xie, C. Zhang, Z. Shen, W. Liu and H. Qian, "Efficient cross-device federated learning algorithms for minimax problems",
Algorithms 1-4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import checks, players
from fedminimax.algorithms.base import Algorithm, S, algorithm, state, static
from fedminimax.algorithms.local import descent_ascent, server_step
from fedminimax.algorithms.settings import WithCohorts, WithSteps
from fedminimax.algorithms.solvers import LocalUpdates
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients, Cohort
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import PowerDecay, Scalar


@dataclass(frozen=True)
class Constants:
    r"""What Theorems 1 to 3 of the paper assume of a problem.

    Args:
        L1: how fast grad_x f changes with x.
        L2: how fast grad_y f changes with y.
        L12: how fast grad_x f changes with y.
        L21: how fast grad_y f changes with x.
        mu: of the Polyak-Lojasiewicz condition in y (or of strong concavity).
        sigma1: how far clients' x-gradients are from the mean, in root mean square.
        sigma2: the same for y.
        gap: Phi(x_0) - min Phi.
        dual_gap: Phi(x_0) - f(x_0, y_0).
        G1: how far a client's single examples are from its own x-gradient, in root mean square; CD-MA only.
        G2: the same for y.
    """

    L1: float
    L2: float
    L12: float
    L21: float
    mu: float
    sigma1: float = 0.0
    sigma2: float = 0.0
    gap: float = 1.0
    dual_gap: float = 0.0
    G1: float = 0.0
    G2: float = 0.0

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            if not (value >= 0 and jnp.isfinite(value)):
                raise InputError(f"Constants.{name} must be a finite number that is not negative, not {value}.")
        if min(self.L1, self.L2, self.mu) <= 0:
            raise InputError("Constants needs L1, L2 and mu above zero.")

    @property
    def smoothness(self) -> float:
        """L_f of Lemma 1."""
        return max((2 * (self.L1**2 + self.L21**2)) ** 0.5, (2 * (self.L2**2 + self.L12**2)) ** 0.5)

    @property
    def phi_smoothness(self) -> float:
        """L_Phi = L1 + L12 L21 / mu. (Lemma 2 prints 2 mu, which is too small: 2xy - y^2/4 has Phi'' = 8.)"""
        return self.L1 + self.L12 * self.L21 / self.mu

    @property
    def potential(self) -> float:
        """The L_0 of Theorems 1 and 3."""
        return self.gap + self.dual_gap / 20


def _whole(**numbers: int) -> list[int]:
    """Return the numbers that the theorems count with."""
    return [checks.integer(name, value) for name, value in numbers.items()]


def _root(above: float, below: float, degree: int) -> float:
    """Return (above / below)^(1/degree): a bound on a step, which says nothing where the noise below is zero."""
    return (above / below) ** (1 / degree) if below > 0 else math.inf


def _primal_step(c: Constants, K: int, lr_y: float) -> float:
    """Return the bound on eta that Theorems 1 and 3 share: smoothness, and slow enough for y to follow."""
    follow = c.mu**2 * lr_y / (21 * c.L12**2) if c.L12 else math.inf
    return min(1 / (36 * c.smoothness * K), 1 / (4 * c.phi_smoothness * K), follow)


def cohort_of(problem: MinimaxProblem, clients: Clients, size: int | None) -> tuple[Cohort, jax.Array]:
    """Return a cohort drawn from the client distribution p, without replacement, and the weights of its average.

    Unequal p enter by the drawing: client i is in the cohort with probability S p_i, and the average is plain. Only where
    S p_i is above one, so that nothing can be drawn any more, does i's weight make up for it; with everybody that is p itself.
    """
    everybody = size is None or size == clients.count
    cohort = clients.sample(size, weights=None if everybody or problem.weights is None else clients.weights)
    return cohort, cohort.unbiased


@algorithm
class CDMA(LocalUpdates[Point]):
    r"""Cross-device minimax averaging: Local SGDA with a cohort drawn from the client distribution, averaged uniformly.

    On client i of the cohort :math:`S_t`, from :math:`z^{(0)} = (x_t, y_t)`, for k = 0, ..., K-1

    .. math:: x^{(k+1)} = x^{(k)} - \eta \nabla_x F_i(z^{(k)}; B),\quad y^{(k+1)} = y^{(k)} + \gamma \nabla_y F_i(z^{(k)}; B)

    and :math:`(x_{t+1}, y_{t+1})` is the mean over the cohort.

    Args:
        lr_x: eta.
        lr_y: gamma.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: S, clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar

    @classmethod
    def from_theory(cls, constants: Constants, *, rounds: int, local_steps: int, cohort_size: int, **fields: Any) -> CDMA:
        """Return the steps of Theorem 3."""
        c, T, K, S = constants, *_whole(rounds=rounds, local_steps=local_steps, cohort_size=cohort_size)
        L, drift = c.smoothness, c.smoothness**2 * T * K**3
        lr_y = min(
            1 / (87 * L * K),
            _root(20 * c.potential * S, L * T * K**2 * c.sigma2**2, 2),
            _root(30 * c.potential, drift * (c.sigma2**2 + c.G2**2), 3),
        )
        lr_x = min(
            _primal_step(c, K, lr_y),
            _root(20 * c.potential * S, 7 * (c.phi_smoothness + L) * T * K**2 * c.sigma1**2, 2),
            _root(3 * c.potential, drift * (c.sigma1**2 + c.G1**2), 3),
        )
        return cls(lr_x, lr_y, local_steps=K, cohort_size=S, **fields)

    def init(self, problem: MinimaxProblem) -> Point:
        """Return (x_0, y_0)."""
        return problem.start

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        """Average the cohort's local updates."""
        cohort, weights = cohort_of(problem, clients, self.cohort_size)
        update = cohort.mean(self.local_update, state.x, state.y, weights=weights)
        return server_step(problem, state, update, 1.0, 1.0)


class GradientGuided(WithCohorts, WithSteps, Algorithm[MinimaxProblem, S]):
    """The parameter update phase (Algorithm 3): local steps that follow a global estimate of the gradient."""

    lr_x: Scalar
    lr_y: Scalar
    same_cohort: bool

    def update(
        self, problem: MinimaxProblem, z: Point, estimate: Point, clients: Clients, first: tuple[Cohort, jax.Array]
    ) -> Point:
        """Return the next point: the mean of where guided local steps lead, over a cohort of its own or over the first one."""
        cohort, weights = first if self.same_cohort else cohort_of(problem, clients, self.cohort_size)
        update = cohort.mean(self.guided_update, z.x, z.y, estimate, weights=weights)
        return server_step(problem, z, update, 1.0, 1.0)

    def guided_update(self, problem: ClientProblem, client: Client, x: Tree, y: Tree, estimate: Point) -> Point:
        """Return how far K steps along grad F_i(z; B) - grad F_i(z_t; B) + (u_t, v_t) lead, B the same at both points."""
        start = Point(x, y)

        def step(z: Point) -> Point:
            batch = client.batch(self.batch_size)
            change = players.sub(problem.grad(z.x, z.y, batch), problem.grad(x, y, batch))
            return descent_ascent(problem, z, players.add(change, estimate), self.lr_x, self.lr_y)

        return players.sub(client.repeat(client.steps(self.local_steps, self.batch_size), step, start), start)


@state
class GuidedState(NamedTuple):
    """The players, and the gradient estimate (u, v) that led to them: for those who look, the next round makes its own."""

    x: Tree
    y: Tree
    estimate: Point


@algorithm
class CDMAGE(GradientGuided[GuidedState]):
    r"""Cross-device minimax averaging with a global gradient estimate.

    Phase 1: a cohort :math:`S'_t` reports its full local gradients; their mean is :math:`(u_t, v_t)`, equation (2). Phase 2:
    another cohort :math:`S_t`, drawn independently, takes K local steps from :math:`z_t = (x_t, y_t)`

    .. math:: x^{(k+1)} = x^{(k)} - \eta [\nabla_x F_i(z^{(k)}; B) - \nabla_x F_i(z_t; B) + u_t],\quad
              y^{(k+1)} = y^{(k)} + \gamma [\nabla_y F_i(z^{(k)}; B) - \nabla_y F_i(z_t; B) + v_t]

    each with one minibatch B at both points, and the server averages. With K = 1 it is Parallel SGDA on :math:`S'_t`. The state
    has the last :math:`(u_t, v_t)` as ``estimate.x`` and ``estimate.y``.

    Args:
        lr_x: eta.
        lr_y: gamma.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a local step; None: the full local batch. Phase 1 always takes all of a client's examples.
        cohort_size: S, clients in each phase; None: everybody.
        same_cohort: whether phase 2 goes to the clients that answered phase 1, as in the authors' code, in place of a
            cohort of its own, as in the paper.
    """

    lr_x: Scalar
    lr_y: Scalar
    same_cohort: bool = static(default=False, kw_only=True)

    @classmethod
    def from_theory(cls, constants: Constants, *, rounds: int, local_steps: int, cohort_size: int, **fields: Any) -> CDMAGE:
        """Return the steps of Theorem 1."""
        c, T, K, S = constants, *_whole(rounds=rounds, local_steps=local_steps, cohort_size=cohort_size)
        L = c.smoothness
        lr_y = min(1 / (87 * L * K), _root(4 * c.potential * S, 3 * L * T * K**2 * c.sigma2**2, 2))
        noise = 21 * (c.phi_smoothness + L) * T * K**2 * c.sigma1**2
        lr_x = min(_primal_step(c, K, lr_y), _root(40 * c.potential * S, noise, 2))
        return cls(lr_x, lr_y, local_steps=K, cohort_size=S, **fields)

    def init(self, problem: MinimaxProblem) -> GuidedState:
        """Return (x_0, y_0), and no estimate yet."""
        return GuidedState(*problem.start, players.zeros_like(problem.start))

    def round(self, problem: MinimaxProblem, state: GuidedState, clients: Clients) -> GuidedState:
        """Collect gradients from a cohort, then let another, or the same, take guided steps."""
        z = Point(state.x, state.y)
        cohort, weights = cohort_of(problem, clients, self.cohort_size)
        estimate = cohort.mean(self.report_gradient, *z, weights=weights)
        return GuidedState(*self.update(problem, z, estimate, clients, (cohort, weights)), estimate)

    def report_gradient(self, problem: ClientProblem, client: Client, x: Tree, y: Tree) -> Point:
        """Return the full local gradient."""
        return problem.grad(x, y, client.full)


@state
class MomentumState(NamedTuple):
    """The players, the gradient estimate (u, v), the point at which it was last made, and whether it ever was."""

    x: Tree
    y: Tree
    estimate: Point
    previous: Point
    begun: jax.Array


@algorithm
class CDMAGEPlus(GradientGuided[MomentumState]):
    r"""CD-MAGE whose global gradient estimate is a recursive momentum on the server.

    Phase 1: the cohort reports :math:`\nabla f_i(z_t) - (1 - \alpha_t) \nabla f_i(z_{t-1})`, full local gradients both, and

    .. math:: (u_t, v_t) = (1 - \alpha_t) (u_{t-1}, v_{t-1})
              + \mathrm{mean}_{S'_t} [\nabla f_i(z_t) - (1 - \alpha_t) \nabla f_i(z_{t-1})]

    with alpha = 1 for the first estimate. Phase 2 is CD-MAGE's. Should nobody answer phase 1, the last estimate is kept, with
    the point that it belongs to. With alpha = 1, or with everybody taking part, it is CD-MAGE.

    Args:
        lr_x: eta_t.
        lr_y: gamma_t.
        alpha: alpha_t, cut at 1.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a local step; None: the full local batch. Phase 1 always takes all of a client's examples.
        cohort_size: S, clients in each phase; None: everybody.
        same_cohort: whether phase 2 goes to the clients that answered phase 1, as in the authors' code, in place of a
            cohort of its own, as in the paper.
    """

    lr_x: Scalar
    lr_y: Scalar
    alpha: Scalar = 1.0
    same_cohort: bool = static(default=False, kw_only=True)

    @classmethod
    def decaying(cls, c_x: float, c_y: float, c_alpha: float, rho: float, **fields: Any) -> CDMAGEPlus:
        """Return the schedules of the experiments: c / (t+1)^rho for the steps, min(1, c_alpha / (t+1)^(2 rho)) for alpha."""
        return cls(PowerDecay(c_x, rho), PowerDecay(c_y, rho), PowerDecay(c_alpha, 2 * rho, cap=1.0), **fields)

    @classmethod
    def from_theory(cls, constants: Constants, *, local_steps: int, cohort_size: int, **fields: Any) -> CDMAGEPlus:
        """Return the schedules of Theorem 2.

        Its bounds 1 / (2 L_f) and 1 / (2 L_Phi) on eta are printed without a K; they are taken here for the K steps of a
        round together, as in Theorem 1, since each local step of that size would leave the region where L_f says anything.
        """
        c, K, S = constants, *_whole(local_steps=local_steps, cohort_size=cohort_size)
        L = c.smoothness
        first, cap = S ** (1 / 3) / (L * K), 1 / (100 * L * K)  # gamma_t = min(cap, first / (t+1)^(1/3))
        smooth = 1 / (2 * max(L, c.phi_smoothness) * K)
        ratio = 2 * c.mu**2 / (33 * c.L12**2) if c.L12 else math.inf
        lr_x = PowerDecay(ratio * first, 1 / 3, cap=min(ratio * cap, smooth)) if c.L12 else smooth
        scale = 8192 * L**2 * K**2 / S
        alpha = PowerDecay(scale * first**2, 2 / 3, cap=min(1.0, scale * cap**2))
        return cls(lr_x, PowerDecay(first, 1 / 3, cap=cap), alpha, local_steps=K, cohort_size=S, **fields)

    def init(self, problem: MinimaxProblem) -> MomentumState:
        """Return z_0 = z_{-1}, and no estimate yet."""
        z = problem.start
        return MomentumState(*z, players.zeros_like(z), z, jnp.zeros((), bool))

    def round(self, problem: MinimaxProblem, state: MomentumState, clients: Clients) -> MomentumState:
        """Move the estimate along, then let another cohort, or the same, take guided steps."""
        z = Point(state.x, state.y)
        keep = jnp.where(state.begun, 1.0 - jnp.minimum(self.alpha, 1.0), 0.0)  # 1 - alpha_t
        cohort, weights = cohort_of(problem, clients, self.cohort_size)
        change = cohort.mean(self.report_change, z, state.previous, keep, weights=weights)
        moved = players.add(change, state.estimate, keep)
        heard = cohort.heard > 0
        estimate = players.select(heard, moved, state.estimate)
        here = players.select(heard, z, state.previous)
        new = self.update(problem, z, estimate, clients, (cohort, weights))
        return MomentumState(*new, estimate, here, state.begun | heard)

    def report_change(self, problem: ClientProblem, client: Client, z: Point, previous: Point, keep: jax.Array) -> Point:
        """Return grad f_i(z_t) - (1 - alpha_t) grad f_i(z_{t-1})."""
        before, now = (problem.grad(*point, client.full) for point in (previous, z))
        return players.add(now, before, -keep)
