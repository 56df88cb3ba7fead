"""The methods: one file each, opening with its citation and its update equations."""

from fedminimax.algorithms.base import ALGORITHMS, Algorithm, algorithm, state, static
from fedminimax.algorithms.fed_norm_sgda import FedNormSGDA, FedNormSGDAPlus
from fedminimax.algorithms.fess_gda import FessGDA, SmoothedGDA
from fedminimax.algorithms.fsgda import FSGDA, SAGDA
from fedminimax.algorithms.local_sgda import LocalSGDA, LocalSGDAPlus
from fedminimax.algorithms.parallel_sgda import ParallelSGDA
from fedminimax.algorithms.solvers import Momentum, Plain, Proximal, Weighted

__all__ = [
    "ALGORITHMS",
    "FSGDA",
    "SAGDA",
    "Algorithm",
    "FedNormSGDA",
    "FedNormSGDAPlus",
    "FessGDA",
    "LocalSGDA",
    "LocalSGDAPlus",
    "Momentum",
    "ParallelSGDA",
    "Plain",
    "Proximal",
    "SmoothedGDA",
    "Weighted",
    "algorithm",
    "state",
    "static",
]
