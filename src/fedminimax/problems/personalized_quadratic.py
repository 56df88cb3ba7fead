"""Quadratics on the nodes of a graph, whose solution is one linear system: what decentralised methods are tested against."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.network import Network
from fedminimax.players import Point
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.problems.quadratic import client_means, quadratic
from fedminimax.problems.task import Task


def personalized_quadratic(
    network: Network, coupling: float = 1.0, dim_x: int = 4, dim_y: int = 3, *, seed: int = 0, **options: Any
) -> Task[PersonalizedProblem]:
    r"""Heterogeneous quadratics, one on each node, with the exact solution of the coupled problem.

    .. math:: \min_X \max_Y \sum_m f_m(x_m, y_m) + \tfrac c2 \langle X, WX \rangle - \tfrac c2 \langle Y, WY \rangle,\quad
              f_m = \tfrac12 x'A_m x + x'B_m y - \tfrac12 y'C_m y + a_m'x + b_m'y

    Args:
        network: the graph.
        coupling: c.
        dim_x: the dimension of each x_m.
        dim_y: the dimension of each y_m.
        seed: of the random matrices.
        options: passed to :func:`quadratic`: heterogeneity, curvature, examples, noise.
    """
    task = quadratic(network.count, dim_x, dim_y, seed=seed, **options)
    own = task.problem
    problem = PersonalizedProblem(own.loss, own.x0, own.y0, coupling, network, name="personalised quadratics")
    return Task(problem, task.clients, solution=solution(task.clients, network, coupling), info=constants(task.clients))


def ill_conditioned(network: Network, coupling: float = 1.0, L: float = 200.0, *, seed: int = 0) -> Task[PersonalizedProblem]:
    """Quadratics whose curvatures go from mu = 1 to L, with hardly any interaction.

    Here the exchanges that methods need are those of the theory, which has no credit for interaction.

    Args:
        network: the graph.
        coupling: c.
        L: the largest curvature.
        seed: of the random linear terms and interactions.
    """
    rng = np.random.default_rng(seed)
    linear = lambda *shape: rng.normal(size=(1, *shape))
    A, C = np.diag([1.0, L / 20, L / 4, L])[None], np.diag([1.0, L / 10, L])[None]
    data = [{"A": A, "B": 0.1 * linear(4, 3), "C": C, "a": linear(4), "b": linear(3)} for _ in range(network.count)]
    clients = ClientData.from_list(data)
    own = quadratic(1).problem
    problem = PersonalizedProblem(own.loss, own.x0, own.y0, coupling, network, name="ill-conditioned quadratics")
    return Task(problem, clients, solution=solution(clients, network, coupling), info={"L": L, "mu": 1.0})


def solution(clients: ClientData, network: Network, coupling: float) -> Point:
    """Return all x_m and y_m, [M, ...], by one linear solve in float64."""
    m, W = client_means(clients), network.matrix.toarray()
    count, dx, dy = network.count, m["a"].shape[1], m["b"].shape[1]
    system = np.zeros((count, dx + dy, count, dx + dy))
    for k in range(count):
        system[k, :dx, k, :dx], system[k, :dx, k, dx:] = m["A"][k], m["B"][k]
        system[k, dx:, k, :dx], system[k, dx:, k, dx:] = m["B"][k].T, -m["C"][k]
    pull = np.concatenate([np.full(dx, coupling), np.full(dy, -coupling)])
    system += np.einsum("mn,d,de->mdne", W, pull, np.eye(dx + dy))
    right = -np.concatenate([m["a"], m["b"]], axis=1)
    z = np.linalg.solve(system.reshape(count * (dx + dy), -1), right.reshape(-1)).reshape(count, dx + dy)
    return Point(z[:, :dx], z[:, dx:])


def constants(clients: ClientData) -> dict[str, float]:
    """Return L, the largest Lipschitz constant of the nodes' gradients, and mu, their least strong monotonicity."""
    m = client_means(clients)
    jacobian = [np.block([[A, B], [-B.T, C]]) for A, B, C in zip(m["A"], m["B"], m["C"], strict=True)]
    least = [min(np.linalg.eigvalsh(A)[0], np.linalg.eigvalsh(C)[0]) for A, C in zip(m["A"], m["C"], strict=True)]
    return {"L": float(max(np.linalg.norm(J, 2) for J in jacobian)), "mu": float(min(least))}
