"""Catalyst-Scaffold-S.

C. Hou, K. K. Thekumparampil, G. Fanti and S. Oh, "Efficient algorithms for federated saddle point optimization", 2021; with a
cohort a round, as the CD-MAGE paper compares with.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm, state, static
from fedminimax.algorithms.coda import ControlledSteps, restarted
from fedminimax.algorithms.local import descent_ascent, server_step
from fedminimax.errors import InputError
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar


@state
class CatalystState(NamedTuple):
    """The players, the center z_ref, and the local steps taken so far."""

    x: Tree
    y: Tree
    x_reference: Tree
    y_reference: Tree
    steps: jax.Array


@state
class KeptState(NamedTuple):
    """Where clients keep variates: the players, the center x_ref, the server's variates, and the local steps so far."""

    x: Tree
    y: Tree
    x_reference: Tree
    variate: Point
    steps: jax.Array


@algorithm
class CatalystScaffoldS(ControlledSteps[CatalystState | KeptState]):
    r"""SCAFFOLD on proximal subproblems, communicating by a coin.

    After each local step the cohort communicates with probability 1/K: a round has a geometric number of local steps, K in the
    mean, the same for all its clients (the server draws it). The server averages: no step of its own scales the mean. There are
    two forms.

    ``keep="nothing"``, that of the authors of CD-MAGE. The cohort reports its full local gradients at
    :math:`z_t = (x_t, y_t)`; with their mean :math:`(u_t, v_t)` the same clients take steps on
    :math:`f_i + \frac\theta2 \|x - x_{ref}\|^2 - \frac\theta2 \|y - y_{ref}\|^2`

    .. math:: x^{(k+1)} = x^{(k)} - \eta [\nabla_x F_i(z^{(k)}; B) - \nabla_x F_i(z_t; B) + u_t + \theta (x^{(k)} - x_{ref})]

    .. math:: y^{(k+1)} = y^{(k)} + \eta [\nabla_y F_i(z^{(k)}; B) - \nabla_y F_i(z_t; B) + v_t - \theta (y^{(k)} - y_{ref})]

    each with one minibatch B at both points. With theta = 0 and K = 1 it is Parallel SGDA.

    ``keep="clients"``: the local steps of CODASCA, with control variates that the clients keep from the last round in which
    they took part, on :math:`f_i + \frac\theta2 \|x - x_{ref}\|^2`.

    In both the center moves to the players after every :math:`K_0` local steps, at the end of the round that completes them.

    Args:
        lr_x: eta for x.
        lr_y: eta for y (the paper has one for both).
        theta: the strength of the proximal term.
        restart_every: K_0, in local steps.
        local_steps: K, the mean number of local steps a round.
        batch_size: examples a local step; None: the full local batch. Full gradients are always of all of a client's examples.
        cohort_size: clients a round; None: everybody.
        keep: "nothing" or "clients": where the correction comes from.
    """

    lr_x: Scalar
    lr_y: Scalar
    theta: Scalar = 0.0
    restart_every: int = static(default=2000)
    local_steps: int = static(default=10, kw_only=True)
    keep: str = static(default="nothing", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep not in ("nothing", "clients"):
            raise InputError(f'CatalystScaffoldS.keep must be "nothing" or "clients", not {self.keep!r}.')

    def init(self, problem: MinimaxProblem) -> CatalystState | KeptState:
        """Return (x_0, y_0) with the center there and no steps taken; c = 0."""
        z, none = problem.start, jnp.zeros((), jnp.int32)
        if self.keep == "clients":
            return KeptState(z.x, z.y, z.x, players.zeros_like(z), none)
        return CatalystState(z.x, z.y, z.x, z.y, none)

    def init_client(self, problem: MinimaxProblem) -> Tree:
        """Return c_i = 0, if clients keep variates."""
        return super().init_client(problem) if self.keep == "clients" else None

    def round(self, problem: MinimaxProblem, state: CatalystState | KeptState, clients: Clients) -> CatalystState | KeptState:
        """Draw how long the clients go on; let them; average; restart where it is time."""
        steps = clients.draw("steps", lambda key: jax.random.geometric(key, 1.0 / self.local_steps, dtype=jnp.int32))
        cohort = clients.sample(self.cohort_size)
        z, taken = Point(state.x, state.y), state.steps + steps
        center = lambda now, then: restarted(state.steps, taken, self.restart_every, now, then)
        if isinstance(state, KeptState):
            mean = cohort.mean(self.controlled_update, *z, state.x_reference, state.variate, steps)
            x, y = server_step(problem, z, mean.update, 1.0, 1.0)
            variate = players.add(state.variate, mean.variate, cohort.heard)
            return KeptState(x, y, center(x, state.x_reference), variate, taken)
        estimate = cohort.mean(self.report_gradient, *z)  # (u_t, v_t)
        update = cohort.mean(self.guided_update, *z, state.x_reference, state.y_reference, estimate, steps)
        x, y = server_step(problem, z, update, 1.0, 1.0)
        return CatalystState(x, y, center(x, state.x_reference), center(y, state.y_reference), taken)

    def report_gradient(self, problem: ClientProblem, client: Client, x: Tree, y: Tree) -> Point:
        """Return the full local gradient."""
        return problem.grad(x, y, client.full)

    def guided_update(
        self,
        problem: ClientProblem,
        client: Client,
        x: Tree,
        y: Tree,
        x_reference: Tree,
        y_reference: Tree,
        estimate: Point,
        steps: jax.Array,
    ) -> Point:
        """Return how far the corrected steps on the proximal subproblem lead."""
        start = Point(x, y)

        def step(z: Point) -> Point:
            batch = client.batch(self.batch_size)
            change = players.sub(problem.grad(*z, batch), problem.grad(x, y, batch))
            g = players.add(change, estimate)
            g_x = players.add(g.x, players.sub(z.x, x_reference), self.theta)
            g_y = players.add(g.y, players.sub(y_reference, z.y), self.theta)
            return descent_ascent(problem, z, Point(g_x, g_y), self.lr_x, self.lr_y)

        return players.sub(client.repeat(steps, step, start), start)
