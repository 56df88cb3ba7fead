"""Executions: all that belongs to a run lives in one, on either engine, and nothing of it outside."""

import threading

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.algorithms import ALGORITHMS, Algorithm, algorithm
from fedminimax.engines.execution import Engine
from fedminimax.federation.round import Conditions
from fedminimax.players import Point

METHOD = fm.CODASCA(0.03, 0.03, theta=0.5, restart_every=5, local_steps=2, batch_size=2, cohort_size=3)
ENGINES = {
    "simulator": fm.Simulator(devices=1),
    "host": fm.Simulator(devices=1, client_store="host"),
    "isolated": fm.Isolated(),
}


@pytest.fixture
def task(x64):
    return fm.problems.quadratic(6, examples=4, noise=0.3, seed=1)


def same(a, b):
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(p, q)


def dense(client_states):
    return client_states.dense() if hasattr(client_states, "dense") else client_states


@pytest.mark.parametrize("name", ENGINES)
def test_an_execution_advances_evaluates_and_goes_on_from_its_snapshots(task, name):
    engine = ENGINES[name]
    assert isinstance(engine, Engine)
    whole = fm.run(task.problem, task.clients, METHOD, rounds=5, seed=4, engine=engine, metrics=metrics.Distance(task.solution))
    with engine.open(task.problem, task.clients, METHOD, Conditions(), seed=4) as execution:
        assert (execution.round, execution.messages) == (0, [])
        execution.advance(2)
        middle = execution.snapshot()
        middle = middle._replace(client_states=jax.tree.map(np.copy, dense(middle.client_states)))
        progress = execution.advance(3)
        assert execution.round == 5
        assert progress.traffic.answered.shape == (3, len(execution.messages))
        assert execution.evaluate(metrics.named(metrics.Distance(task.solution)))["distance/x"] == whole.final()["distance/x"]
        end = execution.snapshot()
        same(end.state, whole.state)
        same(dense(end.client_states), dense(whole.client_states))
        execution.restore(middle)
        assert execution.round == 2
        execution.advance(3)
        same(execution.snapshot().state, whole.state)
        same(dense(execution.snapshot().client_states), dense(whole.client_states))
    with engine.open(task.problem, task.clients, METHOD, Conditions(), seed=4, start=middle) as another:
        another.advance(3)
        same(another.state, whole.state)


@pytest.fixture
def tells_weights():
    @algorithm
    class TellsWeights(Algorithm):
        lr_x: float = 0.1

        def init(self, problem):
            return problem.start

        def round(self, problem, state, clients):
            cohort = clients.all()
            cohort.mean(self.report, clients.weights)
            return state

        def report(self, problem, client, p):
            return Point(p[0], p[0])

    yield TellsWeights()
    del ALGORITHMS["TellsWeights"]


def test_what_a_round_sends_belongs_to_its_own_federation(tells_weights):
    """The same compiled kind of run on federations A, B, A: each counts what it sends itself."""
    made = fm.problems.quadratic(4)
    down = []
    for count in (4, 5, 4):
        clients = fm.problems.quadratic(count).clients
        down.append(int(fm.run(made.problem, clients, tells_weights, rounds=1).costs["floats_down"][0]))
    assert down == [16, 25, 16]
    places = []
    for count in (4, 9, 4):
        clients = fm.problems.quadratic(count).clients
        places.append(fm.run(made.problem, clients, fm.SAGDA(0.1, 0.1, local_steps=1), rounds=1).messages[0].places)
    assert places == [4, 9, 4]


def test_two_threads_with_states_on_the_host_are_two_runs():
    task = fm.problems.quadratic(6, examples=4, noise=0.3, seed=1)
    go = lambda seed: fm.run(
        task.problem, task.clients, METHOD, rounds=12, eval_every=1, seed=seed, engine=ENGINES["host"], progress=False
    )
    alone = {seed: go(seed) for seed in (1, 2)}
    together = {}
    threads = [threading.Thread(target=lambda s=seed: together.__setitem__(s, go(s))) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, result in alone.items():
        same(result.state, together[seed].state)
        same(result.client_states.dense(), together[seed].client_states.dense())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "bogus"}, "strategy must be 'auto'"),
        ({"strategy": 0}, "strategy must be 'auto'"),
        ({"strategy": True}, "strategy must be 'auto'"),
        ({"client_store": "Host"}, "did you mean 'host'"),
        ({"client_store": 3}, "'device', 'host' or a folder"),
    ],
)
def test_settings_of_the_simulator_are_checked_when_it_is_made(options, message):
    with pytest.raises(fm.InputError, match=message):
        fm.Simulator(**options)


def test_the_isolated_engine_takes_no_settings_of_the_simulator():
    with pytest.raises(TypeError, match="strategy"):
        fm.Isolated(strategy="bogus")
    task = fm.problems.quadratic(3)
    with pytest.raises(TypeError, match="devices"):
        fm.run(task.problem, task.clients, METHOD, rounds=1, engine="isolated", devices=99)


def test_calls_of_any_length_are_the_same_rounds_and_few_programs(task):
    from fedminimax.engines import simulator

    assert [simulator._room(n) for n in (1, 256, 257, 512, 513, 4096)] == [256, 256, 512, 512, 1024, 4096]
    states = []
    for calls in ((300,), (150, 150)):
        with fm.Simulator(devices=1).open(task.problem, task.clients, fm.ParallelSGDA(0.1, 0.1), Conditions()) as execution:
            for rounds in calls:
                assert len(execution.advance(rounds).traffic.answered) == rounds
            states.append(execution.snapshot().state)
    same(*states)
