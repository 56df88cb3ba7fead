"""The methods: one file each, opening with its citation and its update equations."""

from fedminimax.algorithms.afl import AFL
from fedminimax.algorithms.base import ALGORITHMS, Algorithm, algorithm, state, static
from fedminimax.algorithms.catalyst_scaffold import CatalystScaffoldS
from fedminimax.algorithms.cd_mage import CDMA, CDMAGE, CDMAGEPlus, Constants
from fedminimax.algorithms.coda import CODASCA, CODAPlus
from fedminimax.algorithms.decentralized import DecentralizedExtraGradient, LocalTraining
from fedminimax.algorithms.delta_fl import DeltaFL
from fedminimax.algorithms.drfa import DRFA
from fedminimax.algorithms.extra_step import ExtraStepLocalSGD
from fedminimax.algorithms.fed_avg import FedAvg, FedProx
from fedminimax.algorithms.fed_norm_sgda import FedNormSGDA, FedNormSGDAPlus
from fedminimax.algorithms.fed_sgda import FedSGDAM, FedSGDAPlus
from fedminimax.algorithms.fess_gda import FessGDA, SmoothedGDA
from fedminimax.algorithms.fsgda import FSGDA, SAGDA
from fedminimax.algorithms.local_extra_step import LocalExtraStep, LocalNN
from fedminimax.algorithms.local_sgda import LocalSGDA, LocalSGDAPlus
from fedminimax.algorithms.parallel_sgda import ParallelSGDA
from fedminimax.algorithms.q_fed_avg import QFedAvg
from fedminimax.algorithms.scaff_pd import ScaffPD
from fedminimax.algorithms.scaff_pd_stale import ScaffPDStale
from fedminimax.algorithms.scaffold import Scaffold
from fedminimax.algorithms.sliding import Sliding, SlidingNN
from fedminimax.algorithms.smoothed_agda import SmoothedAGDA
from fedminimax.algorithms.solvers import Momentum, PerClient, Plain, Proximal, Solver, Weighted, local_solver

__all__ = [
    "AFL",
    "ALGORITHMS",
    "CDMA",
    "CDMAGE",
    "CODASCA",
    "DRFA",
    "FSGDA",
    "SAGDA",
    "Algorithm",
    "CDMAGEPlus",
    "CODAPlus",
    "CatalystScaffoldS",
    "Constants",
    "DecentralizedExtraGradient",
    "DeltaFL",
    "ExtraStepLocalSGD",
    "FedAvg",
    "FedNormSGDA",
    "FedNormSGDAPlus",
    "FedProx",
    "FedSGDAM",
    "FedSGDAPlus",
    "FessGDA",
    "LocalExtraStep",
    "LocalNN",
    "LocalSGDA",
    "LocalSGDAPlus",
    "LocalTraining",
    "Momentum",
    "ParallelSGDA",
    "PerClient",
    "Plain",
    "Proximal",
    "QFedAvg",
    "ScaffPD",
    "ScaffPDStale",
    "Scaffold",
    "Sliding",
    "SlidingNN",
    "SmoothedAGDA",
    "SmoothedGDA",
    "Solver",
    "Weighted",
    "algorithm",
    "local_solver",
    "state",
    "static",
]
