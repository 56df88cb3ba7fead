"""A problem that is nonconvex in x and concave in y, as weakly as one likes, with its exact solution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.players import Point
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.task import Task
from fedminimax.sets import L2Ball


def nonconvex_concave(
    clients: int = 10,
    dim: int = 4,
    *,
    concavity: float = 0.0,
    curvature: float = 0.5,
    radius: float = 2.0,
    heterogeneity: float = 1.0,
    examples: int = 1,
    noise: float = 0.0,
    seed: int = 0,
) -> Task[MinimaxProblem]:
    r"""Nonconvex in x, concave in y on a ball, with one stationary point, (0, 0).

    .. math:: f_i(x, y) = -\frac a2 \sum_j \frac{x_j^2}{1 + x_j^2} + y'Bx + b_i'x + d_i'y - \frac\lambda2 \|y\|^2,
              \quad \|y\| \le R

    with the b_i and d_i summing to zero over clients and the singular values of B from 1 to 2. At the solution f is concave in
    x with curvature -a, and only what y does makes it a minimum: Phi(x) = max_y F(x, y) bends like B'B / lambda - a. With
    lambda = 0 f is linear in y (Assumption 3.5 of Shen et al., AISTATS 2024), and lambda = epsilon / (2 D(Y)) makes it what
    Theorem 3.3 solves. (0, 0) is the one stationary point where R > 0.33 a sqrt(dim) and lambda < 1 / a.

    ``info`` has "smoothness", which bounds the norm of the Hessian.

    Args:
        clients: N.
        dim: of x and of y.
        concavity: lambda.
        curvature: a.
        radius: R.
        heterogeneity: how far clients differ: the scale of b_i and d_i.
        examples: examples a client; their linear terms scatter around the client's own.
        noise: how far (the standard deviation of the scatter, whose mean over a client's examples is zero).
        seed: of the random numbers.
    """
    if min(clients, dim, examples) < 1 or concavity < 0:
        raise InputError("nonconvex_concave needs at least one client, example and dimension, and a concavity of at least 0.")
    rng, dtype = np.random.default_rng(seed), jnp.zeros(()).dtype
    turns = [np.linalg.qr(rng.normal(size=(dim, dim)))[0] for _ in range(2)]
    B = (turns[0] * np.linspace(1.0, 2.0, dim)) @ turns[1]
    terms = heterogeneity * rng.normal(size=(clients, 1, 2 * dim))
    scatter = noise * rng.normal(size=(clients, examples, 2 * dim))
    terms = terms - terms.mean(axis=0) + scatter - scatter.mean(axis=1, keepdims=True)
    both = terms.reshape(clients * examples, 2 * dim).astype(dtype)
    couple = np.broadcast_to(B, (len(both), dim, dim)).astype(dtype)

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        bend = -curvature / 2 * jnp.sum(x**2 / (1 + x**2)) + y @ (batch["B"][0] @ x) - concavity / 2 * jnp.sum(y**2)
        return bend + jnp.mean(batch["b"] @ x + batch["d"] @ y)

    start = rng.normal(size=(2, dim))
    start = start / np.linalg.norm(start, axis=1, keepdims=True)
    problem = MinimaxProblem(
        loss, jnp.asarray(start[0], dtype), jnp.asarray(start[1], dtype), y_set=L2Ball(radius), name="nonconvex-concave"
    )
    data = ClientData.equal({"B": couple, "b": both[:, :dim], "d": both[:, dim:]}, clients)
    solution = Point(np.zeros(dim), np.zeros(dim))
    return Task(problem, data, solution=solution, info={"smoothness": curvature + concavity + 2.0})
