"""The public names: what ``fedminimax`` offers beside its modules. They are imported when the first of them is used."""

from fedminimax.algorithms import (
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
    ScaffPDStale,
    Sliding,
    SlidingNN,
    SmoothedAGDA,
    SmoothedGDA,
    Solver,
    Weighted,
    local_solver,
)
from fedminimax.cache import keep_if_asked
from fedminimax.checkpointing import Checkpoints
from fedminimax.compare import Curves, compare
from fedminimax.data import ClientData, ClientShard, GeneratedClients
from fedminimax.engines.execution import Snapshot
from fedminimax.engines.isolated import Isolated
from fedminimax.engines.mesh import Mesh
from fedminimax.engines.simulator import Simulator
from fedminimax.errors import InputError
from fedminimax.experiments.experiment import Experiment
from fedminimax.federation.availability import Availability, Delay, Wave
from fedminimax.federation.guard import Guard
from fedminimax.federation.privacy import Privacy
from fedminimax.federation.trace import Trace
from fedminimax.network import Network
from fedminimax.observers import LogCSV, MLflow, StopWhen, TensorBoard
from fedminimax.penalties import Agnostic, ChiSquare, CVaR, QFair
from fedminimax.players import Point
from fedminimax.problems import MinimaxProblem, PersonalizedProblem, RobustProblem, Task
from fedminimax.problems.torch_loss import TorchLoss
from fedminimax.progress import ProgressBar
from fedminimax.report import report
from fedminimax.result import Result
from fedminimax.resume import resume
from fedminimax.run import run
from fedminimax.runfolder import RunFolder
from fedminimax.saved import load_model
from fedminimax.schedules import Piecewise, PowerDecay
from fedminimax.steps import ClientSteps, UniformSteps
from fedminimax.sweep import sweep
from fedminimax.sweeps.halving import Halving
from fedminimax.sweeps.space import Choice, LogUniform, Uniform
from fedminimax.sweeps.suggest import Optuna
from fedminimax.sweeps.table import Sweep

keep_if_asked()  # before anything is compiled

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
    "Checkpoints",
    "ChiSquare",
    "Choice",
    "ClientData",
    "ClientShard",
    "ClientSteps",
    "Constants",
    "Curves",
    "DecentralizedExtraGradient",
    "Delay",
    "DeltaFL",
    "Experiment",
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
    "Halving",
    "InputError",
    "Isolated",
    "LocalExtraStep",
    "LocalNN",
    "LocalSGDA",
    "LocalSGDAPlus",
    "LocalTraining",
    "LogCSV",
    "LogUniform",
    "MLflow",
    "Mesh",
    "MinimaxProblem",
    "Momentum",
    "Network",
    "Optuna",
    "ParallelSGDA",
    "PersonalizedProblem",
    "Piecewise",
    "Plain",
    "Point",
    "PowerDecay",
    "Privacy",
    "ProgressBar",
    "Proximal",
    "QFair",
    "QFedAvg",
    "Result",
    "RobustProblem",
    "RunFolder",
    "ScaffPD",
    "ScaffPDStale",
    "Scaffold",
    "Simulator",
    "Sliding",
    "SlidingNN",
    "SmoothedAGDA",
    "SmoothedGDA",
    "Snapshot",
    "Solver",
    "StopWhen",
    "Sweep",
    "Task",
    "TensorBoard",
    "TorchLoss",
    "Trace",
    "Uniform",
    "UniformSteps",
    "Wave",
    "Weighted",
    "compare",
    "load_model",
    "local_solver",
    "report",
    "resume",
    "run",
    "sweep",
]
