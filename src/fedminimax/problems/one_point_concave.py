"""A problem that is nonconvex in x and one-point-concave, not concave, in y, with its exact solution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.players import Point
from fedminimax.problems.base import MinimaxProblem, client_weights
from fedminimax.problems.task import Task


def one_point_concave(
    clients: int = 10,
    dim_x: int = 4,
    dim_y: int = 3,
    *,
    heterogeneity: float = 1.0,
    examples: int = 1,
    noise: float = 0.0,
    weights: Any = None,
    seed: int = 0,
) -> Task[MinimaxProblem]:
    r"""Nonconvex in x, one-point-concave in y (NC-1PC), with a solution that is known.

    .. math:: f_i(x, y) = \sum_j \frac{x_j^2}{1 + x_j^2} + b_i'x - c_i \sum_k h(y_k - (Bx)_k),\quad h(u) = |u| (1 - e^{-|u|})

    with :math:`\sum_i p_i b_i = 0` and c_i > 0. h is star-convex, :math:`h'(u) u \ge h(u)`, and has h'' < 0 for |u| > 2 (Y.
    Nesterov and B. Polyak, "Cubic regularization of Newton method and its global performance", Math. Programming 2006): f_i is
    one-point-concave in y at :math:`y^*(x) = Bx`, the same for all clients, but not concave. That is Assumption 9 and what
    Remark 5 asks for in P. Sharma, R. Panda and G. Joshi, "Federated minimax optimization with client heterogeneity", TMLR
    2023; f_i is smooth, and Lipschitz in x.

    The measure is exact: :math:`\Phi(x) = \max_y F(x, y) = \sum_j x_j^2 / (1 + x_j^2)`, whose only stationary point is x = 0
    (:class:`metrics.Phi`). Runs start where Phi is concave (x = 1.5) and F is not concave in y (y = Bx + 4). x runs away from
    y, so its steps must be the smaller ones.

    Args:
        clients: N.
        dim_x: the dimension of x.
        dim_y: the dimension of y.
        heterogeneity: the scale of the b_i, and how far the c_i differ; 0: clients are all alike.
        examples: examples a client; their b scatter around the client's own.
        noise: how far (the standard deviation of the scatter, whose mean over a client's examples is zero).
        weights: p_i, as for MinimaxProblem.
        seed: of the random numbers.
    """
    if min(clients, dim_x, dim_y, examples) < 1:
        raise InputError("one_point_concave needs at least one client, one example and one dimension for each player.")
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(dim_y, dim_x)) / np.sqrt(dim_x)
    b = heterogeneity * rng.normal(size=(clients, dim_x))
    c = np.exp(heterogeneity * rng.uniform(-0.5, 0.5, size=clients))
    scatter = noise * rng.normal(size=(clients, examples, dim_x))
    scatter -= scatter.mean(axis=1, keepdims=True)
    b -= client_weights(weights, ClientData.equal({"b": b}, clients)) @ b
    dtype = jnp.zeros(()).dtype
    data = [
        {
            "B": np.broadcast_to(B, (examples, *B.shape)).astype(dtype),
            "b": (b[i] + scatter[i]).astype(dtype),
            "c": np.full(examples, c[i], dtype),
        }
        for i in range(clients)
    ]
    x0 = np.full(dim_x, 1.5)
    problem = MinimaxProblem(
        _loss,
        jnp.asarray(x0, dtype),
        jnp.asarray(B @ x0 + 4.0, dtype),
        weights=weights,
        best_response=_best_response,
        name="one-point-concave",
    )
    # The Hessian of h(y - Bx) is (B, -I)' diag(h'') (B, -I), and |h''| <= 2; that of x^2 / (1 + x^2) is at most 2.
    smoothness = 2.0 + 2.0 * c.max() * (1.0 + np.linalg.norm(B, 2) ** 2)
    solution = Point(np.zeros(dim_x), np.zeros(dim_y))
    return Task(problem, ClientData.from_list(data), solution=solution, info={"L": float(smoothness)})


def _loss(x: Any, y: Any, batch: Any) -> jax.Array:
    away = jnp.abs(y - batch["B"] @ x)
    hill = jnp.sum(away * -jnp.expm1(-away), axis=1)
    return jnp.sum(x**2 / (1 + x**2)) + jnp.mean(batch["b"] @ x - batch["c"] * hill)


def _best_response(x: Any, clients: ClientData, weights: jax.Array) -> jax.Array:
    """argmax_y is Bx, whatever the weights."""
    return jnp.asarray(clients.fields["B"])[0] @ x
