"""The proximal point of Phi(x) = max_y F(x, y), to a duality gap of its own.

Phi has kinks wherever two maximisers meet, and there descent on Phi stands still at points that are not minima. The proximal
problem is therefore solved as the saddle problem that it is, from the side that is smooth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.metrics.base import gradient, maximize_y, objective
from fedminimax.players import Point, Tree
from fedminimax.problems.robust import Problem


class Proximal(NamedTuple):
    """A point near x+ = argmin_u Phi(u) + l ||u - x||^2, and how near.

    Attributes:
        u: the point.
        y: the max player at which the gap is taken.
        gap: an upper bound of Phi(u) + l ||u - x||^2 - min; infinite where l was seen to be too small.
        value: F(u, y) + l ||u - x||^2, which is Phi(u) + l ||u - x||^2 to the gap.
    """

    u: Tree
    y: Tree
    gap: jax.Array
    value: jax.Array


def proximal_point(
    problem: Problem, clients: ClientData, center: Tree, y: Tree, pull: Any, tol: float, max_steps: int, inner_steps: int = 100
) -> Proximal:
    r"""Solve :math:`\min_{u \in X} \max_{y \in Y} h(u, y) = F(u, y) + l \|u - x\|^2` to a relative gap of ``tol``.

    With l at least the weak convexity of F in x, h is l-strongly convex in u, so that :math:`d(y) = \min_u h(u, y)` is smooth,
    with gradient :math:`\nabla_y F(u(y), y)`, however little concave F is in y (weights on a simplex: not at all). d is climbed
    by accelerated projected steps, u(y) being found to rounding by the same steps. At every y, with r the residual of u in its
    own problem,

    .. math:: h(u, y') - h(u, y) + \frac{\|r\|^2}{2 l} \ge \max_{y'} h(u, y') - \min_{u'} \max_{y'} h(u', y')

    at the best y': the problem's own best response, or else :math:`\max_{y' \in Y} \langle \nabla_y F, y' - y \rangle`, which
    bounds it where F is concave in y and Y bounded, or else a maximiser found numerically.

    Args:
        problem: F.
        clients: everybody's data.
        center: x.
        y: where the max player starts.
        pull: l.
        tol: stops when the gap is below tol (1 + |value|).
        max_steps: the most evaluations of d.
        inner_steps: the most evaluations of h for one of d.
    """
    problem, clients = problem.shared(clients)
    bounded = problem.y_set.diameter(y) < float("inf")  # type: ignore[union-attr]

    def inner_problem(y: Tree) -> Callable[[Tree, Any], tuple[Tree, Any, Any]]:
        def slope(u: Tree, _: Any) -> tuple[Tree, Any, Any]:
            g, away = gradient(problem, clients, Point(u, y)), players.scale(players.sub(u, center), 2.0 * pull)
            size = players.norm(g.x) + players.norm(away)
            return players.scale(players.add(g.x, away), -1.0), size, (g.y, size)

        return slope

    def relative(u: Tree, g: Tree, residual: Tree, memory: Any) -> jax.Array:
        return players.norm(residual) / jnp.maximum(memory[1], tiny)

    def slope_y(y: Tree, memory: Any) -> tuple[Tree, Any, Any]:
        u, _, curvature, seen = memory
        # The pull alone has the curvature 2l: where F is linear in x the first step is exact.
        inner = climb(inner_problem(y), problem.project_x, u, 0.5 / pull, seen, relative, 30 * eps, inner_steps)
        g, _ = inner.memory
        curvature, below = jnp.minimum(curvature, inner.curvature), players.sqnorm(inner.residual) / (2.0 * pull)
        return g, players.norm(g), (inner.best, below, curvature, inner.memory)

    def gap_at(y: Tree, g: Tree, _: Tree, memory: Any) -> jax.Array:
        u, below, _, _ = memory
        here = objective(problem, clients, Point(u, y))
        if problem.best_response is None and bounded:
            far, near = players.dot(g, problem.y_set.linear_max(g)), players.dot(g, y)  # type: ignore[union-attr]
        else:
            up = maximize_y(problem, clients, u, y, tol, max_steps)
            far, near = objective(problem, clients, Point(u, up)), here
        above = jnp.maximum(far - near, 0.0) + 4 * eps * (jnp.abs(far) + jnp.abs(near))
        value = here + pull * players.sqnorm(players.sub(u, center))
        return (above + below) / (1.0 + jnp.abs(value))

    center = jax.tree.map(jnp.asarray, center)
    dtype = jnp.result_type(*jax.tree.leaves(center))
    eps, tiny = jnp.finfo(dtype).eps, jnp.finfo(dtype).tiny
    infinity = jnp.asarray(jnp.inf, dtype)
    start = (problem.project_x(center), infinity, infinity, (players.zeros_like(y), infinity))
    end = climb(slope_y, problem.project_y, problem.project_y(y), 1.0, start, gap_at, tol, max_steps)
    u, curvature = end.memory[0], end.latest[2]
    value = objective(problem, clients, Point(u, end.best)) + pull * players.sqnorm(players.sub(u, center))
    # A curvature of h below l says that l is less than the weak convexity of F: nothing bounds the minimum then.
    relative_gap = jnp.where(curvature >= 0.99 * pull, end.measure, jnp.inf)
    return Proximal(u, end.best, relative_gap * (1.0 + jnp.abs(value)), value)


class Climb(NamedTuple):
    """Where a climb is: the point of the least measure so far with what belongs to it, and the state of the steps."""

    best: Tree
    memory: Any
    measure: jax.Array
    residual: Tree
    curvature: jax.Array
    old: Tree
    at: Tree
    slope: Tree
    trial: Tree
    latest: Any
    lr: jax.Array
    momentum: jax.Array
    moved: jax.Array
    step: jax.Array


def climb(
    slope: Callable[[Tree, Any], tuple[Tree, Any, Any]],
    project: Callable[[Tree], Tree],
    start: Tree,
    lr: Any,
    memory: Any,
    measure: Callable[[Tree, Tree, Tree, Any], jax.Array],
    tol: Any,
    max_steps: int,
) -> Climb:
    """Accelerated projected ascent by gradients alone, restarted when it overshoots, until ``measure`` is below ``tol``.

    Values are not compared: near a maximum their differences drown in rounding long before those of gradients do. A step is
    accepted when the curvature along it is at most 1 / lr; each turn of the loop takes one gradient, at the extrapolated
    point or at the trial that leads from it, so that a costly ``slope`` is compiled once.

    Args:
        slope: (point, memory) -> (gradient, size, memory), where the size is that of the terms that the gradient is a sum of:
            they cancel at a maximum, and what is left of their rounding must not count as curvature.
        project: on the set.
        start: where to begin.
        lr: the first step size tried.
        memory: what ``slope`` is given first, such as a warm start.
        measure: (point, gradient, residual, memory) -> how far from done; the residual is the distance of the gradient at the
            point from the set's normals, along the step that led there.
        tol: when to stop.
        max_steps: the most gradients.
    """
    start = jax.tree.map(jnp.asarray, start)
    zero = players.zeros_like(start)
    scalar = lambda value: jnp.asarray(value, jnp.result_type(*jax.tree.leaves(start)))
    eps = jnp.finfo(scalar(0.0).dtype).eps

    def turn(c: Climb) -> Climb:
        point = players.select(c.moved, c.at, c.trial)
        g, size, latest = slope(point, c.latest)
        origin = players.select(c.moved, g, c.slope)  # the gradient at c.at
        d = players.sub(c.trial, c.at)
        length, bend = players.sqnorm(d), players.dot(players.sub(origin, g), d)
        rounding = 8 * eps * size * jnp.sqrt(length)
        accepted = ~c.moved & (bend <= length / c.lr + rounding)
        # -- what an accepted step leaves behind
        residual = players.add(players.sub(g, origin), d, 1.0 / c.lr)
        found = jax.lax.cond(accepted, lambda: measure(point, g, residual, latest), lambda: scalar(jnp.inf))
        better = found < c.measure
        ahead = players.dot(d, players.sub(c.trial, c.old)) >= 0
        t = jnp.where(ahead, (1 + jnp.sqrt(1 + 4 * c.momentum**2)) / 2, 1.0)
        pushed = players.add(c.trial, players.sub(c.trial, c.old), jnp.where(ahead, (c.momentum - 1) / t, 0.0))
        seen = jnp.where(c.moved | (length == 0), jnp.inf, (bend + rounding) / jnp.where(length == 0, 1.0, length))
        # -- where to go next
        at = players.select(accepted, project(pushed), c.at)
        lr = jnp.where(c.moved, c.lr, jnp.where(accepted, 1.2 * c.lr, 0.5 * c.lr))
        return Climb(
            best=players.select(better, point, c.best),
            memory=players.select(better, latest, c.memory),
            measure=jnp.where(better, found, c.measure),
            residual=players.select(better, residual, c.residual),
            curvature=jnp.minimum(c.curvature, seen),
            old=players.select(accepted, c.trial, c.old),
            at=at,
            slope=origin,
            trial=project(players.add(at, origin, lr)),
            latest=latest,
            lr=lr,
            momentum=jnp.where(accepted, t, c.momentum),
            moved=accepted,
            step=c.step + 1,
        )

    infinity = scalar(jnp.inf)
    nowhere = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.inf), start)  # the residual of a start that nothing led to
    begin = Climb(
        start, memory, infinity, nowhere, infinity, start, start, zero, start, memory, scalar(lr), scalar(1.0),
        jnp.asarray(True), jnp.asarray(0),
    )  # fmt: skip
    return jax.lax.while_loop(lambda c: (c.step < max_steps) & ~(c.measure <= tol), turn, begin)
