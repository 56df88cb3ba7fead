"""Every method of nodes is the same between sites, whose rows the coordinator never has, as in the simulator."""

import functools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.engines.federated import Federation, InProcess, NodeModel, Worker
from fedminimax.testing.contract import close, same_costs

sys.path.insert(0, str(Path(__file__).parent))
from roster import NODES

GRAPHS = {
    "ring": lambda: fm.Network.ring(3),
    "house": lambda: fm.Network.from_edges([(0, 1, 0.5), (1, 2), (2, 3, 2.0), (3, 0), (0, 4), (1, 4)]),
}


@functools.cache  # one problem a graph: its compiled programs are shared
def task_of(graph):
    return fm.problems.personalized_quadratic(GRAPHS[graph](), 0.7, 3, 2, examples=6, noise=0.3)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in NODES])
def test_sites_equal_the_simulator(row, graph, x64, tmp_path):
    task = task_of(graph)
    count = task.clients.count
    workers = {f"site-{k}": Worker(task.problem, row.algorithm, task.clients.only(k), tmp_path / str(k)) for k in range(count)}
    engine = Federation(InProcess(workers))
    go = lambda clients, engine: fm.run(
        task.problem,
        clients,
        row.algorithm,
        rounds=5,
        seed=3,
        eval_every=5,
        engine=engine,
        progress=False,
        record=True,
        metrics=fm.metrics.NodeLoss(each=True),
    )
    there, here = go(engine.clients, engine), go(task.clients, fm.Simulator("vmap", 1))
    models = [NodeModel.load(tmp_path / str(k)) for k in range(count)]
    assert [(model.number, model.rounds, model.method) for model in models] == [(k, 5, there.method) for k in range(count)]
    close(np.stack([model.x for model in models]), here.x, 1e-8)
    close(np.stack([model.y for model in models]), here.y, 1e-8)
    close({name: there.history[name] for name in here.history}, here.history, 1e-8)
    same_costs(there, here)
    jax.tree.map(np.testing.assert_array_equal, there.trace, here.trace)
