"""What a run leaves behind."""

from __future__ import annotations

import importlib
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax import wire
from fedminimax.engines.store import ClientStore
from fedminimax.errors import InputError
from fedminimax.federation.accounting import Message
from fedminimax.federation.trace import Trace
from fedminimax.players import Tree

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Result:
    """The outcome of :func:`fedminimax.run`.

    Attributes:
        state: the algorithm's full final state; ``x`` and ``y`` are its players.
        history: arrays over the evaluations: "round", every metric, and the costs up to then ("floats_up", "grad_evals", ...).
            A metric that returns an array, such as one number for each client, has it here as one array [evaluations, N].
        costs: arrays over rounds: floats down and up by player, gradients of examples, local steps, replies, those that the
            guard dropped; on a network the exchanges. Zeros for rounds before ``first_round``.
        messages: the exchanges of one round: which client function was called, and the floats of request and reply.
        method: the algorithm's name.
        settings: the algorithm with its hyper-parameters, as text.
        seed: the seed.
        rounds: how many rounds have been run in all, those before ``first_round`` included.
        client_states: the clients' own states, where the algorithm has any: arrays [N, ...], or the ClientStore they live in;
            over many processes those of this process's clients, an :class:`~fedminimax.engines.rows.OwnStates`.
        trace: who took part, when ``record=True``.
        seconds: the wall time of all calls but the first.
        compile_seconds: the wall time of the first call: compilation (unless it was kept from an earlier run) and one round.
        interrupted: whether Ctrl-C ended it early; it can be continued with ``run(..., start=result)``.
        stopped: why an observer ended it early; None: none did.
        info: under "made on" the problem's name, the number of clients and a checksum of some of their data.
    """

    state: Any
    history: dict[str, np.ndarray]
    costs: dict[str, np.ndarray]
    messages: list[Message]
    method: str
    settings: str
    seed: int
    rounds: int
    client_states: Tree = None
    trace: Trace | None = None
    seconds: float = 0.0
    compile_seconds: float = 0.0
    interrupted: bool = False
    stopped: str | None = None
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def x(self) -> Tree:
        """The min player at the end."""
        return self.state.x

    @property
    def y(self) -> Tree:
        """The max player at the end; None for a method without one."""
        return self.state.y

    @property
    def w(self) -> Tree:
        """The weights on clients at the end, where those are the max player."""
        return self.state.w

    @property
    def vectors(self) -> dict[str, np.ndarray]:
        """The metrics of the history that are arrays, such as one number for each client, [evaluations, N]."""
        return {name: values for name, values in self.history.items() if values.ndim > 1}

    def frame(self) -> pd.DataFrame:
        """Return the history as a table, one row an evaluation; arrays are in :attr:`vectors`."""
        import pandas as pd

        return pd.DataFrame({name: values for name, values in self.history.items() if values.ndim == 1})

    def final(self) -> dict[str, float]:
        """Return the last value of every number in the history; arrays are in :attr:`vectors`."""
        return {name: float(values[-1]) for name, values in self.history.items() if values.ndim == 1}

    def plot(self, metric: str | None = None, against: str = "round", ax: Axes | None = None, **style: Any) -> Axes:
        """Draw a metric against rounds, "floats_up", "grad_evals" or anything else in the history; return the axes.

        Args:
            metric: its name in the history; by default the first that is a number. Of an array every entry is a line.
            against: what goes on the x-axis.
            ax: where to draw; by default a new figure.
            style: passed to matplotlib.
        """
        import matplotlib.pyplot as plt

        names = [n for n in self.history if n != "round" and n not in self.costs and n not in self.vectors]
        metric = metric or next(iter(names), None)
        for name in (metric, against):
            if name not in self.history:
                raise InputError(f"There is no {name!r} in this history: it has {', '.join(self.history)}.")
        ax = plt.subplots(figsize=(6, 4), layout="constrained")[1] if ax is None else ax
        values = self.history[str(metric)].reshape(len(self.history["round"]), -1)
        first, *others = ax.plot(self.history[against], values, **{"label": self.method, **style})
        for line in others:  # one kind of lines, named once
            line.set(color=first.get_color(), label="_")
        ax.set_xlabel(against.replace("_", " "))
        ax.set_ylabel(str(metric).replace("_", " "))
        ax.legend()
        return ax

    def record(self) -> dict[str, Any]:
        """Return everything as a tree that :mod:`fedminimax.wire` can carry."""
        record = {k: v for k, v in self.__dict__.items() if k not in ("messages", "trace")}
        record["messages"] = [asdict(m) for m in self.messages]
        record["trace"] = None if self.trace is None else dict(self.trace.__dict__)
        if isinstance(self.client_states, ClientStore):
            record["client_states"], record["client_store"] = None, self.client_states.record()
        return record

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Result:
        """Return the result of which this is the record."""
        record = dict(record)
        record["messages"] = [Message(**m) for m in record["messages"]]
        record["trace"] = None if record["trace"] is None else Trace(**record["trace"])
        if "client_store" in record:
            record["client_states"] = ClientStore.restore(record.pop("client_store"))
        return cls(**record)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything to one file, without pickle; a crash while writing leaves the old file as it was."""
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(f"The path to save to is {path!r}: give that of a file to write, such as 'run.fmx'.")
        target = Path(path)
        if not target.name or target.is_dir():
            raise InputError(
                f"{str(path)!r} is a folder: give the path of a file to write, such as {str(target / 'run.fmx')!r}."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        contents = wire.encode(self.record())
        unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
        unfinished.write_bytes(contents)
        os.replace(unfinished, target)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read what :meth:`save` wrote."""
        importlib.import_module("fedminimax.algorithms")  # a file names the classes of its states, which must be known
        if not Path(path).is_file():
            raise InputError(f"There is no file {path}: give the path of a saved result.")
        record = wire.decode(Path(path).read_bytes())
        if not isinstance(record, dict) or "history" not in record:
            raise InputError(f"{path} is not a saved result.")
        return cls.of_record(record)

    def __repr__(self) -> str:
        shown = ", ".join(f"{k} = {v:.4g}" for k, v in self.final().items() if k not in self.costs)
        return (
            f"Result({self.method}: {shown}{', interrupted' if self.interrupted else ''}{', stopped' if self.stopped else ''})"
        )
