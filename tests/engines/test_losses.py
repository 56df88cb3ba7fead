"""Replies that are lost on the way, or refused: what arrived counts, and whose reply did not count is not asked again."""

import numpy as np
import pytest

import fedminimax as fm
from fedminimax import wire
from fedminimax.engines.isolated import IsolatedExecution
from fedminimax.federation.round import Conditions
from fedminimax.testing import tasks
from fedminimax.testing.contract import close, same_costs

COMMON = {"lr_x": 0.02, "lr_y": 0.02, "local_steps": 2}
TWICE = [
    fm.CDMAGE(**COMMON, cohort_size=4, same_cohort=True),
    fm.SAGDA(**COMMON, cohort_size=4),
    fm.ScaffPD(0.02, 0.02, mu_x=0.2, local_steps=2),
]
"""Methods that ask a cohort more than once."""
METHODS = [*TWICE, fm.Scaffold(0.02, local_steps=2, cohort_size=4)]  # whose clients remember something
REQUEST, REPLY = "request", "reply"


class LossyExecution(IsolatedExecution):
    """Loses some requests before a client has seen them, and some replies after it has done its work."""

    def __init__(self, *args):
        super().__init__(*args)
        self.fates, self.delivered = np.random.default_rng(1), []

    def send(self, client, request):
        fate = self.fates.choice([None, REQUEST, REPLY], p=[0.6, 0.2, 0.2])
        reply = None if fate == REQUEST else super().send(client, request)
        if fate is not None:
            return None
        ask = wire.decode(request)
        self.delivered.append((ask["exchange"], ask["function"], client))
        return reply


class Lossy:
    """The engine of :class:`LossyExecution`; keeps the last one that it opened."""

    def open(self, *args, seed=0, trace=None, start=None):
        self.execution = LossyExecution(*args, seed, trace, start)
        return self.execution


def named(method):
    return type(method).__name__


@pytest.mark.parametrize("method", METHODS, ids=named)
def test_what_a_network_loses_is_not_counted_and_its_trace_replays(method, x64):
    task, engine = tasks.small(tasks.names_for(method.solves)[0]), Lossy()
    go = lambda **how: fm.run(task.problem, task.clients, method, rounds=5, progress=False, **how)
    lossy = go(engine=engine, record=True)
    delivered = engine.execution.delivered
    assert 0 < len(delivered) < sum(answers.size for answers in lossy.trace.answers)
    assert lossy.costs["replies"].sum() == len(delivered) == sum(answers.sum() for answers in lossy.trace.answers)
    size = {message.function: sum(message.up.values()) for message in lossy.messages}
    assert lossy.costs["floats_up"].sum() == sum(size[function] for _, function, _ in delivered)
    for t in range(5):  # a request goes to those only whose reply to the one before arrived
        for nth in range(1, len(lossy.messages)):
            before, now = ({client for exchange, _, client in delivered if exchange == f"{t}/{k}"} for k in (nth - 1, nth))
            assert now <= before
    replayed = go(trace=lossy.trace)
    close(lossy.state, replayed.state)
    close(lossy.client_states, replayed.client_states)
    same_costs(lossy, replayed)


def test_a_lost_reply_is_not_remembered_by_its_client(x64):
    """Nor is one forgotten that arrived, when it is the next request that is lost."""
    task, method = tasks.small("regression"), fm.Scaffold(0.02, local_steps=2)
    problem, clients = task.problem.bind(task.clients)
    fates = iter([None] * 5 + [REQUEST, REPLY] + [None] * 3)

    class Fated(IsolatedExecution):
        def send(self, client, request):
            fate = next(fates)
            reply = None if fate == REQUEST else super().send(client, request)
            return reply if fate is None else None

    with Fated(problem, clients, method, Conditions(), 0, None, None) as execution:
        execution.advance(1)
        first = np.asarray(execution.snapshot().client_states)
        execution.advance(1)
        second = np.asarray(execution.snapshot().client_states)
    assert np.abs(first).max(axis=1).all()
    same = (first == second).all(axis=1)
    np.testing.assert_array_equal(same, [True, True, False, False, False])


@pytest.mark.parametrize("engine", ["simulator", "isolated"])
@pytest.mark.parametrize("method", TWICE, ids=named)
def test_whom_the_guard_refused_is_not_asked_again(method, engine, x64):
    task = tasks.small(tasks.names_for(method.solves)[0])
    everybody = method.replace(cohort_size=None) if hasattr(method, "cohort_size") else method
    with pytest.warns(UserWarning, match="The guard refused 3 of"):
        result = fm.run(task.problem, tasks.poisoned(task.clients), everybody, rounds=3, record=True, engine=engine)
    first, *later = (np.asarray(a) for a in result.trace.answers)
    assert first.all()
    for answers in later:
        np.testing.assert_array_equal(answers, np.tile(np.arange(5) > 0, (3, 1)))
    np.testing.assert_array_equal(result.costs["dropped"], [1, 1, 1])
    down = [sum(message.down.values()) for message in result.messages]
    np.testing.assert_array_equal(result.costs["floats_down"], [5 * down[0] + 4 * sum(down[1:])] * 3)
