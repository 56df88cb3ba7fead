"""A problem that is neither convex nor concave and yet has one saddle point that descent ascent finds.

Shen et al., AISTATS 2024, section 3.2.5.
"""

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


def two_sided_pl(
    clients: int = 10,
    *,
    heterogeneity: float = 1.0,
    start: tuple[float, float] = (2.0, 2.0),
    weights: Any = None,
    seed: int = 0,
) -> Task[MinimaxProblem]:
    r"""The example of the two-sided Polyak-Lojasiewicz condition (Assumptions 3.7 and 3.8), shared out to clients.

    .. math:: h(x, y) = x^2 + 3 \sin^2 x \sin^2 y - 4 y^2 - 10 \sin^2 y,\quad f_i(x, y) = h(x, y) + a_i x + b_i y

    with sum_i p_i a_i = sum_i p_i b_i = 0, so that the objective is h: the paper asks the condition of the sum alone. h is
    nonconvex in x and nonconcave in y; its saddle point is (0, 0), and Phi(x) = x^2 (J. Yang, N. Kiyavash and N. He, "Global
    convergence and variance reduction for a class of nonconvex-nonconcave minimax problems", NeurIPS 2020).

    ``info`` has "smoothness", which bounds the norm of h's Hessian, and the constants "mu_x" and "mu" of the condition in x and
    in y: what ``FessGDA.from_theory`` asks for (Theorem 3.5).

    Args:
        clients: N.
        heterogeneity: how far clients differ: the scale of a_i and b_i.
        start: (x_0, y_0).
        weights: p_i, as for MinimaxProblem.
        seed: of a and b.
    """
    if clients < 1:
        raise InputError(f"two_sided_pl needs at least one client, not {clients}.")
    p = np.asarray(client_weights(weights, ClientData.equal(np.zeros(clients), clients)))
    tilt = heterogeneity * np.random.default_rng(seed).normal(size=(clients, 2))
    tilt = np.asarray(tilt - p @ tilt, jnp.zeros(()).dtype)

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        x, y = x[0], y[0]
        h = x**2 + 3 * jnp.sin(x) ** 2 * jnp.sin(y) ** 2 - 4 * y**2 - 10 * jnp.sin(y) ** 2
        return h + jnp.mean(batch["a"] * x + batch["b"] * y)

    problem = MinimaxProblem(
        loss,
        jnp.asarray(start[:1], float),
        jnp.asarray(start[1:], float),
        weights=weights,
        best_response=lambda x, data, p: jnp.zeros_like(x),
        name="two-sided PL",
    )
    data = ClientData.equal({"a": tilt[:, 0], "b": tilt[:, 1]}, clients)
    info = {"smoothness": 18 + 109**0.5, "mu_x": 0.175, "mu": 1.26}  # |h_xx| <= 8, |h_yy| <= 28, |h_xy| <= 3; mu by a fine grid
    return Task(problem, data, solution=Point(np.zeros(1), np.zeros(1)), info=info)
