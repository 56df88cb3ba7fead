"""Extra Step Local SGD.

A. Beznosikov, V. Samokhin and A. Gasnikov, "Distributed saddle-point problems: lower bounds, optimal and robust algorithms",
2020; with a cohort a round, as the CD-MAGE paper compares with.
"""

from __future__ import annotations

from fedminimax import players
from fedminimax.algorithms.base import Algorithm, algorithm, static
from fedminimax.algorithms.local import descent_ascent, server_step
from fedminimax.algorithms.settings import WithCohorts, WithSteps
from fedminimax.federation.client import Client
from fedminimax.federation.cohort import Clients
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem
from fedminimax.schedules import Scalar


@algorithm
class ExtraStepLocalSGD(WithCohorts, WithSteps, Algorithm[MinimaxProblem, Point]):
    r"""Local extragradient steps, then averaging.

    On client i of the cohort, for k = 0, ..., K-1, with :math:`g_i = (\nabla_x f_i, -\nabla_y f_i)` and :math:`z = (x, y)`

    .. math:: z' = P(z^{(k)} - \eta\, g_i(z^{(k)}; B)),\quad z^{(k+1)} = P(z^{(k)} - \eta\, g_i(z'; B'))

    and :math:`z_{t+1}` is the p-weighted mean over the cohort. B' is a minibatch of its own, as in
    their paper; with ``fresh_batch=False`` it is B.

    Args:
        lr_x: eta for x.
        lr_y: eta for y (the paper has one for both).
        fresh_batch: whether the second gradient is taken on a minibatch of its own.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a gradient; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    lr_y: Scalar
    fresh_batch: bool = static(default=True)

    def init(self, problem: MinimaxProblem) -> Point:
        """Return (x_0, y_0)."""
        return problem.start

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        """Average the cohort's local updates."""
        cohort = clients.sample(self.cohort_size)
        update = cohort.mean(self.extra_steps, state.x, state.y)
        return server_step(problem, state, update, 1.0, 1.0)

    def extra_steps(self, problem: ClientProblem, client: Client, x: Tree, y: Tree) -> Point:
        """Return how far the client's extragradient steps lead."""
        start = Point(x, y)

        def step(z: Point) -> Point:
            batch = client.batch(self.batch_size)
            ahead = descent_ascent(problem, z, problem.grad(*z, batch), self.lr_x, self.lr_y)
            batch = client.batch(self.batch_size) if self.fresh_batch else batch
            return descent_ascent(problem, z, problem.grad(*ahead, batch), self.lr_x, self.lr_y)

        return players.sub(client.repeat(client.steps(self.local_steps, self.batch_size), step, start), start)
