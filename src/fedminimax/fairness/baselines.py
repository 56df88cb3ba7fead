"""What methods are measured against: no model at all, all rows in one place, and every site on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree

from fedminimax.data.clients import ClientData
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.fairness.measures import shares
from fedminimax.fairness.outputs import Floats, Outputs, from_scores
from fedminimax.fairness.rows import Ints
from fedminimax.players import Tree
from fedminimax.problems.robust import RobustProblem

MAJORITY, POOLED, LOCAL = "majority", "pooled", "local"
NOTES = {
    MAJORITY: "the same for everybody: the training rows' class shares, or their mean",
    POOLED: "not federated: the same model on all training rows in one place",
    LOCAL: "each site's own model, of its own training rows alone",
}
MOST_NUMBERS = 50_000_000
"""Local models are left out where all of them and their rows together have more numbers."""
_STEPS = 400
_EXACT = 1e-4  # the gradient's norm at which a local model is trained


def majority(federation: Federation, data: ClientData) -> Outputs:
    """Return the training rows' class shares, or the mean, as the prediction for each row."""
    if federation.task != CLASSIFICATION:
        return from_scores(np.zeros((data.total, 1)), federation, "", None)
    return Outputs(np.tile(shares(federation), (data.total, 1)))


def pooled(problem: RobustProblem, clients: ClientData) -> Tree:
    """Return the model that minimises the mean loss over all training rows, as if one place had them, by L-BFGS."""
    from scipy.optimize import minimize

    start, unravel = ravel_pytree(problem.x0)
    slope = jax.jit(lambda v, batch: jax.value_and_grad(lambda v: problem.loss(unravel(v), batch))(v))

    def at(v: Floats) -> tuple[float, Floats]:
        value, gradient = slope(jnp.asarray(v, start.dtype), clients.fields)
        return float(value), np.asarray(gradient, np.float64)

    found = minimize(at, np.asarray(start, np.float64), jac=True, method="L-BFGS-B", options={"maxiter": 500, "gtol": 1e-6})
    x: Tree = unravel(jnp.asarray(found.x, start.dtype))
    return x


class Local:
    """Every site's own model, trained on its own rows: sites of like size side by side."""

    def __init__(self, problem: RobustProblem, federation: Federation, loss: str, positive: int | None) -> None:
        self.problem, self.federation, self.loss, self.positive = problem, federation, loss, positive
        self.x = local(problem, federation.train)

    def outputs(self, data: ClientData) -> Outputs:
        """Return what each site's model predicts for the site's rows."""
        predict = self.problem.predict
        assert predict is not None
        both = jax.jit(jax.vmap(lambda x, inputs: predict(x, inputs)))
        width = jax.eval_shape(predict, self.problem.x0, data.example["inputs"]).shape[-1]
        scores = np.zeros((data.total, width))
        for sites, places, inside in alike(data):
            x = jax.tree.map(lambda a, sites=sites: a[sites], self.x)
            found = np.asarray(both(x, np.asarray(data.fields["inputs"])[places]))
            scores[places[inside]] = found.reshape(*places.shape, width)[inside]
        made = from_scores(scores, self.federation, self.loss, self.positive)
        return self._of_one_class(made, data)

    def _of_one_class(self, made: Outputs, data: ClientData) -> Outputs:
        """Return predictions in which a site that has seen one class knows no other."""
        if self.federation.task != CLASSIFICATION:
            return made
        train, classes = self.federation.train, len(self.federation.classes or [])
        owner = np.repeat(np.arange(train.count), np.asarray(train.sizes))
        seen = np.zeros((train.count, classes))
        np.add.at(seen, (owner, np.asarray(train.fields["labels"])), 1.0)
        single = (np.count_nonzero(seen, axis=1) == 1)[np.repeat(np.arange(data.count), np.asarray(data.sizes))]
        share = (seen > 0).astype(float)[np.repeat(np.arange(data.count), np.asarray(data.sizes))]
        p = np.where(single[:, None], share, made.probabilities)
        return Outputs(p, None if made.margin is None else np.where(single, 0.0, made.margin))


def local(problem: RobustProblem, clients: ClientData) -> Tree:
    """Return for each client the minimiser of its own f_i, as arrays [N, ...].

    Accelerated gradient descent with restarts, each client with a step of its own that is halved where the descent is less
    than a gradient step's: it needs no constant of the problem.
    """
    start, unravel = ravel_pytree(problem.x0)
    fit = jax.jit(jax.vmap(lambda fields, mask: _descend(lambda v: _mean_loss(problem, unravel(v), fields, mask), start)))
    found = np.zeros((clients.count, start.size), start.dtype)
    for sites, places, inside in alike(clients):
        fields = jax.tree.map(lambda a, places=places: np.asarray(a)[places], clients.fields)
        found[sites] = np.asarray(fit(fields, inside.astype(start.dtype)))
    x: Tree = jax.vmap(unravel)(jnp.asarray(found))
    return x


def _mean_loss(problem: RobustProblem, x: Tree, fields: Tree, mask: jax.Array) -> jax.Array:
    each = jax.vmap(lambda row: problem.loss(x, jax.tree.map(lambda a: a[None], row)))(fields)
    return jnp.sum(each * mask) / jnp.sum(mask)


def _descend(f: Callable[[jax.Array], jax.Array], start: jax.Array) -> jax.Array:
    """Return the minimiser of f: FISTA with a step that adapts, begun again where it would go uphill."""
    slope = jax.value_and_grad(f)

    def step(carry: Any) -> Any:
        k, x, v, t, rate, _ = carry
        value, g = slope(v)
        size = jnp.sum(g**2)
        new = v - rate * g
        good = f(new) <= value - rate / 2 * size + 1e-7 * jnp.abs(value)
        following = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        uphill = jnp.sum(g * (new - x)) > 0
        following, ahead = jnp.where(uphill, 1.0, following), jnp.where(uphill, 0.0, (t - 1) / following)
        took = (k + 1, new, new + ahead * (new - x), following, 1.1 * rate, jnp.sqrt(size))
        refused = (k + 1, x, v, t, rate / 2, jnp.sqrt(size))
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), took, refused)

    far = jnp.asarray(jnp.inf, start.dtype)
    one = jnp.ones((), start.dtype)
    going = lambda carry: (carry[0] < _STEPS) & (carry[5] > _EXACT)
    return jax.lax.while_loop(going, step, (0, start, start, one, one, far))[1]


def alike(data: ClientData, factor: int = 4) -> list[tuple[Ints, Ints, npt.NDArray[np.bool_]]]:
    """Return groups of clients whose sizes are within a factor: who they are, their rows' places [g, m], and which exist.

    A client with fewer than m rows has its last one again, which does not exist.
    """
    sizes, starts = np.asarray(data.sizes), np.asarray(data.starts)
    level = np.floor(np.log(sizes / sizes.min()) / np.log(factor) + 1e-9).astype(int)
    groups = []
    for k in np.unique(level):
        sites = np.flatnonzero(level == k)
        along = np.arange(sizes[sites].max())
        inside = along < sizes[sites][:, None]
        groups.append((sites, starts[sites][:, None] + np.minimum(along, sizes[sites][:, None] - 1), inside))
    return groups


def local_numbers(problem: RobustProblem, clients: ClientData) -> int:
    """Return how many numbers all clients' own models and rows have, which is what training them side by side takes."""
    model = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.x0))
    row = sum(int(np.prod(np.shape(leaf)[1:])) for leaf in jax.tree.leaves(clients.fields))
    return clients.count * model + clients.total * row
