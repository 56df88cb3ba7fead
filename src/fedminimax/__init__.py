"""Federated minimax optimization: train a model against an adversary while the data stays on the clients."""

from fedminimax.devices import offer_cores

offer_cores()

from fedminimax import data, metrics, models, penalties, problems, sets  # noqa: E402
from fedminimax._version import __version__  # noqa: E402
from fedminimax.algorithms import (  # noqa: E402
    AFL,
    DRFA,
    FSGDA,
    SAGDA,
    DeltaFL,
    FedAvg,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedProx,
    FessGDA,
    LocalSGDA,
    LocalSGDAPlus,
    Momentum,
    ParallelSGDA,
    Plain,
    Proximal,
    QFedAvg,
    Scaffold,
    ScaffPD,
    SmoothedGDA,
    Weighted,
)
from fedminimax.data import ClientData  # noqa: E402
from fedminimax.engines.availability import Availability, Trace  # noqa: E402
from fedminimax.engines.guard import Guard  # noqa: E402
from fedminimax.errors import InputError  # noqa: E402
from fedminimax.penalties import Agnostic, ChiSquare, CVaR, QFair  # noqa: E402
from fedminimax.players import Point  # noqa: E402
from fedminimax.problems import MinimaxProblem, RobustProblem, Task  # noqa: E402
from fedminimax.result import Result  # noqa: E402
from fedminimax.run import run  # noqa: E402
from fedminimax.schedules import Piecewise, PowerDecay  # noqa: E402
from fedminimax.steps import ClientSteps, UniformSteps  # noqa: E402
from fedminimax.sweep import Sweep, sweep  # noqa: E402

__all__ = [
    "AFL",
    "DRFA",
    "FSGDA",
    "SAGDA",
    "Agnostic",
    "Availability",
    "CVaR",
    "ChiSquare",
    "ClientData",
    "ClientSteps",
    "DeltaFL",
    "FedAvg",
    "FedNormSGDA",
    "FedNormSGDAPlus",
    "FedProx",
    "FessGDA",
    "Guard",
    "InputError",
    "LocalSGDA",
    "LocalSGDAPlus",
    "MinimaxProblem",
    "Momentum",
    "ParallelSGDA",
    "Piecewise",
    "Plain",
    "Point",
    "PowerDecay",
    "Proximal",
    "QFair",
    "QFedAvg",
    "Result",
    "RobustProblem",
    "ScaffPD",
    "Scaffold",
    "SmoothedGDA",
    "Sweep",
    "Task",
    "Trace",
    "UniformSteps",
    "Weighted",
    "__version__",
    "data",
    "metrics",
    "models",
    "penalties",
    "problems",
    "run",
    "sets",
    "sweep",
]
