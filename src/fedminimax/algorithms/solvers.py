"""What a client does with its gradients: the local solvers, and how much each gradient counts in the end.

After tau steps with step size eta, a client has moved by -eta * sum_k a_k g_k (x) and +eta * sum_k a_k g_k (y), where g_k is
the gradient of step k. The vector a = (a_0, ..., a_{tau-1}) is the solver's; its l1 norm is what Fed-Norm-SGDA divides by
(fed-norm-sgda.txt, section 4.1 and appendix A.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import Algorithm
from fedminimax.algorithms.local import descent_ascent, gradient
from fedminimax.errors import InputError
from fedminimax.players import Point, Tree
from fedminimax.schedules import Scalar, as_schedule


class Solver:
    """A local solver: :meth:`init` its memory, :meth:`direction` of a step, :meth:`norm` of its vector a."""

    def init(self, z: Point) -> Tree:
        """Return the memory at the start of a round."""
        return ()

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Any) -> tuple[Point, Tree]:
        """Return what step k moves along (down in x, up in y), and the new memory."""
        raise NotImplementedError

    def norm(self, steps: Any, lr: Any) -> Any:
        """Return ||a||_1 after ``steps`` steps of size ``lr``."""
        raise NotImplementedError

    def run(
        self,
        problem: Any,
        client: Any,
        start: Point,
        lr_x: Any,
        lr_y: Any,
        local_steps: Any,
        batch_size: int | None,
        *,
        x_snapshot: Tree | None = None,
        correction: Point | None = None,
        pull: Any = None,
    ) -> Point:
        """Return where a client is after its local steps from ``start``, projected after each.

        Args:
            problem: the client's problem.
            client: the client.
            start: the point that the server sent.
            lr_x: the step size of x.
            lr_y: the step size of y.
            local_steps: how many steps.
            batch_size: examples a step; None: all.
            x_snapshot: where the y-gradient is taken instead of x (the "+" methods).
            correction: added to every gradient (control variates).
            pull: the strength mu of mu/2 ||x - x_start||^2 - mu/2 ||y - y_start||^2, added to the objective.
        """

        def step(k: Any, z: Point, memory: Tree) -> tuple[Any, Point, Tree]:
            g = gradient(problem, z, client.batch(batch_size), x_snapshot)
            if correction is not None:
                g = players.add(g, correction)
            if pull is not None:
                g = _pulled(g, z, start, pull)
            direction, memory = self.direction(memory, g, z, start, k)
            return k + 1, descent_ascent(problem, z, direction, lr_x, lr_y), memory

        _, end, _ = client.repeat(client.steps(local_steps, batch_size), step, 0, start, self.init(start))
        return end


def _pulled(g: Point, z: Point, start: Point, mu: Any) -> Point:
    """Return the gradient with that of the pull back to the start."""
    away = players.sub(z, start)
    return Point(players.add(g.x, away.x, mu), players.add(g.y, away.y, -mu))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Plain(Solver):
    """Descent-ascent: a_k = 1, ||a||_1 = tau."""

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Any) -> tuple[Point, Tree]:
        """Return the gradient."""
        return g, memory

    def norm(self, steps: Any, lr: Any) -> Any:
        """Return tau."""
        return jnp.asarray(steps, float)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Momentum(Solver):
    """Heavy ball: d <- rho d + g, from zero each round.

    a_k = (1 - rho^(tau-k)) / (1 - rho) and ||a||_1 = [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho). The buffers are run for
    the path and a is used for aggregation only (readings: running the steps with this a is not momentum).
    """

    rho: Scalar = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", as_schedule(self.rho))
        if isinstance(self.rho, (int, float)) and not 0 <= self.rho < 1:
            raise InputError(f"Momentum needs 0 <= rho < 1, not {self.rho}.")

    def init(self, z: Point) -> Tree:
        """Return zero buffers."""
        return players.zeros_like(z)

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Any) -> tuple[Point, Tree]:
        """Return the buffers after taking in the gradient."""
        buffers = players.add(g, memory, self.rho)
        return buffers, buffers

    def norm(self, steps: Any, lr: Any) -> Any:
        """Return the closed form of appendix A.1."""
        tau = jnp.asarray(steps, float)
        return (tau - self.rho * (1 - self.rho**tau) / (1 - self.rho)) / (1 - self.rho)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Proximal(Solver):
    """Steps on f + mu/2 ||x - x_t||^2 - mu/2 ||y - y_t||^2: clients are pulled back to where the round began.

    a_k = (1 - eta mu)^(tau-1-k) and ||a||_1 = [1 - (1 - eta mu)^tau] / (eta mu), for eta mu < 1.
    """

    mu: Scalar = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", as_schedule(self.mu))
        if isinstance(self.mu, (int, float)) and not self.mu >= 0:
            raise InputError(f"Proximal needs mu >= 0, not {self.mu}.")

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Any) -> tuple[Point, Tree]:
        """Return the gradient with the pull."""
        return _pulled(g, z, start, self.mu), memory

    def norm(self, steps: Any, lr: Any) -> Any:
        """Return the geometric sum."""
        tau, rate = jnp.asarray(steps, float), jnp.asarray(lr * self.mu, float)
        safe = jnp.where(rate == 0, 0.5, rate)
        return jnp.where(rate == 0, tau, -jnp.expm1(tau * jnp.log1p(-safe)) / safe)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weighted(Solver):
    """Step k counts a_k: any non-negative weights, such as a local decay of the step size."""

    a: tuple[Scalar, ...]

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Any) -> tuple[Point, Tree]:
        """Return a_k times the gradient."""
        return players.scale(g, jnp.stack([jnp.asarray(v, float) for v in self.a])[k]), memory

    def norm(self, steps: Any, lr: Any) -> Any:
        """Return a_0 + ... + a_{tau-1}."""
        return jnp.cumsum(jnp.stack([jnp.asarray(v, float) for v in self.a]))[jnp.asarray(steps) - 1]


def solver_of(momentum: Scalar | None) -> Solver:
    """Return the plain solver, or heavy-ball momentum when asked for."""
    return Plain() if momentum is None else Momentum(momentum)


class LocalUpdates(Algorithm):
    """The client program of methods whose clients take local steps and report how far those led."""

    lr_x: Scalar
    lr_y: Scalar
    local_steps: Any
    batch_size: int | None

    @property
    def solver(self) -> Solver:
        """The local solver."""
        return Plain()

    def local_update(self, problem: Any, client: Any, x: Tree, y: Tree, x_snapshot: Tree | None = None) -> Point:
        """Return how far the client's local steps lead from (x, y)."""
        start = Point(x, y)
        end = self.solver.run(
            problem, client, start, self.lr_x, self.lr_y, self.local_steps, self.batch_size, x_snapshot=x_snapshot
        )
        return players.sub(end, start)
