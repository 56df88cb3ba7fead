"""What checkpoints every 50 rounds add to workloads B and C: ``python benchmarks/checkpoints.py``.

Runs with a folder and runs without take turns. Of C, checkpoints are taken after every round, so that there are enough of them
to measure; what one costs is then set against 50 rounds. Seconds are those of the wall, and of all cores together.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import fedminimax as fm
from problems import build
from workloads import WORKLOADS

EVERY = 50
SIZES = {"B": (400, 50), "C": (4, 1)}
"""Rounds of a run, and between its checkpoints."""


def once(given: tuple, rounds: int, folder: Path | None, every: int) -> tuple[float, float]:
    """Return the seconds of a run: by the wall, and of the cores."""
    kept = {} if folder is None else {"folder": folder, "checkpoint_every": every}
    wall, cores = time.perf_counter(), time.process_time()
    fm.run(*given, rounds=rounds, eval_every=rounds, progress=False, **kept)
    return time.perf_counter() - wall, time.process_time() - cores


def measure(name: str, turns: int) -> None:
    """Print what a checkpoint costs, and what that is of 50 rounds; and what a folder costs once a run, with its last one."""
    given, (rounds, every) = build(WORKLOADS[name]), SIZES[name]
    place = Path(tempfile.mkdtemp())
    taken = []
    for turn in range(turns + 1):
        arms = [(None, every), (place / f"{turn}-end", rounds), (place / f"{turn}-often", every)]
        taken.append([once(given, rounds, folder, apart) for folder, apart in arms])
    shutil.rmtree(place)
    for k, clock in enumerate(("wall", "cores")):
        plain, end, often = zip(*([arm[k] for arm in turn] for turn in taken[1:]), strict=True)  # the first one compiles
        of = lambda a, b: statistics.median(y - x for x, y in zip(a, b, strict=True))
        round_, more = statistics.median(plain) / rounds, of(end, often) / (rounds // every - 1)
        print(
            f"{name} {clock:5s} a round {1e3 * round_:7.1f} ms (runs differ by {(max(plain) - min(plain)) / min(plain):.0%}), "
            f"a checkpoint {1e3 * more:6.1f} ms: {100 * more / (EVERY * round_):.2f}% of {EVERY} rounds; a folder, once a run, "
            f"{1e3 * of(plain, end):.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for workload in ("B", "C"):
        measure(workload, turns)
