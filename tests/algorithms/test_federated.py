"""Every method with a server is the same in a federation of sites as in the simulator."""

import functools
import sys
from pathlib import Path

import pytest

import fedminimax as fm
from fedminimax import problems
from fedminimax.engines.federated import Federation, InProcess, Worker
from fedminimax.problems import RobustProblem
from fedminimax.testing.contract import close, same_costs

sys.path.insert(0, str(Path(__file__).parent))
from roster import ROSTER


@functools.cache  # one problem of each form: its compiled programs are shared
def task_of(kind):
    if kind is RobustProblem:
        return problems.robust_regression(3, 4, 6, rho=0.1, sigma=0.5)
    return problems.quadratic(3, examples=6, noise=0.3, weights=[1, 2, 3])


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROSTER])
def test_three_sites_equal_the_simulator(row, x64):
    task = task_of(row.kind)
    workers = {f"site-{k}": Worker(task.problem, row.algorithm, task.clients.only(k)) for k in range(3)}
    engine = Federation(InProcess(workers))
    go = lambda clients, engine: fm.run(
        task.problem, clients, row.algorithm, rounds=5, seed=3, eval_every=5, engine=engine, progress=False
    )
    there, here = go(engine.clients, engine), go(task.clients, fm.Simulator("vmap", 1))
    close(there.state, here.state, 1e-8)
    same_costs(there, here)
