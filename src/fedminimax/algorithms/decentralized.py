"""Methods without a server: what they share, and the two references that a user would ask for.

Purely local training, and the extragradient method on the whole objective (G. M. Korpelevich, "The extragradient method for
finding saddle points and other problems", 1976), with which section 3.1 of A. Beznosikov, A. Sadiev, V. Sushko and A. Gasnikov,
"Decentralized personalized federated min-max problems", preprint, 2022, begins.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from fedminimax import players
from fedminimax.algorithms.base import Algorithm, S, algorithm, static
from fedminimax.algorithms.local import descent_ascent
from fedminimax.algorithms.settings import WithBatches, WithSteps
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.federation.nodes import Nodes, Rows
from fedminimax.players import Point, Tree
from fedminimax.problems.forms import Constrained, NodeProblem
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.schedules import Scalar


class Decentralized(Algorithm[PersonalizedProblem, S]):
    """A method whose state is rows, one on every node, and whose round is work on nodes and exchanges between neighbours."""

    solves: ClassVar[type] = PersonalizedProblem

    def init(self, problem: PersonalizedProblem) -> Tree:
        """Return every node's start."""
        return problem.start

    @abstractmethod
    def step(self, problem: PersonalizedProblem, state: Rows, nodes: Nodes) -> Rows:
        """Return the state after one round, a row on every node."""

    def round(self, problem: PersonalizedProblem, state: S, clients: Clients) -> S:
        """Carry out one round on the nodes."""
        nodes = Nodes(clients, problem.network)
        return nodes.result(self.step(problem, Rows(state), nodes))


def at_least_one(what: str, value: Scalar) -> None:
    """Raise an :class:`InputError` for a number below 1."""
    if isinstance(value, float) and value < 1:
        raise InputError(f"{what} must be at least 1, but is {value}: its inverse is how far a node goes to the average.")


def scale_of(problem: NodeProblem) -> float:
    """Return lambda_max(W), by which section 3.4's averaging is scaled; 1 where there is nobody to average with."""
    return problem.network.lambda_max or 1.0


def extragradient(problem: Constrained, z: Point, slope: Callable[[Point], Point], lr_x: Scalar, lr_y: Scalar) -> Point:
    """Return P(z - lr slope(P(z - lr slope(z)))): one extragradient step on one node."""
    ahead = descent_ascent(problem, z, slope(z), lr_x, lr_y)
    return descent_ascent(problem, z, slope(ahead), lr_x, lr_y)


@algorithm
class LocalTraining(WithSteps, Decentralized[Point]):
    r"""Every node alone: extragradient steps on its own f_m, as if the coupling were zero. Nothing is ever sent.

    .. math:: z' = P(z - \eta g_m(z; B)),\quad z \leftarrow P(z - \eta g_m(z'; B))

    Args:
        lr_x: eta for x.
        lr_y: eta for y.
        local_steps: steps a round.
        batch_size: examples a step; None: all of the node's.
    """

    lr_x: Scalar
    lr_y: Scalar
    local_steps: int = static(default=1, kw_only=True)

    def step(self, problem: PersonalizedProblem, state: Rows, nodes: Nodes) -> Rows:
        """Let every node take its steps."""
        return nodes.map(self.train, state)

    def train(self, problem: NodeProblem, node: Client, z: Point) -> Point:
        """Return where the node's own steps lead."""

        def once(z: Point) -> Point:
            batch = node.batch(self.batch_size)
            return extragradient(problem, z, lambda u: problem.grad(u.x, u.y, batch), self.lr_x, self.lr_y)

        return node.repeat(node.steps(self.local_steps, self.batch_size), once, z)


@algorithm
class DecentralizedExtraGradient(WithBatches, Decentralized[Point]):
    r"""The extragradient method on the whole of F: every step communicates, twice.

    .. math:: Z' = P(Z - \eta [g(Z) + c\,(WX, -WY)]),\quad Z \leftarrow P(Z - \eta [g(Z') + c\,(WX', -WY')])

    Args:
        lr_x: eta for x; below 1 / (L + c lambda_max).
        lr_y: eta for y.
        strength: what the problem's coupling c is multiplied by, so that it can be swept like a step size.
        batch_size: examples of each of a step's two gradients, drawn anew; None: all of the node's.
    """

    lr_x: Scalar
    lr_y: Scalar
    strength: Scalar = 1.0

    @classmethod
    def from_theory(cls, problem: PersonalizedProblem, L: float, **fields: Any) -> DecentralizedExtraGradient:
        """Return the step 1 / (2 (L + c lambda_max)) for L-smooth f_m."""
        lr = 1.0 / (2.0 * (L + problem.coupling * problem.network.lambda_max))
        return cls(lr, lr, **fields)

    def step(self, problem: PersonalizedProblem, state: Rows, nodes: Nodes) -> Rows:
        """Look ahead, then step from where we were."""
        ahead = nodes.map(self.look_ahead, state, nodes.mix(state))
        return nodes.map(self.move, state, ahead, nodes.mix(ahead))

    def look_ahead(self, problem: NodeProblem, node: Client, z: Point, mixed: Point) -> Point:
        """Return Z' = P(z - eta grad F(z)), the node's part of it."""
        node.looks_ahead()
        return self.move(problem, node, z, z, mixed)

    def move(self, problem: NodeProblem, node: Client, z: Point, at: Point, mixed: Point) -> Point:
        """Return P(z - eta grad F(at)), the node's part of it."""
        gradient = problem.grad(at.x, at.y, node.batch(self.batch_size))
        pull = players.scale(mixed, self.strength)
        return descent_ascent(problem, z, problem.coupled(gradient, pull), self.lr_x, self.lr_y)
