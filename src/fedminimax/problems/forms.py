"""The problems' forms as types: all that may be run, and what the program of one client may ask of its problem.

An algorithm's ``round`` has the problem itself. The programs that it maps over a cohort have the same problem as one client
evaluates it, and that is less: nobody else's data, and no weights on anybody.
"""

from __future__ import annotations

from typing import Protocol

import jax

from fedminimax.network import Network
from fedminimax.players import Point, Tree
from fedminimax.problems.base import Span
from fedminimax.problems.robust import Problem, SharedForm

AnyProblem = Problem | SharedForm
"""What users hand to a run."""


class Constrained(Protocol):
    """Whatever knows the sets X and Y."""

    def project(self, z: Point) -> Point:
        """Return the Euclidean projection on X x Y."""
        ...


class ClientProblem(Constrained, Protocol):
    """f_i(x, y), as the program of client i sees it."""

    @property
    def x0(self) -> Tree:
        """Where the min player starts."""
        ...

    @property
    def y0(self) -> Tree:
        """Where the max player starts."""
        ...

    def project_x(self, x: Tree) -> Tree:
        """Return the Euclidean projection on X."""
        ...

    def project_y(self, y: Tree) -> Tree:
        """Return the Euclidean projection on Y."""
        ...

    def value(self, x: Tree, y: Tree, batch: Tree | Span) -> jax.Array:
        """Return f_i(x, y) on a batch, or on all of the client's examples."""
        ...

    def grad(self, x: Tree, y: Tree, batch: Tree | Span) -> Point:
        """Return (grad_x f_i, grad_y f_i)."""
        ...

    def grad_x(self, x: Tree, y: Tree, batch: Tree | Span) -> Tree:
        """Return grad_x f_i alone."""
        ...

    def grad_y(self, x: Tree, y: Tree, batch: Tree | Span) -> Tree:
        """Return grad_y f_i alone."""
        ...


class NodeProblem(ClientProblem, Protocol):
    """f_m(x_m, y_m) and the coupling to its neighbours, as the program of node m sees them."""

    @property
    def coupling(self) -> float:
        """The strength c of the coupling."""
        ...

    @property
    def network(self) -> Network:
        """The graph."""
        ...

    def coupled(self, gradient: Point, mixed: Point) -> Point:
        """Return the node's part of grad F from its own gradient and its row of WZ."""
        ...


class RobustClientProblem(Protocol):
    """f_i(x), as the program of client i sees it: the weights on clients are the server's."""

    @property
    def x0(self) -> Tree:
        """Where the model starts."""
        ...

    def project_x(self, x: Tree) -> Tree:
        """Return the Euclidean projection on X."""
        ...

    def value(self, x: Tree, batch: Tree | Span) -> jax.Array:
        """Return f_i(x) on a batch, or on all of the client's examples."""
        ...

    def grad(self, x: Tree, batch: Tree | Span) -> Tree:
        """Return grad f_i(x)."""
        ...

    def value_and_grad(self, x: Tree, batch: Tree | Span) -> tuple[jax.Array, Tree]:
        """Return both, for the price of the gradient."""
        ...
