"""What checkpoints every 50 rounds add to workloads B and C, which is to be at most 3%: ``python benchmarks/checkpoints.py``.

Runs without a folder, with one that gets a checkpoint at the end, and with one that gets several take turns in one process.
Those of C are taken after every round, so that there are enough of them to measure: what one costs is the
difference of the last two, within a turn, by the number of checkpoints that the last has more, and is set against 50 rounds of
the first in the same turn. Seconds are those of the wall, and of all cores together. A folder also costs something once a run,
however long that is: the difference of the first two.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import fedminimax as fm
from problems import build
from processes import machine, save
from workloads import WORKLOADS

EVERY, TARGET = 50, 0.03
SIZES = {"B": (400, 50), "C": (4, 1)}
"""Rounds of a run, and between its checkpoints."""


def once(given: tuple, rounds: int, folder: Path | None, every: int) -> tuple[float, float]:
    """Return the seconds of a run: by the wall, and of the cores."""
    kept = {} if folder is None else {"folder": folder, "checkpoint_every": every}
    wall, cores = time.perf_counter(), time.process_time()
    fm.run(*given, rounds=rounds, eval_every=rounds, progress=False, **kept)
    return time.perf_counter() - wall, time.process_time() - cores


def measure(name: str, turns: int) -> dict[str, Any]:
    """Return what a checkpoint costs, what that is of 50 rounds, and what a folder costs once a run."""
    given, (rounds, every) = build(WORKLOADS[name]), SIZES[name]
    taken = []
    with tempfile.TemporaryDirectory() as place:
        for turn in range(turns + 1):
            arms = [(None, every), (Path(place) / f"{turn}-end", rounds), (Path(place) / f"{turn}-often", every)]
            order = [(k + turn) % 3 for k in range(3)]  # none is always first
            took = {k: once(given, rounds, *arms[k]) for k in order}
            taken.append([took[k] for k in range(3)])
    seen = {}
    for k, clock in enumerate(("wall", "cores")):
        rows = [[arm[k] for arm in turn] for turn in taken[1:]]  # the first turn compiles
        a_round = [plain / rounds for plain, _, _ in rows]
        checkpoint = [(often - end) / (rounds // every - 1) for _, end, often in rows]
        seen[clock] = {
            "seconds of a round": statistics.median(a_round),
            "seconds of a checkpoint": statistics.median(checkpoint),
            "share": statistics.median(c / (EVERY * r) for c, r in zip(checkpoint, a_round, strict=True)),
            "seconds of a folder": statistics.median(end - plain for plain, end, _ in rows),
            "turns": rows,
        }
    return {"rounds": rounds, "every": every, **seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "checkpoints.json")
    options = parser.parse_args()
    where, seen = machine(), {}
    for name in SIZES:
        seen[name] = measure(name, options.turns)
        for clock in ("wall", "cores"):
            one = seen[name][clock]
            plain = [turn[0] for turn in one["turns"]]
            print(
                f"{name} {clock:5s} a round {1e3 * one['seconds of a round']:7.1f} ms (runs differ by "
                f"{(max(plain) - min(plain)) / min(plain):.0%}), a checkpoint {1e3 * one['seconds of a checkpoint']:6.1f} ms: "
                f"{one['share']:.2%} of {EVERY} rounds (<= {TARGET:.0%}); a folder, once a run, "
                f"{1e3 * one['seconds of a folder']:.0f} ms",
                flush=True,
            )
    save(options.out, {"machine": where, "target": TARGET, "of rounds": EVERY, "seen": seen})


if __name__ == "__main__":
    main()
