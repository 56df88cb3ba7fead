"""The least maximum of finitely many losses: Shen et al., AISTATS 2024, problems (2) and (3), section 3.2.4 and Theorem 3.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem, client_weights, over_all
from fedminimax.problems.task import Task
from fedminimax.sets import Set, Simplex


def pointwise_maximum(
    losses: Callable[[Tree, Tree], jax.Array],
    x0: Tree,
    count: int,
    *,
    x_set: Set | None = None,
    weights: Any = None,
    name: str = "maximum of losses",
) -> MinimaxProblem:
    r"""The smallest maximum of n losses, each of which is an average over all clients.

    .. math:: \min_x \max_{1 \le j \le n} f_j(x) = \min_x \max_{y \in \Delta_n} \sum_j y_j f_j(x),
              \quad f_j = \sum_i p_i f_{ij}

    (problems (3) and (2)). The losses may be nonconvex. Phi(x) = max_j f_j(x) is exact (``metrics.Phi``), and so is the best y.
    Theorem 3.4 measures with ``metrics.Stationarity`` (of f) and ``metrics.MoreauGradient`` (of Phi_{1/2l}, as Phi has kinks).

    Args:
        losses: a JAX function ``losses(x, batch)`` that returns f_1, ..., f_n as means over the batch's examples, [n].
        x0: where the min player starts.
        count: n.
        x_set: the set X; None: unconstrained.
        weights: p_i, as for :class:`MinimaxProblem`.
        name: what to call it.
    """
    if not isinstance(count, (int, np.integer)) or count < 1:
        raise InputError(f"count must be the number of losses, at least 1, not {count!r}.")
    simplex = Simplex(int(count))

    def loss(x: Tree, y: jax.Array, batch: Tree) -> jax.Array:
        values = losses(x, batch)
        if jnp.shape(values) != (count,):
            raise ValueError(f"losses(x, batch) has shape {jnp.shape(values)}, but there are {count} losses")
        return y @ values

    def best_response(x: Tree, clients: ClientData, p: Any) -> jax.Array:
        return simplex.linear_max(over_all(lambda x, _, batch: losses(x, batch), Point(x, None), clients, p))

    y0 = jnp.full(int(count), 1.0 / count)
    return MinimaxProblem(loss, x0, y0, x_set=x_set, y_set=simplex, weights=weights, best_response=best_response, name=name)


def maximum_of_quadratics(
    clients: int = 10,
    dim_x: int = 4,
    active: int = 3,
    inactive: int = 2,
    *,
    indefinite: float = 0.5,
    heterogeneity: float = 1.0,
    weights: Any = None,
    seed: int = 0,
) -> Task[MinimaxProblem]:
    r"""A maximum of nonconvex quadratics whose least value, its place and its multipliers are known.

    .. math:: f_j(x) = \langle c_j, x - x^* \rangle + \tfrac12 (x - x^*)' H_j (x - x^*) - s_j

    with sum_j y*_j c_j = 0 and sum_j y*_j H_j = I, where each H_j of the active losses has an eigenvalue of at most
    -``indefinite``. Active losses have s_j = 0 and y*_j > 0, the others s_j = 1 and y*_j = 0 (strict complementarity,
    Assumption 3.6), so that max_j f_j(x) >= sum_j y*_j f_j(x) = ||x - x*||^2 / 2: the minimum is global, is 0, and (x*, y*) is
    a saddle point, although no active loss is convex. Client i's f_ij differ from f_j by linear and quadratic terms whose
    p-weighted sum is zero.

    ``info`` has "weak_convexity", the largest -lambda_min(H_j): l must be at least that in the envelope Phi_{1/2l}.

    Args:
        clients: N.
        dim_x: the dimension of x, at least 2.
        active: how many losses meet at x*, at most dim_x + 1 (more have more than one y*).
        inactive: how many lie below.
        indefinite: how nonconvex the active losses are.
        heterogeneity: how far clients differ.
        weights: p_i, as for MinimaxProblem.
        seed: of the random numbers.
    """
    if clients < 1 or dim_x < 2 or inactive < 0 or not 2 <= active <= dim_x + 1:
        raise InputError(
            "maximum_of_quadratics needs a client, two dimensions, 2 to dim_x + 1 active losses and any number of others, "
            f"not clients={clients}, dim_x={dim_x}, active={active}, inactive={inactive}."
        )
    rng, n = np.random.default_rng(seed), active + inactive
    y = np.concatenate([rng.dirichlet(np.full(active, 5.0)), np.zeros(inactive)])
    x, c = rng.normal(size=dim_x), rng.normal(size=(n, dim_x))
    c[active - 1] = -(y[: active - 1] @ c[: active - 1]) / y[active - 1]
    swing = rng.normal(size=(n, dim_x, dim_x))
    swing = swing + swing.transpose(0, 2, 1)
    swing -= np.trace(swing, axis1=1, axis2=2)[:, None, None] / dim_x * np.eye(dim_x)  # without a trace all are indefinite
    swing[:active] -= np.tensordot(y[:active], swing[:active], 1)
    H = np.eye(dim_x) + swing * ((1.0 + indefinite) / -np.linalg.eigvalsh(swing)[:active, 0].max())
    below = np.concatenate([np.zeros(active), np.ones(inactive)])

    def centered(size: tuple[int, ...]) -> np.ndarray:
        """Terms of the clients whose p-weighted sum is zero."""
        terms = heterogeneity * rng.normal(size=(clients, *size))
        return terms - np.tensordot(p, terms, 1)

    p = np.asarray(client_weights(weights, ClientData.equal(np.zeros(clients), clients)))
    tilt, bend = centered((n, dim_x)), centered((n, dim_x, dim_x))
    dtype = jnp.zeros(()).dtype
    H_i = H + (bend + bend.transpose(0, 1, 3, 2)) / 2
    c_i = c + tilt
    fields = {
        "H": H_i,
        "c": c_i - np.einsum("njab,b->nja", H_i, x),
        "s": np.einsum("njab,a,b->nj", H_i, x, x) / 2 - c_i @ x - below,
    }
    data = ClientData.equal({k: np.asarray(v, dtype) for k, v in fields.items()}, clients)

    def losses(x: Any, batch: Any) -> jax.Array:
        values = jnp.einsum("njab,a,b->nj", batch["H"], x, x) / 2 + batch["c"] @ x + batch["s"]
        return jnp.mean(values, axis=0)

    problem = pointwise_maximum(losses, jnp.zeros(dim_x), n, weights=weights, name="maximum of quadratics")
    return Task(problem, data, solution=Point(x, y), info={"weak_convexity": float(-np.linalg.eigvalsh(H).min())})
