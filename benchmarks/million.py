"""A million devices: what a run costs in memory when every client's data is made on demand.

    python benchmarks/million.py

Trains a 784-200-200-10 network on synthetic images, generated from each client's number, against one shared perturbation.
CD-MAGE+ keeps nothing for its clients; CODASCA keeps their control variates in a memory-mapped file.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLIENTS = (1_000, 1_000_000)
METHODS = ("CDMAGEPlus", "CODASCA")


def measure(method: str, clients: int, rounds: int) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fedminimax as fm
    from fedminimax import players

    prototypes = jnp.asarray(np.random.default_rng(0).normal(size=(10, 784)), jnp.float32)

    def make(client):
        """Return 60 examples of two classes, which depend on the client's number."""
        key = jax.random.fold_in(jax.random.key(1), client)
        labels = (client + jnp.arange(60) % 2) % 10
        return {"inputs": prototypes[labels] + jax.random.normal(key, (60, 784)), "labels": labels}

    data = fm.data.GeneratedClients(make, clients)
    sample = data.take(range(50))
    problem = fm.problems.robust_training(fm.models.MLP(), sample, 10, penalty=0.1)
    common = {"lr_x": 0.05, "lr_y": 0.05, "local_steps": 12, "batch_size": 10, "cohort_size": 10}
    algorithm = fm.CDMAGEPlus(alpha=0.5, **common) if method == "CDMAGEPlus" else fm.CODASCA(**common)
    options = {"metrics": fm.metrics.On(fm.metrics.Value(), sample), "eval_every": rounds}
    with tempfile.TemporaryDirectory() as folder:
        states = Path(folder) / "states"
        if method == "CODASCA":
            options["engine"] = fm.Simulator(client_store=states)
        started = time.perf_counter()
        result = fm.run(problem, data, algorithm, rounds=rounds, **options)
        seconds = time.perf_counter() - started
        on_disk = sum(f.stat().st_blocks * 512 for f in states.glob("*")) if states.exists() else 0
        apparent = sum(f.stat().st_size for f in states.glob("*")) if states.exists() else 0
    return {
        "parameters": players.size((problem.x0, problem.y0)),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "file_mb": on_disk / 2**20,
        "file_if_all_took_part_mb": apparent / 2**20,
        "seconds": seconds,
        "ms_a_round": 1e3 * result.seconds / max(1, rounds - 1),
        "loss_before": float(result.history["value"][0]),
        "loss_after": float(result.history["value"][-1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "CLIENTS"), help="measure one case in this process, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.rounds)))
        return
    for method in METHODS:
        for clients in CLIENTS:
            command = [sys.executable, __file__, "--one", method, str(clients), "--rounds", str(options.rounds)]
            out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
            print(method, clients, {k: round(v, 3) for k, v in json.loads(out.stdout.splitlines()[-1]).items()}, flush=True)


if __name__ == "__main__":
    main()
