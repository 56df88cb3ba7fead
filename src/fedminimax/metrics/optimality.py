"""How near a point is to a solution: values, gradients, stationarity, gaps, distances."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.metrics.base import LOWER, _metric, ascend, gradient, maximize_y, minimize_x, objective, point
from fedminimax.players import Point, Tree
from fedminimax.problems.robust import Problem, RobustProblem


@_metric
class Value:
    """The objective F(x, y)."""

    name = "value"

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return F(x, y)."""
        return objective(problem, clients, point(problem, clients, state))


@_metric
class GradientNorms:
    """||grad_x F|| and ||grad_y F||."""

    name = "grad"
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return both norms."""
        g = gradient(problem, clients, point(problem, clients, state))
        return {"x": players.norm(g.x), "y": players.norm(g.y)}


@_metric
class Stationarity:
    """The stationarity of f (fess-gda.txt, Definition 2.1): ||grad_x f|| and l ||P_Y(y + grad_y f / l) - y||.

    Args:
        smoothness: l.
    """

    smoothness: Any = 1.0
    name = "stationarity"
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return both measures."""
        z, step = point(problem, clients, state), 1.0 / self.smoothness
        g = gradient(problem, clients, z)
        moved = problem.project(Point(players.add(z.x, g.x, -step), players.add(z.y, g.y, step)))
        # Without a constraint on x the first is ||grad_x f||, as the definition has it.
        return {
            "x": self.smoothness * players.norm(players.sub(moved.x, z.x)),
            "y": self.smoothness * players.norm(players.sub(moved.y, z.y)),
        }


@_metric
class Phi:
    """Phi(x) = max_{y in Y} F(x, y) and ||grad Phi(x)|| = ||grad_x F(x, y*(x))||.

    The maximiser is exact where the problem knows it, else numerical (see :func:`maximize_y`).
    """

    tol: float = field(default=1e-6, metadata={"static": True})
    max_steps: int = field(default=2000, metadata={"static": True})
    name = "phi"
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the value and the gradient's norm."""
        z = Point(state.x, maximize_y(problem, clients, *point(problem, clients, state), self.tol, self.max_steps))
        return {"value": objective(problem, clients, z), "grad": players.norm(gradient(problem, clients, z).x)}


@_metric
class WorstCase:
    """The objective of a :class:`RobustProblem` as a function of the model alone: max_{w in W} sum_i w_i f_i(x) - psi(w).

    The same as ``phi/value``, in one pass over the data.
    """

    name = "worst_case"
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the value at the exact maximiser."""
        if not isinstance(problem, RobustProblem):
            raise InputError(f"WorstCase is for a RobustProblem: use Phi for {problem.name}.")
        losses = problem.losses(state.x, clients)
        w = problem.penalty.maximize(losses)
        return losses @ w - problem.penalty.value(w)


@_metric
class MoreauGradient:
    """||grad Phi_{1/2l}(x)|| = 2l ||x - x+||, x+ = argmin_u Phi(u) + l ||u - x||^2 (fess-gda.txt, Definition 2.4).

    x+ is found by descent on u with the inner maximum taken anew at each step, which converges for l at least the smoothness
    of f (the envelope is then strongly convex).

    Args:
        smoothness: l.
        tol: when to stop.
        max_steps: the most outer steps.
    """

    smoothness: Any = 1.0
    tol: float = field(default=1e-6, metadata={"static": True})
    max_steps: int = field(default=1000, metadata={"static": True})
    name = "moreau"
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the norm of the envelope's gradient."""
        center, pull = state.x, self.smoothness
        begin = point(problem, clients, state).y

        def best(u: Tree) -> Tree:
            return maximize_y(problem, clients, u, begin, self.tol, self.max_steps)

        def value(u: Tree) -> jax.Array:
            phi = objective(problem, clients, Point(u, best(u)))
            return -(phi + pull * players.sqnorm(players.sub(u, center)))

        def value_and_slope(u: Tree) -> tuple[jax.Array, Tree]:
            z = Point(u, best(u))
            away = players.sub(u, center)
            phi = objective(problem, clients, z) + pull * players.sqnorm(away)
            return players.scale((phi, players.add(gradient(problem, clients, z).x, away, 2.0 * pull)), -1.0)

        near = ascend(value, value_and_slope, problem.project_x, center, self.tol, self.max_steps)
        return 2.0 * pull * players.norm(players.sub(center, near))


@_metric
class DualityGap:
    """max_{y'} F(x, y') - min_{x'} F(x', y), the inner problems solved to tolerance."""

    tol: float = field(default=1e-6, metadata={"static": True})
    max_steps: int = field(default=2000, metadata={"static": True})
    name = "gap"
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the gap."""
        here = point(problem, clients, state)
        up = Point(here.x, maximize_y(problem, clients, *here, self.tol, self.max_steps))
        down = Point(minimize_x(problem, clients, *here, self.tol, self.max_steps), here.y)
        return objective(problem, clients, up) - objective(problem, clients, down)


@_metric
class Distance:
    """The distance to a known solution: ||x - x*||, ||y - y*|| and both together.

    Args:
        solution: the Point (x*, y*).
    """

    solution: Any
    name = "distance"
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the distances."""
        x = players.norm(players.sub(state.x, self.solution.x))
        if state.y is None:  # a method without a max player
            return {"x": x}
        y = players.norm(players.sub(state.y, self.solution.y))
        return {"x": x, "y": y, "total": jnp.hypot(x, y)}
