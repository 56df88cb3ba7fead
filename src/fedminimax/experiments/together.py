"""An experiment on many processes at once: its runs dealt out over them, or each run on all of them together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from fedminimax import distributed
from fedminimax.crew import Crew, Missing
from fedminimax.engines.execution import Engine
from fedminimax.engines.mesh import Mesh
from fedminimax.engines.mesh.channel import Channel
from fedminimax.engines.mesh.placement import device_mesh
from fedminimax.engines.mesh.watch import Lost
from fedminimax.experiments.home import Home
from fedminimax.interrupts import unheard

Which = tuple[str, int]
"""A run: its label and its seed."""
_OVER = "over"
_MOMENT = 10.0
"""Seconds that others have to end after Ctrl-C."""


class Dealt:
    """Runs dealt out over processes, each carried out by one of them.

    Args:
        crew: the processes.
        runs: all runs that are wanted, in an order that all processes have.
    """

    def __init__(self, crew: Crew, runs: Sequence[Which]):
        self._crew, self._places = crew, {which: k for k, which in enumerate(runs)}

    def mine(self, which: Which) -> bool:
        """Tell whether this process carries a run out."""
        return self._crew.mine(self._places[which])

    @property
    def over(self) -> bool:
        """Whether process 0 has ended, and this one need not go on."""
        return not self._crew.leads and "ended" in self._crew.facts(0)

    def wait(self, home: Home) -> list[Which]:
        """Wait until the others have done their shares, and return these runs; who is lost is written down."""
        for process in self._crew.others:
            try:
                self._crew.wait(lambda process=process: self._crew.facts(process).get("done"), process)  # type: ignore[misc]
            except Missing as error:
                home.lost(str(error))
        return [which for which in self._places if not self.mine(which)]

    def settle(self) -> None:
        """Give the others a moment to end, who were interrupted too."""
        until = time.monotonic() + min(_MOMENT, self._crew.place.patience)
        while time.monotonic() < until and not all(map(self._done, self._crew.others)):
            time.sleep(0.1)

    def merge(self, home: Home) -> None:
        """Write down what the others have said of their runs."""
        for process in self._crew.others:
            facts = self._crew.facts(process)
            for what, why in facts.get("tried", {}).items():
                home.tried(what, why)
            for says in facts.get("said", []):
                home.log(f"Process {process}: {says}")

    def _done(self, process: int) -> bool | None:
        return True if {"done", "ended"} & self._crew.facts(process).keys() else None


class Together:
    """Runs that all processes of a mesh carry out together: process 0 says which is next."""

    def __init__(self, engine: Engine | str):
        several = isinstance(engine, Mesh) and distributed.place().processes > 1
        self._engine = engine if several and isinstance(engine, Mesh) else None
        self._channel = None if self._engine is None else Channel(device_mesh(self._engine.devices))

    @property
    def leads(self) -> bool:
        """Whether this process says what is run, which one alone does too."""
        return self._channel is None or self._channel.leads

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Lead the others; when this is over they are told, and so they are when it fails."""
        with self._leading():
            yield
            if self._channel is not None:
                self._channel.say(_OVER)

    def _leading(self) -> AbstractContextManager[None]:
        return nullcontext() if self._engine is None else self._engine.leading()

    def next(self, which: Which) -> None:
        """Say which run comes next."""
        if self._channel is not None:
            self._channel.say(json.dumps(which))

    def follow(self, carry_out: Callable[[Which], object]) -> None:
        """Carry out what process 0 says, until it is over; a run that fails fails at process 0 too, which says so."""
        assert self._engine is not None
        assert self._channel is not None
        with unheard(), self._engine.following():
            while (said := self._channel.hear()) != _OVER:
                label, seed = json.loads(said)
                try:
                    carry_out((label, seed))
                except Lost:
                    raise
                except Exception:  # so it does at process 0, which says why
                    continue
