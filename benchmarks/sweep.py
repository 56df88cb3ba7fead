"""A sweep as one program against the same runs one after another: Figure 1's grid of the 1-D Wasserstein GAN.

    python benchmarks/sweep.py

36 settings of FESS-GDA with 5 seeds, 180 runs in all. Both ways are compiled before anything is timed. Then they take turns:
the whole sweep, and some of its runs by ``fm.run``, others each time, from whose time that of 180 follows. Metrics are taken
after every round, as the figure draws it, and about fifty times, as both ways do by themselves.
"""

import argparse
import random
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import fedminimax as fm
from fedminimax.problems.gan import wgan_error
from processes import machine, save

GRID = {"lr_x": [0.1, 0.01, 0.001], "lr_y": [0.1, 0.01, 0.001], "server_lr_x": [1.0, 2.0], "server_lr_y": [1.0, 2.0]}
METHOD = fm.FessGDA(lr_x=0.1, lr_y=0.1, p=1.0, beta=0.05, local_steps=10, batch_size=100)
SEEDS, TARGET = 5, 20
TASK = fm.problems.wgan(0.001)
COMMON: dict[str, Any] = {"metrics": {"error": wgan_error}, "progress": False}


def sweep(rounds: int, every: int) -> fm.Sweep:
    return fm.sweep(TASK.problem, TASK.clients, METHOD, rounds=rounds, eval_every=every, grid=GRID, seeds=SEEDS, **COMMON)


def run(setting: dict[str, float], seed: int, rounds: int, every: int) -> fm.Result:
    return fm.run(TASK.problem, TASK.clients, METHOD.replace(**setting), rounds=rounds, eval_every=every, seed=seed, **COMMON)


def seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured(rounds: int, every: int, runs: int, repetitions: int) -> dict[str, Any]:
    """Return the seconds of the sweep and of all its runs one after another, in turns, and the ratios within each turn."""
    cold = {"sweep": seconds(lambda: sweep(rounds, every))}
    settings = sweep(rounds, every).settings
    every_run = [(setting, seed) for setting in settings for seed in range(SEEDS)]
    cold["run"] = seconds(lambda: run(settings[0], 0, rounds, every))
    run(settings[0], 0, rounds, every)
    turns = []
    for turn in range(repetitions):
        some = random.Random(turn).sample(every_run, runs)
        arms = {
            "sweep": lambda: sweep(rounds, every),
            "runs": lambda some=some: [run(*one, rounds, every) for one in some],
        }
        took = {name: seconds(arms[name]) for name in (list(arms) if turn % 2 else reversed(arms))}  # neither always first
        together, apart = took["sweep"], took["runs"] * len(every_run) / runs
        turns.append({"sweep": together, "runs": apart, "ratio": apart / together})
    middle = {name: statistics.median(turn[name] for turn in turns) for name in ("sweep", "runs", "ratio")}
    return {"rounds": rounds, "eval_every": every, "cold": cold, "turns": turns, **middle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--runs", type=int, default=12, help="how many of the runs are run apart in each turn")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "sweep.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "The guard refused")  # some settings of the figure's grid diverge
    seen = {}
    fifty = max(d for d in range(1, max(1, options.rounds // 50) + 1) if options.rounds % d == 0)  # as a sweep does by itself
    where = machine()
    for name, every in (("every round", 1), ("by default", fifty)):
        seen[name] = one = measured(options.rounds, every, options.runs, options.repetitions)
        took = f"{one['sweep']:.2f} s as one program, {one['runs']:.1f} s one after another"
        print(f"evaluated {name}: 180 runs of {options.rounds} rounds: {took}: {one['ratio']:.0f} times (>= {TARGET})")
    save(options.out, {"machine": where, "target": TARGET, "seen": seen})


if __name__ == "__main__":
    main()
