"""Metrics where the data is: each client's part, from its own data, and the whole, which the server makes of the parts.

What a metric ``needs`` says where it can be evaluated:

- :data:`STATE`: the state alone (a distance to a solution, or the server's own test examples);
- :data:`PARTS`: something that every client computes with its own data, and sends. Such a metric has, beside its flat
  evaluation ``__call__(problem, clients, state)``, which an engine with all data in one place uses,
  ``part(problem, data, told, whose) -> Part`` and ``whole(problem, clients, part, state)``;
- :data:`TOGETHER`: all clients' data in one place, as any function of (problem, clients, state) may.

A client is sent the metric's name and settings, never code, and its share of held-out data stays with it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import wire
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.players import Point, Tree

_T = TypeVar("_T")

STATE, PARTS, TOGETHER = "state", "parts", "together"
"""What a metric needs."""

METRICS: dict[str, type] = {}
"""Every metric by its class name, filled by :func:`metric_class`."""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def metric_class(cls: type[_T]) -> type[_T]:
    """Make a class a metric: a frozen dataclass whose data is an argument of the compiled program, listed under its name."""
    known = METRICS.get(cls.__name__)
    if known is not None and known.__module__ != cls.__module__:
        raise InputError(
            f"There is a metric {cls.__name__} already, that of {known.__module__}: give yours, in {cls.__module__}, another "
            "name."
        )
    METRICS[cls.__name__] = made = jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))
    return made


# -- what goes to and fro ------------------------------------------------------------------------------------------------


@wire.message
class Part(NamedTuple):
    """One client's part of a metric, or everybody's.

    Attributes:
        sum: what is added up over clients: it may go through a sum that hides each of them.
        each: what the server needs from every client; everybody's are stacked, [N, ...].
    """

    sum: Tree = None
    each: Tree = None


class Whose(NamedTuple):
    """Whose part is asked for.

    Attributes:
        id: the client's number.
        weight: its p_i.
    """

    id: Any
    weight: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Roll:
    """What a server knows of its clients without their data: how many there are, and how many examples each has.

    Attributes:
        sizes: how many examples each has, [N].
        total: how many they have together.
        held: the name under which the clients keep these data, where they are held-out ones; None: they are their own.
    """

    sizes: Any
    total: int = dataclasses.field(metadata={"static": True})
    held: str | None = dataclasses.field(default=None, metadata={"static": True})

    @classmethod
    def of(cls, clients: Any) -> Roll:
        """Return what is known of some clients."""
        return clients if isinstance(clients, Roll) else cls(clients.sizes, clients.total)

    @property
    def count(self) -> int:
        """The number of clients N."""
        return int(np.shape(self.sizes)[0])

    @property
    def fields(self) -> Tree:
        """There are no examples here."""
        raise InputError(
            "The clients' examples are with the clients: a metric that needs them here must say needs = 'together'."
        )

    def numbered(self) -> Roll:
        """Return itself: there are no examples to number."""
        return self


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """When an evaluation takes place, for metrics that have an argument ``context``.

    Attributes:
        round: how many rounds have been run.
        known: what they have cost, by name ("floats_up", "grad_evals", ...); None where that is not known yet.
    """

    round: Any
    known: dict[str, Any] | None = None

    @classmethod
    def at(cls, round: int, costs: Mapping[str, float] | None) -> Context:
        """Return the context of an evaluation of a run."""
        return cls(round, {name: float(cost) for name, cost in (costs or {}).items()})

    @property
    def costs(self) -> dict[str, Any]:
        """What the run has cost so far, by name ("floats_up", "grad_evals", ...)."""
        if self.known is None:
            raise InputError(
                "The costs are counted after the rounds of a sweep: a metric that reads context.costs needs run()."
            )
        return self.known


def wants_context(function: Callable[..., Any]) -> bool:
    """Return whether a metric has an argument ``context``."""
    try:
        return "context" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in: there is no signature to look at
        return False


def in_context(function: Callable[..., Any], *args: Any, context: Context | None) -> Any:
    """Call a function, with the context where it has an argument of that name."""
    return function(*args, context=context) if wants_context(function) else function(*args)


def told(metric: Any, problem: Any, clients: Any, state: Any, client: int) -> Tree:
    """Return what a client is told for its part: the players, unless the metric has a method ``told`` that says otherwise."""
    own = getattr(metric, "told", None)
    return Point(state.x, state.y) if own is None else own(problem, clients, state, client)


# -- who can be asked what -----------------------------------------------------------------------------------------------


def needs(metric: Any, count: int) -> str:
    """Return what a metric needs in a federation of ``count``: the state, parts, or all data together.

    Held-out data of another number of clients belongs to none of these, and is only found together.
    """
    said = getattr(metric, "needs", TOGETHER)
    if said not in (STATE, PARTS, TOGETHER):
        raise InputError(f"{_name(metric)} has needs = {said!r}: it must be 'state', 'parts' or 'together'.")
    if said == PARTS and (not _is_metric(metric) or any(data.count != count for data in held_out(metric))):
        return TOGETHER
    return said


def of_own_row(metric: Any) -> bool:
    """Tell whether a metric's parts need a node's own row and data alone, and its whole nothing but the parts."""
    return bool(getattr(metric, "of_own_row", False))


def refuse_together(metrics: Mapping[str, Any], count: int) -> None:
    """Raise an :class:`InputError`, for an engine whose server has no data, if a metric needs all data in one place."""
    refused = [f"{name!r}" for name, metric in metrics.items() if needs(metric, count) == TOGETHER]
    if refused:
        several = len(refused) > 1
        able = [
            getattr(cls, "with_parts", name)
            for name, cls in sorted(METRICS.items())
            if name != "On" and (hasattr(cls, "part") or getattr(cls, "needs", None) == STATE)
        ]
        raise InputError(
            f"The metric{'s' * several} {', '.join(refused)} need{'s' * (not several)} all clients' data in one place, which "
            f"this engine does not have: use {', '.join(able)}, or On(...) of these, or one of your own with parts."
        )


def held_out(metric: Any) -> list[Any]:
    """Return the clients' data that a metric carries, or what a server knows of it; that of a metric within it first."""
    found: list[Any] = []
    for value in _values(metric):
        found = held_out(value) + found if _is_metric(value) else found
        found += [value] if isinstance(value, (ClientData, Roll)) else []
    return found


def measured_on(metric: Any, clients: Any) -> Roll:
    """Return what is known of the data that a metric is taken on: that which it carries, or the clients' own."""
    return Roll.of(next(iter(held_out(metric)), clients))


def without_data(metric: Any) -> Any:
    """Return a metric with what a server knows of its held-out data in place of the data."""
    return _changed(metric, lambda value: Roll.of(value) if isinstance(value, ClientData) else value)


# -- metrics as bytes ----------------------------------------------------------------------------------------------------


@wire.message
class Described(NamedTuple):
    """A metric as it is sent: its name among :data:`METRICS`, and its settings."""

    name: str
    settings: dict[str, Any]


@wire.message
class Held(NamedTuple):
    """Stands in a metric's settings for held-out data, of which each client has its own share under this number or name."""

    number: int | str


def describe(metric: Any, number: Callable[[ClientData], int]) -> Described:
    """Return a metric in a form that can be sent; ``number`` says under which number clients keep a share of some data."""

    def sent(value: Any) -> Any:
        if _is_metric(value):
            return describe(value, number)
        if isinstance(value, ClientData):
            return Held(number(value))
        if isinstance(value, Roll) and value.held is not None:
            return Held(value.held)
        return value.item() if isinstance(value, np.generic) else value

    return Described(type(metric).__name__, {f.name: sent(getattr(metric, f.name)) for f in dataclasses.fields(metric)})


def rebuild(description: Described, shares: Mapping[int | str, ClientData]) -> Any:
    """Return the metric that was described, with a client's own shares of its held-out data."""
    if description.name not in METRICS:
        raise InputError(f"There is no metric {description.name!r} here: import the module that defines it first.")

    def own(value: Any) -> Any:
        value = rebuild(value, shares) if isinstance(value, Described) else value
        return shares[value.number] if isinstance(value, Held) else value

    return _made(METRICS[description.name], {name: own(value) for name, value in description.settings.items()})


def kinds(description: Described) -> list[str]:
    """Return the names of the metrics that a description tells of; not that of On, which says on what data alone."""
    own = [] if description.name == "On" else [description.name]
    return own + [kind for value in description.settings.values() if isinstance(value, Described) for kind in kinds(value)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Assembled:
    """A metric as the server has it: made of the clients' parts where it has any, without any client's data.

    Args:
        metric: the metric, without its data.
        part: everybody's parts; None for a metric that needs the state alone.
    """

    metric: Any
    part: Any = None

    def __call__(self, problem: Any, clients: Any, state: Any, context: Context | None = None) -> Any:
        """Return the metric's numbers."""
        roll = measured_on(self.metric, clients)
        if self.part is None:
            return in_context(self.metric, problem, Roll.of(clients), state, context=context)
        return in_context(self.metric.whole, problem, roll, self.part, state, context=context)


def added_up(parts: list[Part]) -> Part:
    """Return everybody's parts as one, the clients in their order."""
    total = jax.tree.map(lambda *values: sum(values[1:], jnp.asarray(values[0])), *(part.sum for part in parts))
    return Part(total, jax.tree.map(lambda *values: jnp.stack(values), *(part.each for part in parts)))


# -- the fields of metrics -----------------------------------------------------------------------------------------------


def _is_metric(value: Any) -> bool:
    return METRICS.get(type(value).__name__) is type(value)


def _name(metric: Any) -> str:
    return str(getattr(metric, "name", getattr(metric, "__name__", type(metric).__name__)))


def _values(metric: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(metric):
        yield from (getattr(metric, f.name) for f in dataclasses.fields(metric))


def _changed(metric: Any, change: Callable[[Any], Any]) -> Any:
    if not _is_metric(metric):
        return change(metric)
    return _made(type(metric), {f.name: _changed(getattr(metric, f.name), change) for f in dataclasses.fields(metric)})


def _made(cls: type[_T], values: dict[str, Any]) -> _T:
    """Return a metric with these fields. What it was made of was checked then: a client's share of it need not pass."""
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
