"""All that a method of your own needs, from one place. See "Adding a method" in CONTRIBUTING.md.

A method in a package of yours works on every engine, in sweeps and comparisons, and
:func:`fedminimax.testing.check_method` says whether it keeps the contract.
"""

from fedminimax import players
from fedminimax.algorithms.base import Algorithm, algorithm, state, static
from fedminimax.algorithms.decentralized import Decentralized
from fedminimax.algorithms.local import descent_ascent, gradient, refresh, server_step
from fedminimax.algorithms.robust import Model, RobustMethod, Weighed
from fedminimax.algorithms.settings import WithBatches, WithCohorts, WithSteps
from fedminimax.algorithms.solvers import LocalUpdates, Momentum, Plain, Proximal, Solver, Weighted, solver_of
from fedminimax.data.clients import ClientSource
from fedminimax.errors import InputError
from fedminimax.federation.client import Client, Reply
from fedminimax.federation.cohort import Clients, Cohort, Replies
from fedminimax.federation.nodes import Nodes, Rows
from fedminimax.players import Point, Tree
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.forms import ClientProblem, NodeProblem, RobustClientProblem
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.problems.robust import RobustProblem
from fedminimax.schedules import Piecewise, PowerDecay, Scalar
from fedminimax.steps import ClientSteps, Steps, UniformSteps

__all__ = [
    "Algorithm",
    "Client",
    "ClientProblem",
    "ClientSource",
    "ClientSteps",
    "Clients",
    "Cohort",
    "Decentralized",
    "InputError",
    "LocalUpdates",
    "MinimaxProblem",
    "Model",
    "Momentum",
    "NodeProblem",
    "Nodes",
    "PersonalizedProblem",
    "Piecewise",
    "Plain",
    "Point",
    "PowerDecay",
    "Proximal",
    "Replies",
    "Reply",
    "RobustClientProblem",
    "RobustMethod",
    "RobustProblem",
    "Rows",
    "Scalar",
    "Solver",
    "Steps",
    "Tree",
    "UniformSteps",
    "Weighed",
    "Weighted",
    "WithBatches",
    "WithCohorts",
    "WithSteps",
    "algorithm",
    "descent_ascent",
    "gradient",
    "players",
    "refresh",
    "server_step",
    "solver_of",
    "state",
    "static",
]
