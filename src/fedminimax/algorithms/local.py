"""The local loop that the methods share: some steps of descent in x and ascent in y on one client."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.players import Count, Point, Tree
from fedminimax.problems.forms import ClientProblem, Constrained
from fedminimax.schedules import Scalar


def descent_ascent(problem: Constrained, z: Point, direction: Point, lr_x: Scalar, lr_y: Scalar) -> Point:
    """Return P(x - lr_x d_x, y + lr_y d_y): one simultaneous step, projected on X x Y."""
    return problem.project(Point(players.add(z.x, direction.x, -lr_x), players.add(z.y, direction.y, lr_y)))


def gradient(problem: ClientProblem, z: Point, batch: Tree, x_snapshot: Tree | None = None) -> Point:
    """Return the gradient at z; with a snapshot the y-part is taken at (x_snapshot, y) on the same batch."""
    if x_snapshot is None:
        return problem.grad(z.x, z.y, batch)
    return Point(problem.grad_x(z.x, z.y, batch), problem.grad_y(x_snapshot, z.y, batch))


def server_step(problem: Constrained, z: Point, update: Point, server_lr_x: Scalar, server_lr_y: Scalar) -> Point:
    """Return P(z + server_lr * update)."""
    return problem.project(Point(players.add(z.x, update.x, server_lr_x), players.add(z.y, update.y, server_lr_y)))


def refresh(round_: Count, every: int, x: Tree, x_snapshot: Tree) -> Tree:
    """Return the snapshot x-hat that holds in this round: x itself in every ``every``-th one after the first.

    Round 0 takes what the state has: x_0, unless a run was given another.
    """
    due = (jnp.asarray(round_) > 0) & (round_ % every == 0)
    return jax.tree.map(lambda new, old: jnp.where(due, new, old), x, x_snapshot)
