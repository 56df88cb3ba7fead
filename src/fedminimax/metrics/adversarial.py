"""How a model bears the worst perturbation of its inputs, one for all examples: the max player of robust training.

S. Moosavi-Dezfooli et al., "Universal adversarial perturbations", CVPR 2017; A. Madry et al., "Towards deep learning models
resistant to adversarial attacks", ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedminimax import checks, players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.metrics.base import HIGHER, LOWER, correct, examples_of, maximize_y, metric_class, objective, value_and_grad_y
from fedminimax.metrics.parts import STATE, TOGETHER
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.robust import Problem
from fedminimax.sets import L2Ball

UNDER_ATTACK = {"loss": LOWER, "accuracy": HIGHER}


@metric_class
class RobustLoss:
    """The objective at the worst perturbation y* that gradient ascent finds from the state's y.

    For a problem whose y is added to every input (:func:`~fedminimax.problems.robust_training`). The numbers are "loss",
    F(x, y*), less the penalty where there is one; "accuracy", that of predict(x, inputs + y*); and "norm", ||y*||. The
    ascent is local (see :func:`maximize_y`); :class:`PGD` looks further.

    Args:
        data: held-out :class:`~fedminimax.data.ClientData` or arrays {"inputs", "labels"}; by default the training clients.
        tol: when to stop.
        max_steps: the most steps of ascent, each a pass forth and back over all examples, and a pass or two more forth.
        examples: only so many examples, evenly spaced over the data, are used, for y* and for all numbers; each counts as it
            does among all. None: all; a few thousand are enough to follow a run.
    """

    data: Any = None
    tol: float = field(default=1e-4, metadata={"static": True})
    max_steps: int = field(default=200, metadata={"static": True})
    examples: int | None = field(default=None, metadata={"static": True})
    name = "robust"
    better = UNDER_ATTACK
    needs = property(lambda self: _needs(self.data))

    def __post_init__(self) -> None:
        _at_least_one("RobustLoss", max_steps=self.max_steps, examples=self.examples)

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the numbers at the worst perturbation found."""
        target = _target("RobustLoss", problem, clients, self.data, self.examples)
        begin = target.start(state)
        found = maximize_y(target.problem, target.clients, state.x, begin, self.tol, self.max_steps, target.weights)
        before, after = (target.value(state.x, y) for y in (begin, found))
        # The objective need not be concave, and a step with momentum may then lead down.
        return target.report(state.x, *players.select(after >= before, (after, found), (before, begin)))


@metric_class
class PGD:
    """The worst perturbation of projected gradient ascent from the state's y and from random ones: a strong check.

    y <- P(y + s grad / ||grad||) from every start. A step that does not raise the objective is taken back, s is halved, and
    the direction turned by the gradient found there; otherwise s grows by half. So the outcome is at least as bad as every
    start. The numbers are those of :class:`RobustLoss`, at the worst y of all.

    Args:
        data: held-out :class:`~fedminimax.data.ClientData` or arrays {"inputs", "labels"}; by default the training clients.
        steps: steps from each start, each a pass forth and back over all examples.
        restarts: random starts, on spheres of equally spaced radii: up to that of the ball, or without a ball up to twice
            the greater of the state's ||y|| and the root mean square norm of an input.
        radius: of the ball about zero to search. None: the problem's own set, or everywhere, held by the penalty alone.
        step_size: the first s; None: a quarter of the largest sphere's radius.
        examples: only so many examples, evenly spaced, are used, as by :class:`RobustLoss`. None: all, which costs
            (restarts + 1) (steps + 1) passes.
        seed: of the random starts.
    """

    data: Any = None
    steps: int = field(default=40, metadata={"static": True})
    restarts: int = field(default=5, metadata={"static": True})
    radius: float | None = field(default=None, metadata={"static": True})
    step_size: float | None = field(default=None, metadata={"static": True})
    examples: int | None = field(default=None, metadata={"static": True})
    seed: int = field(default=0, metadata={"static": True})
    name = "pgd"
    better = UNDER_ATTACK
    needs = property(lambda self: _needs(self.data))

    def __post_init__(self) -> None:
        _at_least_one("PGD", steps=self.steps, examples=self.examples)
        if self.restarts < 0:
            raise InputError(f"restarts of PGD must not be negative, but is {self.restarts}.")
        for name in ("radius", "step_size"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} of PGD must be above zero, but is {value}: leave it out for the default.")

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the numbers at the worst perturbation found."""
        target = _target("PGD", problem, clients, self.data, self.examples)
        ball = target.problem.y_set if self.radius is None else L2Ball(self.radius)
        assert ball is not None  # a MinimaxProblem has Everything() at the least
        begin = target.start(state)
        reach = ball.radius if isinstance(ball, L2Ball) else 2 * jnp.maximum(players.norm(begin), target.input_norm())
        flat, shaped = ravel_pytree(begin)
        directions = jax.random.normal(jax.random.key(self.seed), (self.restarts, flat.size), flat.dtype)
        radii = reach * jnp.arange(1, self.restarts + 1) / max(1, self.restarts)
        directions *= (radii / jnp.linalg.norm(directions, axis=1)).astype(flat.dtype)[:, None]
        climb = _climber(target.ascent(state.x), ball.project, reach / 4 if self.step_size is None else self.step_size)
        # One start after another: memory is that of one.
        values, points = jax.lax.map(
            lambda start: climb(ball.project(shaped(start)), self.steps), jnp.concatenate([flat[None], directions])
        )
        worst = jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values))
        return target.report(state.x, values[worst], jax.tree.map(lambda y: y[worst], points))


@metric_class
class PlainAscent:
    r"""The objective after a few plain ascent steps from the state's y: what the authors of CD-MAGE report.

    .. math:: y \leftarrow P(y + s \nabla_y F(x, y))

    so many times, from the state's y, or from zero where :math:`\|y\|^2` is above a bound; their published code has 20 steps of
    s = 1 and the bound 10 ("a few epochs" in the paper). The numbers are those of :class:`RobustLoss`, at the y that the steps
    end at. It is not a maximum: :class:`RobustLoss` and :class:`PGD` find worse perturbations; this one is for comparison.

    Args:
        data: held-out :class:`~fedminimax.data.ClientData` or arrays {"inputs", "labels"}; by default the training clients.
        steps: how many steps, each a pass forth and back over all examples.
        step_size: s.
        restart_above: ||y||^2 above which the steps start at zero.
        examples: only so many examples, evenly spaced, are used, as by :class:`RobustLoss`. None: all.
    """

    data: Any = None
    steps: int = field(default=20, metadata={"static": True})
    step_size: float = field(default=1.0, metadata={"static": True})
    restart_above: float = field(default=10.0, metadata={"static": True})
    examples: int | None = field(default=None, metadata={"static": True})
    name = "ascent"
    better = UNDER_ATTACK
    needs = property(lambda self: _needs(self.data))

    def __post_init__(self) -> None:
        _at_least_one("PlainAscent", steps=self.steps, examples=self.examples)
        for name in ("step_size", "restart_above"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} of PlainAscent must be above zero, but is {getattr(self, name)}.")

    def __call__(self, problem: Problem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return the numbers at the end of the ascent."""
        target = _target("PlainAscent", problem, clients, self.data, self.examples)
        y, ascent = target.start(state), target.ascent(state.x)
        y = players.select(players.sqnorm(y) > self.restart_above, players.zeros_like(y), y)
        climb = lambda _, y: target.problem.project_y(players.add(y, ascent(y)[1], self.step_size))
        y = jax.lax.fori_loop(0, self.steps, climb, y)
        return target.report(state.x, target.value(state.x, y), y)


class _Target(NamedTuple):
    """Whose loss the perturbation raises: the problem, the examples as clients' data, and a weight for each client."""

    problem: MinimaxProblem
    clients: ClientData
    weights: Any

    def start(self, state: Any) -> Tree:
        """Return the state's y; a method without a max player starts at the problem's."""
        return self.problem.project_y(jax.tree.map(jnp.asarray, self.problem.y0 if state.y is None else state.y))

    def value(self, x: Tree, y: Tree) -> jax.Array:
        """Return F(x, y)."""
        return objective(self.problem, self.clients, Point(x, y), self.weights)

    def ascent(self, x: Tree) -> Callable[[Tree], tuple[jax.Array, Tree]]:
        """Return y -> (F, grad_y F)."""
        return value_and_grad_y(self.problem, self.clients, x, self.weights)

    def input_norm(self) -> jax.Array:
        """Return the root mean square norm of an input."""
        return jnp.sqrt(players.sqnorm(self.clients.fields["inputs"]) / self.clients.total)

    def report(self, x: Tree, loss: jax.Array, y: Tree) -> dict[str, jax.Array]:
        """Return the numbers at a perturbation."""
        predict = self.problem.predict
        moved = None if predict is None else lambda x, inputs: predict(x, jax.tree.map(jnp.add, inputs, y))
        right = correct(self.problem.replace(predict=moved), x, self.clients.fields)
        return {"loss": loss, "accuracy": jnp.mean(right), "norm": players.norm(y)}


def _target(metric: str, problem: Problem, clients: ClientData, data: Any, examples: int | None) -> _Target:
    """Return what to attack, or say why the problem has no perturbation."""
    fields = examples_of(clients, data)
    one = jax.tree.map(lambda a: np.shape(a)[1:], fields["inputs"])
    if not isinstance(problem, MinimaxProblem) or jax.tree.map(np.shape, problem.y0) != one:
        raise InputError(
            f"{metric} is for a problem whose y is added to every input and has one input's shape, {one}, but {problem.name} "
            "has another y: build it with problems.robust_training."
        )
    held = clients if data is None else data
    if not isinstance(held, ClientData):  # arrays: one client, whatever the weights of the others
        count = int(np.shape(fields["labels"])[0])
        held = ClientData(fields, np.zeros(1, np.int32), np.full(1, count, np.int32), count, count)
        problem = problem.replace(weights=None)
    problem, held = problem.bind(held)
    weights = problem.client_weights(held)
    if examples is None or examples >= held.total:
        return _Target(problem, held, weights)
    # Each example becomes a client of its own, so that it keeps its weight.
    rows = np.arange(examples) * held.total // examples
    share = (jnp.asarray(weights) / jnp.asarray(held.sizes))[held.owners()][rows]
    few = ClientData(
        jax.tree.map(lambda a: jnp.asarray(a)[rows], held.fields),
        np.arange(examples, dtype=np.int32),
        np.ones(examples, np.int32),
        1,
        1,
    )
    return _Target(problem, few, share / jnp.sum(share))


def _needs(data: Any) -> str:
    """Held-out arrays are the server's own; an ascent over clients' examples needs all of them in one place."""
    return STATE if isinstance(data, Mapping) else TOGETHER


def _climber(
    ascent: Callable[[Tree], tuple[jax.Array, Tree]], project: Callable[[Tree], Tree], step_size: Any
) -> Callable[[Tree, int], tuple[jax.Array, Tree]]:
    """Return the ascent from one start: (start, steps) -> (value, y)."""

    def climb(start: Tree, steps: int) -> tuple[jax.Array, Tree]:
        def step(_: int, carry: Any) -> Any:
            y, value, d, s = carry
            new = project(players.add(y, d, s))
            new_value, g = ascent(new)
            higher = new_value > value
            # At a kink of the objective the gradients of both sides together point along it, and up.
            d = _unit(players.select(higher, g, players.add(_unit(g), d)))
            return *players.select(higher, (new, new_value), (y, value)), d, s * jnp.where(higher, 1.5, 0.5)

        value, g = ascent(start)
        carry = (start, value, _unit(g), jnp.asarray(step_size, value.dtype))
        y, value, *_ = jax.lax.fori_loop(0, steps, step, carry)
        return value, y

    return climb


def _unit(tree: Tree) -> Tree:
    length = players.norm(tree)
    return players.scale(tree, 1.0 / jnp.where(length > 0, length, 1.0))


def _at_least_one(metric: str, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None:
            checks.integer(f"{name} of {metric}", number)
