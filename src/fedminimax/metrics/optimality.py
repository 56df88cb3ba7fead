"""How near a point is to a solution: values, gradients, stationarity, gaps, distances."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.metrics.base import (
    LOWER,
    gradient,
    maximize_y,
    metric_class,
    minimize_x,
    objective,
    own_gradient,
    own_objective,
    point,
)
from fedminimax.metrics.parts import PARTS, STATE, TOGETHER, Part, Whose
from fedminimax.metrics.proximal import proximal_point
from fedminimax.players import Point
from fedminimax.problems.robust import Problem, RobustProblem


@metric_class
class Value:
    """The objective F(x, y)."""

    name = "value"
    needs = PARTS

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return F(x, y)."""
        return objective(problem, clients, point(problem, clients, state))

    def told(self, problem: Problem, clients: ClientData, state: Any, client: int) -> Point:
        """Return (x, y)."""
        return point(problem, clients, state)

    def part(self, problem: Problem, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return a client's summand."""
        return Part(sum=own_objective(problem, data, told, whose))

    def whole(self, problem: Problem, clients: Any, part: Part, state: Any) -> jax.Array:
        """Return the sum."""
        return part.sum


class _OfGradient:
    """What is made of (grad_x F, grad_y F), the sum of the clients' gradients."""

    needs = PARTS

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the numbers."""
        z = point(problem, clients, state)
        return self.of(problem, z, gradient(problem, clients, z))

    def told(self, problem: Problem, clients: ClientData, state: Any, client: int) -> Point:
        """Return (x, y)."""
        return point(problem, clients, state)

    def part(self, problem: Problem, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return a client's summand of the gradient."""
        return Part(sum=own_gradient(problem, data, told, whose))

    def whole(self, problem: Problem, clients: Any, part: Part, state: Any) -> dict[str, jax.Array]:
        """Return the numbers."""
        return self.of(problem, point(problem, clients, state), part.sum)

    def of(self, problem: Problem, z: Point, g: Point) -> dict[str, jax.Array]:
        """Return the numbers at z, where the gradient is g."""
        raise NotImplementedError


@metric_class
class GradientNorms(_OfGradient):
    """||grad_x F|| and ||grad_y F||."""

    name = "grad"
    better = LOWER

    def of(self, problem: Problem, z: Point, g: Point) -> dict[str, jax.Array]:
        """Return both norms."""
        return {"x": players.norm(g.x), "y": players.norm(g.y)}


@metric_class
class Stationarity(_OfGradient):
    """The stationarity of f (Shen et al., AISTATS 2024, Definition 2.1): ||grad_x f|| and l ||P_Y(y + grad_y f / l) - y||.

    Args:
        smoothness: l.
    """

    smoothness: Any = 1.0
    name = "stationarity"
    better = LOWER

    def of(self, problem: Problem, z: Point, g: Point) -> dict[str, jax.Array]:
        """Return both measures."""
        step = 1.0 / self.smoothness
        moved = problem.project(Point(players.add(z.x, g.x, -step), players.add(z.y, g.y, step)))
        # Without a constraint on x the first is ||grad_x f||, as the definition has it.
        return {
            "x": self.smoothness * players.norm(players.sub(moved.x, z.x)),
            "y": self.smoothness * players.norm(players.sub(moved.y, z.y)),
        }


@metric_class
class Phi:
    """Phi(x) = max_{y in Y} F(x, y) and ||grad Phi(x)|| = ||grad_x F(x, y*(x))||.

    The maximiser is exact where the problem knows it, else numerical (see :func:`maximize_y`).
    """

    tol: float = field(default=1e-6, metadata={"static": True})
    max_steps: int = field(default=2000, metadata={"static": True})
    name = "phi"
    needs = TOGETHER
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the value and the gradient's norm."""
        z = Point(state.x, maximize_y(problem, clients, *point(problem, clients, state), self.tol, self.max_steps))
        return {"value": objective(problem, clients, z), "grad": players.norm(gradient(problem, clients, z).x)}


@metric_class
class WorstCase:
    """The objective of a :class:`RobustProblem` as a function of the model alone: max_{w in W} sum_i w_i f_i(x) - psi(w).

    The same as ``phi/value``, in one pass over the data.
    """

    name = "worst_case"
    better = LOWER
    needs = PARTS

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the value at the exact maximiser."""
        return self._of(problem, self._robust(problem).losses(state.x, clients))

    def part(self, problem: Problem, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return a client's loss."""
        return Part(each=self._robust(problem).losses(told.x, data)[0])

    def whole(self, problem: Problem, clients: Any, part: Part, state: Any) -> jax.Array:
        """Return the value at the exact maximiser."""
        return self._of(problem, part.each)

    def _of(self, problem: Problem, losses: jax.Array) -> jax.Array:
        penalty = self._robust(problem).penalty
        w = penalty.maximize(losses)
        return losses @ w - penalty.value(w)

    def _robust(self, problem: Problem) -> RobustProblem:
        if not isinstance(problem, RobustProblem):
            raise InputError(f"WorstCase is for a RobustProblem: use Phi for {problem.name}.")
        return problem


@metric_class
class MoreauGradient:
    r"""||grad Phi_{1/2l}(x)|| = 2l ||x - x+||, x+ = argmin_u Phi(u) + l ||u - x||^2.

    Definition 2.4 of Shen et al., AISTATS 2024.

    x+ comes from the saddle problem min_u max_y F(u, y) + l ||u - x||^2 (:func:`proximal_point`), which also says how good it
    is: ``moreau/gap`` is an upper bound of how far the value at the u found is above the minimum. As that problem is l-strongly
    convex, ||u - x+||^2 <= 2 gap / l, so that ``moreau/grad`` = 2l ||x - u|| is right to ``moreau/error`` = sqrt(8 l gap); in
    practice it is far better. ``moreau/grad`` is NaN, and not a number of unknown worth, when the gap did not come below the
    tolerance, or (with an infinite gap) when l was seen to be less than the weak convexity of F in x.

    F must be concave in y, or have an exact best response. Without a best response and without a bounded Y, the gap holds as
    far as the numerical maximum over y does.

    Args:
        smoothness: l, at least the weak convexity of F in x (the smoothness of f is always enough).
        tol: how large a gap may be, relative to 1 + the value. None: 1e-8 in float64, and 1e-5, about what the arithmetic can
            tell, in float32.
        max_steps: the most steps of the max player, each with a minimisation over u.
    """

    smoothness: Any = 1.0
    tol: float | None = field(default=None, metadata={"static": True})
    max_steps: int = field(default=2000, metadata={"static": True})
    name = "moreau"
    needs = TOGETHER
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the norm of the envelope's gradient, the gap, and how far the norm may be off."""
        here, pull = point(problem, clients, state), self.smoothness
        tol = (1e-8 if jnp.result_type(*jax.tree.leaves(here.x)) == jnp.float64 else 1e-5) if self.tol is None else self.tol
        near = proximal_point(problem, clients, here.x, here.y, pull, tol, self.max_steps)
        norm = 2.0 * pull * players.norm(players.sub(here.x, near.u))
        solved = near.gap <= tol * (1.0 + jnp.abs(near.value))
        return {"grad": jnp.where(solved, norm, jnp.nan), "gap": near.gap, "error": jnp.sqrt(8.0 * pull * near.gap)}


@metric_class
class DualityGap:
    """max_{y'} F(x, y') - min_{x'} F(x', y), the inner problems solved to tolerance."""

    tol: float = field(default=1e-6, metadata={"static": True})
    max_steps: int = field(default=2000, metadata={"static": True})
    name = "gap"
    needs = TOGETHER
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> jax.Array:
        """Return the gap."""
        here = point(problem, clients, state)
        up = Point(here.x, maximize_y(problem, clients, *here, self.tol, self.max_steps))
        down = Point(minimize_x(problem, clients, *here, self.tol, self.max_steps), here.y)
        return objective(problem, clients, up) - objective(problem, clients, down)


@metric_class
class Distance:
    """The distance to a known solution: ||x - x*||, ||y - y*|| and both together.

    Args:
        solution: the Point (x*, y*).
    """

    solution: Any
    name = "distance"
    needs = STATE
    better = LOWER

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the distances."""
        x = players.norm(players.sub(state.x, self.solution.x))
        if state.y is None:  # a method without a max player
            return {"x": x}
        y = players.norm(players.sub(state.y, self.solution.y))
        return {"x": x, "y": y, "total": jnp.hypot(x, y)}
