"""The problem min_X max_Y sum_m f_m(x_m, y_m) + c/2 <X, WX> - c/2 <Y, WY>: every node its own players, near its neighbours'.

A. Beznosikov, A. Sadiev, V. Sushko and A. Gasnikov, "Decentralized personalized federated min-max problems", preprint, 2022,
problem (2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import players
from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.errors import InputError
from fedminimax.network import Network
from fedminimax.players import Point, Tree
from fedminimax.problems.base import Form, MinimaxProblem, Span
from fedminimax.sets import Set


@dataclass(frozen=True, eq=False)
class PersonalizedProblem(Form):
    r"""min_X max_Y F(X, Y) = sum_m f_m(x_m, y_m) + c/2 <X, WX> - c/2 <Y, WY>, x_m in X, y_m in Y, over the nodes of a graph.

    f_m is the mean loss over node m's examples, W the network's gossip matrix, and c the coupling: with 0 every node trains
    alone, and the larger it is, the closer neighbours' players are. There is no server: nodes hear their neighbours only.

    Args:
        loss: a JAX function ``loss(x, y, batch)``, the mean over the batch's examples.
        x0: where every node's min player starts; any pytree of floating-point arrays.
        y0: where every node's max player starts.
        coupling: c, at least 0.
        network: the :class:`Network`.
        x_set: the set of each x_m; None: unconstrained.
        y_set: the set of each y_m; None: unconstrained.
        starts: where each node starts, a row for every node; None: all at (x0, y0).
        predict: optional ``predict(x, inputs) -> scores``, used by the accuracy metrics.
        name: what to call it in tables and figures.
    """

    loss: Callable[[Tree, Tree, Tree], jax.Array]
    x0: Tree
    y0: Tree
    coupling: float
    network: Network
    x_set: Set | None = None
    y_set: Set | None = None
    starts: Point | None = None
    predict: Callable[[Tree, Tree], jax.Array] | None = None
    name: str = "personalised problem"
    own: MinimaxProblem = field(init=False, repr=False)
    """One node's part of the problem, without the coupling."""

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise InputError(f"network must be a Network such as Network.ring(10), not {type(self.network).__name__}.")
        if not (np.isfinite(self.coupling) and self.coupling >= 0):
            raise InputError(f"coupling must be a finite number that is not negative, not {self.coupling}.")
        own = MinimaxProblem(self.loss, self.x0, self.y0, x_set=self.x_set, y_set=self.y_set, name=self.name)
        for name in ("x0", "y0", "x_set", "y_set"):
            object.__setattr__(self, name, getattr(own, name))
        object.__setattr__(self, "own", own)
        if self.starts is not None:
            rows = Point(*(jax.tree.map(jnp.asarray, part) for part in self.starts))
            shapes = lambda tree, *more: jax.tree.map(lambda a: (*more, *jnp.shape(a)), tree)
            if shapes(rows) != shapes(Point(self.x0, self.y0), self.network.count):
                raise InputError(
                    f"starts must have a row like (x0, y0) for each of the {self.network.count} nodes, but its shapes are "
                    f"{shapes(rows)}."
                )
            object.__setattr__(self, "starts", rows)

    @property
    def weights(self) -> None:
        """Nodes count equally."""
        return None

    @property
    def start(self) -> Point:
        """Where every node starts, projected, [M, ...]."""
        if self.starts is not None:
            return jax.vmap(self.own.project)(self.starts)
        spread = lambda leaf: jnp.broadcast_to(leaf, (self.network.count, *jnp.shape(leaf)))
        return jax.tree.map(spread, self.own.start)

    # -- one node ------------------------------------------------------------------------------------------------------

    def value(self, x: Tree, y: Tree, batch: Tree | Span) -> jax.Array:
        """Return f_m(x, y) on a batch, or on all of a node's examples."""
        return self.own.value(x, y, batch)

    def grad(self, x: Tree, y: Tree, batch: Tree | Span) -> Point:
        """Return the gradient of f_m on a batch, or on all of a node's examples."""
        return self.own.grad(x, y, batch)

    def grad_x(self, x: Tree, y: Tree, batch: Tree | Span) -> Tree:
        """Return grad_x f_m alone."""
        return self.own.grad_x(x, y, batch)

    def grad_y(self, x: Tree, y: Tree, batch: Tree | Span) -> Tree:
        """Return grad_y f_m alone."""
        return self.own.grad_y(x, y, batch)

    def coupled(self, gradient: Point, mixed: Point) -> Point:
        """Return a node's part of grad F from its own gradient and its row of WZ: (g_x + c (WX)_m, g_y - c (WY)_m)."""
        return Point(players.add(gradient.x, mixed.x, self.coupling), players.add(gradient.y, mixed.y, -self.coupling))

    # -- all nodes -----------------------------------------------------------------------------------------------------

    def check(self, clients: ClientSource) -> None:
        """Raise an :class:`InputError` unless there is one client for each node, and the loss takes their data."""
        if clients.count != self.network.count:
            raise InputError(
                f"The network has {self.network.count} nodes, but there are data of {clients.count} clients: give one each."
            )
        self.own.check(clients)

    def shared(self, clients: ClientData) -> tuple[MinimaxProblem, ClientData]:
        """There is no shared y."""
        raise self._apart()

    def client_loss(self, z: Point) -> Callable[[Tree], jax.Array]:
        """There is no one point at which all nodes could be asked."""
        raise self._apart()

    def _apart(self) -> InputError:
        return InputError(
            f"{self.name} has players of its own on every node: measure it with metrics.Residual, Consensus, NodeAccuracy, "
            "GlobalAccuracy or Distance."
        )
