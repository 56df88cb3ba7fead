"""The problem min_x max_{w in W} sum_i w_i f_i(x) - psi(w): one model, against weights on the clients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.errors import InputError
from fedminimax.penalties import Penalty
from fedminimax.players import Point, Tree
from fedminimax.problems.base import (
    D,
    Form,
    MinimaxProblem,
    Span,
    Transform,
    by_client,
    check_loss,
    checked_start,
    on_batch,
    per_example,
)
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.sets import Set, as_set


@dataclass(frozen=True, eq=False)
class RobustProblem(Form):
    r"""min_{x in X} max_{w in W} F(x, w) = sum_i w_i f_i(x) - psi(w), where f_i is the mean loss over client i's examples.

    The max player is a weight on each client, so the model must be good for whoever has the largest loss; psi says how far
    from equal weights it may go. In most methods for this form (ScaffPD, DRFA ...) w goes to nobody: clients report losses.

    Args:
        loss: a JAX function ``loss(x, batch)``, the mean over the batch's examples.
        x0: where the model starts; any pytree of floating-point arrays.
        penalty: psi and W (see :mod:`fedminimax.penalties`).
        x_set: the set X; None: unconstrained.
        weights: the p_i of the plain average sum_i p_i f_i, which FedAvg and its kin minimise. None: equal; "size"; or one
            number per client.
        predict: optional ``predict(x, inputs) -> scores``, used by the accuracy metrics.
        name: what to call it in tables and figures.
        count: the number of clients; ``run`` fills it in.
        w0: where the weights start, one number per client, in W; None: equal weights.
    """

    loss: Callable[[Tree, Tree], jax.Array]
    x0: Tree
    penalty: Penalty
    x_set: Set | None = None
    weights: Any = None
    predict: Callable[[Tree, Tree], jax.Array] | None = None
    name: str = "robust problem"
    count: int | None = None
    w0: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.penalty, Penalty):
            raise InputError(f"penalty must be a Penalty such as ChiSquare(0.1) or Agnostic(), not {self.penalty!r}.")
        object.__setattr__(self, "x0", checked_start("x", self.x0))
        object.__setattr__(self, "x_set", as_set(self.x_set, "x_set"))
        self.x_set.check(self.x0, "x")  # type: ignore[union-attr]
        if isinstance(self.weights, str) and self.weights != "size":
            raise InputError(f"weights must be None, 'size' or one number per client, not {self.weights!r}.")
        if self.w0 is not None:
            object.__setattr__(self, "w0", np.asarray(checked_start("w", jnp.asarray(self.w0))))
            if self.count is not None:
                self._check_w0(self.count)

    def _check_w0(self, count: int) -> None:
        if self.w0.shape != (count,):
            raise InputError(f"w0 has shape {self.w0.shape}, but there are {count} clients: give one number each.")
        if not bool(self.y_set.contains(self.w0)):
            raise InputError(f"w0 is outside of the set {self.y_set!r} of {type(self.penalty).__name__}: give weights in it.")

    # -- one client's loss ---------------------------------------------------------------------------------------------

    def value(self, x: Tree, batch: Tree | Span) -> jax.Array:
        """Return f(x) on a batch, or on all of a client's examples."""
        return self._on(lambda loss: loss, x, batch)

    def grad(self, x: Tree, batch: Tree | Span) -> Tree:
        """Return grad f(x) on a batch, or on all of a client's examples."""
        return self._on(jax.grad, x, batch)

    def value_and_grad(self, x: Tree, batch: Tree | Span) -> tuple[jax.Array, Tree]:
        """Return both, for the price of the gradient."""
        return self._on(jax.value_and_grad, x, batch)

    def _on(self, transform: Transform, x: Tree, batch: Tree | Span) -> Any:
        return on_batch(self.loss, transform, (x,), batch)

    # -- the weights on clients ----------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """The number of clients N, which the weights need."""
        if self.count is None:
            raise InputError(f"{self.name} does not know its clients yet: use problem.bind(clients)[0], as run() does.")
        return self.count

    @property
    def y0(self) -> jax.Array:
        """Where the weights start."""
        equal = self.penalty.start(self.clients)
        return equal if self.w0 is None else jnp.asarray(self.w0, equal.dtype)

    @property
    def y_set(self) -> Set:
        """The set W."""
        return self.penalty.set(self.clients)

    @property
    def start(self) -> Point:
        """The point (x0, w0), with x0 projected on X."""
        return Point(self.project_x(self.x0), self.y0)

    # -- everybody -----------------------------------------------------------------------------------------------------

    def losses(self, x: Tree, clients: ClientData) -> jax.Array:
        """Return f_1(x), ..., f_N(x)."""
        return by_client(per_example(lambda batch: self.loss(x, batch), clients.fields, clients.total), clients)

    def client_loss(self, z: Point) -> Callable[[Tree], jax.Array]:
        """Return the loss at z as a function of a batch."""
        return lambda batch: self.loss(z.x, batch)

    def check(self, clients: ClientSource) -> None:
        """Raise an :class:`InputError` unless the loss can be evaluated on the clients' data."""
        self.client_weights(clients)
        check_loss(self.name, self.loss, (self.x0,), clients)

    def bind(self, clients: D) -> tuple[RobustProblem, D]:
        """Return the problem that knows how many clients there are, and the data as they are."""
        return _bound(self, clients.count), clients

    def as_minimax(self) -> MinimaxProblem | SharedForm:
        """Return the problem with w as a y that all clients share: f_i(x, w) = N w_i f_i(x) - psi(w), with equal weights.

        Every method for :class:`MinimaxProblem` then runs on it: ``run(problem.as_minimax(), clients, FessGDA(...))``.
        """
        return SharedForm(self)

    def shared(self, clients: ClientData) -> tuple[MinimaxProblem, ClientData]:
        """Return the problem with a shared y, and the data that its loss takes, for the metrics."""
        return SharedForm(self).bind(clients)


@dataclass(frozen=True, eq=False)
class SharedForm:
    """A :class:`RobustProblem` as a :class:`MinimaxProblem`, made when the clients are known. See ``as_minimax``."""

    robust: RobustProblem

    def bind(self, clients: D) -> tuple[MinimaxProblem, D]:
        """Return the minimax problem, and the clients' data with the client's number as one more field."""
        return _shared(self.robust, clients.count), clients.numbered()


Problem = MinimaxProblem | RobustProblem | PersonalizedProblem
"""What engines run: a problem of any of the three forms, bound to its clients."""


@functools.lru_cache(maxsize=64)  # one object each, so that programs compiled for it are found again
def _bound(problem: RobustProblem, count: int) -> RobustProblem:
    return problem if problem.count == count else problem.replace(count=count)


@functools.lru_cache(maxsize=64)
def _shared(problem: RobustProblem, count: int) -> MinimaxProblem:
    penalty = problem.penalty

    def loss(x: Tree, w: jax.Array, batch: Any) -> jax.Array:
        # A batch is one client's, so its first example tells whose.
        return count * w[batch[ClientData.NUMBER][0]] * problem.loss(x, _unnumbered(batch)) - penalty.value(w)

    def best_response(x: Tree, clients: ClientData, weights: Any) -> jax.Array:
        own = lambda batch: problem.loss(x, _unnumbered(batch))
        return penalty.maximize(by_client(per_example(own, clients.fields, clients.total), clients))

    return MinimaxProblem(
        loss,
        problem.x0,
        _bound(problem, count).y0,
        x_set=problem.x_set,
        y_set=penalty.set(count),
        best_response=best_response,
        predict=problem.predict,
        name=problem.name,
    )


def _unnumbered(batch: Any) -> Tree:
    rest = {k: v for k, v in batch.items() if k != ClientData.NUMBER}
    return rest[ClientData.REST] if list(rest) == [ClientData.REST] else rest
