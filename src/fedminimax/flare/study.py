"""What a federation runs, made at every party from what was agreed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.experiments.kinds import own
from fedminimax.flare.agreement import Agreement
from fedminimax.problems.forms import AnyProblem


class Study(NamedTuple):
    """What is run: what the function of a study returns, the same at every party.

    Args:
        problem: what to solve.
        algorithm: the method with its hyper-parameters.
        metrics: what is evaluated, at the sites.
        held_out: by the name of a held-out share of the sites' rows, such as "test", a function that is given what is known
            of it and returns metrics that are taken on it.
        observers: what else watches the run, on the server (see :mod:`fedminimax.observers`).
    """

    problem: AnyProblem
    algorithm: Algorithm
    metrics: Any = ()
    held_out: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})
    observers: Any = ()


def example(agreement: Agreement) -> ClientData:
    """Return the sites as clients with one row of zeros each, from which a problem can take shapes and nothing else."""
    row = {key: np.zeros((1, *one.shape), one.dtype) for key, one in agreement.row.items()}
    return ClientData.from_list([row] * len(agreement.sites))


def study_of(agreement: Agreement) -> Study:
    """Return what a federation runs, made of what was agreed on alone. It also sets the precision of JAX."""
    jax.config.update("jax_enable_x64", agreement.study.x64)
    function: Callable[..., Any] = own(agreement.study.function, [agreement.folder])
    made = function(example(agreement), **agreement.study.settings)
    if not isinstance(made, Study):
        raise InputError(f"{agreement.study.function} must return a Study(problem, algorithm, metrics), not {made!r}.")
    return made
