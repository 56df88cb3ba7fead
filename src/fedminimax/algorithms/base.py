"""What an algorithm is: a frozen dataclass of hyper-parameters with ``init`` and ``round``.

``round`` is the server's program; the methods that it maps over a cohort are the clients' programs. Both are pure. Real
hyper-parameters are pytree leaves: they can be swept by ``vmap`` and changed without recompiling. Fields declared with
:func:`static` shape the program.
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

import jax
import numpy as np

from fedminimax import checks, steps, wire
from fedminimax.data.clients import ClientSource
from fedminimax.errors import InputError
from fedminimax.federation.cohort import Clients
from fedminimax.players import Array, Tree
from fedminimax.problems.base import MinimaxProblem, P
from fedminimax.schedules import as_schedule, is_schedule

ALGORITHMS: dict[str, type[Algorithm]] = {}
"""Every method by its class name, filled by :func:`algorithm`."""

S = TypeVar("S")
"""A method's state."""
_T = TypeVar("_T")


def static(*, default: Any = dataclasses.MISSING, kw_only: Any = dataclasses.MISSING) -> Any:
    """Declare a hyper-parameter that shapes the program (an integer, a set of steps): changing it compiles anew.

    Args:
        default: what it is when it is not given.
        kw_only: whether it must be given by keyword: say so of one that a base declares, where its default or type is another.
    """
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"static": True})


class Algorithm(ABC, Generic[P, S]):
    """The base of all methods: ``Algorithm[the form of problem, the state]``.

    Attributes:
        solves: the kind of problem that the method is for.
    """

    solves: ClassVar[type] = MinimaxProblem

    @abstractmethod
    def init(self, problem: P) -> S:
        """Return the state before round 0: a NamedTuple with the players x and y among its fields."""

    @abstractmethod
    def round(self, problem: P, state: S, clients: Clients) -> S:
        """Return the state after one round."""

    def init_client(self, problem: P) -> Tree:
        """Return a client's persistent state before round 0; None: clients remember nothing between rounds."""
        return None

    def check(self, clients: ClientSource, steps: Array | None = None) -> None:
        """Raise an :class:`InputError` for what these clients cannot carry out, before anything is compiled.

        Args:
            clients: their data.
            steps: tau, [rounds, N], where a trace gives it.
        """
        counts = getattr(getattr(self, "local_steps", None), "counts", None)
        if counts is not None and len(counts) != clients.count:
            raise InputError(f"ClientSteps has {len(counts)} numbers, but there are {clients.count} clients: give one each.")
        cohort = getattr(self, "cohort_size", None)
        if cohort is not None and cohort > clients.count:
            raise InputError(
                f"cohort_size is {cohort}, but there are {clients.count} clients: ask for at most {clients.count}."
            )

    def most_steps(self, clients: ClientSource, recorded: Array | None = None) -> np.ndarray:
        """Return the most local steps that each client may take, [N]: as asked for, or as a trace gives them."""
        if recorded is not None:
            return np.max(np.asarray(recorded), axis=0)
        return steps.most(getattr(self, "local_steps", 1), clients.sizes, getattr(self, "batch_size", None))

    def replace(self: _T, **changes: Any) -> _T:
        """Return a copy with some hyper-parameters changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def __repr__(self) -> str:
        # What is given by keyword only comes last, as one would write it, though bases declare it first.
        fields = sorted(dataclasses.fields(self), key=lambda item: bool(item.kw_only))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{item.name}={getattr(self, item.name)!r}' for item in fields)})"

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if item.metadata.get("static"):
                if isinstance(value, np.integer):
                    value = int(value)
                    object.__setattr__(self, item.name, value)
                _check_static(type(self).__name__, item.name, value)
            else:
                object.__setattr__(self, item.name, _checked_real(type(self).__name__, item.name, value))


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def algorithm(cls: type[_T]) -> type[_T]:
    """Make a class a method: a frozen dataclass, a pytree, and an entry in ``fedminimax list``, under its name."""
    known = ALGORITHMS.get(cls.__name__)
    if known is not None and known.__module__ != cls.__module__:
        raise InputError(
            f"There is a method {cls.__name__} already, that of {known.__module__}: give yours, in {cls.__module__}, another "
            "name."
        )
    _check_declared_anew(cls)
    cls = dataclasses.dataclass(frozen=True, repr=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    jax.tree_util.register_dataclass(
        cls,
        data_fields=[f.name for f in fields if not f.metadata.get("static")],
        meta_fields=[f.name for f in fields if f.metadata.get("static")],
    )
    ALGORITHMS[cls.__name__] = cls  # type: ignore[assignment]
    return cls


def state(cls: type[_T]) -> type[_T]:
    """Make a NamedTuple a state or reply that can be sent and saved."""
    return wire.message(cls)


def _check_declared_anew(cls: type) -> None:
    """Raise an :class:`InputError` for a hyper-parameter that a base has by keyword, and the class by position."""
    inherited = [field for base in cls.__mro__[1:] for field in vars(base).get("__dataclass_fields__", {}).values()]
    by_keyword = {field.name for field in inherited if field.kw_only}
    for name in inspect.get_annotations(cls):
        if name in by_keyword and getattr(vars(cls).get(name), "kw_only", False) is not True:
            raise InputError(
                f"{cls.__name__} has {name} from a base already, where it is given by keyword: leave it out, or, for another "
                f"default, declare it as static(default=..., kw_only=True)."
            )


def _check_static(owner: str, name: str, value: Any) -> None:
    if name == "local_steps":
        steps.check(value, f"{owner}.local_steps")
    elif name in ("batch_size", "cohort_size", "snapshot_every") and value is not None:
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < 1:
            raise InputError(f"{owner}.{name} must be a whole number of at least 1, not {value!r}.")


def _checked_real(owner: str, name: str, value: Any) -> Any:
    if isinstance(value, (bool, str)):
        raise InputError(f"{owner}.{name} must be a number or a schedule of the round, not {value!r}.")
    value = as_schedule(value)
    if is_schedule(value) or not isinstance(value, (int, float, np.ndarray, np.generic)):
        return value
    checks.not_negative(f"{owner}.{name}", value)
    if name == "momentum" and (np.asarray(value) >= 1).any():
        raise InputError(f"{owner}.momentum must be below 1, but is {value}.")
    return float(value) if np.ndim(value) == 0 else value
