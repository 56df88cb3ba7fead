"""fedminimax: rounds on its simulator, as ``run`` carries them out, with nothing evaluated in between."""

from __future__ import annotations

from typing import ClassVar

import jax

import fedminimax as fm
from child import serve
from fedminimax.engines import keys
from fedminimax.engines.cohort import Conditions
from fedminimax.engines.simulator import AUTO, Simulator
from fedminimax.run import _layout
from problems import build, mean_loss
from workloads import Workload

ROOM = 4096
"""The most rounds of a call, as in ``run``."""


class Rounds:
    """fedminimax's contender."""

    versions: ClassVar = {"fedminimax": fm.__version__, "jax": jax.__version__}

    def __init__(self, workload: Workload):
        self.problem, self.clients, self.algorithm = build(workload)
        layout = _layout(self.problem, self.clients, self.algorithm, AUTO, None)
        self.simulator = Simulator.build(self.problem, self.algorithm, Conditions(), layout)
        self.data = self.simulator.place(self.clients)
        self.key = keys.root(0)

    def start(self) -> None:
        self.now = 0
        self.carry = self.simulator.start(self.algorithm, self.clients)

    def advance(self, rounds: int) -> None:
        last = self.now + rounds
        while self.now < last:
            count = min(last - self.now, ROOM)
            self.carry, _ = self.simulator.advance(
                self.algorithm, self.data, self.key, self.carry, self.now, count, length=ROOM
            )
            self.now += count
        jax.block_until_ready(self.carry)

    def loss(self) -> float:
        return mean_loss(self.problem, self.clients, self.carry.state.x, self.carry.state.y)


if __name__ == "__main__":
    serve(Rounds)
