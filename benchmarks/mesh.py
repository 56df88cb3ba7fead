"""One simulation over many processes: against the simulator (conform), its speed and bytes, and the memory of a process.

python benchmarks/mesh.py conform --processes 3
python benchmarks/mesh.py speed --processes 2 --workloads A B C
python benchmarks/mesh.py memory --processes 4 --megabytes 400
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Start the processes of a comparison, or be one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["conform", "speed", "memory"])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--workloads", nargs="*", default=["A", "B", "C"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--answer", default="")
    asked = parser.parse_args()
    if asked.answer:
        {"conform": conform, "speed": speed, "memory": memory}[asked.what](asked)
        return
    counts = [asked.processes] if asked.what == "conform" else [1, asked.processes]
    answers = {count: _launched(count) for count in counts}
    if asked.what == "conform":
        print("\n".join(answers[asked.processes]["rows"]))
    elif asked.what == "memory":
        for count, answer in answers.items():
            shares = [peak / asked.megabytes for peak in answer["grew"]]
            print(f"{count} processes: {max(shares):.3f} of the data is the most that one grew by (a share is {1 / count:.3f})")
    else:
        _report(answers, asked)


def _launched(count: int) -> dict:
    from fedminimax.commands.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        code = launch([str(Path(__file__)), *sys.argv[1:], "--answer", str(answer)], count)
        if code:
            raise SystemExit(code)
        return json.loads(answer.read_text())


def _report(answers: dict, asked: argparse.Namespace) -> None:
    one, many = answers[1], answers[asked.processes]
    for name in asked.workloads:
        ratio = statistics.median(many[name]["seconds"]) / statistics.median(one[name]["seconds"])
        ring = 2 * (asked.processes - 1) / asked.processes
        sent, packed, reply = many[name]["wire"] / asked.processes, many[name]["packed"], many[name]["reply"]
        print(
            f"{name}: {1000 * statistics.median(one[name]['seconds']):.2f} ms a round on 1 process, ratio {ratio:.2f} on "
            f"{asked.processes}; a process sent {sent:.0f} bytes a round: {sent / (ring * packed):.3f} of {ring:.2f} x packed "
            f"{packed}, {sent / (ring * reply):.3f} of {ring:.2f} x the reply's {reply}"
        )


def speed(asked: argparse.Namespace) -> None:
    """Time blocks of rounds, and count what goes through the loopback interface meanwhile."""
    place = _join()
    import jax

    from fedminimax.engines.mesh import Mesh
    from fedminimax.engines.simulator import ROOM
    from fedminimax.federation.round import Conditions
    from problems import build
    from workloads import WORKLOADS

    out = {}
    for name in asked.workloads:
        problem, clients, algorithm = build(WORKLOADS[name])
        problem, clients = problem.bind(clients)
        run = Mesh().open(problem, clients, algorithm, Conditions())

        def go(rounds: int, run=run) -> float:
            begun = time.perf_counter()
            if place.leads:
                run.advance(rounds)
                jax.block_until_ready(run.state)
            else:
                run.follow_one()
            return time.perf_counter() - begun

        go(1)
        rounds = run.agreed(max(1, min(ROOM, int(asked.seconds / go(2) * 2))))[0]
        before, times = _sent(), []
        for _ in range(asked.repetitions):
            times.append(go(rounds) / rounds)
        wire = (_sent() - before) / (rounds * asked.repetitions)
        reply = sum(4 * sum(message.up.values()) for message in run.messages)
        out[name] = {"seconds": times, "wire": wire, "packed": sum(run.packed), "reply": reply, "rounds": rounds}
    if place.leads:
        Path(asked.answer).write_text(json.dumps(out))


def memory(asked: argparse.Namespace) -> None:
    """Load a process's share, run some rounds on it, and tell by how much the process grew."""
    place = _join()
    import numpy as np

    import fedminimax as fm
    from fedminimax.engines.mesh import Mesh
    from fedminimax.federation.round import Conditions

    clients, features = 200, 256
    size = asked.megabytes * 2**20 // (4 * features * clients)
    made = lambda k: {
        "a": np.random.default_rng(k).standard_normal((size, features), np.float32),
        "b": np.zeros(size, np.float32),
    }
    loss = lambda x, y, batch: ((batch["a"] @ x - batch["b"] + y) ** 2).mean() - 0.5 * y**2
    problem = fm.MinimaxProblem(loss, np.zeros(features, np.float32), np.zeros((), np.float32))
    method = fm.LocalSGDA(0.001, 0.001, local_steps=2, batch_size=10, cohort_size=10)
    warm = fm.ClientShard.read(
        lambda k: {n: v[:20] for n, v in made(k).items()}, [20] * clients, place.process, place.processes
    )
    _rounds(Mesh().open(problem, warm, method, Conditions()), place)
    del warm
    before = _peak(reset=True)
    share = fm.ClientShard.read(made, [size] * clients, place.process, place.processes)
    run = Mesh().open(problem, share, method, Conditions())
    _rounds(run, place)
    grew = run.agreed(int((_peak() - before) / 2**20))
    if place.leads:
        Path(asked.answer).write_text(json.dumps({"grew": grew}))


def _rounds(run, place) -> None:
    run.advance(3) if place.leads else run.follow_one()


def conform(asked: argparse.Namespace) -> None:
    """Compare every method with the simulator, in float64; those on networks on a ring, and one of them on other graphs too."""
    place = _join()
    import jax

    jax.config.update("jax_enable_x64", True)
    import fedminimax as fm
    from fedminimax import problems
    from fedminimax.network import Network
    from fedminimax.problems import RobustProblem
    from fedminimax.testing.contract import close, same_costs

    sys.path.insert(0, str(HERE.parent / "tests" / "algorithms"))
    from roster import NODES, ROSTER

    robust = problems.robust_regression(7, 4, 6, rho=0.1, sigma=0.5)
    shared, told = problems.quadratic(7, examples=6, noise=0.3, weights=[1, 2, 3, 1, 2, 3, 1]), []
    on = lambda network: problems.personalized_quadratic(network, examples=6, noise=0.3)
    ring, mixes = on(Network.ring(7)), next(row for row in NODES if isinstance(row.algorithm, fm.DecentralizedExtraGradient))
    cases = [(row.name, row, robust if row.kind is RobustProblem else shared) for row in ROSTER]
    cases += [(row.name, row, ring) for row in NODES]
    graphs = {"star": Network.star(7), "complete": Network.complete(7), "random": Network.random(40, 5)}
    graphs["dense"] = Network.random(66, 12)
    cases += [(f"{mixes.name}-{name}", mixes, on(graph)) for name, graph in graphs.items()]
    for name, row, task in cases:
        if asked.rows and name not in asked.rows:
            continue
        options = {"rounds": 5, "seed": 3, "eval_every": 5, "progress": False}
        go = functools.partial(fm.run, task.problem, task.clients, row.algorithm, **options)
        there = go(engine="mesh")
        if place.leads:
            here = go(engine=fm.Simulator("vmap", 1))
            try:
                close(there.state, here.state, 1e-10)
                if (own := there.client_states) is not None:
                    close(own.rows, jax.tree.map(lambda a, last=own.last: a[:last], here.client_states), 1e-10)
                same_costs(there, here)
                told.append(f"{name}: equal to 1e-10")
            except AssertionError as error:
                told.append(f"{name}: DIFFERS: {' '.join(str(error).split())[:200]}")
    if place.leads:
        Path(asked.answer).write_text(json.dumps({"rows": told}))


def _join():
    from fedminimax import distributed

    place = distributed.join()
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[place.process % len(cores)]})
    return place


def _sent() -> int:
    """The bytes that went through the loopback interface so far."""
    return next(int(line.split()[9]) for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line)


def _peak(reset: bool = False) -> int:
    """The bytes of memory that this process had at most; since now, where it is reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
