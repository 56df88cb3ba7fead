"""fedminimax: rounds on its simulator, as ``run`` carries them out, with nothing evaluated in between."""

from __future__ import annotations

from typing import ClassVar

import jax

import fedminimax as fm
from child import serve
from fedminimax.engines.simulator import ROOM
from fedminimax.federation.round import Conditions
from problems import build, mean_loss
from workloads import Workload


class Rounds:
    """fedminimax's contender."""

    versions: ClassVar = {"fedminimax": fm.__version__, "jax": jax.__version__}

    def __init__(self, workload: Workload):
        self.problem, self.clients, self.algorithm = build(workload)

    def start(self) -> None:
        self.execution = fm.Simulator().open(self.problem, self.clients, self.algorithm, Conditions())

    def advance(self, rounds: int) -> None:
        for done in range(0, rounds, ROOM):
            self.execution.advance(min(ROOM, rounds - done))
        jax.block_until_ready(self.execution.state)

    def loss(self) -> float:
        state = self.execution.state
        return mean_loss(self.problem, self.clients, state.x, state.y)


if __name__ == "__main__":
    serve(Rounds)
