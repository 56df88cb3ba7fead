import subprocess
import sys
import textwrap
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.engines.layout import Layout
from fedminimax.schedules import FromFunction, at_round


@pytest.fixture
def task(x64):
    return fm.problems.quadratic(4, seed=9)


METHOD = fm.LocalSGDA(0.05, 0.05, local_steps=2)


def test_history_has_the_metrics_and_the_costs_at_each_evaluation(task):
    result = fm.run(
        task.problem, task.clients, METHOD, rounds=7, eval_every=3, metrics=[metrics.Value(), metrics.Distance(task.solution)]
    )
    assert result.history["round"].tolist() == [0, 3, 6, 7]
    assert result.history["floats_up"].tolist() == [0, 3 * 4 * 7, 6 * 4 * 7, 7 * 4 * 7]
    assert list(result.frame().columns[:3]) == ["round", "value", "distance/x"]
    distance = result.history["distance/total"]
    assert (np.diff(distance) < 0).all()
    np.testing.assert_allclose(distance[0], np.hypot(np.linalg.norm(task.solution.x), np.linalg.norm(task.solution.y)))
    again = fm.run(task.problem, task.clients, METHOD, rounds=7, eval_every=7, metrics=metrics.Value())
    assert again.history["value"][-1] == result.history["value"][-1]


def test_metrics_may_be_plain_functions_and_any_number_of_rounds_will_do(task):
    result = fm.run(task.problem, task.clients, METHOD, rounds=0, metrics={"first": lambda p, c, s: s.x[0]})
    assert result.history["first"].tolist() == [0.0]
    assert result.rounds == 0


def test_a_run_can_start_from_any_state(task):
    there = fm.Point(jnp.asarray(task.solution.x), jnp.asarray(task.solution.y))
    result = fm.run(task.problem, task.clients, fm.ParallelSGDA(0.1, 0.1), rounds=3, start=there)
    np.testing.assert_allclose(result.x, task.solution.x, atol=1e-12)
    with pytest.raises(fm.InputError, match="does not fit LocalSGDA"):
        fm.run(task.problem, task.clients, METHOD, rounds=3, start=fm.Point(jnp.ones(9), jnp.ones(3)))


def same(a, b):
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(p, q)
        assert p.dtype == q.dtype


PLUS = {"lr_x": 0.05, "lr_y": 0.05, "snapshot_every": 4, "local_steps": 2}


@pytest.mark.parametrize("method", [fm.LocalSGDAPlus(**PLUS), fm.FedNormSGDAPlus(**PLUS)], ids=["local", "normalised"])
def test_a_snapshot_that_is_given_holds(task, method):
    go = lambda **options: fm.run(task.problem, task.clients, method, rounds=1, **options)
    half = fm.run(task.problem, task.clients, method, rounds=2)
    assert np.abs(half.x - half.state.x_snapshot).max() > 1e-3
    rest = go(start=half)
    same(go(start=half.state).state, rest.state)  # nothing is random, and no refresh is due in round 0 or 2
    same(go(start=fm.Snapshot(half.state, round=2)).state, rest.state)
    other = go(start=fm.Snapshot(half.state, round=4))
    same(other.state.x_snapshot, half.x)  # and in round 4 it is


@pytest.mark.parametrize("engine", ["simulator", "isolated"])
def test_an_anchor_that_is_given_holds(x64, engine):
    made = fm.problems.personalized_quadratic(fm.Network.ring(3), 0.7)
    go = lambda **options: fm.run(made.problem, made.clients, method, engine=engine, **options)
    method = fm.LocalExtraStep(0.1, 0.4, coins=((1, 0), (1, 1)))  # the anchor is the start for good
    half = go(rounds=2)
    assert np.abs(half.state.anchor.x - half.x).max() > 1e-2
    rest = go(rounds=2, start=half)
    again = go(rounds=2, start=half.state)
    same(again.state, rest.state)
    np.testing.assert_array_equal(again.costs["gossip_rounds"], rest.costs["gossip_rounds"][2:])


def test_the_numbers_of_a_state_become_those_of_the_run(task):
    single = fm.Point(np.float32([0.1, 0.2, 0.3, 0.4]), np.float32([0.5, 0.6, 0.7]))
    double = jax.tree.map(np.float64, single)
    for engine in ("simulator", "isolated"):
        go = lambda state: fm.run(task.problem, task.clients, fm.ParallelSGDA(0.1, 0.1), rounds=3, start=state, engine=engine)  # noqa: B023
        same(go(single).state, go(double).state)
        assert go(single).x.dtype == np.float64


SILOS = fm.Scaffold(0.05, local_steps=2, batch_size=2, cohort_size=2)


def test_a_state_with_those_of_the_clients_and_its_round_goes_on_as_the_run(x64, tmp_path):
    made = fm.problems.robust_regression(4, 3, 4, rho=0.1, sigma=0.5)
    go = lambda **options: fm.run(made.problem, made.clients, SILOS, **{"rounds": 2, "seed": 5, **options})
    half = go(engine=fm.Simulator(client_store=tmp_path / "states"))
    rest = go(start=half)
    given = lambda own=None: {"start": fm.Snapshot(half.state, own, 2)}
    in_single = jax.tree.map(np.float32, half.client_states.dense())
    for options in ({}, {"engine": fm.Simulator(client_store="host")}, {"engine": "isolated"}):
        again = go(**given(half.client_states), **options)
        for p, q in zip(jax.tree.leaves(again.state), jax.tree.leaves(rest.state), strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-12)
        rounded = go(**given(in_single), **options).state
        np.testing.assert_allclose(rounded.x, rest.state.x, rtol=1e-6)
        assert rounded.x.dtype == np.float64
    assert again.history["round"].tolist() == [2, 3, 4]
    assert again.costs["replies"].tolist() == [0, 0, 2, 2]
    assert again.history["replies"].tolist() == [0, 2, 4]
    assert again.rounds == 4
    given_all = {**given(half.client_states), "engine": "isolated"}
    recorded = go(**given_all, record=True)
    assert [c.tolist() for c in go(**given_all, trace=recorded.trace, seed=6, record=True).trace.cohorts] == [
        c.tolist() for c in recorded.trace.cohorts
    ]
    with pytest.raises(fm.InputError, match="client numbers below 4"):  # rounds 0 and 1 are not in it
        go(trace=recorded.trace)
    assert np.abs(go(**given()).x - rest.x).max() > 1e-3, "clients that begin anew go elsewhere"
    with pytest.raises(fm.InputError, match="those after 2 rounds, but the run goes on from round 0"):
        go(start=fm.Snapshot(half.state, half.client_states), engine=fm.Simulator(client_store=tmp_path / "states"))
    with pytest.raises(fm.InputError, match="with a row for each of the 4 clients"):
        go(**given(jax.tree.map(lambda a: a[:3], in_single)))
    with pytest.raises(fm.InputError, match=r"structure of Scaffold\.init_client"):
        go(**given((in_single, in_single)))
    single = fm.FedAvg(0.05).init(made.problem)
    with pytest.raises(fm.InputError, match="Clients of FedAvg keep nothing from round to round: leave client_states out"):
        fm.run(made.problem, made.clients, fm.FedAvg(0.05), rounds=1, start=fm.Snapshot(single, in_single))
    with pytest.raises(fm.InputError, match="round is -1"):
        go(start=fm.Snapshot(half.state, round=-1))
    in_place = go(**given(half.client_states), engine=fm.Simulator(client_store=tmp_path / "states"))
    np.testing.assert_allclose(in_place.client_states.dense(), rest.client_states, rtol=1e-10)


def test_parts_of_a_state_start_where_they_are_told(task):
    method = fm.FessGDA(0.05, 0.05, server_lr_x=1.5, p=0.8, local_steps=2)
    go = lambda **options: fm.run(task.problem, task.clients, method, **{"rounds": 1, **options})
    z0 = np.arange(4.0)
    # x_1 has - eta_l eta_g K p (x_0 - z_0)
    np.testing.assert_allclose(go(start={"z": z0}).x - go().x, 0.05 * 1.5 * 2 * 0.8 * z0, rtol=1e-12)
    np.testing.assert_array_equal(go(rounds=0, start={"z": z0}).state.z, z0)
    with pytest.raises(fm.InputError, match="start has 'zed', but FessGDA's state has z besides the players"):
        go(start={"zed": z0})
    with pytest.raises(fm.InputError, match=r"give them to the problem \(problem.replace\(x0=...\)\)"):
        go(start={"x": z0})
    with pytest.raises(fm.InputError, match="does not fit FessGDA"):
        go(start={"z": z0[:3]})


def test_weights_on_clients_start_where_they_are_told(x64):
    made = fm.problems.robust_regression(3, 2, 4, rho=0.1, sigma=0.5)
    w0 = np.array([0.0, 1.0, 0.0])
    there = made.problem.replace(w0=w0)
    method = fm.AFL(0.1, 0.1)
    result = fm.run(there, made.clients, method, rounds=1)
    alone = jax.tree.map(lambda a: a[4:8], made.clients.fields)  # the model sees the client with all the weight
    np.testing.assert_allclose(result.x, -0.1 * made.problem.grad(made.problem.x0, alone), rtol=1e-10)
    same(fm.run(made.problem, made.clients, method, rounds=1, start={"w": w0}).state, result.state)
    np.testing.assert_array_equal(there.as_minimax().bind(made.clients)[0].y0, w0)
    for wrong, message in (
        ([0.5, 0.5], r"shape \(2,\), but there are 3 clients"),
        ([1.0, 1.0, 1.0], "outside of the set Simplex"),
    ):
        with pytest.raises(fm.InputError, match=message):
            fm.run(made.problem.replace(w0=wrong), made.clients, method, rounds=1)


def test_results_can_be_saved_and_continued(task, tmp_path):
    options = {"metrics": metrics.Value(), "eval_every": 2}
    whole = fm.run(task.problem, task.clients, METHOD, rounds=6, **options)
    half = fm.run(task.problem, task.clients, METHOD, rounds=4, record=True, **options)
    path = half.save(tmp_path / "deep" / "half.fmx")
    loaded = fm.Result.load(path)
    rest = fm.run(task.problem, task.clients, METHOD, rounds=2, start=loaded, **options)
    assert loaded.settings == half.settings
    assert loaded.trace.cohorts[0].tolist() == half.trace.cohorts[0].tolist()
    np.testing.assert_array_equal(rest.x, whole.x)
    for name, values in whole.history.items():
        np.testing.assert_array_equal(rest.history[name], values, err_msg=name)
    assert [p.name for p in path.parent.iterdir()] == ["half.fmx"], "no temporary file is left"
    with pytest.raises(fm.InputError, match="There is no file"):
        fm.Result.load(tmp_path / "none.fmx")
    (tmp_path / "other").write_text("something else entirely")
    with pytest.raises(fm.InputError, match="not a fedminimax"):
        fm.Result.load(tmp_path / "other")


def test_a_metric_that_joins_later_has_no_past(task):
    first = fm.run(task.problem, task.clients, METHOD, rounds=2, eval_every=1)
    rest = fm.run(task.problem, task.clients, METHOD, rounds=2, eval_every=1, start=first, metrics=metrics.Value())
    assert rest.history["round"].tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(rest.history["value"]).tolist() == [True, True, True, False, False]


def test_ctrl_c_leaves_a_run_that_can_be_continued(task):
    whole = fm.run(task.problem, task.clients, METHOD, rounds=6, eval_every=1)

    class Bell:
        name = "bell"

        def __call__(self, problem, clients, state):
            return state.x[0]

    class Interrupting:
        def on_rounds(self, run):
            if run.round == 3:
                raise KeyboardInterrupt  # what Ctrl-C becomes; a real signal reaches the main thread, which need not be ours

    broken = fm.run(task.problem, task.clients, METHOD, rounds=6, eval_every=1, metrics=Bell(), observers=Interrupting())
    assert broken.interrupted
    assert broken.rounds == 3
    rest = fm.run(task.problem, task.clients, METHOD, rounds=3, eval_every=1, start=broken)
    np.testing.assert_array_equal(rest.x, whole.x)
    assert rest.rounds == 6


def test_ctrl_c_that_python_drops_ends_a_run_all_the_same(task, monkeypatch):
    pressed = []

    class Dropping:
        def on_rounds(self, run):
            if run.round == 3:
                pressed.append("Ctrl-C")  # and the interrupt went to somebody who ignores it, such as a finalizer

    monkeypatch.setattr("fedminimax.loop.noticed", lambda: nullcontext(pressed))
    broken = fm.run(task.problem, task.clients, METHOD, rounds=6, eval_every=1, observers=Dropping())
    assert (broken.interrupted, broken.rounds) == (True, 3)


def test_ctrl_c_is_noticed_where_python_drops_it():
    code = """
        import gc, signal
        from fedminimax.interrupts import noticed
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with noticed() as pressed:
            gc.callbacks.append(lambda *event: signal.raise_signal(signal.SIGINT))
            gc.collect(0)
            gc.callbacks.clear()
            print(len(pressed) > 0)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                print("interrupted")
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]  # a real signal reaches the main thread, which need not be ours
    assert subprocess.run(command, capture_output=True, text=True).stdout.split() == ["True", "interrupted", "True"]


def test_plots(task, tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    result = fm.run(task.problem, task.clients, METHOD, rounds=4, metrics=metrics.Value())
    ax = result.plot("value", against="floats_up")
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), result.history["floats_up"])
    np.testing.assert_array_equal(result.plot().lines[0].get_ydata(), result.history["value"])
    with pytest.raises(fm.InputError, match="There is no 'values'"):
        result.plot("values")


def test_progress_shows_rounds_and_the_watched_metric():
    import io

    from rich.console import Console

    from fedminimax.observers import Watched

    def shown(wanted, **options):
        out, run = io.StringIO(), Watched("Method", "", 0, 0, 10, None)
        bar = fm.ProgressBar("gap", wanted, Console(file=out, width=120, **options))
        bar.on_start(run)
        run.round, run.evaluation = 4, {"value": 1.0, "gap": 0.125}
        bar.on_rounds(run)
        bar.on_end(run)
        return out.getvalue()

    assert "4/10" in shown(None, force_terminal=True)
    assert "gap 0.125" in shown(None, force_terminal=True)
    assert shown(None, force_terminal=False) == ""
    assert shown(False, force_terminal=True) == ""


def test_schedules(x64):
    table3 = fm.Piecewise((0.02, 2e-3, 2e-4), until=(100, 200))
    np.testing.assert_allclose([table3(t) for t in (0, 99, 100, 199, 200, 900)], [0.02, 0.02, 2e-3, 2e-3, 2e-4, 2e-4])
    np.testing.assert_allclose([fm.PowerDecay(3.0, 0.5)(t) for t in (0, 3, 8)], [3.0, 1.5, 1.0])
    resolved = at_round(fm.LocalSGDA(table3, lambda t: 0.1 * t), 5)
    np.testing.assert_allclose([resolved.lr_x, resolved.lr_y], [0.02, 0.5])
    assert isinstance(fm.LocalSGDA(0.1, lambda t: t).lr_y, FromFunction)
    import optax

    cosine = optax.cosine_decay_schedule(0.1, 10)
    np.testing.assert_allclose(at_round(fm.LocalSGDA(cosine, 0.1), 5).lr_x, 0.05, rtol=1e-6)
    with pytest.raises(fm.InputError, match="exactly one value more"):
        fm.Piecewise((1.0, 2.0), until=(1, 2))
    with pytest.raises(fm.InputError, match="increasing rounds"):
        fm.Piecewise((1.0, 2.0, 3.0), until=(2, 2))


def test_sweeps_find_the_best_setting_and_tell_their_story(task):
    found = fm.sweep(
        task.problem,
        task.clients,
        fm.ParallelSGDA(0.1, 0.1),
        rounds=40,
        eval_every=10,
        grid={"lr_x": [0.001, 0.1, 50.0], "lr_y": [0.1]},
        seeds=2,
        metrics=metrics.Distance(task.solution),
    )
    assert found.settings[found.best("distance/total")] == {"lr_x": 0.1, "lr_y": 0.1}
    assert found.values("distance/total").shape == (3, 2, 5)
    frame = found.frame()
    assert len(frame) == 3 * 2 * 5
    row = frame[(frame.lr_x == 0.001) & (frame.seed == 1) & (frame["round"] == 20)]
    assert row["distance/total"].item() == found.values("distance/total")[0, 1, 2]
    shapes = fm.sweep(
        task.problem,
        task.clients,
        METHOD,
        rounds=4,
        eval_every=4,
        grid={"local_steps": [1, 2], "lr_x": [0.1, 0.2]},
        metrics=metrics.Value(),
    )
    assert shapes.settings == [
        {"local_steps": 1, "lr_x": 0.1},
        {"local_steps": 1, "lr_x": 0.2},
        {"local_steps": 2, "lr_x": 0.1},
        {"local_steps": 2, "lr_x": 0.2},
    ]
    assert shapes.values("grad_evals")[:, 0, -1].tolist() == [16, 16, 32, 32]
    chunked = fm.sweep(
        task.problem,
        task.clients,
        METHOD,
        rounds=4,
        eval_every=4,
        grid={"lr_x": [0.1, 0.2, 0.3]},
        metrics=metrics.Value(),
        side_by_side=2,
        devices=1,
    )
    np.testing.assert_allclose(chunked.values("value")[:2], shapes.values("value")[2:], rtol=1e-12)


WRONG = [
    ({"rounds": -1}, "rounds must be a whole number"),
    ({"rounds": 2.5}, "rounds must be a whole number"),
    ({"eval_every": 0}, "eval_every must be at least 1"),
    ({"engine": "rocket"}, "engine must be 'simulator', 'isolated' or 'mesh', or an engine such as"),
    ({"engine": fm.Simulator}, "engine must be 'simulator', 'isolated' or 'mesh', or an engine such as"),
    ({"engine": fm.Simulator(devices=99)}, "devices is 99, but JAX offers"),
    ({"observers": [3]}, "int is no observer"),
    ({"observers": fm.LogCSV}, "LogCSV is a class: give an observer"),
    ({"seed": 1.5}, "seed must be a whole number"),
    ({"availability": 0.5}, r"must be an Availability, such as Availability\(0\.5\)"),
    ({"availability": fm.Availability((0.5, 0.5))}, "2 probabilities, but there are 4 clients"),
    ({"metrics": metrics.ClassAccuracy()}, "Say how many classes"),
    ({"trace": fm.Trace((np.zeros((1, 4), int),))}, "covers 1 rounds, but 2 are to be run"),
    ({"trace": fm.Trace((np.full((2, 4), 7),))}, "client numbers below 4"),
    ({"trace": fm.Trace((np.zeros((0, 4), int),), steps=np.zeros((0, 4), int))}, "covers 0 rounds"),
    ({"trace": fm.Trace((np.zeros((2, 3), int),))}, "names 3 clients a round, but the algorithm asks for 4"),
    ({"trace": fm.Trace(steps=np.zeros((2, 4), int))}, "numbers of at least 1"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_wrong_options_are_named(task, options, message):
    with pytest.raises(fm.InputError, match=message):
        fm.run(task.problem, task.clients, METHOD, **{"rounds": 2, **options})


WRONG_METHODS = [
    (lambda: fm.LocalSGDA(-0.1, 0.1), "LocalSGDA.lr_x must not be negative, but is -0.1"),
    (lambda: fm.LocalSGDA(0.1, float("nan")), "lr_y must be finite"),
    (lambda: fm.CDMAGEPlus.decaying(-1, 0.1, 5, 1 / 3), "PowerDecay.c must not be negative, but is -1"),
    (lambda: fm.LocalSGDA(fm.PowerDecay(float("nan")), 0.1), "PowerDecay.c must be finite"),
    (lambda: fm.LocalSGDA(fm.Piecewise((0.1, -0.1), until=(3,)), 0.1), "Piecewise.values must not be negative"),
    (lambda: fm.CDMA.from_theory(fm.Constants(1, 1, 1, 1, 1), rounds=-1, local_steps=2, cohort_size=3), "rounds is -1"),
    (
        lambda: fm.CDMAGEPlus.from_theory(fm.Constants(1, 1, 1, 1, 1), local_steps=fm.UniformSteps(1, 2), cohort_size=3),
        "local_steps is UniformSteps",
    ),
    (lambda: fm.LocalSGDA("fast", 0.1), "must be a number or a schedule"),
    (lambda: fm.LocalSGDA(0.1, 0.1, local_steps=0), "local_steps must be at least 1"),
    (lambda: fm.LocalSGDA(0.1, 0.1, local_steps=2.5), "whole number, UniformSteps or ClientSteps"),
    (lambda: fm.LocalSGDA(0.1, 0.1, batch_size=0), "batch_size must be a whole number of at least 1"),
    (lambda: fm.LocalSGDAPlus(0.1, 0.1, snapshot_every=0), "snapshot_every must be a whole number"),
    (lambda: fm.FessGDA(0.1, 0.1, beta=1.5), "beta must be between 0 and 1"),
    (lambda: fm.FessGDA(0.1, 0.1, local_steps=fm.UniformSteps(1, 2)), "one whole number"),
    (lambda: fm.Momentum(1.0), "0 <= rho < 1"),
    (lambda: fm.LocalSGDA(0.1, 0.1, momentum=1.5), "momentum must be below 1"),
    (lambda: fm.Proximal(-1.0), "mu >= 0"),
    (lambda: fm.FedNormSGDA(0.1, 0.1, solver=fm.Weighted((1.0, 0.5)), local_steps=3), "up to 3 steps"),
    (lambda: fm.FessGDA.from_theory(1.0, 0.5, mu_x=0.5, sigma=1.0), "leave sigma out"),
    (lambda: fm.FedNormSGDA.from_theory(1.0, 0.5, clients=3, local_steps=2, beta_global=0.0), "beta_global must be positive"),
    (lambda: fm.UniformSteps(3, 2), "1 <= low <= high"),
    (lambda: fm.UniformSteps(1, 2, unit="days"), "'steps' or 'epochs'"),
    (lambda: fm.ClientSteps(()), "one number per client"),
    (lambda: fm.Availability(1.5), "between 0 and 1"),
    (lambda: fm.Availability(0.5, over_invite=0.5), "at least 1"),
    (lambda: fm.Guard(aggregate="vote"), "'mean', 'trimmed' or 'median'"),
    (lambda: fm.Guard(trim=0.5), "below 0.5"),
    (lambda: fm.Guard(max_norm=-1.0), "max_norm must be positive"),
]


@pytest.mark.parametrize(("make", "message"), WRONG_METHODS, ids=[m for _, m in WRONG_METHODS])
def test_wrong_hyper_parameters_are_named(make, message):
    with pytest.raises(fm.InputError, match=message):
        make()


def test_what_only_meets_in_a_run_is_named_before_it_starts(task):
    go = lambda method: fm.run(task.problem, task.clients, method, rounds=1)
    with pytest.raises(fm.InputError, match="cohort_size is 9, but there are 4 clients"):
        go(METHOD.replace(cohort_size=9))
    with pytest.raises(fm.InputError, match="ClientSteps has 2 numbers, but there are 4 clients"):
        go(METHOD.replace(local_steps=fm.ClientSteps((1, 2))))
    with pytest.raises(fm.InputError, match="algorithm must be an instance"):
        go(fm.LocalSGDA)
    with pytest.raises(fm.InputError, match="clients must be ClientData"):
        fm.run(task.problem, [1, 2], METHOD, rounds=1)
    other = fm.run(task.problem, task.clients, fm.ParallelSGDA(0.1, 0.1), rounds=0)
    with pytest.raises(fm.InputError, match="is ParallelSGDA's, but the algorithm is LocalSGDA"):
        fm.run(task.problem, task.clients, METHOD, rounds=1, start=other)
    with pytest.raises(fm.InputError, match="from 0 to"):
        fm.sweep(task.problem, task.clients, METHOD, rounds=2, seeds=[-1])
    with pytest.raises(fm.InputError, match="no hyper-parameter 'lr'"):
        fm.sweep(task.problem, task.clients, METHOD, rounds=2, grid={"lr": [1]})
    with pytest.raises(fm.InputError, match="must divide rounds"):
        fm.sweep(task.problem, task.clients, METHOD, rounds=5, eval_every=2)


def test_clients_of_very_unequal_size_run_one_after_another_unless_told_otherwise():
    """Side by side, every full pass would take as long as the largest client's."""
    assert Layout().width(20, 100) == 20
    assert Layout().width(20, 100, apart=True) == 1
    assert Layout("vmap").width(20, 100, apart=True) == 20
