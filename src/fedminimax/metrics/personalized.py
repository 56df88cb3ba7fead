"""What to measure where every node has players of its own: optimality, agreement, the accuracy of local and mean models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.metrics.base import HIGHER, LOWER, ascend, correct, examples_of, metric_class
from fedminimax.metrics.parts import PARTS, STATE, TOGETHER, Part, Whose
from fedminimax.players import Point
from fedminimax.problems.base import Span, group_mean, per_example
from fedminimax.problems.personalized import PersonalizedProblem


def _personal(problem: Any, metric: str) -> PersonalizedProblem:
    if not isinstance(problem, PersonalizedProblem):
        raise InputError(f"{metric} is for a PersonalizedProblem, but {problem.name} is a {type(problem).__name__}.")
    return problem


def _own_row(state: Any, node: int) -> Point:
    return jax.tree.map(lambda a: a[node], Point(state.x, state.y))


@metric_class
class Residual:
    """How far the optimality system is from holding: ||Z - P(Z - grad F(Z))|| over all nodes, with F's coupled gradient.

    Without constraints it is the norm of (grad_x f_m + c (WX)_m, grad_y f_m - c (WY)_m) over all m.
    """

    name = "residual"
    better = LOWER
    needs = PARTS

    def __call__(self, problem: Any, clients: ClientData, state: Any) -> jax.Array:
        """Return the norm."""
        problem = _personal(problem, "Residual")
        z = Point(state.x, state.y)
        data = jax.tree.map(jnp.asarray, clients)

        def step(row: Any) -> Point:
            node, here, mixed = row
            g = problem.coupled(problem.grad(here.x, here.y, Span(data, data.starts[node], data.sizes[node])), mixed)
            return problem.project(Point(players.add(here.x, g.x, -1.0), players.add(here.y, g.y)))

        moved = jax.lax.map(step, (jnp.arange(clients.count), z, problem.network.product(z)))
        return players.norm(players.sub(moved, z))

    def told(self, problem: Any, clients: Any, state: Any, client: int) -> Point:
        """Return the node's own players."""
        return _own_row(state, client)

    def part(self, problem: Any, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return the gradient of a node's own loss."""
        return Part(each=_personal(problem, "Residual").grad(told.x, told.y, Span(data, data.starts[0], data.sizes[0])))

    def whole(self, problem: Any, clients: Any, part: Part, state: Any) -> jax.Array:
        """Return the norm."""
        z = Point(state.x, state.y)

        def step(row: Any) -> Point:
            own, here, mixed = row
            g = problem.coupled(own, mixed)
            return problem.project(Point(players.add(here.x, g.x, -1.0), players.add(here.y, g.y)))

        moved = jax.lax.map(step, (part.each, z, problem.network.product(z)))
        return players.norm(players.sub(moved, z))


@metric_class
class PersonalizedGap:
    """max over Y' of F(X, Y') - min over X' of F(X', Y), where F has the coupling: zero at the solution only.

    Both are taken on the problem's sets, by accelerated projected steps from where the nodes are; where F is convex-concave and
    not strongly so, the sets must be bounded.

    Args:
        tol: when either is solved: the norm of its projected gradient, over 1 + its norm at the start.
        max_steps: the most steps of each.
    """

    tol: float = field(default=1e-8, metadata={"static": True})
    max_steps: int = field(default=2000, metadata={"static": True})
    name = "gap"
    needs = TOGETHER
    better = LOWER

    def __call__(self, problem: Any, clients: ClientData, state: Any) -> jax.Array:
        """Return the gap."""
        problem = _personal(problem, "PersonalizedGap")
        data, here = jax.tree.map(jnp.asarray, clients), Point(state.x, state.y)
        everybody = jnp.arange(clients.count)
        own = lambda fn, z: jax.lax.map(
            lambda row: fn(row[1].x, row[1].y, Span(data, data.starts[row[0]], data.sizes[row[0]])), (everybody, z)
        )

        def value(z: Point) -> jax.Array:
            mixed = problem.network.product(z)
            return jnp.sum(own(problem.value, z)) + problem.coupling / 2 * (
                players.dot(z.x, mixed.x) - players.dot(z.y, mixed.y)
            )

        def slope(z: Point) -> Point:
            return problem.coupled(own(problem.grad, z), problem.network.product(z))

        up = lambda y: Point(here.x, y)
        down = lambda x: Point(x, here.y)
        best_y = ascend(
            lambda y: value(up(y)), lambda y: (value(up(y)), slope(up(y)).y), jax.vmap(problem.project_y), here.y, self.tol,
            self.max_steps,
        )  # fmt: skip
        best_x = ascend(
            lambda x: -value(down(x)), lambda x: (-value(down(x)), players.scale(slope(down(x)).x, -1.0)),
            jax.vmap(problem.project_x), here.x, self.tol, self.max_steps,
        )  # fmt: skip
        return value(up(best_y)) - value(down(best_x))


@metric_class
class Consensus:
    """How far nodes are from agreeing: the root mean square over nodes of ||x_m - x-bar||, and of ||y_m - y-bar||."""

    name = "consensus"
    needs = STATE

    def __call__(self, problem: Any, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return both distances."""
        _personal(problem, "Consensus")

        def spread(tree: Any) -> jax.Array:
            away = jax.tree.map(lambda a: a - a.mean(axis=0), tree)
            return players.norm(away) / jnp.sqrt(jax.tree.leaves(tree)[0].shape[0])

        return {"x": spread(state.x), "y": spread(state.y)}


@metric_class
class NodeLoss:
    """Every node's own loss f_m(x_m, y_m), without the coupling: the mean over nodes, and the worst.

    Args:
        each: also every node's, "node_loss/each": one array [M].
    """

    each: bool = field(default=False, metadata={"static": True})
    name = "node_loss"
    better = LOWER
    needs = PARTS
    of_own_row = True

    def __call__(self, problem: Any, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return mean and worst, and with ``each`` all."""
        problem, data = _personal(problem, "NodeLoss"), jax.tree.map(jnp.asarray, clients)

        def one(row: Any) -> jax.Array:
            node, z = row
            return problem.value(z.x, z.y, Span(data, data.starts[node], data.sizes[node]))

        return self._of(jax.lax.map(one, (jnp.arange(clients.count), Point(state.x, state.y))))

    def told(self, problem: Any, clients: Any, state: Any, client: int) -> Point:
        """Return the node's own players."""
        return _own_row(state, client)

    def part(self, problem: Any, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return a node's loss."""
        return Part(each=_personal(problem, "NodeLoss").value(told.x, told.y, Span(data, data.starts[0], data.sizes[0])))

    def whole(self, problem: Any, clients: Any, part: Part, state: Any) -> dict[str, jax.Array]:
        """Return mean and worst, and with ``each`` all."""
        return self._of(part.each)

    def _of(self, values: jax.Array) -> dict[str, jax.Array]:
        return {"mean": jnp.mean(values), "worst": jnp.max(values)} | ({"each": values} if self.each else {})


@metric_class
class NodeAccuracy:
    """The accuracy of every node's own model on its own examples: the mean over nodes, and the worst.

    Args:
        clients: held-out :class:`ClientData`, one client for each node; by default the training data.
        each: also every node's accuracy, "node_accuracy/each": one array [M].
    """

    clients: Any = None
    each: bool = field(default=False, metadata={"static": True})
    name = "node_accuracy"
    better = HIGHER
    needs = PARTS
    of_own_row = True

    def values(self, problem: Any, clients: ClientData, state: Any) -> jax.Array:
        """Return the accuracy on each node, [M]."""
        problem = _personal(problem, "NodeAccuracy")
        data = clients if self.clients is None else self.clients
        if problem.predict is None:
            raise InputError(f"{problem.name} has no `predict`: give PersonalizedProblem one to measure accuracy.")
        owners, models = data.owners(), jax.tree.map(jnp.asarray, state.x)

        def one(row: Any) -> jax.Array:
            x = jax.tree.map(lambda a: a[row["owner"][0]], models)
            return jnp.mean(jnp.argmax(problem.predict(x, row["inputs"]), axis=-1) == row["labels"], dtype=float)

        if data.smallest == data.largest:  # a batch a node, rather than an example at a time
            rows = lambda a: jnp.asarray(a).reshape(data.count, data.largest, *a.shape[1:])
            arrays = {name: rows(data.fields[name]) for name in ("inputs", "labels")}
            batch = lambda part: one({"owner": part[0][None], **part[1]})
            return jax.lax.map(batch, (jnp.arange(data.count), arrays))
        fields = {"inputs": data.fields["inputs"], "labels": data.fields["labels"], "owner": owners}
        return group_mean(per_example(one, fields, data.total), owners, data.count)

    def __call__(self, problem: Any, clients: ClientData, state: Any) -> dict[str, jax.Array]:
        """Return mean and worst, and with ``each`` all."""
        return self._of(self.values(problem, clients, state))

    def told(self, problem: Any, clients: Any, state: Any, client: int) -> Point:
        """Return the node's own model."""
        return Point(_own_row(state, client).x, None)

    def part(self, problem: Any, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return a node's accuracy."""
        row = jax.tree.map(lambda a: jnp.asarray(a)[None], told)
        return Part(each=self.values(problem, data, row)[0])

    def whole(self, problem: Any, clients: Any, part: Part, state: Any) -> dict[str, jax.Array]:
        """Return mean and worst, and with ``each`` all."""
        return self._of(part.each)

    def _of(self, values: jax.Array) -> dict[str, jax.Array]:
        return {"mean": jnp.mean(values), "worst": jnp.min(values)} | ({"each": values} if self.each else {})


@metric_class
class GlobalAccuracy:
    """The accuracy of the averaged model, the mean of all nodes' x, on the examples of all.

    Args:
        data: held-out :class:`ClientData` or arrays {"inputs", "labels"}; by default the training data of all nodes.
    """

    data: Any = None
    name = "global_accuracy"
    better = HIGHER

    def __call__(self, problem: Any, clients: ClientData, state: Any) -> jax.Array:
        """Return the accuracy."""
        _personal(problem, "GlobalAccuracy")
        return jnp.mean(correct(problem, self.told(problem, clients, state, 0).x, examples_of(clients, self.data)))

    @property
    def needs(self) -> str:
        """Held-out arrays are nobody's; examples of nodes stay with them."""
        return STATE if isinstance(self.data, Mapping) else PARTS

    def told(self, problem: Any, clients: Any, state: Any, client: int) -> Point:
        """Return the averaged model."""
        return Point(jax.tree.map(lambda a: a.mean(axis=0), state.x), None)

    def part(self, problem: Any, data: ClientData, told: Point, whose: Whose) -> Part:
        """Return how many of a node's examples the averaged model gets right."""
        _personal(problem, "GlobalAccuracy")
        right = correct(problem, told.x, examples_of(data, self.data))
        return Part(sum={"right": jnp.sum(right), "count": right.size})

    def whole(self, problem: Any, clients: Any, part: Part, state: Any) -> jax.Array:
        """Return the share of all examples."""
        return part.sum["right"] / part.sum["count"]
