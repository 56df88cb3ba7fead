"""SCAFFOLD. S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich and A. T. Suresh, "SCAFFOLD: stochastic controlled
averaging for federated learning", ICML 2020."""

from __future__ import annotations

from typing import NamedTuple

from fedminimax import players
from fedminimax.algorithms.base import algorithm, state
from fedminimax.algorithms.robust import RobustMethod, descend
from fedminimax.algorithms.settings import WithCohorts
from fedminimax.federation.client import Client, Reply
from fedminimax.federation.cohort import Clients
from fedminimax.players import Tree
from fedminimax.problems.forms import RobustClientProblem
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Scalar


@state
class ScaffoldState(NamedTuple):
    """The model, and the server's control variate c = sum_i p_i c_i."""

    x: Tree
    x_variate: Tree

    @property
    def y(self) -> None:
        """There is no max player."""
        return None


@state
class ScaffoldReply(NamedTuple):
    """How far a client's model and its variate moved."""

    x: Tree
    x_variate: Tree


@algorithm
class Scaffold(WithCohorts, RobustMethod[ScaffoldState]):
    r"""Averaging with control variates that cancel the clients' drift (option II). It minimises sum_i p_i f_i.

    .. math:: u^{(k+1)} = u^{(k)} - \eta (g_i(u^{(k)}) - c_i + c),\quad c_i^+ = c_i - c + \frac{x - u^{(K)}}{K \eta}

    .. math:: x \leftarrow x + \eta_g\,\mathrm{mean}_S (u^{(K)} - x),\quad c \leftarrow c + \sum_{i \in S} p_i (c_i^+ - c_i)

    From c = c_i = 0. The c_i are the clients' own: the engine keeps them where the client is. With equal p the last step is the
    paper's |S|/N times the mean change.

    Args:
        lr_x: eta, the clients' step size.
        server_lr_x: eta_g.
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
        batch_size: examples a step; None: the full local batch.
        cohort_size: clients a round; None: everybody.
    """

    lr_x: Scalar
    server_lr_x: Scalar = 1.0

    def init(self, problem: RobustProblem) -> ScaffoldState:
        """Return x_0 and c = 0."""
        return ScaffoldState(problem.project_x(problem.x0), players.zeros_like(problem.x0))

    def init_client(self, problem: RobustProblem) -> Tree:
        """Return c_i = 0."""
        return players.zeros_like(problem.x0)

    def round(self, problem: RobustProblem, state: ScaffoldState, clients: Clients) -> ScaffoldState:
        """Step along the mean update; move c by what the clients' variates moved."""
        cohort = clients.sample(self.cohort_size)
        mean = cohort.mean(self.local_update, state.x, state.x_variate)
        x = problem.project_x(players.add(state.x, mean.x, self.server_lr_x))
        return ScaffoldState(x, players.add(state.x_variate, mean.x_variate, cohort.heard))

    def local_update(self, problem: RobustClientProblem, client: Client, x: Tree, x_variate: Tree) -> Reply[ScaffoldReply]:
        """Return how far the corrected local steps lead, and how the client's variate changes."""
        steps = self.steps_of(client)
        correction = players.sub(x_variate, client.state)
        end = descend(problem, client, x, self.lr_x, steps, self.batch_size, correction=correction)
        # c_i^+ - c_i = (x - u) / (K eta) - c
        change = players.sub(players.scale(players.sub(x, end), 1.0 / (steps * self.lr_x)), x_variate)
        return Reply(ScaffoldReply(players.sub(end, x), change), state=players.add(client.state, change))
