"""Sweeps that draw, halve, divide, stop and go on: what they give is what runs one by one would."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.problems.gan import wgan_error
from fedminimax.sweeps import conduct, memory
from fedminimax.sweeps.bar import SweepBar
from fedminimax.sweeps.ledger import PARTS
from fedminimax.sweeps.rounds import forget
from fedminimax.sweeps.space import settings_of
from fedminimax.sweeps.standing import Shape

TASK = fm.problems.quadratic(4, 3, 2)
METHOD = fm.LocalSGDA(0.1, 0.1, local_steps=2)
DISTANCE = "distance/total"
RATES = [1e-3, 0.3, 1e30, 0.1, 0.03]


def sweep(method=METHOD, **options):
    options = {"rounds": 4, "eval_every": 2, "metrics": metrics.Distance(TASK.solution), **options}
    return fm.sweep(TASK.problem, TASK.clients, method, **options)


def same(one, other, exact=True):
    """Two sweeps have the same numbers."""
    assert list(one.history) == list(other.history)
    for name, values in one.history.items():
        if exact:
            np.testing.assert_array_equal(values, other.history[name], err_msg=name)
        else:
            np.testing.assert_allclose(values, other.history[name], rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(one.rounds_run, other.rounds_run)
    np.testing.assert_array_equal(one.diverged, other.diverged)


@pytest.fixture
def compiled():
    """How often the rounds of a sweep are compiled."""
    found = []
    forget()

    def heard(event, seconds, fun_name="", **_):
        if event.endswith("backend_compile_duration") and "sweep_rounds" in fun_name:
            found.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield found
    jax.monitoring.unregister_event_duration_listener(heard)


@pytest.fixture(scope="module")
def whole():
    """Five settings, of which one diverges, with two seeds, all at once."""
    return sweep(grid={"lr_x": RATES}, seeds=2, select=DISTANCE)


# -- one program ---------------------------------------------------------------------------------------------------------


def test_the_sweep_of_the_wgan_is_one_program_and_equals_its_runs_one_by_one(compiled, x64):
    task = fm.problems.wgan(0.01)
    grid = {"lr_x": [0.1, 0.01, 0.001], "lr_y": [0.1, 0.01, 0.001], "server_lr_x": [1.0, 2.0], "server_lr_y": [1.0, 2.0]}
    method = fm.FessGDA(0.1, 0.1, p=1.0, beta=0.05, local_steps=10, batch_size=100)
    judges = {"error": wgan_error, "state": lambda problem, clients, state: state.x}
    found = fm.sweep(
        task.problem, task.clients, method, rounds=6, eval_every=2, grid=grid, seeds=5, metrics=judges, progress=False
    )
    assert len(found.settings) == 36
    assert len(compiled) == 1
    for k, j in ((0, 0), (7, 4), (22, 2), (35, 1)):
        one = fm.run(
            task.problem, task.clients, method.replace(**found.settings[k]), rounds=6, eval_every=2, seed=j, metrics=judges
        )
        for name in ("error", "state", "floats_up", "grad_evals"):
            np.testing.assert_allclose(found.values(name)[k, j], one.history[name], rtol=1e-6, atol=1e-9)


def test_what_does_not_fit_into_memory_runs_in_equal_parts(monkeypatch, compiled, whole):
    parts = sweep(grid={"lr_x": RATES}, seeds=2, side_by_side=4, devices=1)
    assert len(compiled) == 1, "all parts are one program, the last one filled up"
    same(whole, parts, exact=False)
    monkeypatch.setattr(memory, "budget", lambda: 1.0)
    alone = sweep(grid={"lr_x": RATES[:2]}, seeds=2)
    assert len(compiled) == 3, "one that does not fit, and one that is used for all"
    np.testing.assert_allclose(alone.values(DISTANCE), whole.values(DISTANCE)[:2], rtol=1e-5)


def test_there_is_some_memory():
    assert 2**24 < memory.budget() < memory.free_on_host() <= 2**50


@pytest.mark.parametrize(
    ("most", "shape"),
    [(180, (36, 5)), (999, (36, 5)), (90, (18, 5)), (60, (12, 5)), (79, (12, 5)), (9, (1, 5)), (4, (1, 3)), (1, (1, 1))],
)
def test_runs_that_share_a_seed_stay_together(most, shape):
    assert Shape.within(most, 36, 5) == shape


def test_hyper_parameters_may_be_objects(compiled):
    """Numbers and schedules: each structure is one program, and each setting the run that it names."""
    grid = {"lr_y": [0.1, fm.Piecewise((0.2, 0.1), until=(1,)), fm.Piecewise((0.1, 0.3), until=(1,))]}
    found = sweep(grid=grid, rounds=2)
    assert len(compiled) == 2
    for k, setting in enumerate(found.settings):
        one = fm.run(TASK.problem, TASK.clients, METHOD.replace(**setting), rounds=2, metrics=metrics.Distance(TASK.solution))
        np.testing.assert_allclose(found.values(DISTANCE)[k, 0, -1], one.final()[DISTANCE], rtol=1e-5)
    assert found.frame()["lr_y"].iloc[-1] == repr(grid["lr_y"][2])


def test_who_is_away_and_what_is_waited_for_are_those_of_the_runs():
    away = fm.Availability(0.6, over_invite=1.5, delay=fm.Delay(median=10, deadline=15))
    found = sweep(METHOD.replace(cohort_size=2), grid={"lr_x": [0.1, 0.2]}, seeds=[3], availability=away)
    one = fm.run(
        TASK.problem, TASK.clients, METHOD.replace(cohort_size=2, lr_x=0.2), rounds=4, eval_every=2, seed=3, availability=away
    )
    assert one.history["waited"][-1] > 0
    for name in one.costs:
        np.testing.assert_allclose(found.values(name)[1, 0], one.history[name], rtol=1e-6, err_msg=name)


# -- what is tried -------------------------------------------------------------------------------------------------------


def test_draws_are_in_their_ranges_and_more_of_them_add_to_those_there_were():
    search = {
        "lr_x": fm.LogUniform(1e-4, 1e-1), "lr_y": fm.Uniform(0.5, 1), "local_steps": [5, 10],
        "batch_size": fm.Uniform(2, 4, whole=True),
    }  # fmt: skip
    many = settings_of(METHOD, None, search, 2000)
    columns = {name: np.array([setting[name] for setting in many]) for name in search}
    assert settings_of(METHOD, None, search, 40) == many[:40]
    assert settings_of(METHOD, None, search, 40, seed=1) != many[:40]
    assert columns["lr_x"].min() >= 1e-4
    assert columns["lr_x"].max() <= 1e-1
    np.testing.assert_allclose(np.mean(columns["lr_x"] < 1e-3), 1 / 3, atol=0.04)
    np.testing.assert_allclose(
        [columns["lr_y"].min(), columns["lr_y"].max(), columns["lr_y"].mean()], [0.5, 1, 0.75], atol=0.01
    )
    for name, values in (("local_steps", [5, 10]), ("batch_size", [2, 3, 4])):
        found, counts = np.unique(columns[name], return_counts=True)
        assert found.tolist() == values
        np.testing.assert_allclose(counts / 2000, 1 / len(values), atol=0.04)
        assert all(isinstance(setting[name], int) for setting in many)
    assert abs(np.corrcoef(columns["lr_y"], np.log(columns["lr_x"]))[0, 1]) < 0.1, "drawn apart"
    assert {fm.LogUniform(1, 8, whole=True).at(u) for u in np.linspace(0, 0.999, 50)} == set(range(1, 9))


def test_every_draw_meets_every_point_of_the_grid():
    both = settings_of(METHOD, {"lr_y": np.array([0.1, 0.2])}, {"lr_x": fm.Choice((1.0, 2.0, 3.0))}, 5)
    drawn = [setting["lr_x"] for setting in both]
    assert drawn[:5] == drawn[5:]
    assert [setting["lr_y"] for setting in both] == [0.1] * 5 + [0.2] * 5
    assert list(both[0]) == ["lr_y", "lr_x"]
    assert settings_of(METHOD, None) == [{}]


LOG = fm.LogUniform(1e-3, 1)
WRONG = [
    ({"grid": {"lr_x": 0.1}}, r"The grid's 'lr_x' is 0.1, but must be a list of values to try, such as \[0.1\]"),
    ({"grid": {"lr_x": "0.1"}}, "must be a list of values"),
    ({"grid": {"lr_x": np.float32(0.5)}}, "must be a list of values"),
    ({"grid": {"lr_x": []}}, "The grid's 'lr_x' has no values"),
    ({"grid": {"lr": [1]}}, "no hyper-parameter 'lr': it has "),
    ({"grid": [0.1]}, "grid must be a dict"),
    ({"grid": {"lr_x": LOG}}, "give it as search="),
    ({"grid": {"lr_x": [-1.0]}}, "lr_x must not be negative"),
    ({"search": {"lr_x": 0.1}, "samples": 2}, "The search's 'lr_x' is 0.1"),
    ({"search": {"lr_x": fm.Uniform}, "samples": 2}, "the class Uniform for 'lr_x'"),
    ({"search": {"lr": LOG}, "samples": 2}, "no hyper-parameter 'lr'"),
    ({"search": {"lr_x": LOG}}, "A search needs samples"),
    ({"search": {"lr_x": LOG}, "samples": 0}, "samples is 0"),
    ({"samples": 3}, "there is no search"),
    ({"search": {"lr_x": LOG}, "samples": 2, "grid": {"lr_x": [1]}}, "in the grid and in the search"),
    ({"select": "value"}, "compared by 'value', but the metrics give distance/total"),
    ({"better": "lower"}, "nothing is selected"),
    ({"select": DISTANCE, "better": "up"}, "better is 'up'"),
    ({"select": "own", "metrics": {"own": lambda p, c, s: s.x.sum()}}, "Nothing says which way 'own' is better"),
    ({"halving": 3}, "halving must be a Halving"),
    ({"halving": fm.Halving(DISTANCE), "select": "distance/x"}, "they must agree"),
    ({"halving": fm.Halving(DISTANCE, rungs=[3])}, r"Halving compares after the rounds \[3\]"),
    ({"driver": "grid"}, "driver must be 'optuna'"),
    ({"driver": "optuna", "select": DISTANCE}, "A driver chooses from search"),
    ({"driver": "optuna", "search": {"lr_x": LOG}, "samples": 2}, "A driver needs select"),
    ({"availability": 0.5}, "availability must be an Availability"),
    ({"side_by_side": 0}, "side_by_side is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_swept_is_named_before_anything_runs(options, message):
    with pytest.raises(fm.InputError, match=message):
        sweep(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fm.Uniform(1, 1), "the first must be the smaller"),
        (lambda: fm.Uniform(0, np.inf), "from one number to another"),
        (lambda: fm.Uniform("a", 1), "from one number to another"),
        (lambda: fm.Uniform(0.5, 2, whole=True), "give whole numbers"),
        (lambda: fm.LogUniform(0, 1), "only numbers above zero have logarithms"),
        (lambda: fm.Choice([]), "Choice has no values"),
        (lambda: fm.Choice(3), "must be a list"),
        (lambda: fm.Halving("a", factor=1), "Halving.factor is 1"),
        (lambda: fm.Halving("a", better="up"), "Halving.better is 'up'"),
        (lambda: fm.Halving("a", rungs=-1), "Halving.rungs is -1"),
        (lambda: fm.Optuna(batch=0), "Optuna.batch is 0"),
    ],
)
def test_ranges_that_make_no_sense_are_named(make, message):
    with pytest.raises(fm.InputError, match=message):
        make()


# -- halving -------------------------------------------------------------------------------------------------------------


def test_where_halving_compares_and_who_goes_on():
    assert fm.Halving("a").stops(810, 1, 27) == [30, 90, 270]
    assert fm.Halving("a").stops(810, 1, 36) == [30, 90, 270]
    assert fm.Halving("a", rungs=1).stops(810, 100, 27) == [300]
    assert fm.Halving("a", factor=2).stops(4, 2, 16) == [2], "no oftener than it is evaluated"
    assert fm.Halving("a", rungs=[2, 6]).stops(8, 2, 3) == [2, 6]
    assert fm.Halving("a").stops(10, 1, 1) == []
    scores = np.array([3.0, np.nan, 1.0, 2.0, np.inf, 0.5])
    assert fm.Halving("a", factor=2).survivors(scores) == [2, 3, 5]
    assert fm.Halving("a", factor=2).survivors(scores[:2]) == [0]
    assert fm.Halving("a").survivors(np.array([np.inf, np.nan])) == [], "none of those that diverged"


def test_the_best_go_on_from_where_they_are(whole):
    """Settings of two programs, compared with each other; what they give on the way is what they give without halving."""
    search = {"rounds": 8, "grid": {"momentum": [None, 0.3], "lr_x": RATES}, "seeds": 2, "side_by_side": 2, "devices": 1}
    halved = sweep(**search, halving=fm.Halving(DISTANCE, factor=2, rungs=[2, 4]))
    full = sweep(**search)
    ran = [[2, 4, 8][sum(scored)] for scored in zip(*_ranks(full, [2, 4], [5, 2]), strict=True)]
    assert halved.rounds_run[:, 1].tolist() == ran
    assert sorted(ran) == [2] * 5 + [4] * 3 + [8] * 2
    for k, rounds in enumerate(ran):
        upto = rounds // 2 + 1
        for name in (DISTANCE, "floats_up"):
            np.testing.assert_allclose(halved.values(name)[k, :, :upto], full.values(name)[k, :, :upto], rtol=1e-5)
        assert np.isnan(halved.values(DISTANCE)[k, :, upto:]).all()
        assert (halved.values("grad_evals")[k, :, upto:] == halved.values("grad_evals")[k, :, [upto - 1]].T).all()
    assert halved.selected_by == DISTANCE
    assert ran[halved.chosen] == 8
    assert halved.chosen == full.best(DISTANCE)
    assert "8 ended early" in repr(halved)
    assert len(halved.frame()) == 2 * sum(rounds // 2 + 1 for rounds in ran)


def _ranks(full, rungs, quotas):
    """Who is among the best at each comparison, by the whole sweep's numbers."""
    alive = np.flatnonzero(~full.diverged.any(axis=1))
    for rung, quota in zip(rungs, quotas, strict=True):
        score = full.values(DISTANCE)[:, :, rung // 2].mean(axis=1, dtype=float)
        alive = alive[np.argsort(score[alive], kind="stable")[:quota]]
        yield [k in alive for k in range(len(full.settings))]


# -- what comes of it ----------------------------------------------------------------------------------------------------


def test_what_diverged_is_marked_and_never_chosen(whole):
    assert whole.diverged.tolist() == [[False] * 2, [False] * 2, [True] * 2, [False] * 2, [False] * 2]
    assert whole.selected_by == DISTANCE
    assert whole.chosen == whole.best() == 1
    frame = whole.frame()
    assert frame[frame.lr_x == 1e30].diverged.all()
    assert not frame[frame.lr_x != 1e30].diverged.any()
    assert repr(whole) == (
        f"Sweep(LocalSGDA: 5 settings of lr_x, 2 seeds, 4 rounds; 1 diverged; the best by {DISTANCE} at lr_x = 0.3)"
    )
    unnamed = sweep(grid={"lr_x": [0.1, 1e30]}, metrics=())
    assert unnamed.diverged.tolist() == [[False], [True]], "the guard keeps the state finite, but lets nothing through"
    lost = sweep(grid={"lr_x": [0.1, 1e30]}, metrics=(), guard=fm.Guard(drop_nonfinite=False))
    assert lost.diverged.tolist() == [[False], [True]], "the state is not finite"
    with pytest.raises(fm.InputError, match="Name the metric"):
        unnamed.best()


def test_a_sweep_is_written_and_read_exactly(tmp_path, whole):
    arrays = {"round": np.arange(3), "loss/each": np.ones((2, 1, 3, 5), np.float32), "loss": np.full((2, 1, 3), 0.1)}
    each = fm.Sweep("CDMA", [{"lr_y": 0.1}, {"lr_y": fm.PowerDecay(0.1)}], [7], arrays)
    for found in (whole, each):
        found.save(tmp_path / "there")
        back = fm.Sweep.load(tmp_path / "there")
        same(found, back)
        for name in ("method", "seeds", "better", "costs", "selected_by", "chosen", "base", "interrupted"):
            assert getattr(back, name) == getattr(found, name)
        assert all(back.history[name].dtype == values.dtype for name, values in found.history.items())
    assert back.settings == [{"lr_y": 0.1}, {"lr_y": repr(fm.PowerDecay(0.1))}]
    assert fm.Sweep.load(whole.save(tmp_path / "two")).settings == whole.settings
    assert json.loads((tmp_path / "two" / "sweep.json").read_text())["chosen"] == 1
    (tmp_path / "two" / "sweep.npz").write_bytes(b"PK")
    with pytest.raises(fm.InputError, match="a file of it is damaged"):
        fm.Sweep.load(tmp_path / "two")
    with pytest.raises(fm.InputError, match=r"There is no sweep.json"):
        fm.Sweep.load(tmp_path)


# -- stopping and going on -----------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
import jax
jax.config.update("jax_disable_most_optimizations", True)
sys.path.insert(0, sys.argv[1])
import test_searching as here
from fedminimax.sweeps.ledger import Ledger
left = [int(sys.argv[3])]
write = Ledger.write
def and_die(*args):
    write(*args)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
Ledger.write = and_die
here.conduct._SAVE_SECONDS = here.conduct._CALL_SECONDS = 0.0
here.halved(sys.argv[2])
"""


def halved(folder):
    """A sweep in several parts, by halving."""
    grid, halving = {"lr_x": [*RATES, 0.2]}, fm.Halving(DISTANCE)
    return sweep(rounds=8, grid=grid, seeds=2, halving=halving, side_by_side=4, folder=folder, devices=1)


def test_killed_and_resumed_it_gives_the_same_bytes(tmp_path):
    halved(tmp_path / "straight")
    arguments = [str(Path(__file__).parent), str(tmp_path / "killed"), "7"]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    parts = sorted(path.name for path in (tmp_path / "killed" / PARTS).glob("*.npz"))
    assert len(parts) >= 2
    assert not (tmp_path / "killed" / "sweep.json").exists()
    damaged = tmp_path / "killed" / PARTS / parts[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    resumed = halved(tmp_path / "killed")
    for name in ("sweep.json", "sweep.npz"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    assert f"The part {parts[0][:-4]} cannot be read" in (tmp_path / "killed" / "log.txt").read_text()
    assert not (tmp_path / "killed" / PARTS).exists()
    assert halved(tmp_path / "killed").settings == resumed.settings


def test_what_was_run_is_not_run_again(tmp_path, monkeypatch, whole):
    """Ctrl-C keeps what there is; the next call runs the rest, and the one after that nothing."""
    options = {"grid": {"lr_x": RATES}, "seeds": 2, "select": DISTANCE, "side_by_side": 4, "devices": 1, "folder": tmp_path}
    add, rounds = SweepBar.add, []
    monkeypatch.setattr(conduct, "_CALL_SECONDS", 0.0)  # a round a call

    def stop_in_the_second_part(self, more):
        rounds.append(more)
        if sum(rounds) > 16:
            raise KeyboardInterrupt
        add(self, more)

    monkeypatch.setattr(SweepBar, "add", stop_in_the_second_part)
    first = sweep(**options)
    monkeypatch.undo()
    assert first.interrupted
    told = json.loads((tmp_path / "progress.json").read_text())  # for those who watch
    assert {n: told[n] for n in ("settings", "finished", "seeds", "length", "rounds", "total")} == {
        "settings": 5, "finished": 2, "seeds": 2, "length": 4, "rounds": sum(rounds), "total": 5 * 2 * 4
    }  # fmt: skip
    assert fm.Sweep.load(tmp_path).interrupted
    assert first.rounds_run.tolist() == [[4, 4], [4, 4], [0, 0], [0, 0], [0, 0]]
    np.testing.assert_allclose(first.values(DISTANCE)[:2], whole.values(DISTANCE)[:2], rtol=1e-5)
    assert np.isnan(first.values(DISTANCE)[4]).all()
    run = []
    part = conduct.Conductor._go
    monkeypatch.setattr(
        conduct.Conductor, "_go", lambda self, block, *rest: run.append(block.round) or part(self, block, *rest)
    )
    second = sweep(**options)
    assert len(run) == 2, "the part under way and the last one"
    assert not second.interrupted
    assert not (tmp_path / "progress.json").exists()
    same(whole, second, exact=False)
    same(second, sweep(**options))
    assert len(run) == 2
    with pytest.raises(fm.InputError, match=r"holds another sweep: there are 2 seeds in the folder and 3 here"):
        sweep(**{**options, "seeds": 3})
    with pytest.raises(
        fm.InputError, match=r"number 4 of the settings is \{'lr_x': 0.03\} in the folder and \{'lr_x': 0.5\} here"
    ):
        sweep(**{**options, "grid": {"lr_x": [*RATES[:4], 0.5]}})
    with pytest.raises(fm.InputError, match=r"lr_y is 0.1 in the folder and 0.2 here"):
        sweep(METHOD.replace(lr_y=0.2), **options)
    other = fm.problems.quadratic(4, 3, 2, seed=1)
    with pytest.raises(fm.InputError, match="the clients' data have other contents"):
        fm.sweep(
            other.problem, other.clients, METHOD, rounds=4, eval_every=2, metrics=metrics.Distance(TASK.solution), **options
        )


# -- Optuna --------------------------------------------------------------------------------------------------------------


def test_optuna_suggests_batches_that_run_side_by_side(tmp_path, compiled):
    options = {
        "search": {"lr_x": fm.LogUniform(1e-3, 1.0), "lr_y": fm.Uniform(0.05, 0.2), "momentum": fm.Choice([0.0, 0.3])},
        "samples": 8, "driver": fm.Optuna(batch=4), "select": DISTANCE, "seeds": 2,
    }  # fmt: skip
    found = sweep(**options, folder=tmp_path)
    assert len(compiled) == 1, "both batches are one program"
    assert len(found.settings) == 8
    assert all(1e-3 <= s["lr_x"] <= 1 and 0.05 <= s["lr_y"] <= 0.2 and s["momentum"] in (0.0, 0.3) for s in found.settings)
    assert len({s["lr_x"] for s in found.settings}) == 8
    assert found.chosen == int(np.argmin(found.values(DISTANCE)[..., -1].mean(axis=1)))
    again = sweep(**options)
    assert again.settings == found.settings, "its sampler has a seed"
    same(found, again)
    assert sweep(**options, folder=tmp_path).settings == found.settings
    one = sweep(grid={name: [value] for name, value in found.settings[5].items()}, seeds=2)
    np.testing.assert_allclose(one.values(DISTANCE)[0], found.values(DISTANCE)[5], rtol=1e-5)


def test_without_optuna_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(fm.InputError, match=r"pip install 'fedminimax\[optuna\]'"):
        sweep(search={"lr_x": LOG}, samples=2, driver="optuna", select=DISTANCE)
