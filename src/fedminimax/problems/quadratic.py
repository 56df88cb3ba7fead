"""Heterogeneous quadratics, whose saddle is a linear system: what methods are tested against."""

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


def quadratic(
    clients: int = 10,
    dim_x: int = 4,
    dim_y: int = 3,
    *,
    heterogeneity: float = 1.0,
    curvature: float = 1.0,
    examples: int = 1,
    noise: float = 0.0,
    weights: Any = None,
    seed: int = 0,
) -> Task[MinimaxProblem]:
    r"""Heterogeneous quadratics with their exact saddle.

    .. math:: f_i(x, y) = \tfrac12 x'A_i x + x'B_i y - \tfrac12 y'C_i y + a_i'x + b_i'y

    with A_i, C_i positive definite (eigenvalues at least ``curvature`` / 2). The saddle of sum_i p_i f_i solves
    A x + B y + a = 0, B'x - C y + b = 0 with the p-weighted means.

    Args:
        clients: N.
        dim_x: the dimension of x.
        dim_y: the dimension of y.
        heterogeneity: how far clients differ; 0: they are all alike.
        curvature: the scale of A and C.
        examples: examples a client; their linear terms scatter around the client's own.
        noise: how far (the standard deviation of the scatter, whose mean over a client's examples is zero).
        weights: p_i, as for MinimaxProblem.
        seed: of the random matrices.
    """
    if min(clients, dim_x, dim_y, examples) < 1:
        raise InputError("quadratic needs at least one client, one example and one dimension for each player.")
    rng = np.random.default_rng(seed)
    common = _definite(rng, dim_x), rng.normal(size=(dim_x, dim_y)), _definite(rng, dim_y)
    data = []
    for _ in range(clients):
        A, C = (curvature * (m + heterogeneity * _definite(rng, len(m)) / 2) for m in (common[0], common[2]))
        B = common[1] + heterogeneity * rng.normal(size=(dim_x, dim_y)) / 2
        a, b = (heterogeneity * rng.normal(size=d) + 1.0 for d in (dim_x, dim_y))
        scatter = [noise * rng.normal(size=(examples, d)) for d in (dim_x, dim_y)]
        scatter = [s - s.mean(axis=0) for s in scatter]
        spread = lambda m: np.broadcast_to(m, (examples, *m.shape))
        data.append({"A": spread(A), "B": spread(B), "C": spread(C), "a": a + scatter[0], "b": b + scatter[1]})
    dtype = jnp.zeros(()).dtype
    federation = ClientData.from_list([jax.tree.map(lambda v: np.asarray(v, dtype), client) for client in data])
    problem = MinimaxProblem(
        _loss,
        jnp.zeros(dim_x),
        jnp.zeros(dim_y),
        weights=weights,
        best_response=_best_response,
        name="heterogeneous quadratics",
    )
    return Task(problem, federation, solution=saddle(federation, problem.client_weights(federation)))


def saddle(clients: ClientData, weights: Any) -> Point:
    """Return the exact saddle of sum_i weights_i f_i, by one linear solve in float64."""
    m = {k: np.einsum("i,i...->...", np.asarray(weights, float), v) for k, v in client_means(clients).items()}
    system = np.block([[m["A"], m["B"]], [m["B"].T, -m["C"]]])
    z = np.linalg.solve(system, -np.concatenate([m["a"], m["b"]]))
    return Point(z[: len(m["a"])], z[len(m["a"]) :])


def reweighted_distance(problem: MinimaxProblem, clients: ClientData, state: Any, steps: tuple[float, ...] = ()) -> jax.Array:
    """Return the distance to the saddle of sum_i w_i f_i, w_i ~ p_i steps_i: where plain averaging of unequal work leads.

    Args:
        problem: the quadratics.
        clients: their data.
        state: where a method is.
        steps: the local steps tau_i of each client; none: all alike, the true saddle.
    """
    if steps and len(steps) != clients.count:
        raise InputError(f"steps has {len(steps)} numbers, but there are {clients.count} clients: give one for each.")
    w = problem.client_weights(clients) * (jnp.asarray(steps) if steps else 1.0)
    share = (w / jnp.sum(w) / jnp.asarray(clients.sizes))[clients.owners()]
    m = {k: jnp.tensordot(share, jnp.asarray(clients.fields[k]), 1) for k in ("A", "B", "C", "a", "b")}
    system = jnp.block([[m["A"], m["B"]], [m["B"].T, -m["C"]]])
    z = jnp.linalg.solve(system, -jnp.concatenate([m["a"], m["b"]]))
    return jnp.linalg.norm(jnp.concatenate([state.x, state.y]) - z)


def client_means(clients: ClientData) -> dict[str, np.ndarray]:
    """Return every client's matrices and vectors, [N, ...]: the means over its examples."""
    return {k: np.stack([np.asarray(c[k], float).mean(axis=0) for c in clients]) for k in clients.fields}


def _loss(x: Any, y: Any, batch: Any) -> jax.Array:
    quadratic_part = lambda u, m, v: jnp.einsum("i,nij,j->n", u, m, v)
    values = (
        quadratic_part(x, batch["A"], x) / 2
        + quadratic_part(x, batch["B"], y)
        - quadratic_part(y, batch["C"], y) / 2
        + batch["a"] @ x
        + batch["b"] @ y
    )
    return jnp.mean(values)


def _best_response(x: Any, clients: ClientData, weights: jax.Array) -> jax.Array:
    """argmax_y is C^-1 (B'x + b)."""
    share = (weights / jnp.asarray(clients.sizes))[clients.owners()]
    B, C, b = (jnp.tensordot(share, jnp.asarray(clients.fields[k]), 1) for k in ("B", "C", "b"))
    return jnp.linalg.solve(C, B.T @ x + b)


def _definite(rng: np.random.Generator, dim: int) -> np.ndarray:
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    return (basis * rng.uniform(0.5, 1.5, size=dim)) @ basis.T
