"""What carries out a run: an engine opens an execution, and nothing of a run lives outside of it.

An :class:`Engine` says how rounds are carried out, and may serve many runs at once. An :class:`Execution` is one run under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fedminimax import wire
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.rows import Part
from fedminimax.errors import InputError
from fedminimax.federation.accounting import Message, Traffic
from fedminimax.federation.privacy import Sent
from fedminimax.federation.round import Conditions
from fedminimax.federation.trace import Trace
from fedminimax.metrics.base import Metric
from fedminimax.players import Tree
from fedminimax.problems.robust import Problem

START = "start"
"""The name of the state that a client at a site has before its first exchange."""


class Halted(InputError):
    """A run cannot go on for now, as it lacks clients. The rounds before are whole, and it may be gone on with later."""


@wire.message
class AtSites(NamedTuple):
    """Stands in a snapshot for states that are with the clients, and in a result: what to ask them to go on from.

    Attributes:
        run: the name of the run, by which sites know it.
        names: of each client's state.
    """

    run: str
    names: tuple[str, ...]

    @property
    def x(self) -> Tree:
        """There is no player here."""
        raise _elsewhere()

    @property
    def y(self) -> Tree:
        """There is no player here."""
        raise _elsewhere()


def _elsewhere() -> InputError:
    return InputError(
        "Every site's players are at the site: read them there with NodeModel.load(folder), of fedminimax.engines.federated."
    )


class Snapshot(NamedTuple):
    """All that a run goes on from: what comes next depends on it, on the seed and on the settings, and on nothing else.

    Attributes:
        state: the algorithm's state.
        client_states: the clients' own states, where they have any: arrays [N, ...], or the store that they live in, or the
            names by which the clients know them (:class:`AtSites`); over many processes those of a process's own clients
            (:class:`~fedminimax.engines.rows.OwnStates`).
        round: how many rounds have been run.
    """

    state: Tree
    client_states: Tree = None
    round: int = 0


class Progress(NamedTuple):
    """What came out of some rounds: counts; when recorded, who was there; with privacy, who sent what (arrays over rounds)."""

    traffic: Traffic
    attendance: tuple[Tree, ...]
    sent: tuple[Sent, ...] = ()


class Execution(ABC):
    """One run under way: its state, its clients' states, the round that it has reached.

    Attributes:
        round: how many rounds have been run.
        messages: the exchanges of one round, in order, once there was one.
    """

    round: int
    messages: list[Message]

    @property
    @abstractmethod
    def state(self) -> Tree:
        """The algorithm's state after the last round."""

    @property
    def most_rounds(self) -> int | None:
        """How many rounds :meth:`advance` may be asked for at once; None: any number."""
        return None

    @property
    def layout(self) -> dict[str, Any]:
        """How rounds are carried out, as JSON can hold it: what their rounding depends on beside the run itself."""
        return {"engine": type(self).__name__}

    @abstractmethod
    def advance(self, rounds: int) -> Progress:
        """Run so many rounds more. A call that is interrupted leaves everything as it was before."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return all that the run goes on from, on the host."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Go on from there."""

    @abstractmethod
    def evaluate(self, metrics: Mapping[str, Metric], costs: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return every number of every metric at the state, or an array where a metric returns one.

        Args:
            metrics: the metrics, by name.
            costs: what the run has cost so far, for metrics that look at it.
        """

    def keep(self, folder: Path) -> Callable[[], list[Part]] | None:
        """Have clients' states that a snapshot lacks written into a checkpoint's folder, by whoever has them.

        Returns what waits for them, in whichever thread, and says in which files they are; None: snapshots lack none.

        Args:
            folder: the checkpoint's, which is there.
        """
        return None

    def ended(self, record: Callable[[], dict[str, Any]]) -> None:  # noqa: B027  (most engines have nobody to tell)
        """Take what came of the run to whoever else is to know it.

        Args:
            record: returns the result as a tree that :mod:`fedminimax.wire` can carry.
        """

    def close(self) -> None:  # noqa: B027  (most engines have nothing to let go of)
        """Let go of what the run holds. Snapshots that were taken stay as they are."""

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@runtime_checkable
class Engine(Protocol):
    """How rounds are carried out."""

    def open(
        self,
        problem: Problem,
        clients: ClientSource,
        algorithm: Algorithm,
        conditions: Conditions,
        *,
        seed: int = 0,
        trace: Trace | None = None,
        start: Snapshot | None = None,
    ) -> Execution:
        """Begin a run.

        Args:
            problem: what to solve, bound to its clients (``problem.bind``).
            clients: their data, as bound.
            algorithm: the method.
            conditions: who answers, what is let through, what is recorded.
            seed: of all randomness.
            trace: a record to replay.
            start: where to go on from; None: the algorithm's own start, at round 0.
        """
        ...
