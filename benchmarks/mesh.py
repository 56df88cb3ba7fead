"""One simulation over many processes: against the simulator (conform), its speed and bytes, and the memory of a process.

python benchmarks/mesh.py conform                                   # every method on 1, 2 and 3 processes
python benchmarks/mesh.py speed --processes 2 --workloads A B C
python benchmarks/mesh.py memory --processes 1 4 --megabytes 800
python benchmarks/mesh.py reduce                                    # seconds of one reduction by its size

What each finds is kept in results/mesh_*.json; mesh_model.py makes a model of the cost of them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedminimax.distributed import Place
    from workloads import Workload

HERE = Path(__file__).parent
ALONE, ALL = "1 pinned", "1 with all devices"
"""One process that is kept on one core, and the simulator in one process, which splits a cohort over a device a core."""
SHARES = 1.3
"""A process may grow by so many times its share of the data."""


def main() -> None:
    """Start the processes of a comparison, or be one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=list(PARTS))
    parser.add_argument("--processes", type=int, nargs="+", default=None)
    parser.add_argument("--workloads", nargs="*", default=["A", "B", "C"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=800)
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--way", default="")
    parser.add_argument("--answer", default="")
    asked = parser.parse_args()
    if asked.answer:
        PARTS[asked.what](asked)
        return
    counts = asked.processes or COUNTS[asked.what]
    # One after the other, and all of that again: a machine that gets slower meanwhile is so for all.
    turns = asked.turns if asked.what == "speed" else 1
    # One process alone is twice as fast on workload B when it is kept on one core, so both are measured.
    ways = {count: count for count in counts} | ({ALONE: 1, ALL: 1} if asked.what == "speed" else {})
    answers = {way: [] for way in ways}
    for way, rows in [each for _ in range(turns) for each in answers.items()]:
        rows.append(_launched(ways[way], way if way in (ALONE, ALL) else ""))
    found, wrong = {"conform": _conformed, "speed": _sped, "memory": _grown, "reduce": _reduced}[asked.what](answers, asked)
    kept = HERE / "results" / f"mesh_{asked.what}.json"
    if asked.rows:  # a few rows are no result
        raise SystemExit(wrong or 0)
    if asked.what == "conform" and kept.exists():  # one number of processes at a time will do
        found = json.loads(kept.read_text()) | {str(count): rows for count, rows in found.items()}
    kept.write_text(json.dumps(found, indent=1) + "\n")
    if wrong:
        raise SystemExit(wrong)


def _conformed(answers: dict, asked: argparse.Namespace) -> tuple[dict, str]:
    found = {count: rows[0]["rows"] for count, rows in answers.items()}
    differ = {count: [row for row in rows if "DIFFERS" in row] for count, rows in found.items()}
    for count, rows in found.items():
        print(f"{count} processes: {len(rows)} methods, {len(differ[count])} differ")
        print("".join(f"  {row}\n" for row in differ[count]), end="")
    if not all(found.values()):
        return found, "Nothing was compared: --rows names no method of the table."
    return found, "A run over processes differs from the simulator's." if any(differ.values()) else ""


def _grown(answers: dict, asked: argparse.Namespace) -> tuple[dict, str]:
    found = {count: max(rows[0]["grew"]) / asked.megabytes for count, rows in answers.items()}
    for count, share in found.items():
        print(f"{count} processes: {share:.3f} of the data is the most that one grew by (a share is {1 / count:.3f})")
    more = [count for count, share in found.items() if share > SHARES / count]
    wrong = f"A process of {more[0]} grew by more than {SHARES} times its share of the data." if more else ""
    return {"megabytes": asked.megabytes, "most": SHARES, "grew": found}, wrong


def _reduced(answers: dict, asked: argparse.Namespace) -> tuple[dict, str]:
    print("| processes | bytes | pairs | ring | ratio | waits in pairs | in a ring |\n|" + "---:|" * 7)
    for count, rows in answers.items():
        for size, (pairs, few) in rows[0]["pairs"].items():
            ring, many = rows[0]["ring"][size]
            times = f"{1e6 * pairs:.0f} | {1e6 * ring:.0f} | {pairs / ring:.2f}"
            print(f"| {count} | {int(size):,} | {times} | {few:.1f} | {many:.1f} |")
    return {count: rows[0] for count, rows in answers.items()}, ""


def _launched(count: int, way: str) -> dict:
    from fedminimax.commands.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        code = launch([str(Path(__file__)), *sys.argv[1:], "--way", way, "--answer", str(answer)], count)
        if code:
            raise SystemExit(code)
        return json.loads(answer.read_text())


def _sped(answers: dict, asked: argparse.Namespace) -> tuple[dict, str]:
    found, times = {}, lambda rows, name, of: statistics.median(t for row in rows for t in row[name][of])
    for name in asked.workloads:
        seconds = {count: times(rows, name, "seconds") for count, rows in answers.items()}
        bare = {count: times(rows, name, "bare") for count, rows in answers.items()}
        found[name] = {"ms": _thousands(seconds), "bare ms": _thousands(bare)}
        for count in [count for count in answers if count not in (1, ALONE, ALL)]:
            many, ring = answers[count][0][name], 2 * (count - 1) / count
            sent = many["wire"] / count
            found[name][count] = {
                "ratio": seconds[count] / seconds[1],
                "to all devices": seconds[count] / seconds[ALL],
                "to pinned": seconds[count] / seconds[ALONE],
                "bound": seconds[ALONE] / count / seconds[1],  # no communication, and cohorts that halve
                "to bare": seconds[count] / bare[count],
                "bare ratio": bare[count] / bare[1],
                "sent/packed": sent / (ring * many["packed"]),
                "sent/reply": sent / (ring * many["reply"]),
                "packed": many["packed"],
                "exchanges": many["exchanges"],
            }
    _table(found)
    return found, ""


def _thousands(seconds: dict) -> dict:
    return {count: 1000 * t for count, t in seconds.items()}


def _table(found: dict) -> None:
    """Print the table of README.md: milliseconds a round, ratios of many processes to one, the bare loop's, and bytes."""
    ways = "one process | with all devices | on a core | two processes"
    print(
        f"| | {ways} | ratio | to all devices | to a core | bound | bare | to bare | bare ratio | bytes |\n|---|" + "---:|" * 12
    )
    for name, row in found.items():
        for count in [count for count in row if isinstance(count, int)]:
            ms, many = row["ms"], row[count]
            times = [f"{ms[way]:.3g}" for way in (1, ALL, ALONE, count)]
            ratios = [f"{many[key]:.2f}" for key in ("ratio", "to all devices", "to pinned", "bound")]
            bare = [f"{row['bare ms'][count]:.3g}", f"{many['to bare']:.2f}", f"{many['bare ratio']:.2f}"]
            print("| " + " | ".join([name, *times, *ratios, *bare, f"{many['sent/reply']:.3f}"]) + " |")


def reduce(asked: argparse.Namespace) -> None:
    """Time one reduction over all processes, in a loop within a program, by its size: in pairs as a run has it, and JAX's own.

    Beside the seconds: how often a thread of process 0 waited for one, which a busy machine does not change.
    """
    place = _join(asked)
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    from fedminimax.engines.layout import AXIS
    from fedminimax.engines.mesh.packing import added
    from fedminimax.engines.mesh.placement import device_mesh, everywhere

    mesh, out = device_mesh(1), {"pairs": {}, "ring": {}}
    for floats in (2**4, 2**10, 2**13, 2**14, 2**17, 2**20, 2**22):
        turns = max(4, min(400, 2**22 // floats))
        x, programs = everywhere(jnp.ones(floats, jnp.float32), mesh), {}
        for way, add in (("pairs", added), ("ring", jax.lax.psum)):
            one = lambda x, turns=turns, add=add: jax.lax.fori_loop(0, turns, lambda _, x: add(x, AXIS) / place.processes, x)
            programs[way] = jax.jit(
                jax.shard_map(one, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
            )
            jax.block_until_ready(programs[way](x))
        found = {way: [] for way in programs}
        for way in list(programs) * asked.repetitions:
            begun, waits = time.perf_counter(), _waits()
            jax.block_until_ready(programs[way](x))
            found[way].append(((time.perf_counter() - begun) / turns, (_waits() - waits) / turns))
        for way, rows in found.items():
            out[way][4 * floats] = [statistics.median(column) for column in zip(*rows, strict=True)]
    if place.leads:
        Path(asked.answer).write_text(json.dumps(out))


def _waits() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def speed(asked: argparse.Namespace) -> None:
    """Time blocks of rounds, in turn with the bare loop's, and count what goes through the loopback interface meanwhile."""
    place = _join(asked)
    import jax

    from fedminimax.engines.mesh import Mesh
    from fedminimax.engines.simulator import ROOM, Simulator
    from fedminimax.federation.round import Conditions
    from problems import build
    from workloads import WORKLOADS

    out = {}
    for name in asked.workloads:
        problem, clients, algorithm = build(WORKLOADS[name])
        problem, clients = problem.bind(clients)
        # Two processes have a device each; one has its own, or the simulator all that there are.
        run = (Simulator() if asked.way == ALL else Mesh()).open(problem, clients, algorithm, Conditions())

        def go(rounds: int, run=run) -> float:
            begun = time.perf_counter()
            if place.leads:
                run.advance(rounds)
                jax.block_until_ready(run.state)
            else:
                run.follow_one()
            return time.perf_counter() - begun

        bare = _bare(WORKLOADS[name], place)
        go(1), bare(1)
        rounds = max(1, min(ROOM, int(asked.seconds / go(2) * 2)))
        if place.processes > 1:
            rounds = run.agreed(rounds)[0]
        times, wire = {"seconds": [], "bare": []}, 0
        for _ in range(asked.repetitions):
            before = _sent()
            times["seconds"].append(go(rounds) / rounds)
            wire += (_sent() - before) / (rounds * asked.repetitions)
            times["bare"].append(bare(rounds) / rounds)
        reply = sum(4 * sum(message.up.values()) for message in run.messages)
        packed = [] if asked.way == ALL else run.packed
        out[name] = {**times, "wire": wire, "packed": sum(packed), "reply": reply, "rounds": rounds, "exchanges": len(packed)}
    if place.leads:
        Path(asked.answer).write_text(json.dumps(out))


def _bare(workload: Workload, place: Place) -> Callable[[int], float]:
    """Return what times a bare loop of JAX's: the floor's gradients, halved, and one psum of all parameters; no more.

    Batches are fixed, cohorts halve exactly, and nothing is drawn, checked or counted: what two processes cost at least.
    """
    import jax
    from jax.flatten_util import ravel_pytree
    from jax.sharding import PartitionSpec

    from fedminimax.engines.layout import AXIS
    from fedminimax.engines.mesh.placement import device_mesh, everywhere
    from floor import Floor

    floor, mesh = Floor(replace(workload, cohort=workload.cohort // place.processes)), device_mesh(1)

    def one(z, batches):
        flat, back = ravel_pytree(floor.round(z, batches))
        return back(jax.lax.psum(flat, AXIS) / place.processes)

    loop = lambda z, batches, rounds: jax.lax.fori_loop(0, rounds, lambda _, z: one(z, batches), z)
    program = jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False))
    z, batches = everywhere(((floor.problem.x0, floor.problem.y0), floor.batches), mesh)

    def go(rounds: int) -> float:
        begun = time.perf_counter()
        jax.block_until_ready(program(z, batches, rounds))
        return time.perf_counter() - begun

    return go


def memory(asked: argparse.Namespace) -> None:
    """Load a process's share, carry a run with a metric out on it, and tell by how much the process grew."""
    place = _join(asked)
    import numpy as np

    import fedminimax as fm
    from fedminimax.distributed import service
    from fedminimax.metrics import ClientLoss

    clients, features = 200, 256
    size = asked.megabytes * 2**20 // (4 * features * clients)
    made = lambda k: {
        "a": np.random.default_rng(k).standard_normal((size, features), np.float32),
        "b": np.zeros(size, np.float32),
    }
    loss = lambda x, y, batch: ((batch["a"] @ x - batch["b"] + y) ** 2).mean() - 0.5 * y**2
    problem = fm.MinimaxProblem(loss, np.zeros(features, np.float32), np.zeros((), np.float32))
    method = fm.LocalSGDA(0.001, 0.001, local_steps=2, batch_size=10, cohort_size=10)
    go = lambda share: fm.run(
        problem, share, method, rounds=4, eval_every=2, metrics=ClientLoss(each=True), engine="mesh", progress=False
    )
    go(fm.ClientShard.read(lambda k: {n: v[:20] for n, v in made(k).items()}, [20] * clients, place.process, place.processes))
    before = _peak(reset=True)
    go(fm.ClientShard.read(made, [size] * clients, place.process, place.processes))
    grew = int((_peak() - before) / 2**20)
    if place.processes > 1:
        service().key_value_set(f"grew/{place.process}", str(grew))
    if place.leads:
        others = [int(service().blocking_key_value_get(f"grew/{k}", 60_000)) for k in range(1, place.processes)]
        Path(asked.answer).write_text(json.dumps({"grew": [grew, *others]}))


def conform(asked: argparse.Namespace) -> None:
    """Compare every method with the simulator, in float64; those on networks on a ring, and one of them on other graphs too.

    Clients are as many side by side as the engine finds, or two, in turn: each method has both on some number of processes.
    """
    place = _join(asked)
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpy as np

    import fedminimax as fm
    from fedminimax import metrics, problems
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
    for k, (name, row, task) in enumerate(cases):
        if asked.rows and name not in asked.rows:
            continue
        measured = metrics.NodeLoss(each=True) if row in NODES else metrics.ClientLoss(each=True)
        options = {"rounds": 5, "seed": 3, "eval_every": 1, "progress": False, "metrics": measured}
        go = functools.partial(fm.run, task.problem, task.clients, row.algorithm, **options)
        there = go(engine=fm.Mesh(("auto", 2)[(k + place.processes) % 2]))
        if place.leads:
            here = go(engine=fm.Simulator("vmap", 1))
            try:
                close(there.state, here.state, 1e-10)
                if (own := there.client_states) is not None:
                    rows, last = (own.rows, own.last) if isinstance(own, OwnStates) else (own, None)  # one process has all
                    close(rows, jax.tree.map(lambda a, last=last: a[:last], here.client_states), 1e-10)
                same_costs(there, here)
                assert there.history.keys() == here.history.keys(), "other numbers in the history"
                for column, values in here.history.items():
                    np.testing.assert_allclose(there.history[column], values, rtol=1e-10, atol=1e-10, err_msg=column)
                told.append(f"{name}: equal to 1e-10")
            except AssertionError as error:
                told.append(f"{name}: DIFFERS: {' '.join(str(error).split())[:200]}")
    if place.leads:
        Path(asked.answer).write_text(json.dumps({"rows": told}))


def _join(asked: argparse.Namespace):
    from fedminimax import distributed

    if asked.way == ALONE:
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
COUNTS = {"conform": [1, 2, 3], "speed": [1, 2], "memory": [1, 4], "reduce": [2, 4]}

if __name__ == "__main__":
    main()
