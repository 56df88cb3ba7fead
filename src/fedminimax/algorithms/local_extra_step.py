"""The randomised local extra step method, and its form for networks.

A. Beznosikov, A. Sadiev, V. Sushko and A. Gasnikov, "Decentralized personalized federated min-max problems", preprint, 2022,
Algorithm 2 and section 3.4.
"""

from __future__ import annotations

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
from fedminimax.players import Point, Tree
from fedminimax.problems.forms import NodeProblem
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.schedules import Scalar

RANDOM, PERIODIC = "random", "periodic"


@state
class ExtraStepState(NamedTuple):
    """The players, the anchor U, grad f(U) and W U, which hold until U moves, and whether those have ever been made."""

    x: Tree
    y: Tree
    anchor: Point
    slope: Point
    mixed: Point
    begun: jax.Array


@algorithm
class LocalExtraStep(WithBatches, Decentralized[ExtraStepState]):
    r"""Extra steps that are local but for one in 1/p, with an anchor U that moves as often.

    .. math:: \bar Z = (1-p) Z + p U,\quad Z' = P(\bar Z - \gamma\, \nabla F(U)),\quad
              Z \leftarrow P(\bar Z - \gamma\,[G(Z') - G(U) + \nabla F(U)])

    where a coin makes G either the local part, :math:`\nabla f / (1-p)` (probability 1 - p), or the coupling, :math:`c\,W / p`.
    A second coin of the same kind moves U to the new Z, with probability p. All nodes toss the same coins, from the seed that
    they share.

    With ``batch_size`` a local step takes :math:`\nabla f(Z') - \nabla f(U)` on one minibatch, the same at both points, and the
    gradient at U stays that of all examples. It is the method of A. Alacaoglu and Y. Malitsky ("Stochastic variance reduction
    for variational inequality methods", COLT 2022), on which the paper builds, with the examples as further terms: the noise
    vanishes as Z and U meet, and the limit is the exact solution. L is then that of the root mean square over examples.

    Args:
        gamma: the step size.
        p: the probability of an exchange.
        coins: "random"; "periodic", every (1/p)-th step for either coin; or two sequences of 0 and 1 (1: local; 1: U stays),
            repeated from their beginning when they end.
        batch_size: examples of a local step; None: all of the node's.
    """

    gamma: Scalar
    p: Scalar
    coins: str | tuple[tuple[int, ...], tuple[int, ...]] = static(default=RANDOM)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.p, float) and not 0 < self.p < 1:
            raise InputError(f"LocalExtraStep needs 0 < p < 1, not {self.p}.")
        if isinstance(self.coins, str):
            if self.coins not in (RANDOM, PERIODIC):
                raise InputError(f"coins must be 'random', 'periodic' or two sequences of 0 and 1, not {self.coins!r}.")
            return
        given = tuple(tuple(int(c) for c in sequence) for sequence in self.coins)
        if len(given) != 2 or not all(given) or {c for sequence in given for c in sequence} - {0, 1}:
            raise InputError("coins must be 'random', 'periodic' or two sequences of 0 and 1 that are not empty.")
        object.__setattr__(self, "coins", given)

    @classmethod
    def from_theory(cls, problem: PersonalizedProblem, L: float, **fields: Any) -> LocalExtraStep:
        """Return Table 2's gamma = sqrt(q) / (2 (q + L)^(3/2)) and p = q / (q + L), where q = c lambda_max."""
        pull = problem.coupling * problem.network.lambda_max
        if pull <= 0:
            raise InputError("Without coupling there is nothing to exchange: use LocalTraining.")
        return cls(pull**0.5 / (2.0 * (pull + L) ** 1.5), pull / (pull + L), **fields)

    def init(self, problem: PersonalizedProblem) -> ExtraStepState:
        """Return U = Z = start; its gradients are made in the first round."""
        z = problem.start
        zero = players.zeros_like(z)
        return ExtraStepState(z.x, z.y, z, zero, zero, begun=jnp.zeros(problem.network.count, bool))

    def step(self, problem: PersonalizedProblem, state: Rows, nodes: Nodes) -> Rows:
        """Toss two coins, and exchange only where they say so."""
        stay_local, keep = self._toss(nodes)
        first = ~nodes.alike(state, lambda state: state.begun)
        state = nodes.map(self.remember, state, nodes.mix(nodes.map(self.point, state), when=first), shared=(first,))
        half = nodes.map(self.look_ahead, state)
        moved = nodes.map(self.move, state, half, nodes.mix(half, when=~stay_local), shared=(stay_local,))
        mixed = nodes.mix(nodes.map(self.point, moved), when=~keep)
        return nodes.map(self.remember, moved, mixed, shared=(~keep,))

    def _toss(self, nodes: Nodes) -> tuple[jax.Array, jax.Array]:
        if self.coins == RANDOM:
            tossed = nodes.draw("coins", lambda key: jax.random.uniform(key, (2,)) >= self.p)
            return tossed[0], tossed[1]
        if self.coins == PERIODIC:
            period = jnp.maximum(1, jnp.round(1.0 / jnp.asarray(self.p))).astype(jnp.int32)
            local = (nodes.round + 1) % period != 0
            return local, local
        first, second = (jnp.asarray(c, bool)[nodes.round % len(c)] for c in self.coins)
        return first, second

    def point(self, problem: NodeProblem, node: Client, state: ExtraStepState) -> Point:
        """Return the node's players."""
        return Point(state.x, state.y)

    def remember(
        self, problem: NodeProblem, node: Client, moves: jax.Array, state: ExtraStepState, mixed: Point
    ) -> ExtraStepState:
        """Move the anchor to the players where the coin says so, with its gradient and its mix."""
        z = Point(state.x, state.y)
        slope = node.repeat(moves.astype(jnp.int32), lambda _: problem.grad(z.x, z.y, node.full), state.slope)
        anchor, mixed = players.select(moves, (z, mixed), (state.anchor, state.mixed))
        return state._replace(anchor=anchor, slope=slope, mixed=mixed, begun=jnp.ones((), bool))

    def look_ahead(self, problem: NodeProblem, node: Client, state: ExtraStepState) -> Point:
        """Return Z' = P(Z-bar - gamma grad F(U))."""
        return descent_ascent(problem, self._between(state), problem.coupled(state.slope, state.mixed), self.gamma, self.gamma)

    def move(
        self, problem: NodeProblem, node: Client, stay_local: jax.Array, state: ExtraStepState, half: Point, mixed: Point
    ) -> ExtraStepState:
        """Return the state with the new players, by a local step or by one along the coupling."""

        def along(_: Point) -> Point:
            if self.batch_size is None:
                return players.sub(problem.grad(half.x, half.y, node.full), state.slope)
            batch = node.batch(self.batch_size)
            return players.sub(problem.grad(half.x, half.y, batch), problem.grad(*state.anchor, batch))

        # G(Z') - G(U): where the step is local the mix drops out, and where it is not the gradients do
        local = node.repeat(stay_local.astype(jnp.int32), along, players.zeros_like(state.slope))
        local = players.scale(local, 1.0 / (1.0 - self.p))
        change = players.select(
            stay_local, players.zeros_like(mixed), players.scale(players.sub(mixed, state.mixed), 1.0 / self.p)
        )
        direction = problem.coupled(players.add(state.slope, local), players.add(state.mixed, change))
        new = descent_ascent(problem, self._between(state), direction, self.gamma, self.gamma)
        return state._replace(x=new.x, y=new.y)

    def _between(self, state: ExtraStepState) -> Point:
        z = Point(state.x, state.y)
        return players.add(z, players.sub(state.anchor, z), self.p)


@algorithm
class LocalNN(WithSteps, Decentralized[Point]):
    r"""The local method for networks (section 3.4): T local steps, then one averaging.

    .. math:: z \leftarrow P(z - \tfrac{\eta}{r} g_m(z; B))\ \ (T\ \text{times}),\quad
              z \leftarrow P(z - \tfrac{1}{r \lambda_{\max}} W z)

    The paper has lambda_max(W) = 1, the case with a server: on the complete graph with W = I - 11'/M the last step is the mean
    with the average, weighted 1/r. With another W it is a weighted mean of neighbours for r of at least 1. The coupling that it
    aims at is 1 / (eta T lambda_max): set T = 1 / (eta c lambda_max).

    Args:
        lr_x: eta for x.
        lr_y: eta for y.
        r: at least 1.
        momentum: rho of the buffers of the local steps, from zero each round; None: none.
        local_steps: T.
        batch_size: examples a step; None: all of the node's.
    """

    lr_x: Scalar
    lr_y: Scalar
    r: Scalar = 2.0
    momentum: Scalar | None = None
    local_steps: int = static(default=40, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("LocalNN.r", self.r)

    def step(self, problem: PersonalizedProblem, state: Rows, nodes: Nodes) -> Rows:
        """Train, then average with the neighbours."""
        trained = nodes.map(self.train, state)
        return nodes.map(self.average, trained, nodes.mix(trained))

    def train(self, problem: NodeProblem, node: Client, z: Point) -> Point:
        """Return where T local steps lead."""
        lr_x, lr_y = self.lr_x / self.r, self.lr_y / self.r
        return solver_of(self.momentum).run(problem, node, z, lr_x, lr_y, self.local_steps, self.batch_size)

    def average(self, problem: NodeProblem, node: Client, z: Point, mixed: Point) -> Point:
        """Return z - Wz / (r lambda_max), projected."""
        return problem.project(players.add(z, mixed, -1.0 / self.r / scale_of(problem)))
