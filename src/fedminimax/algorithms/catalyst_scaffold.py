"""Catalyst-Scaffold-S.

C. Hou, K. K. Thekumparampil, G. Fanti and S. Oh, "Efficient algorithms for federated saddle point optimization", 2021; with a
cohort a round, as cd-mage.txt compares with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax.algorithms.base import algorithm, state, static
from fedminimax.algorithms.coda import ControlledSteps, restarted
from fedminimax.algorithms.local import server_step
from fedminimax.players import Point, Tree
from fedminimax.schedules import Scalar


@state
class CatalystState(NamedTuple):
    """The players, the center x_ref, the server's control variates, and the local steps taken so far."""

    x: Tree
    y: Tree
    x_reference: Tree
    variate: Point
    steps: Any


@algorithm
class CatalystScaffoldS(ControlledSteps):
    r"""SCAFFOLD on proximal subproblems, communicating by a coin.

    The local steps and control variates of CODASCA on :math:`f_i + \frac\theta2 \|x - x_{ref}\|^2`, but after each local step
    the cohort communicates with probability 1/K: a round has a geometric number of local steps, K in the mean, the same for
    all its clients (the server draws it). The server averages: no step of its own scales the mean.
    :math:`x_{ref} \leftarrow x` after every :math:`K_0` local steps.

    Args:
        lr_x: eta for x.
        lr_y: eta for y (the paper has one for both).
        theta: the strength of the proximal term.
        restart_every: K_0, in local steps.
        local_steps: K, the mean number of local steps a round.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    theta: Scalar = 0.0
    restart_every: int = static(default=2000)
    local_steps: int = static(default=10)
    batch_size: int | None = static(default=None)
    cohort_size: int | None = static(default=None)

    def init(self, problem: Any) -> CatalystState:
        """Return (x_0, y_0) with x_ref = x_0, c = 0 and no steps taken."""
        z = problem.start
        return CatalystState(z.x, z.y, z.x, players.zeros_like(z), jnp.zeros((), jnp.int32))

    def round(self, problem: Any, state: CatalystState, clients: Any) -> CatalystState:
        """Draw how long the clients go on; average; move c; restart where it is time."""
        steps = clients.draw("steps", lambda key: jax.random.geometric(key, 1.0 / self.local_steps, dtype=jnp.int32))
        cohort = clients.sample(self.cohort_size)
        mean = cohort.mean(self.controlled_update, state.x, state.y, state.x_reference, state.variate, steps)
        x, y = server_step(problem, Point(state.x, state.y), mean.update, 1.0, 1.0)
        taken = state.steps + steps
        reference = restarted(state.steps, taken, self.restart_every, x, state.x_reference)
        return CatalystState(x, y, reference, players.add(state.variate, mean.variate, cohort.heard), taken)
