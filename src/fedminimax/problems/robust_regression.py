"""The synthetic robust regression of Yu et al., SCAFF-PD, 2023, section 6.1, with its exact solution."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.penalties import ChiSquare, Penalty
from fedminimax.players import Point
from fedminimax.problems.robust import RobustProblem
from fedminimax.problems.task import Task


def robust_regression(
    clients: int = 5,
    dim: int = 10,
    examples: int = 100,
    *,
    rho: float = 0.1,
    c: float = 1.0,
    sigma: float = 0.1,
    mu_x: float = 0.1,
    penalty: Penalty | None = None,
    seed: int = 0,
) -> Task[RobustProblem]:
    r"""Least squares on clients whose true coefficients differ, robust over clients.

    .. math:: f_i(x) = \frac1m \sum_j (\langle a_i^j, x \rangle - b_i^j)^2 + \frac{\mu_x}{2} \|x\|^2,\quad
              b_i^j = \langle a_i^j, \hat x + \delta_i \rangle

    with a ~ N(0, I), x-hat ~ N(0, c^2 I), delta_i ~ N(0, sigma^2 I), and no noise on the labels. ``info`` has the constants
    of the theory: L_xx, L_wx (near the solution), mu_x and mu_w.

    Args:
        clients: N.
        dim: d.
        examples: m, for each client.
        rho: of the chi-square penalty.
        c: the scale of the common coefficients.
        sigma: how far clients differ.
        mu_x: the regularisation.
        penalty: another penalty in place of ChiSquare(rho).
        seed: of the data.
    """
    if min(clients, dim, examples) < 1 or mu_x <= 0:
        raise InputError("robust_regression needs at least one client, dimension and example, and mu_x > 0.")
    rng = np.random.default_rng(seed)
    common = c * rng.normal(size=dim)
    inputs = rng.normal(size=(clients, examples, dim))
    labels = np.einsum("nmd,nd->nm", inputs, common + sigma * rng.normal(size=(clients, dim)))
    dtype = jnp.zeros(()).dtype
    fields = {"inputs": inputs.reshape(-1, dim).astype(dtype), "labels": labels.reshape(-1).astype(dtype)}
    federation = ClientData.equal(fields, clients)

    def loss(x: Any, batch: Any) -> jax.Array:
        return jnp.mean((batch["inputs"] @ x - batch["labels"]) ** 2) + mu_x / 2 * jnp.sum(x**2)

    chosen = ChiSquare(rho) if penalty is None else penalty
    problem = RobustProblem(loss, jnp.zeros(dim), chosen, name="robust regression")
    hessians = 2 * np.einsum("nmd,nme->nde", inputs, inputs) / examples + mu_x * np.eye(dim)
    slopes = -2 * np.einsum("nmd,nm->nd", inputs, labels) / examples
    offsets = np.mean(labels**2, axis=1)
    solution = saddle(hessians, slopes, offsets, chosen)
    gradients = hessians @ solution.x + slopes
    info = {
        "L_xx": float(np.linalg.eigvalsh(hessians).max()),
        "L_wx": float(np.linalg.norm(gradients, 2) + np.linalg.eigvalsh(hessians).max()),
        "mu_x": float(np.linalg.eigvalsh(hessians).min()),
        "mu_w": chosen.strong_concavity(clients),
    }
    return Task(problem, federation, solution=solution, info=info)


def saddle(hessians: np.ndarray, slopes: np.ndarray, offsets: np.ndarray, penalty: Penalty, tol: float = 1e-13) -> Point:
    r"""Return the saddle of sum_i w_i (x'H_i x/2 + s_i'x + o_i) - psi(w) on the simplex, in float64.

    A semismooth Newton method on the two optimality conditions, sum_i w_i (H_i x + s_i) = 0 and
    w = prox(w, f(x), 1), started by damped primal-dual steps; the Jacobian of the prox is taken by JAX.
    """
    with jax.enable_x64(True):
        quadratics = tuple(jnp.asarray(v, jnp.float64) for v in (hessians, slopes, offsets))
        w = penalty.start(len(offsets)).astype(jnp.float64)
        for _ in range(20):
            w, x = _ascend(penalty, quadratics, w)
            z = jnp.concatenate([x, w])
            for _ in range(30):
                z, error = _newton(penalty, quadratics, z)
                if error <= tol * (1 + float(jnp.linalg.norm(z))):
                    return Point(np.asarray(z[: len(x)]), np.asarray(z[len(x) :]))
    raise InputError("The exact solution was not found: the problem may be degenerate (try another seed, or a larger rho).")


def _losses(quadratics: Any, x: Any) -> jax.Array:
    H, s, o = quadratics
    return jnp.einsum("i,nij,j->n", x, H, x) / 2 + s @ x + o


def _best_x(quadratics: Any, w: Any) -> jax.Array:
    H, s, _ = quadratics
    return jnp.linalg.solve(jnp.tensordot(w, H, 1), -w @ s)


def _step(quadratics: Any) -> Any:
    """Return a step for the weights that suits the size of the losses."""
    count = quadratics[2].shape[0]
    return 1.0 / (1e-12 + jnp.max(jnp.abs(_losses(quadratics, _best_x(quadratics, jnp.full(count, 1 / count))))))


@functools.partial(jax.jit, static_argnums=0)
def _ascend(penalty: Penalty, quadratics: Any, w: Any) -> tuple[Any, Any]:
    step = _step(quadratics) / w.shape[0]
    turn = lambda _, w: penalty.prox(w, _losses(quadratics, _best_x(quadratics, w)), step)
    w = jax.lax.fori_loop(0, 1000, turn, w)
    return w, _best_x(quadratics, w)


@functools.partial(jax.jit, static_argnums=0)
def _newton(penalty: Penalty, quadratics: Any, z: Any) -> tuple[Any, Any]:
    (H, s, _), step = quadratics, _step(quadratics)
    dim = s.shape[1]

    def residual(z: Any) -> jax.Array:
        x, w = z[:dim], z[dim:]
        stationary = jnp.tensordot(w, H, 1) @ x + w @ s
        return jnp.concatenate([stationary, w - penalty.prox(w, _losses(quadratics, x), step)])

    z = z - jnp.linalg.lstsq(jax.jacfwd(residual)(z), residual(z))[0]
    return z, jnp.linalg.norm(residual(z))
