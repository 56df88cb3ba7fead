"""What a federation runs, made at every party from what was agreed on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.engines.federated.secure.settings import Secure
from fedminimax.errors import InputError
from fedminimax.experiments.kinds import own
from fedminimax.federation.guard import Guard
from fedminimax.federation.privacy import Privacy
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
        privacy: how sites clip what they send, and what noise they add to it; a site holds to it whatever it is asked.
        guard: what replies must pass on the server; None: non-finite ones are refused (and outliers, as the terms say).
    """

    problem: AnyProblem
    algorithm: Algorithm
    metrics: Any = ()
    held_out: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})
    observers: Any = ()
    privacy: Privacy | None = None
    guard: Guard | None = None


def example(agreement: Agreement) -> ClientData:
    """Return the sites as clients with one row of zeros each, from which a problem can take shapes and nothing else."""
    row = {key: np.zeros((1, *one.shape), one.dtype) for key, one in agreement.row.items()}
    return ClientData.from_list([row] * len(agreement.sites))


def secure_of(agreement: Agreement) -> Secure | None:
    """Return how sums over sites hide each of them, as was agreed on; None: they do not."""
    terms = agreement.study.secure
    if isinstance(terms, bool):
        return Secure() if terms else None
    return Secure(**terms.model_dump(exclude_none=True))


def study_of(agreement: Agreement) -> Study:
    """Return what a federation runs, made of what was agreed on alone. It also sets the precision of JAX."""
    jax.config.update("jax_enable_x64", agreement.study.x64)
    function: Callable[..., Any] = own(agreement.study.function, [agreement.folder])
    clients = example(agreement)
    try:
        inspect.signature(function).bind(clients, **agreement.study.settings)
    except TypeError as error:
        raise InputError(f"[study.settings] does not fit {agreement.study.function}: {error}.") from None
    made = function(clients, **agreement.study.settings)
    if not isinstance(made, Study):
        raise InputError(f"{agreement.study.function} must return a Study(problem, algorithm, metrics), not {made!r}.")
    return made
