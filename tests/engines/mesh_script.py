# ruff: noqa: E402  (a process joins the others before JAX is used)
"""What a process of tests/engines/test_mesh.py does: python mesh_script.py TASK FOLDER [PROCESS SIGNAL]."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from fedminimax import distributed

place = distributed.join()
import jax

jax.config.update("jax_enable_x64", True)
import networkx as nx
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics, problems
from fedminimax.problems import RobustProblem
from fedminimax.testing.contract import close, same_costs

sys.path.insert(0, str(Path(__file__).parents[1] / "algorithms"))
from roster import NODES, ROSTER

ROWS = ROSTER[::4]
ON_THREE = [row for row in ROSTER if type(row.algorithm) in (fm.FessGDA, fm.ScaffPD) or row.name == "CDMAGE"]
SCAFFOLD = fm.Scaffold(lr_x=0.02, local_steps=3, batch_size=4, cohort_size=3)


def task_of(kind):
    if kind is RobustProblem:
        return problems.robust_regression(7, 4, 6, rho=0.1, sigma=0.5)
    return problems.quadratic(7, examples=6, noise=0.3, weights=[1, 2, 3, 1, 2, 3, 1])


def conform(rows, engine):
    """Compare rows of the contract suite with the simulator; return their names."""
    tasks = {kind: task_of(kind) for kind in {row.kind for row in rows}}
    for row in rows:
        task = tasks[row.kind]
        options = {"rounds": 4, "seed": 3, "eval_every": 2, "progress": False, "metrics": metrics.ClientLoss(each=True)}
        go = lambda engine: fm.run(task.problem, task.clients, row.algorithm, engine=engine, **options)  # noqa: B023
        there = go(engine)
        if place.leads:
            here = go(fm.Simulator("vmap", 1))
            close(there.state, here.state, 1e-10)
            if (own := there.client_states) is not None:
                close(own.rows, jax.tree.map(lambda a: a[: own.last], here.client_states), 1e-10)
            same_costs(there, here)
            for name, values in here.history.items():
                np.testing.assert_allclose(there.history[name], values, rtol=1e-9)
    return [row.name for row in rows]


class _Looks:
    """Looks at the state, all rows of it, in mid-run."""

    def on_rounds(self, run):
        self.seen = run.state


def nodes(star=True):
    """Compare methods on networks with the simulator: a ring that must be put in order, and a star; return their names."""
    graph = nx.Graph()
    graph.add_nodes_from(range(8))
    graph.add_edges_from((3 * k % 8, 3 * (k + 1) % 8) for k in range(8))
    ring, (*_, sliding, _, coins, _) = fm.Network.from_graph(graph), NODES
    cases = [(ring, sliding), (fm.Network.star(7), coins)] if star else [(ring, sliding)]
    for network, row in cases:
        task, looks = problems.personalized_quadratic(network, examples=6, noise=0.3), _Looks()
        measured = [metrics.NodeLoss(each=True), metrics.Residual(), metrics.Consensus()]
        options = {"seed": 3, "eval_every": 2, "progress": False, "metrics": measured}
        go = lambda engine, **more: fm.run(task.problem, task.clients, row.algorithm, engine=engine, **options, **more)  # noqa: B023
        begun = go("mesh", rounds=2)
        there = go("mesh", rounds=2, start=begun, observers=[looks])
        if place.leads:
            here = go(fm.Simulator("vmap", 1), rounds=4)
            close(there.state, here.state, 1e-10)
            close(looks.seen, here.state, 1e-10)
            same_costs(there, here)
            for name, values in here.history.items():
                np.testing.assert_allclose(there.history[name], values, rtol=1e-9, atol=1e-12)
    return [row.name for _, row in cases]


def refuse(folder):
    """See every process say what is wrong with one of them, and go on."""
    task = task_of(RobustProblem)
    go = lambda clients, **more: fm.run(task.problem, clients, SCAFFOLD, rounds=1, engine="mesh", progress=False, **more)
    folder.touch()
    with pytest.raises(fm.InputError, match="is a file" if place.leads else "Process 0 ended the run: .* is a file"):
        go(task.clients, folder=folder)
    own = task.clients.shard(place.process, 2 if place.leads else 3)
    with pytest.raises(fm.InputError, match="Process 1 cannot begin: .*of 3" if place.leads else "of 3"):
        go(own)


def go_on():
    """Go on from each process's own clients' states, and from all of them at process 0."""
    task = task_of(RobustProblem)
    options = {"seed": 3, "progress": False}
    go = lambda engine, rounds, **more: fm.run(
        task.problem, task.clients, SCAFFOLD, rounds=rounds, engine=engine, **options, **more
    )
    here = go(fm.Simulator("vmap", 1), 4)
    half = go("mesh", 2)
    dense = go(fm.Simulator("vmap", 1), 2) if place.leads else half
    for start in (half, fm.Snapshot(dense.state, dense.client_states, 2)):
        there = go("mesh", 2, start=start)
        own = there.client_states
        close(there.state, here.state, 1e-10)
        close(own.rows, jax.tree.map(lambda a: a[own.first : own.last], here.client_states), 1e-10)  # noqa: B023


class _Tells:
    """Writes down where a run begins, and when it has come to round 6."""

    def __init__(self, folder):
        self.folder = folder

    def on_start(self, run):
        self.folder.with_suffix(".from").write_text(str(run.round))

    def on_rounds(self, run):
        if run.round == 6:
            self.folder.with_suffix(".now").touch()
            time.sleep(0.5)


def fall(folder, process, what):
    """Send a process a signal, once the run is in its midst."""
    mark = folder.with_suffix(".now")

    def die():
        while not mark.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), what)

    if place.process == process:
        threading.Thread(target=die, daemon=True).start()


def scaffold(folder):
    """Run in a folder."""
    task = task_of(RobustProblem)
    return fm.run(
        task.problem, task.clients, SCAFFOLD, rounds=12, seed=3, eval_every=3, engine="mesh", progress=False,
        metrics=metrics.ClientLoss(), folder=folder, checkpoint_every=2, observers=[_Tells(folder)],
    )  # fmt: skip


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "conform":
        refuse(folder)
        go_on()
        conform(ROWS, fm.Mesh(2))
        nodes()
    elif what == "fall":
        fall(folder, int(sys.argv[3]), signal.Signals[sys.argv[4]])
        scaffold(folder)
    else:
        if what == "conform-fall":
            equal = [*conform(ON_THREE, fm.Mesh()), *nodes(star=False)]
            if place.leads:
                folder.with_suffix(".equal").write_text(" ".join(equal))
            fall(folder, 2, signal.SIGKILL)
        result = scaffold(folder)
        result.save(f"{folder}-{place.process}.fmx")
