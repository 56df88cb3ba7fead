"""Sliding, and its form for networks.

A. Beznosikov, A. Sadiev, V. Sushko and A. Gasnikov, "Decentralized personalized federated min-max problems", preprint, 2022,
Algorithm 1 and section 3.4.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm, state, static
from fedminimax.algorithms.decentralized import Decentralized, at_least_one, scale_of
from fedminimax.algorithms.local import descent_ascent
from fedminimax.algorithms.settings import WithBatches, WithSteps
from fedminimax.algorithms.solvers import solver_of
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.nodes import Nodes, Rows
from fedminimax.players import Count, Point, Tree
from fedminimax.problems.forms import NodeProblem
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.schedules import Scalar


@state
class TrainedState(NamedTuple):
    """What nodes show, the trained models u or the mean of the rounds, and the iterate z that the next round starts from."""

    x: Tree
    y: Tree
    z: Point


@algorithm
class Sliding(WithBatches, Decentralized[Point | TrainedState]):
    r"""Sliding for decentralised minimax problems: a local subproblem between two exchanges.

    .. math:: V = Z - \gamma c\,W Z,\quad
              U \approx \arg\min_{U_x \in X} \max_{U_y \in Y}
              \gamma f(U) + \tfrac12 \|U_x - V_x\|^2 - \tfrac12 \|U_y - V_y\|^2

    .. math:: Z \leftarrow P(U + \gamma c\,(W Z - W U))

    The subproblem is that on the sets: (3) prints none, but the proofs of Lemmas 1 and 3 use its optimality conditions, and
    without them the limit is wrong as soon as a set binds. A node solves its part of it by extragradient steps of size
    :math:`\eta` from its z until the residual :math:`r = \|u - P(u - \eta G(u))\| / \eta` is at most ``inner_tol``, or for
    ``inner_steps`` steps. G is the subproblem's gradient, with strong monotonicity 1 and Lipschitz constant 1 + gamma L, so
    that :math:`\|u - \hat u\| \le (1 + \eta\,(1 + \gamma L))\, r`, and without sets :math:`r = \|G(u)\|`. Two exchanges a
    round, whatever f.

    Args:
        gamma: the step size.
        inner_lr: eta, of the extragradient steps on the subproblem; below 1 / (1 + gamma L).
        inner_tol: when a node's subproblem is solved; 0: never, all steps are taken.
        inner_steps: the most steps of a round.
        average: whether the result is the mean of all rounds' U, which is what converges where f is convex-concave but not
            strongly (Theorem 4), and not the last Z (which is kept beside it).
        batch_size: examples a step; None: all of the node's. With minibatches leave ``inner_tol`` at 0.
    """

    gamma: Scalar
    inner_lr: Scalar
    inner_tol: Scalar = 0.0
    average: bool = static(default=False)
    inner_steps: int = static(default=100)

    @classmethod
    def from_theory(
        cls,
        problem: PersonalizedProblem,
        L: float,
        mu: float = 0.0,
        *,
        epsilon: float | None = None,
        diameter: float | None = None,
        **fields: Any,
    ) -> Sliding:
        r"""Return the steps for L-smooth f_m that are mu-strongly convex-concave (0: convex-concave).

        With q = c lambda_max, gamma is that of the proofs: min(1 / (4 q), 1 / (12 mu)) by (13), where Table 1 prints twice as
        much, or 1 / (2 q) by (18) where mu = 0. The inner steps are of size 1 / (2 (1 + gamma L)). They are
        T = 2 (1 + gamma L) log(1 / delta), Table 1's number with the constant of this step size, for the relative precision

        .. math:: \delta = \min\{\tfrac14, (64 / \gamma\mu + 64 \gamma L^2 / \mu)^{-1}\},\quad\text{or}\quad
                  \delta = \min\{\tfrac14, \tfrac1{16 (1 + \gamma^2 L^2)},
                  \tfrac{\varepsilon^2 \gamma^2}{(1 + \gamma L)^2 \Omega^2}\}\ \text{where}\ \mu = 0

        of Table 1 (Lemma 2: the error is at most :math:`\sqrt\delta` times the distance from Z to the subproblem's solution).
        The convex-concave case is about the average of the rounds: ask for ``average=True``.

        Args:
            problem: the problem.
            L: the Lipschitz constant of the nodes' gradients.
            mu: their strong monotonicity.
            epsilon: where mu = 0, the gap that is asked for; None: T without its term.
            diameter: where mu = 0, Omega, that of X x Y; None: that of the problem's sets.
            fields: other fields; with ``inner_steps`` or ``inner_tol`` Table 1's T is not used.
        """
        pull = problem.coupling * problem.network.lambda_max
        bounds = ((4.0, pull), (12.0, mu)) if mu > 0 else ((2.0, pull),)
        gamma = min([1.0 / (k * bound) for k, bound in bounds if bound > 0], default=1.0 / L)
        smooth = 1.0 + gamma * L
        if mu > 0:
            delta = min(0.25, 1.0 / (64.0 / (gamma * mu) + 64.0 * gamma * L**2 / mu))
        else:
            delta = min(0.25, 1.0 / (16.0 * (1.0 + (gamma * L) ** 2)))
            if epsilon is not None:
                omega = _diameter(problem) if diameter is None else diameter
                delta = min(delta, (epsilon * gamma / (smooth * omega)) ** 2)
        if not {"inner_steps", "inner_tol"} & fields.keys():
            fields["inner_steps"] = math.ceil(2.0 * smooth * math.log(1.0 / delta))
        return cls(gamma, 1.0 / (2.0 * smooth), **fields)

    def init(self, problem: PersonalizedProblem) -> Point | TrainedState:
        """Return every node's start."""
        z = problem.start
        return TrainedState(z.x, z.y, z) if self.average else z

    def step(self, problem: PersonalizedProblem, state: Rows, nodes: Nodes) -> Rows:
        """Exchange, solve the subproblems, exchange again."""
        z = nodes.map(self.iterate, state) if self.average else state
        mixed = nodes.mix(z)
        inner = nodes.map(self.solve, z, mixed)
        new = nodes.map(self.correct, inner, mixed, nodes.mix(inner))
        return nodes.map(self.include, state, inner, new, shared=(nodes.round,)) if self.average else new

    def iterate(self, problem: NodeProblem, node: Client, state: TrainedState) -> Point:
        """Return the node's z."""
        return state.z

    def include(
        self, problem: NodeProblem, node: Client, round_: Count, state: TrainedState, inner: Point, z: Point
    ) -> TrainedState:
        """Return the mean of all rounds' U up to this one, beside z."""
        mean = Point(state.x, state.y)
        mean = players.add(mean, players.sub(inner, mean), 1.0 / (jnp.asarray(round_) + 1.0))
        return TrainedState(mean.x, mean.y, z)

    def solve(self, problem: NodeProblem, node: Client, z: Point, mixed: Point) -> Point:
        """Return the node's solution of the subproblem."""
        center = players.add(z, mixed, -self.gamma * problem.coupling)

        def slope(u: Point, batch: Tree) -> Point:
            # in the convention of descent and ascent: d_x goes down, d_y goes up
            g = players.scale(problem.grad(u.x, u.y, batch), self.gamma)
            away = players.sub(u, center)
            return Point(players.add(g.x, away.x), players.add(g.y, away.y, -1.0))

        def once(u: Point, residual: jax.Array) -> tuple[Point, jax.Array]:
            batch = node.batch(self.batch_size)
            ahead = descent_ascent(problem, u, slope(u, batch), self.inner_lr, self.inner_lr)
            end = descent_ascent(problem, u, slope(ahead, batch), self.inner_lr, self.inner_lr)
            return end, players.norm(players.sub(u, ahead))

        infinite = jnp.full((), jnp.inf, jnp.result_type(*jax.tree.leaves(z)))
        # The residual is that of the point before: once it is small enough, the step after it was one more than needed.
        unsolved = lambda _, moved: moved > self.inner_tol * self.inner_lr
        end, _ = node.repeat_while(unsolved, self.inner_steps, once, z, infinite)
        return end

    def correct(self, problem: NodeProblem, node: Client, inner: Point, mixed: Point, mixed_inner: Point) -> Point:
        """Return P(U + gamma c (WZ - WU))."""
        return problem.project(players.add(inner, players.sub(mixed, mixed_inner), self.gamma * problem.coupling))


def _diameter(problem: PersonalizedProblem) -> float:
    """Return the diameter of X x Y."""
    sides = ((problem.x_set, problem.x0), (problem.y_set, problem.y0))
    whole = math.hypot(*(math.inf if part is None else float(part.diameter(like)) for part, like in sides))
    if not math.isfinite(whole):
        raise InputError("Without bounded sets the gap has no bound: give from_theory a diameter, or leave epsilon out.")
    return whole


@algorithm
class SlidingNN(WithSteps, Decentralized[Point | TrainedState]):
    r"""Sliding for networks (section 3.4): T plain local steps take the place of the inner solver.

    .. math:: v = z - \tfrac{1}{\theta \lambda_{\max}} W z,\quad
              u \leftarrow P(u - \eta\,[g_m(u; B) + \theta c \lambda_{\max}\,(u - v)])\ \ (T\ \text{times, from}\ v),\quad
              z \leftarrow P(u + s\,(W z - W u))

    It is :class:`Sliding` with gamma = 1 / (theta c lambda_max). The paper has lambda_max(W) = 1, the case with a server; with
    another W theta keeps its meaning: v is a weighted mean of neighbours' z for theta of at least 1. s is
    1 / (theta^2 lambda_max), as the paper prints it, or 1 / (theta lambda_max), as gamma gives it (``printed=False``): for
    theta > 1 both have the same limit. With theta = 1 (on the complete graph) the z agree for ever, and the personal models are
    the u: ask for them with ``personal="u"``.

    Args:
        lr_x: eta for x.
        lr_y: eta for y.
        theta: how little nodes trust the average; at least 1.
        momentum: rho of the buffers of the local steps, from zero each round; None: none.
        printed: whether s = 1 / (theta^2 lambda_max).
        personal: which of the points are the nodes' models, x and y of the result: "z", or "u" (and z is kept beside them).
        local_steps: T.
        batch_size: examples a step; None: all of the node's.
    """

    lr_x: Scalar
    lr_y: Scalar
    theta: Scalar = 2.0
    momentum: Scalar | None = None
    printed: bool = static(default=True)
    personal: str = static(default="z")
    local_steps: int = static(default=40, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("SlidingNN.theta", self.theta)
        if self.personal not in ("z", "u"):
            raise InputError(f"SlidingNN.personal must be 'z' or 'u', not {self.personal!r}.")

    def init(self, problem: PersonalizedProblem) -> Point | TrainedState:
        """Return every node's start."""
        z = problem.start
        return z if self.personal == "z" else TrainedState(z.x, z.y, z)

    def step(self, problem: PersonalizedProblem, state: Rows, nodes: Nodes) -> Rows:
        """Exchange, train, exchange again."""
        z = state if self.personal == "z" else nodes.map(self.iterate, state)
        mixed = nodes.mix(z)
        trained = nodes.map(self.train, z, mixed)
        return nodes.map(self.correct, trained, mixed, nodes.mix(trained))

    def iterate(self, problem: NodeProblem, node: Client, state: TrainedState) -> Point:
        """Return the node's z."""
        return state.z

    def train(self, problem: NodeProblem, node: Client, z: Point, mixed: Point) -> Point:
        """Return where T steps on the subproblem lead."""
        center = players.add(z, mixed, -1.0 / self.theta / scale_of(problem))
        solver, pull = solver_of(self.momentum), self.theta * problem.coupling * scale_of(problem)
        return solver.run(problem, node, center, self.lr_x, self.lr_y, self.local_steps, self.batch_size, pull=pull)

    def correct(
        self, problem: NodeProblem, node: Client, trained: Point, mixed: Point, mixed_trained: Point
    ) -> Point | TrainedState:
        """Return u + s (Wz - Wu), projected; beside u where that is the personal model."""
        scale = 1.0 / self.theta**2 if self.printed else 1.0 / self.theta
        z = problem.project(players.add(trained, players.sub(mixed, mixed_trained), scale / scale_of(problem)))
        return z if self.personal == "z" else TrainedState(trained.x, trained.y, z)
