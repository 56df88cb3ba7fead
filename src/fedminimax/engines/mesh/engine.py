"""The engine that runs one simulation over many processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from fedminimax import checks, distributed
from fedminimax.algorithms.base import Algorithm
from fedminimax.algorithms.decentralized import Decentralized
from fedminimax.data.clients import ClientSource
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.shards import ClientShard
from fedminimax.engines.execution import Snapshot
from fedminimax.engines.layout import AUTO, Layout, Strategy
from fedminimax.engines.mesh import placement
from fedminimax.engines.mesh.channel import Channel
from fedminimax.engines.mesh.contents import contents
from fedminimax.engines.mesh.dealt import Dealt
from fedminimax.engines.mesh.evaluation import MeshJudge
from fedminimax.engines.mesh.execution import MeshExecution
from fedminimax.engines.mesh.rounds import MeshLayout, MeshProgram
from fedminimax.errors import InputError
from fedminimax.federation.round import Conditions
from fedminimax.federation.trace import Trace
from fedminimax.metrics.base import Metric
from fedminimax.problems.robust import Problem


@dataclass(frozen=True)
class Mesh:
    """The engine that deals clients out over processes, on JAX's distributed runtime (see :mod:`fedminimax.distributed`).

    Every process runs the same script. Each keeps its own clients' examples and states, draws the same cohorts, and works for
    its own clients in them; all replies of an exchange are added up by one reduction. The trajectory is the simulator's, to
    rounding. Process 0 alone shows progress, takes what observers do, and writes folders; all return the result.

    Args:
        strategy: how clients of a process are run: "vmap", "map", a number side by side, or "auto", as for the simulator.
        devices: how many devices each process uses; on CPUs one, unless there is one process only.
    """

    strategy: Strategy = AUTO
    devices: int = 1

    def __post_init__(self) -> None:
        Layout(self.strategy)  # says what is wrong with it
        checks.integer("devices", self.devices)
        distributed.expect()

    @property
    def leads(self) -> bool:
        """Whether this is process 0."""
        return distributed.place().leads

    def leading(self) -> AbstractContextManager[None]:
        """Do what process 0 does while the others follow."""
        return self._channel().leading()

    def following(self) -> AbstractContextManager[None]:
        """Do what process 0 says."""
        return self._channel().in_step()

    def own(self, problem: Problem, clients: ClientSource) -> ClientSource:
        """Return what this process keeps of some clients: its share, so that nobody need hold the others' examples."""
        place = distributed.place()
        if place.processes == 1:
            return clients
        return placement.own_share(clients, problem, place.process, place.processes, self.devices)

    def known(self, clients: ClientSource, metrics: Mapping[str, Metric], problem: Problem) -> ClientSource:
        """Return this process's share of some clients, with a description of all clients' examples.

        Every process calls it, before a run begins. A metric that cannot be had, or a wrong share in one process, is an
        error in all of them.
        """
        channel = self._channel()
        with channel.in_step():
            share, wrong = self._checked(clients, metrics, problem, channel)
            channel.agree(wrong)
            assert share is not None
            if isinstance(share, ClientShard) and share.contents is None:
                share = replace(share, contents=contents(share, channel))
            return share

    def _checked(
        self, clients: ClientSource, metrics: Mapping[str, Metric], problem: Problem, channel: Channel
    ) -> tuple[ClientShard | GeneratedClients | None, InputError | None]:
        """Return this process's share, or what is wrong with it or with the metrics."""
        place = channel.place
        try:
            share = placement.own_share(clients, problem, place.process, place.processes, self.devices)
            dealt = Dealt.of(share, problem, place.process, place.processes, self.devices)
            MeshJudge(problem, share, dealt, channel).check(metrics)
        except InputError as error:
            return None, error
        return share, None

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
    ) -> MeshExecution:
        """Begin a run (see :class:`~fedminimax.engines.execution.Engine`); every process does."""
        place, channel = distributed.place(), self._channel()
        share = placement.own_share(clients, problem, place.process, place.processes, self.devices)
        own = isinstance(algorithm, Decentralized) and type(algorithm).round is Decentralized.round
        layout = MeshLayout(
            self.strategy,
            places=place.processes * self.devices,
            each=self.devices,
            process=place.process,
            in_place=own,
        )
        program = MeshProgram.of(problem, algorithm, conditions, layout)
        return MeshExecution(program, share, algorithm, seed, trace, start, channel)

    def _channel(self) -> Channel:
        return Channel(placement.device_mesh(self.devices))
