"""A ready-made task: a problem with the data it is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic

from fedminimax.data.clients import ClientData
from fedminimax.players import Point
from fedminimax.problems.base import P


@dataclass(frozen=True)
class Task(Generic[P]):
    """A problem, the clients it is solved on, and what is known about it.

    Attributes:
        problem: the problem, of whichever form.
        clients: the training data.
        test: held-out data as plain arrays, where there is any.
        solution: an exact solution, where one is known.
        info: anything else worth telling.
    """

    problem: P
    clients: ClientData
    test: Any = None
    solution: Point | None = None
    info: dict[str, Any] = field(default_factory=dict)
