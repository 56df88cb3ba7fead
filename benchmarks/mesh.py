"""One simulation over many processes: against the simulator (conform), its speed and bytes, and the memory of a process.

python benchmarks/mesh.py conform                                   # every method on 1, 2 and 3 processes
python benchmarks/mesh.py speed --processes 2 --workloads A B C
python benchmarks/mesh.py memory --processes 4 --megabytes 400
python benchmarks/mesh.py reduce                                    # seconds of one reduction by its size

What each finds is kept in results/mesh_*.json; mesh_model.py makes a model of the cost of them.
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
ALONE = "1 pinned"


def main() -> None:
    """Start the processes of a comparison, or be one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=list(PARTS))
    parser.add_argument("--processes", type=int, nargs="+", default=None)
    parser.add_argument("--workloads", nargs="*", default=["A", "B", "C"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--answer", default="")
    asked = parser.parse_args()
    if asked.answer:
        PARTS[asked.what](asked)
        return
    counts = asked.processes or COUNTS[asked.what]
    # One after the other, and all of that again: a machine that gets slower meanwhile is so for all.
    turns = asked.turns if asked.what == "speed" else 1
    # One process alone is twice as fast on workload B when it is kept on one core, so both are measured.
    ways = [(count, False) for count in counts] + ([(1, True)] if asked.what == "speed" else [])
    answers = {(f"{count} pinned" if pinned else count): [] for count, pinned in ways}
    for (count, pinned), rows in [each for _ in range(turns) for each in zip(ways, answers.values(), strict=True)]:
        rows.append(_launched(count, pinned))
    found = {"conform": _conformed, "speed": _sped, "memory": _grown, "reduce": _reduced}[asked.what](answers, asked)
    (HERE / "results" / f"mesh_{asked.what}.json").write_text(json.dumps(found, indent=1) + "\n")


def _conformed(answers: dict, asked: argparse.Namespace) -> dict:
    found = {count: rows[0]["rows"] for count, rows in answers.items()}
    for count, rows in found.items():
        print(f"{count} processes: {len(rows)} methods, {sum('DIFFERS' in row for row in rows)} differ")
        print("".join(f"  {row}\n" for row in rows if "DIFFERS" in row), end="")
    return found


def _grown(answers: dict, asked: argparse.Namespace) -> dict:
    found = {count: max(rows[0]["grew"]) / asked.megabytes for count, rows in answers.items()}
    for count, share in found.items():
        print(f"{count} processes: {share:.3f} of the data is the most that one grew by (a share is {1 / count:.3f})")
    return {"megabytes": asked.megabytes, "grew": found}


def _reduced(answers: dict, asked: argparse.Namespace) -> dict:
    for count, rows in answers.items():
        for size, seconds in rows[0]["seconds"].items():
            print(f"{count} processes, {int(size):,} bytes: {1e6 * seconds:.0f} us")
    return {count: rows[0]["seconds"] for count, rows in answers.items()}


def _launched(count: int, pinned: bool) -> dict:
    from fedminimax.commands.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        code = launch([str(Path(__file__)), *sys.argv[1:], *["--pinned"] * pinned, "--answer", str(answer)], count)
        if code:
            raise SystemExit(code)
        return json.loads(answer.read_text())


def _sped(answers: dict, asked: argparse.Namespace) -> dict:
    found = {}
    for name in asked.workloads:
        seconds = {count: statistics.median(t for row in rows for t in row[name]["seconds"]) for count, rows in answers.items()}
        found[name] = {"ms": {count: 1000 * t for count, t in seconds.items()}}
        for count in [count for count in answers if count not in (1, ALONE)]:
            many, ring = answers[count][0][name], 2 * (count - 1) / count
            sent = many["wire"] / count
            ratios = {
                "ratio": seconds[count] / seconds[1],
                "to pinned": seconds[count] / seconds[ALONE],
                "sent/packed": sent / (ring * many["packed"]),
            }
            ratios["sent/reply"] = sent / (ring * many["reply"])
            found[name][count] = {**ratios, "packed": many["packed"], "exchanges": many["exchanges"]}
            print(
                f"{name}: {1000 * seconds[1]:.2f} ms a round on 1 process, {1000 * seconds[ALONE]:.2f} kept on a core, "
                f"{1000 * seconds[count]:.2f} on {count}: ratios {ratios['ratio']:.2f} and {ratios['to pinned']:.2f}"
            )
            print(
                f"   a process sent {sent:.0f} bytes a round: {ratios['sent/packed']:.3f} of {ring:.2f} x packed, "
                f"{ratios['sent/reply']:.3f} of {ring:.2f} x the reply"
            )
    return found


def reduce(asked: argparse.Namespace) -> None:
    """Time one reduction over all processes, in a loop within a program, by its size."""
    place = _join(asked)
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    from fedminimax.engines.layout import AXIS
    from fedminimax.engines.mesh.placement import device_mesh, everywhere

    mesh, out = device_mesh(1), {}
    for floats in (2**4, 2**10, 2**14, 2**17, 2**20, 2**22):
        turns = max(4, min(400, 2**24 // floats))
        one = lambda x, turns=turns: jax.lax.fori_loop(0, turns, lambda _, x: jax.lax.psum(x, AXIS) * 0.5, x)
        go = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False))
        x = everywhere(jnp.ones(floats, jnp.float32), mesh)
        times = []
        for _ in range(asked.repetitions + 1):
            begun = time.perf_counter()
            jax.block_until_ready(go(x))
            times.append((time.perf_counter() - begun) / turns)
        out[4 * floats] = statistics.median(times[1:])
    if place.leads:
        Path(asked.answer).write_text(json.dumps({"seconds": out}))


def speed(asked: argparse.Namespace) -> None:
    """Time blocks of rounds, and count what goes through the loopback interface meanwhile."""
    place = _join(asked)
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
        out[name]["exchanges"] = len(run.packed)
    if place.leads:
        Path(asked.answer).write_text(json.dumps(out))


def memory(asked: argparse.Namespace) -> None:
    """Load a process's share, run some rounds on it, and tell by how much the process grew."""
    place = _join(asked)
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
    place = _join(asked)
    import jax

    jax.config.update("jax_enable_x64", True)
    import fedminimax as fm
    from fedminimax import problems
    from fedminimax.engines.mesh import OwnStates
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
                    rows, last = (own.rows, own.last) if isinstance(own, OwnStates) else (own, None)  # one process has all
                    close(rows, jax.tree.map(lambda a, last=last: a[:last], here.client_states), 1e-10)
                same_costs(there, here)
                told.append(f"{name}: equal to 1e-10")
            except AssertionError as error:
                told.append(f"{name}: DIFFERS: {' '.join(str(error).split())[:200]}")
    if place.leads:
        Path(asked.answer).write_text(json.dumps({"rows": told}))


def _join(asked: argparse.Namespace):
    from fedminimax import distributed

    if asked.pinned:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return distributed.join()


def _sent() -> int:
    """The bytes that went through the loopback interface so far."""
    return next(int(line.split()[9]) for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line)


def _peak(reset: bool = False) -> int:
    """The bytes of memory that this process had at most; since now, where it is reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


PARTS = {"conform": conform, "speed": speed, "memory": memory, "reduce": reduce}
COUNTS = {"conform": [1, 2, 3], "speed": [1, 2], "memory": [1, 4], "reduce": [2]}

if __name__ == "__main__":
    main()
