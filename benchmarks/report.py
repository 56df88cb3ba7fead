"""How long a report takes to write, and how large it is: 10 methods x 5 seeds x 1,000 evaluations.

    python benchmarks/report.py

Each time is a process of its own, from its start to its end, as `fedminimax report` has it; the folders are made up. The page
alone and the page with figures and tables take turns; what is shown is the median, by the wall and of the processor. The page
with everything beside it is to take less than 5 s, and the page to be smaller than 6 MB.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedminimax.folders import FINISHED, Record
from processes import machine, save

METHODS, SEEDS, EVALUATIONS, METRICS, CLIENTS, TIMES = 10, 5, 1000, 6, 20, 5
RESULTS = Path(__file__).parent / "results" / "report.json"


def make(root: Path) -> None:
    rng = np.random.default_rng(0)
    t = 10 * np.arange(EVALUATIONS)
    for k in range(METHODS):
        for seed in range(SEEDS):
            falling = np.exp(-t / (1000 + 100 * k))
            noisy = {f"metric {m}": falling * np.exp(rng.normal(0, 0.05, EVALUATIONS)) for m in range(METRICS)}
            each = falling[:, None] + rng.normal(0, 0.05, (EVALUATIONS, CLIENTS))
            w = np.exp(each) / np.exp(each).sum(axis=1, keepdims=True)
            costs = {"floats_up": 1000 * (k + 1) * t, "grad_evals": 50 * t, "waited": 0.3 * t}
            Record(
                label=f"method {k}",
                method="FedAvg",
                settings=f"FedAvg(lr_x={k})",
                seed=seed,
                rounds=int(t[-1]),
                wanted=int(t[-1]),
                status=FINISHED,
                history={"round": t, **noisy, "client_loss/each": each, "w/each": w, **costs},
                costs=tuple(costs),
                better=dict.fromkeys([*noisy, "client_loss/each"], "lower"),
            ).write(root / f"method-{k}" / f"seed-{seed}")


def timed(cache: Path, *arguments: str) -> tuple[float, float]:
    """Return the seconds that a report took, and those of the processor, which others' work does not lengthen as much."""
    # As for a user, compiled modules are kept.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    before, used_before = time.perf_counter(), used()
    command = [sys.executable, "-c", "from fedminimax.cli import main; main()", "report", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**env, "PYTHONPYCACHEPREFIX": str(cache)})
    return time.perf_counter() - before, used() - used_before


def main() -> None:
    where = machine()
    with tempfile.TemporaryDirectory() as place:
        root, cache = Path(place) / "runs", Path(place) / "cache"
        make(root)
        timed(cache, str(root))  # the first time Python compiles what it imports
        page, everything = [], []
        for _ in range(TIMES):
            page.append(timed(cache, str(root), "--only-page"))
            everything.append(timed(cache, str(root)))
        megabytes = (root / "report.html").stat().st_size / 1e6
    medians = lambda times: dict(
        zip(("wall", "processor"), (round(statistics.median(kind), 2) for kind in zip(*times, strict=True)), strict=True)
    )
    found = {
        "machine": where,
        "methods": METHODS,
        "seeds": SEEDS,
        "evaluations": EVALUATIONS,
        "metrics": METRICS,
        "target": {"seconds": 5, "megabytes": 6},
        "seconds of the page": medians(page),
        "seconds with figures and tables": medians(everything),
        "megabytes": round(megabytes, 2),
    }
    print(json.dumps(found, indent=2))
    save(RESULTS, found)


if __name__ == "__main__":
    main()
