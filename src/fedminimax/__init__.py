"""Federated minimax optimization: train a model against an adversary while the data stays on the clients."""

from fedminimax.devices import offer_cores

offer_cores()

from fedminimax import data, metrics, models, penalties, problems, sets  # noqa: E402
from fedminimax._version import __version__  # noqa: E402
from fedminimax.algorithms import (  # noqa: E402
    AFL,
    CDMA,
    CDMAGE,
    CODASCA,
    DRFA,
    FSGDA,
    SAGDA,
    CatalystScaffoldS,
    CDMAGEPlus,
    CODAPlus,
    Constants,
    DecentralizedExtraGradient,
    DeltaFL,
    ExtraStepLocalSGD,
    FedAvg,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedProx,
    FedSGDAM,
    FedSGDAPlus,
    FessGDA,
    LocalExtraStep,
    LocalNN,
    LocalSGDA,
    LocalSGDAPlus,
    LocalTraining,
    Momentum,
    ParallelSGDA,
    Plain,
    Proximal,
    QFedAvg,
    Scaffold,
    ScaffPD,
    Sliding,
    SlidingNN,
    SmoothedAGDA,
    SmoothedGDA,
    Solver,
    Weighted,
    local_solver,
)
from fedminimax.compare import Curves, compare  # noqa: E402
from fedminimax.data import ClientData, GeneratedClients  # noqa: E402
from fedminimax.engines.availability import Availability, Delay, Wave  # noqa: E402
from fedminimax.engines.guard import Guard  # noqa: E402
from fedminimax.engines.trace import Trace  # noqa: E402
from fedminimax.errors import InputError  # noqa: E402
from fedminimax.network import Network  # noqa: E402
from fedminimax.penalties import Agnostic, ChiSquare, CVaR, QFair  # noqa: E402
from fedminimax.players import Point  # noqa: E402
from fedminimax.problems import MinimaxProblem, PersonalizedProblem, RobustProblem, Task  # noqa: E402
from fedminimax.result import Result  # noqa: E402
from fedminimax.run import run  # noqa: E402
from fedminimax.schedules import Piecewise, PowerDecay  # noqa: E402
from fedminimax.steps import ClientSteps, UniformSteps  # noqa: E402
from fedminimax.sweep import Sweep, sweep  # noqa: E402

__all__ = [
    "AFL",
    "CDMA",
    "CDMAGE",
    "CODASCA",
    "DRFA",
    "FSGDA",
    "SAGDA",
    "Agnostic",
    "Availability",
    "CDMAGEPlus",
    "CODAPlus",
    "CVaR",
    "CatalystScaffoldS",
    "ChiSquare",
    "ClientData",
    "ClientSteps",
    "Constants",
    "Curves",
    "DecentralizedExtraGradient",
    "Delay",
    "DeltaFL",
    "ExtraStepLocalSGD",
    "FedAvg",
    "FedNormSGDA",
    "FedNormSGDAPlus",
    "FedProx",
    "FedSGDAM",
    "FedSGDAPlus",
    "FessGDA",
    "GeneratedClients",
    "Guard",
    "InputError",
    "LocalExtraStep",
    "LocalNN",
    "LocalSGDA",
    "LocalSGDAPlus",
    "LocalTraining",
    "MinimaxProblem",
    "Momentum",
    "Network",
    "ParallelSGDA",
    "PersonalizedProblem",
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
    "Sliding",
    "SlidingNN",
    "SmoothedAGDA",
    "SmoothedGDA",
    "Solver",
    "Sweep",
    "Task",
    "Trace",
    "UniformSteps",
    "Wave",
    "Weighted",
    "__version__",
    "compare",
    "data",
    "local_solver",
    "metrics",
    "models",
    "penalties",
    "problems",
    "run",
    "sets",
    "sweep",
]
