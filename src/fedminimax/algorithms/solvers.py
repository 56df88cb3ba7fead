"""What a client does with its gradients: the local solvers, and how much each gradient counts in the end.

After tau steps with step size eta, a client has moved by -eta * sum_k a_k g_k (x) and +eta * sum_k a_k g_k (y), where g_k is
the gradient of step k. The vector a = (a_0, ..., a_{tau-1}) is the solver's; its l1 norm is what Fed-Norm-SGDA divides by
(P. Sharma, R. Panda and G. Joshi, "Federated minimax optimization with client heterogeneity", TMLR 2023, section 4.1 and
appendix A.1).

Clients may have solvers of their own: a tuple of solvers becomes a :class:`PerClient`. A new kind of solver is a class with two
methods, :meth:`Solver.direction` and :meth:`Solver.norm`, decorated with :func:`local_solver`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar, cast, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks, players
from fedminimax.algorithms.base import Algorithm, S, static
from fedminimax.algorithms.local import descent_ascent, gradient
from fedminimax.algorithms.settings import WithCohorts, WithSteps
from fedminimax.data.clients import ClientSource
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.players import Array, Count, Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar, as_schedule, is_schedule
from fedminimax.steps import Steps

_T = TypeVar("_T")
MostSteps = int | Sequence[int] | Array
"""The most steps that a client may take: one number, or one for each client."""


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def local_solver(cls: type[_T]) -> type[_T]:
    """Make a class a local solver: a frozen dataclass and a pytree, whose numbers can be swept and scheduled."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    return jax.tree_util.register_dataclass(cls)


class Solver:
    """A local solver: :meth:`direction` of a step, :meth:`norm` of its vector a, and :meth:`init` where it has a memory.

    Each is told the client's number (inside a compiled program, so no Python ``if`` on it): a solver may serve clients in
    different ways, ``self.rates[client]``.
    """

    def init(self, z: Point, client: Count) -> Tree:
        """Return the memory at the start of a round; by default there is none."""
        return ()

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Count, client: Count) -> tuple[Point, Tree]:
        """Return what a step moves along (down in x, up in y), and the new memory.

        Args:
            memory: what :meth:`init` or the step before returned.
            g: the gradient at z.
            z: where the client is.
            start: where its round began.
            k: which step this is: 0, 1, ...
            client: the client's number.
        """
        raise NotImplementedError

    def norm(self, steps: Count, lr: Scalar, client: Count) -> jax.Array:
        """Return ||a||_1 of one client after ``steps`` steps of size ``lr``."""
        raise NotImplementedError

    def norms(self, count: int, steps: Count, lr: Scalar) -> jax.Array:
        """Return ||a_i||_1 of all ``count`` clients, [N]; ``steps`` is one number for all, or [N].

        What does not depend on the client is computed once.
        """
        clients = jnp.arange(count, dtype=jnp.int32)
        if jnp.ndim(steps) == 0:
            return jax.vmap(lambda i: self.norm(steps, lr, i))(clients)
        return jax.vmap(lambda i, tau: self.norm(tau, lr, i))(clients, steps)

    def check(self, steps: MostSteps, lrs: tuple[Scalar, ...]) -> None:
        """Raise an :class:`InputError` for what the solver cannot do; by default it can do everything.

        Args:
            steps: the most steps that a client may take: one number, or one for each client.
            lrs: the step sizes.
        """

    def run(
        self,
        problem: ClientProblem,
        client: Client,
        start: Point,
        lr_x: Scalar,
        lr_y: Scalar,
        local_steps: Steps,
        batch_size: int | None,
        *,
        x_snapshot: Tree | None = None,
        correction: Point | None = None,
        pull: Scalar | None = None,
    ) -> Point:
        """Return where a client is after its local steps from ``start``, projected after each.

        Args:
            problem: the client's problem.
            client: the client.
            start: the point that the server sent.
            lr_x: the step size of x.
            lr_y: the step size of y.
            local_steps: how many steps.
            batch_size: examples a step; None: all.
            x_snapshot: where the y-gradient is taken instead of x (the "+" methods).
            correction: added to every gradient (control variates).
            pull: the strength mu of mu/2 ||x - x_start||^2 - mu/2 ||y - y_start||^2, added to the objective.
        """

        def step(k: jax.Array, z: Point, memory: Tree) -> tuple[jax.Array, Point, Tree]:
            g = gradient(problem, z, client.batch(batch_size), x_snapshot)
            if correction is not None:
                g = players.add(g, correction)
            if pull is not None:
                g = _pulled(g, z, start, pull)
            direction, memory = self.direction(memory, g, z, start, k, client.id)
            return k + 1, descent_ascent(problem, z, direction, lr_x, lr_y), memory

        steps, memory = client.steps(local_steps, batch_size), self.init(start, client.id)
        _, end, _ = client.repeat(steps, step, jnp.asarray(0), start, memory)
        return end


def _pulled(g: Point, z: Point, start: Point, mu: Scalar) -> Point:
    """Return the gradient with that of the pull back to the start."""
    away = players.sub(z, start)
    return Point(players.add(g.x, away.x, mu), players.add(g.y, away.y, -mu))


@local_solver
class Plain(Solver):
    """Descent-ascent: a_k = 1, ||a||_1 = tau."""

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Count, client: Count) -> tuple[Point, Tree]:
        """Return the gradient."""
        return g, memory

    def norm(self, steps: Count, lr: Scalar, client: Count) -> jax.Array:
        """Return tau."""
        return jnp.asarray(steps, float)


@local_solver
class Momentum(Solver):
    """Heavy ball: d <- rho d + g, from zero each round.

    a_k = (1 - rho^(tau-k)) / (1 - rho) and ||a||_1 = [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho). The buffers are run for
    the path and a is used for aggregation only (readings: running the steps with this a is not momentum).

    Args:
        rho: 0 <= rho < 1: one number, or an array with one for each client.
    """

    rho: Scalar = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", _one_or_each("Momentum.rho", self.rho))
        if _known(self.rho) and not ((np.asarray(self.rho) >= 0) & (np.asarray(self.rho) < 1)).all():
            raise InputError(f"Momentum needs 0 <= rho < 1, not {self.rho}.")

    def init(self, z: Point, client: Count) -> Tree:
        """Return zero buffers."""
        return players.zeros_like(z)

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Count, client: Count) -> tuple[Point, Tree]:
        """Return the buffers after taking in the gradient."""
        buffers = players.add(g, memory, _own(self.rho, client))
        return buffers, buffers

    def norm(self, steps: Count, lr: Scalar, client: Count) -> jax.Array:
        """Return the closed form of appendix A.1."""
        return _momentum_norm(_own(self.rho, client), steps)

    def check(self, steps: MostSteps, lrs: tuple[Scalar, ...]) -> None:
        """Refuse an array of rho that has not one for each client."""
        _check_count("Momentum.rho", self.rho, steps)


def _momentum_norm(rho: Scalar, steps: Count) -> jax.Array:
    """Return N(tau) = s(1) + ... + s(tau), where s(j) = 1 + rho + ... + rho^(j-1).

    The closed form cancels as rho nears 1 (in float32 it is 1% off at 0.999), so N is put together from powers of two, by
    s(m + q) = s(m) + rho^m s(q) and N(m + q) = N(m) + q s(m) + rho^m N(q), in which nothing is subtracted.
    """
    tau = jnp.asarray(steps, jnp.int32)
    number = lambda v: jnp.asarray(v, float)

    def bit(b: jax.Array, so_far: Tree) -> Tree:
        (power, s, total), (m, power_m, s_m, total_m) = so_far
        taken = power * power_m, s + power * s_m, total + m * s + power * total_m
        kept = jax.tree.map(lambda new, old: jnp.where((tau >> b) & 1 == 1, new, old), taken, (power, s, total))
        return kept, (2 * m, power_m * power_m, s_m + power_m * s_m, total_m + m * s_m + power_m * total_m)

    no_steps, one_step = (number(1.0), number(0.0), number(0.0)), (number(1.0), number(rho), number(1.0), number(1.0))
    (_, _, total), _ = jax.lax.fori_loop(0, 32 - jax.lax.clz(tau), bit, (no_steps, one_step))
    return total


@local_solver
class Proximal(Solver):
    """Steps on f + mu/2 ||x - x_t||^2 - mu/2 ||y - y_t||^2: clients are pulled back to where the round began.

    a_k = (1 - eta mu)^(tau-1-k) and ||a||_1 = [1 - (1 - eta mu)^tau] / (eta mu), for eta mu <= 1.

    Args:
        mu: the strength of the pull: one number, or an array with one for each client.
    """

    mu: Scalar = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _one_or_each("Proximal.mu", self.mu))
        if _known(self.mu) and not (np.asarray(self.mu) >= 0).all():
            raise InputError(f"Proximal needs mu >= 0, not {self.mu}.")

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Count, client: Count) -> tuple[Point, Tree]:
        """Return the gradient with the pull."""
        return _pulled(g, z, start, _own(self.mu, client)), memory

    def norm(self, steps: Count, lr: Scalar, client: Count) -> jax.Array:
        """Return the geometric sum."""
        tau, rate = jnp.asarray(steps, float), jnp.asarray(lr * _own(self.mu, client), float)
        # 1 - |1 - eta mu|: where a schedule takes eta mu above 1, a has signs, and its l1 norm is still a number.
        rate = jnp.minimum(rate, 2.0 - rate)
        safe = jnp.where(rate == 0, 0.5, rate)
        return jnp.where(rate == 0, tau, -jnp.expm1(tau * jnp.log1p(-safe)) / safe)

    def check(self, steps: MostSteps, lrs: tuple[Scalar, ...]) -> None:
        """Refuse steps that overshoot the start of the round, and an array of mu that has not one for each client."""
        _check_count("Proximal.mu", self.mu, steps)
        for lr in lrs:
            if _known(lr) and _known(self.mu) and np.max(np.asarray(lr) * np.asarray(self.mu)) > 1:
                raise InputError(
                    f"Proximal has mu = {self.mu} and the step size is {lr}, but their product must be at most 1, or the pull "
                    "overshoots the start of the round: take a smaller step or a smaller mu."
                )


@local_solver
class Weighted(Solver):
    """Step k counts a_k: any non-negative weights, such as a local decay of the step size.

    Args:
        a: a_0, a_1, ...: as many as the most steps that a client takes.
    """

    a: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if isinstance(self.a, (list, np.ndarray, tuple)):
            object.__setattr__(self, "a", tuple(as_schedule(v) for v in self.a))
            for value in self.a:
                checks.not_negative("Weighted.a", value)
            if not self.a:
                raise InputError("Weighted needs at least one weight.")

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Count, client: Count) -> tuple[Point, Tree]:
        """Return a_k times the gradient; after the last weight the client stands still."""
        return players.scale(g, self._weights.at[k].get(mode="fill", fill_value=0.0)), memory

    def norm(self, steps: Count, lr: Scalar, client: Count) -> jax.Array:
        """Return a_0 + ... + a_{tau-1}."""
        return jnp.cumsum(self._weights)[jnp.minimum(jnp.asarray(steps), len(self.a)) - 1]

    def check(self, steps: MostSteps, lrs: tuple[Scalar, ...]) -> None:
        """Refuse more steps than weights, and weights that are all zero."""
        if (longest := int(np.max(steps))) > len(self.a):
            raise InputError(f"Weighted has {len(self.a)} weights, but clients take up to {longest} steps: give one each.")
        if all(_known(v) and not np.any(np.asarray(v)) for v in self.a):
            raise InputError("Weighted has no weight above zero: clients would never move.")

    @property
    def _weights(self) -> jax.Array:
        return jnp.stack([jnp.asarray(v, float) for v in self.a])


@local_solver
class PerClient(Solver):
    """A solver for each client, as Fed-Norm-SGDA allows: ``solver=(Plain(), Momentum(0.9), Momentum(0.5), ...)`` makes it.

    Solvers that differ in numbers only are one kind: a client's numbers are looked up, and its kind is a branch of the program.

    Args:
        kinds: for each kind, its solvers.
        places: for each client, its kind and which of the kind's solvers it has.
    """

    kinds: tuple[tuple[Solver, ...], ...]
    places: tuple[tuple[int, int], ...] = static()

    @classmethod
    def of(cls, solvers: Sequence[Solver]) -> PerClient:
        """Return the solvers, client i's at place i, sorted into kinds."""
        kinds: dict[Hashable, dict[int, Solver]] = {}  # a solver that serves several clients is kept once
        for solver in solvers:
            check_solver(solver)
            kinds.setdefault(_kind(solver), {})[id(solver)] = solver
        place = {one: (j, row) for j, members in enumerate(kinds.values()) for row, one in enumerate(members)}
        return cls(tuple(tuple(members.values()) for members in kinds.values()), tuple(place[id(s)] for s in solvers))

    def init(self, z: Point, client: Count) -> Tree:
        """Return a memory for every kind; a client uses its own."""
        return tuple(solver.init(z, client) for solver in self._own(client)[1])

    def direction(self, memory: Tree, g: Point, z: Point, start: Point, k: Count, client: Count) -> tuple[Point, Tree]:
        """Return what the client's own solver does."""
        kind, own = self._own(client)

        def with_kind(j: int) -> Callable[[Tree], tuple[Point, Tree]]:
            def step(memory: Tree) -> tuple[Point, Tree]:
                moved, new = own[j].direction(memory[j], g, z, start, k, client)
                return _typed(moved, g), (*memory[:j], _typed(new, memory[j]), *memory[j + 1 :])

            return step

        direction, memory = jax.lax.switch(kind, [with_kind(j) for j in range(len(own))], memory)
        return direction, memory

    def norm(self, steps: Count, lr: Scalar, client: Count) -> jax.Array:
        """Return ||a||_1 of the client's own solver."""
        kind, own = self._own(client)
        with_kind = lambda solver: lambda: jnp.asarray(solver.norm(steps, lr, client), float)
        return jax.lax.switch(kind, [with_kind(solver) for solver in own])

    def check(self, steps: MostSteps, lrs: tuple[Scalar, ...]) -> None:
        """Refuse another number of solvers than of clients, and what a client's own solver refuses."""
        count = len(self.places)
        if np.ndim(steps) == 1 and np.size(steps) != count:
            raise InputError(f"There are {count} solvers, but {np.size(steps)} clients: give one each, or one for all.")
        steps, places = np.broadcast_to(np.asarray(steps), (count,)), np.asarray(self.places)
        for j, kind in enumerate(self.kinds):
            for row, solver in enumerate(kind):
                served = (places == (j, row)).all(axis=1)
                solver.check(np.where(served, steps, 0), lrs)

    def _own(self, client: Count) -> tuple[jax.Array, list[Solver]]:
        """Return the client's kind, and of every kind a solver with the client's numbers (of another's, where it has none)."""
        kind, row = jnp.asarray(self.places, jnp.int32)[client]
        pick = lambda *numbers: jnp.stack([jnp.asarray(n) for n in numbers]).at[row].get(mode="clip")
        return kind, [jax.tree.map(pick, *solvers) for solvers in self.kinds]


def one_or_each(solver: Solver | Sequence[Solver]) -> Solver:
    """Return a solver for all clients: the one that is given, or one made of a solver for each."""
    if isinstance(solver, (tuple, list)):
        if not solver:
            raise InputError("solver is empty: give one solver for all clients, or one for each.")
        return PerClient.of(solver)
    check_solver(solver)
    return cast(Solver, solver)


def check_solver(solver: object) -> None:
    """Raise an :class:`InputError` unless this is a local solver that compiled programs can take."""
    if isinstance(solver, type) or not isinstance(solver, Solver):
        shown = f"the class {solver.__name__}" if isinstance(solver, type) else repr(solver)
        raise InputError(f"solver must be a Solver such as Momentum(0.9), or one for each client, not {shown}.")
    if jax.tree_util.all_leaves([solver]):
        raise InputError(f"{type(solver).__name__} cannot enter a compiled program: decorate the class with @fm.local_solver.")


def _kind(solver: Solver) -> Hashable:
    """Return what solvers of one kind share: all but the numbers, once schedules have become numbers."""
    numbers, structure = jax.tree.flatten(solver, is_leaf=is_schedule)
    return structure, tuple(() if is_schedule(n) else np.shape(n) for n in numbers)


def _one_or_each(name: str, value: Scalar) -> Scalar:
    """Return a hyper-parameter as a number, a schedule, or an array with a number for each client."""
    if isinstance(value, (bool, str)):
        raise InputError(f"{name} must be a number, a schedule of the round or a number for each client, not {value!r}.")
    value = np.asarray(value, float) if isinstance(value, (list, tuple, np.ndarray)) else as_schedule(value)
    if _known(value) and np.ndim(value) > 1:
        raise InputError(f"{name} has shape {np.shape(value)}: give one number, or one for each client.")
    return value


def _known(value: Scalar) -> bool:
    """Tell whether a hyper-parameter is a number, or numbers, outside of compiled programs."""
    return isinstance(value, (int, float, np.ndarray, np.generic, jax.Array)) and not isinstance(value, jax.core.Tracer)


def _own(value: Scalar, client: Count) -> Scalar:
    """Return a client's own number, where there is one for each."""
    return value if jnp.ndim(value) == 0 else jnp.asarray(value)[client]


def _check_count(name: str, value: Scalar, steps: MostSteps) -> None:
    if _known(value) and np.ndim(value) == 1 and np.ndim(steps) == 1 and len(value) != np.size(steps):
        raise InputError(f"{name} has {len(value)} numbers, but there are {np.size(steps)} clients: give one each.")


def _typed(tree: Tree, like: Tree) -> Tree:
    """Return the tree in another's dtypes: all kinds of solvers must agree on what they return."""
    return jax.tree.map(lambda a, b: jnp.asarray(a).astype(jnp.result_type(b)), tree, like)


def solver_of(momentum: Scalar | None) -> Solver:
    """Return the plain solver, or heavy-ball momentum when asked for."""
    return Plain() if momentum is None else Momentum(momentum)


class LocalUpdates(WithCohorts, WithSteps, Algorithm[MinimaxProblem, S]):
    """The client program of methods whose clients take local steps and report how far those led."""

    lr_x: Scalar
    lr_y: Scalar

    @property
    def solver(self) -> Solver:
        """The local solver."""
        return Plain()

    def check(self, clients: ClientSource, steps: Array | None = None) -> None:
        """Raise an :class:`InputError` for what these clients cannot carry out."""
        super().check(clients, steps)
        most = self.most_steps(clients, steps)
        self.solver.check(most, (self.lr_x, self.lr_y))

    def local_update(self, problem: ClientProblem, client: Client, x: Tree, y: Tree, x_snapshot: Tree | None = None) -> Point:
        """Return how far the client's local steps lead from (x, y)."""
        start = Point(x, y)
        end = self.solver.run(
            problem, client, start, self.lr_x, self.lr_y, self.local_steps, self.batch_size, x_snapshot=x_snapshot
        )
        return players.sub(end, start)
