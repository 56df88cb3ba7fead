"""A contender's process: it builds, warms up, and then runs blocks of rounds whenever the parent asks."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from workloads import WORKLOADS, Workload


class Contender(Protocol):
    """One way to run a workload."""

    versions: ClassVar[dict[str, str]]

    def start(self) -> None:
        """Put the players where they start."""

    def advance(self, rounds: int) -> None:
        """Run some rounds, and return when they are done."""

    def loss(self) -> float:
        """Return the loss over everybody's examples at the players' present values."""


def serve(build: Callable[[Workload], Contender]) -> None:
    """Answer the parent's requests, one line of JSON each, until there are no more.

    ``go N``: run N rounds; seconds of wall and processor time, per round. ``check N``: the loss at the start and after
    N rounds from there.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    workload = WORKLOADS[parser.parse_args().workload]
    # The answers have the real standard output to themselves; whatever a library prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    contender = build(workload)
    contender.start()
    first = timed(contender.advance, 1)
    again = timed(contender.advance, 1)
    answer(versions=contender.versions, warm_up=max(0.0, first["wall"] - again["wall"]))
    for line in sys.stdin:
        request, count = line.split()
        if request == "go":
            answer(**timed(contender.advance, int(count)))
        elif request == "check":
            contender.start()
            before = contender.loss()
            contender.advance(int(count))
            answer(before=before, after=contender.loss())
        else:
            raise ValueError(f"Unknown request {line!r}.")


def timed(run: Callable[[int], Any], rounds: int) -> dict[str, float]:
    """Return the seconds of wall and processor time per round, and how much of the wall time threads waited for a core."""
    wall, cpu, waited = time.perf_counter(), time.process_time(), _waited()
    run(rounds)
    wall, cpu, waited = time.perf_counter() - wall, time.process_time() - cpu, _waited() - waited
    return {"wall": wall / rounds, "cpu": cpu / rounds, "waiting": waited / wall}


def _waited() -> float:
    """The seconds that this process's threads could have run and had no core, so far (0 where Linux does not say)."""
    return sum(int(task.read_text().split()[1]) for task in Path("/proc/self/task").glob("*/schedstat")) / 1e9
