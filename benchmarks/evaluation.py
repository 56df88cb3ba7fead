"""Metrics from clients' parts against metrics on all data at once: processor time and memory, for more and more clients.

    python benchmarks/evaluation.py

Fair classification, ten classes, with a linear model; Value, ClientLoss and ClassAccuracy at one state. The flat evaluation is
the simulator's; the parts are asked for by the isolated engine, as bytes, one client after another. Every case has a process of
its own. Times are of the processor, medians of five evaluations after the first, so that other work does not count.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

CLIENTS = (10, 100, 1000)
EXAMPLES, FEATURES, CLASSES = 100, 256, 10
ENGINES = ("simulator", "isolated")


def measure(engine: str, count: int) -> dict[str, float]:
    import jax
    import numpy as np

    import fedminimax as fm
    from fedminimax.federation.round import Conditions

    jax.numpy.zeros(()).block_until_ready()  # so that what JAX itself takes is there before
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count * EXAMPLES).astype(np.int32)
    inputs = rng.normal(size=(labels.size, FEATURES)).astype(np.float32)
    clients = fm.ClientData.equal({"inputs": inputs, "labels": labels}, count)
    del inputs
    problem, clients = fm.problems.fair_classification(fm.models.Logistic(CLASSES), clients, CLASSES).bind(clients)
    metrics = {"value": fm.metrics.Value(), "loss": fm.metrics.ClientLoss(), "class": fm.metrics.ClassAccuracy(classes=CLASSES)}
    carrier = {"simulator": fm.Simulator(devices=1), "isolated": fm.Isolated(data_on_server=False)}[engine]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with carrier.open(problem, clients, fm.FessGDA(0.1, 0.1), Conditions()) as execution:
        seconds = []
        for _ in range(6):
            started = time.process_time()
            values = execution.evaluate(metrics)
            seconds.append(time.process_time() - started)
    return {
        "data_mb": labels.size * FEATURES * 4 / 2**20,
        "more_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before,
        "first_s": seconds[0],
        "ms": 1e3 * statistics.median(seconds[1:]),
        "value": values["value"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "CLIENTS"), help="measure one case in this process, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    for count in CLIENTS:
        for engine in ENGINES:
            command = [sys.executable, __file__, "--one", engine, str(count)]
            out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            print(engine, count, {k: round(v, 6) for k, v in json.loads(out.stdout.splitlines()[-1]).items()}, flush=True)


if __name__ == "__main__":
    main()
