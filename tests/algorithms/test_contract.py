"""What every method must do, on every small problem, strategy and engine. A new method adds a row to roster.py."""

import dataclasses
import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.algorithms import ALGORITHMS
from fedminimax.data import ClientData
from fedminimax.engines import wire

sys.path.insert(0, str(Path(__file__).parent))
from roster import CLASSES, KINDS, NODES, ROSTER

ROUNDS = 4
CHANCE = fm.Availability(probability=(0.9, 0.7, 0.5, 0.8, 0.6), over_invite=1.4)


def case(row, *more):
    """A row in the table of tests."""
    return pytest.param(row, *more, id="-".join((row.name, *more)))


every_row = pytest.mark.parametrize("row", [case(row) for row in [*ROSTER, *NODES]])
every_method = pytest.mark.parametrize("row", [case(row) for row in [*ROSTER, *NODES] if not row.variant])
every_class = pytest.mark.parametrize("row", [case(row) for row in CLASSES.values()])
every_cohort = pytest.mark.parametrize("row", [case(row) for row in ROSTER if not row.variant])


@functools.cache  # one problem object a task: its compiled programs are then shared by all tests
def make_task(name):
    """Return a ready-made small problem, with clients of unequal weight or size."""
    if name == "quadratic":
        return fm.problems.quadratic(5, examples=6, noise=0.3, weights=[1, 2, 3, 4, 5])
    if name == "nodes":
        return fm.problems.personalized_quadratic(fm.Network.ring(5), 0.7, examples=6, noise=0.3)
    if name == "regression":
        task = fm.problems.robust_regression(5, 4, 6, rho=0.1, sigma=0.5)
        return dataclasses.replace(task, problem=task.problem.replace(weights=[1, 2, 3, 4, 5]))
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    fields = {"inputs": (rng.normal(size=(60, 4)) + labels[:, None]).astype(np.float32), "labels": labels.astype(np.int32)}
    clients = ClientData.from_owner(fields, np.repeat(np.arange(5), [6, 6, 6, 21, 21]))
    if name == "node models":
        made = fm.problems.personalized_training(fm.models.Logistic(3), clients, 3, 0.3, fm.Network.star(5))
        return fm.Task(made, clients)
    if name == "classification":
        return fm.Task(fm.problems.robust_model(fm.models.Linear(3), clients, 3, penalty=fm.CVaR(0.5)), clients)
    return fm.Task(fm.problems.fair_classification(fm.models.Logistic(3), clients, 3, penalty=0.1), clients)


@pytest.fixture
def task(x64, row):
    return make_task(row.tasks[0])


def close(a, b, tolerance=1e-10):
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(p), np.asarray(q), rtol=tolerance, atol=tolerance)


def go(task, algorithm, **options):
    # One layout and one kind of record wherever they are not what is tested: the tests of a row then share their programs.
    fixed = {"strategy": "vmap", "devices": 1, "record": True}
    alone = isinstance(task.problem, fm.PersonalizedProblem)
    value = {"value": fm.metrics.Residual()} if alone else fm.metrics.Value()
    defaults = {"rounds": ROUNDS, "seed": 3, "eval_every": ROUNDS, "metrics": value, **fixed}
    return fm.run(task.problem, task.clients, algorithm, **{**defaults, **options})


def y_norm(problem, clients, state):
    return fm.metrics.players.norm(state.y if state.y is not None else 0.0)


def first_state(row, task):
    return row.algorithm.init(task.problem.bind(task.clients)[0])


def test_every_method_has_a_row():
    rows = {type(row.algorithm).__name__ for row in [*ROSTER, *NODES]}
    constructors = {name for name, cls in ALGORITHMS.items() if not isinstance(cls, type)}
    assert rows == set(ALGORITHMS) - constructors


@every_row
def test_strategies_devices_and_engines_give_one_trajectory(row, task):
    reference = go(task, row.algorithm)
    leaves = lambda state: [np.asarray(a) for a in jax.tree.leaves(state) if jnp.issubdtype(a.dtype, jnp.floating)]
    moved = [np.abs(a - b).max() for a, b in zip(leaves(reference.state), leaves(first_state(row, task)), strict=True)]
    assert max(moved) > 1e-4, "a method that does not move proves nothing"
    layouts = [] if row.variant else [{"strategy": 2, "devices": 2}]  # side by side, in turns and on two devices at once
    for options in (*layouts, {"engine": "isolated"}):
        other = go(task, row.algorithm, **options)
        close(reference.state, other.state)
        close(reference.history["value"], other.history["value"])
        assert {k: v.tolist() for k, v in reference.costs.items()} == {k: v.tolist() for k, v in other.costs.items()}


@every_method
def test_float32_stays_float32(row):
    state = go(make_task(row.tasks[1]), row.algorithm).state
    real = [leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert set(real) == {jnp.dtype("float32")}


@pytest.mark.parametrize("row", [case(row) for row in KINDS])
def test_unequal_clients_side_by_side_in_turn_or_as_workers_agree(row):
    task = make_task(row.tasks[1])
    reference = go(task, row.algorithm)
    for options in ({"strategy": "map"}, {"engine": "isolated"}):
        close(reference.state, go(task, row.algorithm, **options).state, 1e-5)


@every_method
def test_seeds_reproduce_bit_for_bit_and_matter(row, task):
    first, again, other = (go(task, row.algorithm, seed=s) for s in (1, 1, 2))
    for a, b in zip(jax.tree.leaves(first.state), jax.tree.leaves(again.state), strict=True):
        assert np.array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first.x), jax.tree.leaves(other.x), strict=True))


@every_row
def test_runs_continue_exactly(row, task):
    whole = go(task, row.algorithm)
    half = go(task, row.algorithm, rounds=2)
    rest = go(task, row.algorithm, rounds=2, seed=99, start=half)
    close(whole.state, rest.state, 0)
    assert rest.rounds == ROUNDS
    again = go(task, row.algorithm, rounds=2, state=half.state, client_states=half.client_states, first_round=2)
    close(whole.state, again.state, 0)
    assert {k: v.tolist() for k, v in whole.costs.items()} == {k: v.tolist() for k, v in rest.costs.items()}


@every_row
def test_state_is_a_pytree_with_the_players_that_can_be_sent(row, task):
    state = first_state(row, task)
    assert jax.tree.structure(state.x) == jax.tree.structure(task.problem.x0)
    y0 = task.problem.bind(task.clients)[0].y0 if row.has_y else None
    assert jax.tree.structure(state.y) == jax.tree.structure(y0)
    back = wire.decode(wire.encode(jax.tree.map(np.asarray, state)))
    assert type(back) is type(state)
    close(state, back, 0)


@every_class
def test_hyper_parameters_can_be_vmapped(row, task):
    many = fm.sweep(
        task.problem,
        task.clients,
        row.algorithm,
        rounds=ROUNDS,
        eval_every=2,
        grid={name: [0.01, 0.02][:: 1 if name == "lr_x" else -1] for name in row.rates},
        seeds=[3, 4],
        metrics={"x": lambda p, c, s: fm.metrics.players.norm(s.x), "y": y_norm},
    )
    for k, setting in enumerate(many.settings):
        for j, seed in enumerate(many.seeds):
            one = go(task, row.algorithm.replace(**setting), seed=seed)
            np.testing.assert_allclose(many.values("x")[k, j, -1], fm.metrics.players.norm(one.x), rtol=1e-10)
            np.testing.assert_allclose(many.values("y")[k, j, -1], y_norm(None, None, one), rtol=1e-10, atol=1e-12)
            assert many.values("floats_up")[k, j, -1] == one.costs["floats_up"].sum()


@every_class
def test_schedules_act_round_by_round(row, task):
    method = row.with_rates(fm.Piecewise((0.03, 0.01), until=(2,)))
    scheduled = go(task, method)
    if row in KINDS:  # whoever carries out a round reads the schedule in the same way for all methods
        close(scheduled.state, go(task, method, engine="isolated").state)
    first = go(task, row.with_rates(0.03), rounds=2)
    second = go(task, row.with_rates(0.01), rounds=2, start=first)
    close(scheduled.state, second.state)


@pytest.mark.parametrize("row", [case(row) for row in ROSTER if row.has_y and not row.variant])
def test_points_stay_in_their_sets(row):
    task = make_task(row.tasks[1])
    result = go(task, row.algorithm.replace(**{row.rates[1]: 1.0}))
    problem = task.problem.bind(task.clients)[0]
    assert not np.allclose(result.y, problem.y0, atol=1e-3)
    assert bool(problem.y_set.contains(result.y, tol=1e-6))


def fenced(v):
    """A number that is none outside of the set: whoever takes a gradient there sends NaN."""
    return v * jnp.where(jnp.abs(v) > FENCE * (1 + 1e-5), jnp.nan, 1.0)


FENCE = 0.1
INSIDE = fm.sets.Box(-FENCE, FENCE)


@functools.cache
def fenced_task(kind):
    """Minimise x, maximise y, between -0.1 and 0.1, without ever looking outside."""
    clients = ClientData.equal({"one": np.ones(6, np.float32)}, 3)
    if kind is fm.RobustProblem:
        loss = lambda x, batch: jnp.mean(batch["one"]) * (1 + fenced(x))
        return fm.Task(fm.RobustProblem(loss, jnp.zeros(()), fm.ChiSquare(0.1), x_set=INSIDE), clients)
    loss = lambda x, y, batch: jnp.mean(batch["one"]) * (fenced(x) + fenced(y))
    return fm.Task(fm.MinimaxProblem(loss, jnp.zeros(()), jnp.zeros(()), x_set=INSIDE, y_set=INSIDE), clients)


@pytest.mark.parametrize("row", [case(row) for row in CLASSES.values() if row in ROSTER])
def test_local_and_server_steps_stay_in_the_sets_of_both_players(row):
    """Steps lead out of the sets, on clients and on the server: no gradient is taken outside, and the corner is reached."""
    settings = dict.fromkeys(row.rates, 0.15)  # beyond the fence in one step, and the server's steps are longer still
    settings |= {name: 3.0 for name in ("server_lr_x", "server_lr_y") if hasattr(row.algorithm, name)}
    settings |= {"tau": 0.3, "lr_x": 0.06} if isinstance(row.algorithm, fm.ScaffPD) else {}
    settings |= {"p": 0.0} if isinstance(row.algorithm, fm.FessGDA) else {}  # whose smoothing holds x back from the corner
    result = go(fenced_task(row.algorithm.solves), row.algorithm.replace(**settings), rounds=6, metrics=())
    assert result.costs["dropped"].sum() == 0
    np.testing.assert_allclose(result.x, -FENCE, rtol=1e-6)
    if row.algorithm.solves is fm.MinimaxProblem:
        np.testing.assert_allclose(result.y, FENCE, rtol=1e-6)


@every_cohort
def test_a_poisoned_client_never_reaches_the_model(row, x64):
    task = make_task(row.tasks[0])
    poisoned = jax.tree.map(np.array, task.clients.fields)
    poisoned["a" if "a" in poisoned else "labels"][:6] = np.nan  # client 0, after validation: as if it broke while training
    data = ClientData(poisoned, *(getattr(task.clients, n) for n in ("starts", "sizes", "smallest", "largest", "batching")))
    algorithm = row.algorithm.replace(cohort_size=None) if hasattr(row.algorithm, "cohort_size") else row.algorithm
    result = fm.run(task.problem, data, algorithm, rounds=3)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state))
    assert result.costs["dropped"].min() >= 1
    if row is ROSTER[0]:  # the test must be able to fail
        through = fm.run(task.problem, data, algorithm, rounds=3, guard=fm.Guard(drop_nonfinite=False))
        assert not np.isfinite(np.asarray(jax.tree.leaves(through.x)[0])).all()


@every_cohort
def test_when_nobody_answers_nothing_breaks(row, x64):
    task = make_task(row.tasks[0])
    start = first_state(row, task)
    trace = go(task, row.algorithm, availability=CHANCE).trace
    empty = dataclasses.replace(trace, cohorts=tuple(np.full_like(c, -1) for c in trace.cohorts))
    result = go(task, row.algorithm, trace=empty)
    close(result.x, start.x, 0)
    close(result.y, start.y, 0)
    assert result.costs["floats_up"].sum() == 0


@every_cohort
def test_availability_agrees_on_both_engines_and_replays(row, task):
    recorded = go(task, row.algorithm, availability=CHANCE)
    costs = {k: v.tolist() for k, v in recorded.costs.items()}
    isolated = go(task, row.algorithm, availability=CHANCE, engine="isolated")
    for other in (isolated, go(task, row.algorithm, trace=recorded.trace)):
        close(recorded.state, other.state)
        assert costs == {k: v.tolist() for k, v in other.costs.items()}


@every_cohort
def test_cohorts_are_sets_and_matter(row, task):
    recorded = go(task, row.algorithm)
    everybody = tuple(np.ones_like(a) for a in recorded.trace.answers)
    replay = lambda cohorts: go(
        task, row.algorithm, trace=dataclasses.replace(recorded.trace, cohorts=cohorts, answers=everybody)
    )
    close(recorded.state, replay(tuple(np.asarray(c)[:, ::-1] for c in recorded.trace.cohorts)).state)
    if not hasattr(row.algorithm, "cohort_size"):  # everybody, in any order
        return
    others = replay(tuple((np.asarray(c) + 1) % 5 for c in recorded.trace.cohorts))
    assert not np.allclose(jax.tree.leaves(recorded.x)[0], jax.tree.leaves(others.x)[0], 1e-9)
