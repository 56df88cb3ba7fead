"""What a round costs, and how much memory a run takes, with a thousand clients and with a million."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from child import timed
from processes import Child, Command, block_of, interleave, machine, ratio, save

COUNTS = (1_000, 1_000_000)
EXAMPLES, FEATURES, CLASSES, COHORT, STEPS, BATCH = 4, 16, 10, 10, 6, 4
TARGET = 1.2
RESULT = Path(__file__).parent / "results" / "clients.json"


def main() -> None:
    """Measure all counts of clients, interleaved; or, with --count, be the process of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--block-seconds", type=float, default=1.0)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--results", type=Path, default=RESULT.parent)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        _serve(options.count)
    else:
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    where = machine()
    with ExitStack() as stack:
        children = {}
        for count in COUNTS:
            arguments = ("--count", str(count))
            child = Child(Command(f"{count:,}", sys.executable, Path(__file__).name, arguments, core=options.core))
            stack.callback(child.close)
            children[child.label] = child
        blocks = {label: block_of(child, options.block_seconds) for label, child in children.items()}
        times = interleave(children, blocks, options.repetitions)
        memory = {label: child.ask("memory 0") for label, child in children.items()}
    few, many = (times[label][options.clock] for label in children)
    small, large = (memory[label] for label in children)
    more_data = large["data_bytes"] - small["data_bytes"]
    content = {
        "machine": where,
        "clock": options.clock,
        "ratio": ratio(many, few),
        "target": TARGET,
        "memory_per_data": (large["running_bytes"] - small["running_bytes"]) / more_data,
        "counts": [
            {
                "clients": count,
                "ms": 1000 * statistics.median(times[label][options.clock]),
                **memory[label],
                "seconds": times[label],
            }
            for count, label in zip(COUNTS, children, strict=True)
        ],
    }
    save(options.results / RESULT.name, content)
    table = Table(title=f"{content['ratio']:.2f} times as long a round with {COUNTS[1] // COUNTS[0]:,} times the clients")
    for title in ("clients", "ms a round", "data, MB", "peak while building, MB", "peak while running, MB"):
        table.add_column(title, justify="right")
    for row in content["counts"]:
        memories = [f"{row[name] / 1e6:.1f}" for name in ("data_bytes", "building_bytes", "running_bytes")]
        table.add_row(f"{row['clients']:,}", f"{row['ms']:.3g}", *memories)
    table.caption = (
        f"target: at most {TARGET:g} times; memory beyond that of Python with JAX started. Running, "
        f"{content['memory_per_data']:.2f} bytes more for each byte more of data."
    )
    Console().print(table)


def _serve(count: int) -> None:
    """Run rounds when asked, and tell how much memory that took beyond JAX's own."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import fedminimax as fm
    from fedminimax.federation.round import Conditions

    jax.block_until_ready(jax.jit(lambda a: a @ a)(jnp.ones((2, 2))))
    resting = _peak()

    def loss(x: Any, y: Any, batch: Any) -> Any:
        entropy = optax.softmax_cross_entropy_with_integer_labels(batch["inputs"] @ x["w"] + x["b"], batch["labels"])
        return jnp.mean(CLASSES * y[batch["labels"]] * entropy)

    rng = np.random.default_rng(0)
    fields = {
        "inputs": rng.standard_normal((count * EXAMPLES, FEATURES), np.float32),
        "labels": rng.integers(CLASSES, size=count * EXAMPLES, dtype=np.int32),
    }
    clients = fm.ClientData.equal(fields, count)
    size = sum(a.nbytes for a in fields.values())
    del fields
    built = _peak()
    _forget_peak()
    x0 = {"w": jnp.zeros((FEATURES, CLASSES)), "b": jnp.zeros(CLASSES)}
    problem = fm.MinimaxProblem(loss, x0, jnp.full(CLASSES, 1.0 / CLASSES), y_set=fm.sets.Simplex(CLASSES))
    algorithm = fm.LocalSGDA(lr_x=0.05, lr_y=0.01, local_steps=STEPS, batch_size=BATCH, cohort_size=COHORT)
    execution = fm.Simulator(devices=1).open(problem, clients, algorithm, Conditions())

    def advance(rounds: int) -> None:
        execution.advance(rounds)
        jax.block_until_ready(execution.state)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    advance(1)
    answer()
    for line in sys.stdin:
        request, rounds = line.split()
        if request == "go":
            answer(**timed(advance, int(rounds)))
        else:
            answer(data_bytes=size, building_bytes=built - resting, running_bytes=_peak() - resting)


def _peak() -> int:
    """The most memory since the start or the last :func:`_forget_peak`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _forget_peak() -> None:
    """Begin anew to note the most memory."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
