"""Observers: told at the right moments, able to stop a run, unable to lose one."""

import csv

import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics


@pytest.fixture(scope="module")
def task():
    return fm.problems.quadratic(4)


METHOD = fm.ParallelSGDA(0.1, 0.1)


def go(task, rounds=6, **options):
    distance = {"d": metrics.Distance(task.solution)}
    return fm.run(task.problem, task.clients, METHOD, rounds=rounds, metrics=distance, **{"eval_every": 2, **options})


class Diary:
    """Takes down what it is told, and when."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda run: self.told.append((name[3:], run.round, run.evaluated))


def test_observers_are_told_in_order_and_see_the_run(task):
    diary, seen = Diary(), []

    class Looks:
        def on_evaluation(self, run):
            seen.append((run.round, run.evaluation["d/x"], run.costs["floats_up"], np.asarray(run.state.x)))

    result = go(task, observers=[diary, Looks()])
    told = [(name, now) for name, now, _ in diary.told if name != "rounds"]
    assert told == [("start", 0), *(("evaluation", t) for t in (0, 2, 4, 6)), ("end", 6)]
    assert [now for name, now, _ in diary.told if name == "rounds"][-1] == 6
    assert all(now == at for name, now, at in diary.told if name == "evaluation")
    for k, (now, value, sent, _) in enumerate(seen):
        assert (now, value, sent) == tuple(result.history[name][k] for name in ("round", "d/x", "floats_up"))
    np.testing.assert_array_equal(seen[-1][3], result.x)


def test_a_snapshot_that_an_observer_takes_goes_on_as_the_run(task):
    kept = {}

    class Keeps:
        def on_evaluation(self, run):
            kept[run.round] = run.snapshot()

    whole = go(task, observers=Keeps())
    rest = go(task, rounds=2, start=kept[4])
    np.testing.assert_array_equal(rest.x, whole.x)
    assert rest.rounds == 6


@pytest.mark.parametrize(
    ("rule", "because"),
    [
        (lambda d: fm.StopWhen("d/x", below=d[2] + 1e-9), "is below"),
        (lambda d: fm.StopWhen("d/x", above=d[2] - 1e-9), "is above"),
        (lambda d: fm.StopWhen("d/x", patience=1, better="higher"), "not become better for 1 evaluations"),
    ],
)
def test_runs_stop_when_they_are_told_to(task, rule, because):
    whole = go(task)
    distances = dict(zip(whole.history["round"].tolist(), whole.history["d/x"].tolist(), strict=True))
    result = go(task, observers=rule(distances))
    assert because in result.stopped
    assert result.rounds == {"is below": 2, "is above": 0, "not become better for 1 evaluations": 4}[because]
    assert "stopped" in repr(result)
    assert not result.interrupted
    np.testing.assert_array_equal(result.history["d/x"], whole.history["d/x"][: len(result.history["d/x"])])


def test_levels_count_from_a_round_on(task):
    whole = go(task)
    second = float(whole.history["d/x"][whole.history["round"].tolist().index(2)])
    assert go(task, observers=fm.StopWhen("d/x", below=second + 1e-9)).rounds == 2
    result = go(task, observers=fm.StopWhen("d/x", below=second + 1e-9, after=3))
    assert result.rounds == 4
    assert "is below" in result.stopped


def test_patience_waits_while_it_gets_better(task):
    assert go(task, observers=fm.StopWhen("d/x", patience=1, better="lower")).rounds == 6


def test_an_observer_that_raises_ends_the_run_and_loses_nothing(task):
    class Fails:
        def on_evaluation(self, run):
            if run.round == 4:
                raise OSError("the disk is full")

    with pytest.warns(UserWarning, match=r"The observer Fails raised OSError: the disk is full.*ended after 4 rounds"):
        result = go(task, observers=[Fails()])
    assert result.rounds == 4
    assert result.stopped == "The observer Fails raised OSError: the disk is full"
    np.testing.assert_array_equal(go(task, rounds=2, start=result).x, go(task).x)


def test_a_metric_that_is_not_there_is_named(task):
    with pytest.warns(UserWarning, match="there is no 'loss' to watch: this run has d/x, d/y, d/total"):
        assert go(task, observers=fm.StopWhen("loss", below=1)).rounds == 0
    with pytest.raises(fm.InputError, match="it would never stop a run"):
        fm.StopWhen("loss")
    with pytest.raises(fm.InputError, match="needs better='lower'"):
        fm.StopWhen("loss", patience=2)


def test_the_log_is_the_history(task, tmp_path):
    path = tmp_path / "logs" / "run.csv"
    half = go(task, rounds=4, observers=fm.LogCSV(path))
    whole = go(task, rounds=2, start=half, observers=fm.LogCSV(path))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == set(whole.history)
    for name, values in whole.history.items():
        np.testing.assert_array_equal([float(row[name]) for row in rows], values)


def test_numbers_reach_tensorboard(task, tmp_path):
    reader = pytest.importorskip("tensorboardX.proto.event_pb2", reason="the extra track is not installed")
    del reader
    go(task, observers=fm.TensorBoard(tmp_path))
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"d/x" in written
    assert b"floats_up" in written


def test_trackers_that_are_not_installed_are_named(monkeypatch):
    import sys

    for module, make in (("tensorboardX", lambda: fm.TensorBoard("logs")), ("mlflow", fm.MLflow)):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(fm.InputError, match=r"pip install 'fedminimax\[track\]'"):
            make()


def test_mlflow_gets_settings_metrics_and_an_end(task, monkeypatch):
    import sys
    from types import SimpleNamespace

    calls = []
    names = ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics", "end_run")
    fake = SimpleNamespace(**{n: (lambda *a, n=n, **k: calls.append((n, a, k))) for n in names})
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    result = go(task, observers=fm.MLflow("mine", "there"))
    assert [n for n, _, _ in calls] == [
        "set_tracking_uri",
        "set_experiment",
        "start_run",
        "log_params",
        *["log_metrics"] * 4,
        "end_run",
    ]
    assert calls[-2][1][0]["d/x"] == result.final()["d/x"]
    assert calls[-2][2] == {"step": 6}


def test_ctrl_c_is_no_fault_of_the_observers(task):
    class Interrupts:
        def on_rounds(self, run):
            if run.round >= 3:
                raise KeyboardInterrupt

    result = go(task, eval_every=1, observers=Interrupts())
    assert result.interrupted
    assert result.rounds == 3
    assert result.stopped is None
    np.testing.assert_array_equal(go(task, rounds=3, start=result, eval_every=1).x, go(task).x)
