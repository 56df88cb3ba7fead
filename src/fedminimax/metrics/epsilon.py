"""The measure of an epsilon-stationary point where the problem that is solved has a term in y that f has not."""

from __future__ import annotations

from typing import Any

import jax

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.metrics.base import gradient
from fedminimax.players import Point
from fedminimax.problems.base import MinimaxProblem


def stationarity_squared(
    problem: MinimaxProblem,
    clients: ClientData,
    state: Any,
    concavity: float = 0.0,
    smoothness: float = 2.5,
    epsilon: float = 1.0,
) -> jax.Array:
    """Return (||grad_x f||^2 + l^2 ||P_Y(y + grad_y f / l) - y||^2) / epsilon^2 of f without a regularisation in y.

    At most 1: an epsilon-stationary point of f (Definition 2.1).

    Args:
        problem: the problem that is solved.
        clients: its clients.
        state: where a method is.
        concavity: the lambda of a term -lambda/2 ||y||^2 of the problem that is none of f.
        smoothness: l.
        epsilon: what is wanted.
    """
    z = Point(state.x, state.y)
    g = gradient(problem, clients, z)
    up = players.add(g.y, z.y, concavity)
    moved = problem.project(Point(z.x, players.add(z.y, up, 1.0 / smoothness)))
    return (players.sqnorm(g.x) + smoothness**2 * players.sqnorm(players.sub(moved.y, z.y))) / epsilon**2


stationarity_squared.better = "lower"  # type: ignore[attr-defined]
