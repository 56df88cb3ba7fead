"""What the methods for a :class:`RobustProblem` share: their states, a client's report of its loss, and its local steps."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import Algorithm, S, state
from fedminimax.algorithms.settings import WithSteps
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Replies
from fedminimax.players import Count, Tree
from fedminimax.problems.forms import RobustClientProblem
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar


@state
class Model(NamedTuple):
    """The state of a method that has a model and no weights on clients."""

    x: Tree

    @property
    def y(self) -> None:
        """There is no max player."""
        return None


@state
class Weighed(NamedTuple):
    """The model, and the weights on clients."""

    x: Tree
    w: Tree

    @property
    def y(self) -> Tree:
        """The max player is w."""
        return self.w


@state
class Update(NamedTuple):
    """How far a client's model moved, or another vector of the model's shape."""

    x: Tree


@state
class LossReport(NamedTuple):
    """What a client tells of itself: its loss. The guard can bound it."""

    loss: jax.Array


class Heard(NamedTuple):
    """The losses that clients reported, at their places among all N."""

    losses: jax.Array
    """f_i, [N]; for a client that was not heard the mean of the others, which moves no weight towards it."""
    present: jax.Array
    """Who was heard, [N]."""

    @property
    def anybody(self) -> jax.Array:
        """Whether there was a report at all."""
        return jnp.any(self.present)

    def neutral(self, values: jax.Array) -> jax.Array:
        """Return the values with the mean of those heard in place of the others."""
        mean = jnp.sum(jnp.where(self.present, values, 0.0)) / jnp.maximum(jnp.sum(self.present), 1)
        return jnp.where(self.present, values, mean)

    def weights(self, w: jax.Array, ids: jax.Array) -> jax.Array:
        """Return the cohort's weights [S]: what belongs to clients that were not heard goes to the others in proportion."""
        kept = jnp.where(self.present, w, 0.0)
        total = jnp.sum(kept)
        return (kept * jnp.where(total > 0, jnp.sum(w) / jnp.where(total > 0, total, 1.0), 0.0))[ids]


def heard(replies: Replies[LossReport], count: int) -> Heard:
    """Return the reported losses at their clients' places; a loss that was lost or refused is neutral."""
    present = jnp.zeros(count, bool).at[jnp.where(replies.accepted, replies.ids, count)].set(True, mode="drop")
    reports = Heard(replies.scatter(count).loss, present)
    return reports._replace(losses=reports.neutral(reports.losses))


def descend(
    problem: RobustClientProblem,
    client: Client,
    x: Tree,
    lr: Scalar,
    steps: Count,
    batch_size: int | None,
    *,
    correction: Tree | None = None,
    pull: Scalar | None = None,
) -> Tree:
    """Return where a client is after some local steps of gradient descent from x, projected on X after each.

    Args:
        problem: the client's problem.
        client: the client.
        x: the model that the server sent.
        lr: the step size.
        steps: how many.
        batch_size: examples a step; None: all.
        correction: added to every gradient (control variates).
        pull: mu of a term mu/2 ||u - x||^2 in the local objective.
    """

    def step(u: Tree) -> Tree:
        g = problem.grad(u, client.batch(batch_size))
        if correction is not None:
            g = players.add(g, correction)
        if pull is not None:
            g = players.add(g, players.sub(u, x), pull)
        return problem.project_x(players.add(u, g, -lr))

    return client.repeat(steps, step, x)


class RobustMethod(WithSteps, Algorithm[RobustProblem, S]):
    """The base of methods for a :class:`RobustProblem`: clients have losses f_i(x), the server has weights on them."""

    solves: ClassVar[type] = RobustProblem

    def report_loss(self, problem: RobustClientProblem, client: Client, x: Tree) -> LossReport:
        """Return f_i(x), over all of the client's examples."""
        return LossReport(problem.value(x, client.full))

    def steps_of(self, client: Client) -> Count:
        """Return how many local steps a client takes this round."""
        return client.steps(self.local_steps, self.batch_size)


class LocalDescent(RobustMethod[S]):
    """The client program of methods whose clients take plain local steps and report how far those led."""

    lr_x: Scalar

    def local_update(self, problem: RobustClientProblem, client: Client, x: Tree) -> Update:
        """Return how far the client's local steps lead."""
        steps = self.steps_of(client)
        end = descend(problem, client, x, self.lr_x, steps, self.batch_size, pull=self.pull)
        return Update(players.sub(end, x))

    @property
    def pull(self) -> Scalar | None:
        """The mu of mu/2 ||u - x||^2 in the local objective; None: no such term."""
        return None
