"""Everything in a trace is used, or named in an error before anything runs."""

import functools

import jax
import numpy as np
import pytest

import fedminimax as fm

pytestmark = pytest.mark.usefixtures("x64")

ROUNDS = 2
DRFA = fm.DRFA(0.05, 0.01, local_steps=3, cohort_size=2)
SCAFFOLD = fm.Scaffold(0.05, local_steps=2, cohort_size=3)
CODA = fm.CODAPlus(0.05, 0.05, local_steps=2)
FESS = fm.FessGDA(0.05, 0.05, local_steps=3)
EXTRA = fm.LocalExtraStep(0.05, 0.4)


@functools.cache  # one problem object each: what was traced or compiled for it is found again
def made(kind):
    if kind is fm.RobustProblem:
        return fm.problems.robust_regression(4, 3, 4, rho=0.1, sigma=0.5)
    if kind is fm.PersonalizedProblem:
        return fm.problems.personalized_quadratic(fm.Network.ring(4), 0.7)
    return fm.problems.quadratic(4, seed=9)


def go(method, **options):
    task = made(method.solves)
    return fm.run(task.problem, task.clients, method, **{"rounds": ROUNDS, "devices": 1, **options})


def same(a, b, tolerance=0.0):
    for p, q in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        np.testing.assert_allclose(p, q, rtol=tolerance, atol=tolerance)


two = lambda *row: np.array([row] * ROUNDS)

WRONG = [
    (DRFA, {"draws": {"tt": two(1)[:, 0]}}, "draws of 'tt', but the server of DRFA draws 't'"),
    (SCAFFOLD, {"draws": {"t": two(1)[:, 0]}}, "draws of 't', but the server of Scaffold draws nothing"),
    (DRFA, {"draws": {"t": [9, 1]}}, "draws of 't' must be whole numbers from 1 to 3, not 9"),
    (DRFA, {"draws": {"t": [1, 0]}}, "from 1 to 3, not 0"),
    (DRFA, {"draws": {"t": [1.5, 1.0]}}, "whole numbers from 1 to 3, not 1.5"),
    (DRFA, {"draws": {"t": [1]}}, "draws of 't' covers 1 rounds, but 2 are to be run"),
    (DRFA, {"draws": {"t": two(1, 2)}}, r"draws of 't' must be an array \[rounds\] of numbers"),
    (EXTRA, {"draws": {"coins": two(1, 2)}}, "draws of 'coins' must be whole numbers from 0 to 1, not 2"),
    (DRFA, {"draws": [1, 2]}, "must be a dict of arrays by name, not list"),
    (DRFA, {"steps": two(3, 3, 2, 3)}, "steps have a 2, but all clients of DRFA take local_steps = 3"),
    (FESS, {"steps": two(3, 3, 3, 4)}, "steps have a 4, but all clients of FessGDA take local_steps = 3"),
    (CODA, {"steps": two(2, 2, 2, 2)}, "CODAPlus does not let clients take different numbers: leave them out"),
    (FESS, {"steps": two(3, 3, 3, 3) + 0.5}, "whole numbers of at least 1"),
    (DRFA, {"cohorts": (two(0, 1),) * 3}, "cohorts has 3 entries, but a round of DRFA has 2 cohorts: give one entry for each"),
    (CODA, {"cohorts": (two(0, 1, 2, 3),) * 2}, "cohorts has 2 entries, but a round of CODAPlus has 1 cohort:"),
    (DRFA, {"cohorts": (two(0, 1), two(0, 1, 2))}, "cohort 1 names 3 clients a round, but the algorithm asks for 2"),
    (DRFA, {"answers": (two(True, True),) * 3}, "answers has 3 entries, but a round of DRFA has 2 exchanges"),
    (DRFA, {"answers": (two(True, True, True),)}, "answers 0 tells of 3 clients a round, but the algorithm asks for 2"),
    (DRFA, {"answers": (two(1, 2),)}, r"answers 0 must be an array \[rounds, S\] of True and False"),
    (DRFA, {"waited": (np.ones(2),) * 3}, "waited has 3 entries, but a round of DRFA has 2 exchanges"),
    (DRFA, {"waited": (np.array([1.0, -1.0]),)}, "seconds that are not negative"),
    (DRFA, {"invited": (np.array([2, 2]),)}, "how many were invited to cohort 0, but not who was in it"),
    (DRFA, {"cohorts": (two(0, 1),), "invited": (np.ones(2),)}, "invited 0 must be an array .* of whole numbers"),
    (DRFA, {"cohorts": ([[0, 1], [2]],)}, "cohort 0 has rows of different lengths: fill empty places with -1"),
    (DRFA, {"cohorts": two(0, 1)}, "cohorts must be a tuple with an array for each of them, not ndarray"),
    (SCAFFOLD, {"cohorts": ([[0, 1, 2], [3, 1, 3]],)}, "client 3 twice in round 1, but clients of Scaffold remember something"),
    (EXTRA, {"cohorts": (two(0, 2, 1, 3),)}, "must be all nodes in order"),
    (EXTRA, {"answers": (two(True, True, True, False),)}, "must all be True: nodes of LocalExtraStep are always there"),
]


@pytest.mark.parametrize(("method", "records", "message"), WRONG, ids=[m for _, _, m in WRONG])
def test_what_cannot_be_used_is_named(method, records, message):
    for engine in ("simulator", "isolated"):
        with pytest.raises(fm.InputError, match=message):
            go(method, trace=fm.Trace(**records), engine=engine)


def test_a_trace_is_a_trace():
    with pytest.raises(fm.InputError, match=r"trace must be a Trace, such as Trace\(cohorts=\(array,\)\), not dict"):
        go(DRFA, trace={"cohorts": ()})


@pytest.mark.parametrize("method", [DRFA, FESS], ids=["DRFA", "FessGDA"])
def test_steps_that_are_those_of_the_method_change_nothing(method):
    same(go(method), go(method, trace=fm.Trace(steps=two(3, 3, 3, 3))), 1e-12)


def test_what_a_method_can_use_is_used():
    # With replacement a client may come twice: twice the same is that client alone.
    drawn = {"t": [1, 3]}
    second = two(0, 2)
    twice = go(DRFA, trace=fm.Trace((two(1, 1), second), draws=drawn))
    alone = go(DRFA, trace=fm.Trace((two(1, -1), second), draws=drawn))
    same(twice, alone, 1e-12)
    others = go(DRFA, trace=fm.Trace((two(1, 1), second), draws={"t": [3, 3]}))
    assert np.abs(others.y - twice.y).max() > 1e-6
    # Two empty places are no client that comes twice.
    assert go(SCAFFOLD, trace=fm.Trace((two(1, -1, -1),))).costs["replies"].tolist() == [1, 1]


def test_coins_may_be_written_as_numbers_and_are_recorded():
    tossed = np.array([[1, 0], [0, 1], [1, 1]])
    by_hand = go(EXTRA.replace(coins=tuple(tossed.T.tolist())), rounds=3)
    written = fm.Trace(draws={"coins": tossed.tolist()})
    recorded = go(EXTRA, rounds=3, trace=written, engine="isolated", record=True)
    # What is recorded on a network can be replayed, whatever the seed.
    again = go(EXTRA, rounds=3, trace=recorded.trace, engine="isolated", seed=1)
    for replayed in (go(EXTRA, rounds=3, trace=written), recorded, again):
        same(replayed, by_hand, 1e-12)
        np.testing.assert_array_equal(replayed.costs["gossip_rounds"], by_hand.costs["gossip_rounds"])


def test_steps_are_recorded_where_they_are_not_those_of_the_method():
    method = fm.LocalSGDA(0.05, 0.05, local_steps=fm.UniformSteps(1, 4))
    first = go(method, record=True)
    recorded = go(method, record=True, start=first).trace
    assert recorded.steps.shape == (4, 4)
    assert set(np.unique(recorded.steps)) == {1, 2, 3, 4}
    np.testing.assert_array_equal(recorded.steps[:2], first.trace.steps)
    np.testing.assert_array_equal(first.trace.steps.sum(1), first.costs["local_steps"])
    # Nothing else is random here: with its steps another seed, or another method, goes the same way.
    same(go(method, trace=fm.Trace(steps=recorded.steps), seed=7), first, 1e-12)
    other = go(method.replace(local_steps=9), trace=fm.Trace(steps=recorded.steps), record=True, engine="isolated")
    same(other, first, 1e-12)
    np.testing.assert_array_equal(other.trace.steps, recorded.steps[:2])
    went_on = go(method.replace(local_steps=9), start=other, record=True, engine="isolated")
    np.testing.assert_array_equal(went_on.trace.steps, np.concatenate([recorded.steps[:2], np.full((2, 4), 9)]))
    assert go(FESS, record=True, engine="isolated").trace.steps is None


def test_a_trace_may_begin_with_no_rounds():
    nothing = go(DRFA, rounds=0, record=True)
    recorded = go(DRFA, record=True, start=nothing, engine="isolated")
    assert [c.shape for c in recorded.trace.cohorts] == [(ROUNDS, 2)] * 2
    unchanged = go(DRFA, rounds=0, record=True, start=recorded)
    assert [c.shape for c in unchanged.trace.cohorts] == [(ROUNDS, 2)] * 2
