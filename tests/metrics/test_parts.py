"""Metrics where the data is: parts of clients make the numbers that the data in one place gives; arrays, rounds and costs."""

import csv
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics, observers, plots, wire
from fedminimax.engines import isolated
from fedminimax.engines.execution import Snapshot
from fedminimax.federation.round import Conditions
from fedminimax.metrics import METRICS, Part, parts
from fedminimax.observers import Watched
from fedminimax.penalties import ChiSquare
from fedminimax.players import Point
from fedminimax.sets import L2Ball

BARE = fm.Isolated(data_on_server=False)
"""The engine whose server has no data: what it evaluates was made of parts."""
SIZES = (1, 3, 4)
CLASSES = 3


def examples(sizes, seed):
    """Labelled examples of clients of unequal sizes; each class occurs, and each kind of labels (zero or above)."""
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    fields = {"inputs": rng.normal(size=(total, 2)), "labels": (np.arange(total) % CLASSES).astype(np.int32)}
    return fm.ClientData.from_owner(fields, np.repeat(np.arange(len(sizes)), sizes))


TRAIN, TEST = examples(SIZES, 0), examples((2, 6, 1), 1)
ARRAYS = {name: np.asarray(a) for name, a in TEST.fields.items()}


def loss(x, y, batch):
    scores = batch["inputs"] @ x["w"]
    right = jnp.take_along_axis(jax.nn.log_softmax(scores), batch["labels"][:, None], axis=1)
    return jnp.mean(-right[:, 0] * (1 + batch["inputs"] @ y)) - 0.1 * jnp.sum(y**2)


def start(rows=()):
    rng = np.random.default_rng(3)
    return {"w": jnp.asarray(rng.normal(size=(*rows, 2, CLASSES)))}, jnp.asarray(rng.normal(size=(*rows, 2)))


def classes(x, inputs):
    return inputs @ x["w"]


def score(x, inputs):
    return jax.nn.sigmoid(inputs @ x["w"][:, 0])


def on_both(problem, clients, method, judges, state=None):
    """The metrics at a state from the simulator, and from workers whose server has no data."""
    problem, clients = problem.bind(clients)
    begin = None if state is None else Snapshot(state)
    found = []
    for engine in (fm.Simulator(devices=1), BARE):
        with engine.open(problem, clients, method, Conditions(), start=begin) as execution:
            found.append(execution.evaluate(metrics.named(judges)))
    return found


def agree(flat, gathered):
    assert list(flat) == list(gathered)
    for name, value in flat.items():
        np.testing.assert_allclose(gathered[name], value, rtol=1e-12, atol=1e-14, err_msg=name)
        assert np.isfinite(value).all(), name


def shared_y():
    x, y = start()
    return fm.MinimaxProblem(loss, x, y, y_set=L2Ball(0.7), weights=[0.2, 0.5, 0.3], predict=classes)


OF_CLASSES = {
    "value": metrics.Value(),
    "grad": metrics.GradientNorms(),
    "stationarity": metrics.Stationarity(2.0),
    "client_loss": metrics.ClientLoss(each=True),
    "accuracy": metrics.ClientAccuracy(each=True),
    "held_out": metrics.ClientAccuracy(TEST),
    "by_class": metrics.ClassAccuracy(classes=CLASSES),
    "class_loss": metrics.ClassLoss(classes=CLASSES),
    "elsewhere": metrics.On(metrics.Value(), TEST),
    "classes_elsewhere": metrics.On(metrics.ClassAccuracy(classes=CLASSES), TEST),
    "arrays": metrics.ClassAccuracy(ARRAYS, CLASSES),
    "distance": metrics.Distance(Point(*start())),
}
OF_SCORES = {
    "elsewhere": metrics.On(metrics.Value(), TEST),  # with p by the sizes of the held-out data
    "auc": metrics.AUC(bins=4),
    "auc_elsewhere": metrics.AUC(TEST, bins=4),
    "auc_arrays": metrics.AUC(ARRAYS),
    "error": metrics.ClientError(scale=3.0, each=True),
}
OF_WEIGHTS = [
    metrics.Value(),
    metrics.GradientNorms(),
    metrics.Stationarity(),
    metrics.ClientLoss(),
    metrics.WorstCase(),
    metrics.ClientWeights(each=True),
]
OF_NODES = {
    "residual": metrics.Residual(),
    "consensus": metrics.Consensus(),
    "node": metrics.NodeAccuracy(each=True),
    "node_loss": metrics.NodeLoss(each=True),
    "node_elsewhere": metrics.NodeAccuracy(TEST),
    "mean": metrics.GlobalAccuracy(),
    "mean_elsewhere": metrics.GlobalAccuracy(TEST),
    "mean_arrays": metrics.GlobalAccuracy(ARRAYS),
}


def test_parts_make_the_numbers_of_the_data_in_one_place(x64):
    problem = shared_y()
    agree(*on_both(problem, TRAIN, fm.ParallelSGDA(0.1, 0.1), OF_CLASSES))
    agree(*on_both(problem.replace(predict=score, weights="size"), TRAIN, fm.ParallelSGDA(0.1, 0.1), OF_SCORES))


def test_parts_of_weights_on_clients(x64):
    x, y = start()
    problem = fm.RobustProblem(lambda x, b: loss(x, y, b), x, ChiSquare(0.3), weights="size", w0=[0.2, 0.5, 0.3])
    for method in (fm.AFL(0.1, 0.1), fm.FedAvg(0.1)):  # with weights that it moves, and with the problem's own
        agree(*on_both(problem, TRAIN, method, OF_WEIGHTS))


def test_parts_of_nodes(x64):
    x, y = start()
    rows = Point(*start((3,)))
    problem = fm.PersonalizedProblem(
        loss, x, y, 0.3, fm.Network.ring(3), y_set=L2Ball(0.7), starts=rows, predict=classes, name="nodes"
    )
    agree(*on_both(problem, TRAIN, fm.LocalTraining(0.1, 0.1), OF_NODES))


def test_every_metric_with_parts_is_compared():
    compared = {type(m) for m in [*OF_CLASSES.values(), *OF_SCORES.values(), *OF_WEIGHTS, *OF_NODES.values()]}
    assert {cls for cls in METRICS.values() if hasattr(cls, "part") and cls.__module__.startswith("fedminimax.")} <= compared


def test_only_settings_and_players_go_down_and_only_parts_come_up(monkeypatch):
    letters = []
    handle = isolated.Worker.handle

    def heard(worker, request):
        reply = handle(worker, request)
        letters.append((worker, request, reply))
        return reply

    monkeypatch.setattr(isolated.Worker, "handle", heard)
    judges = [metrics.ClassAccuracy(classes=CLASSES), metrics.ClientAccuracy(TEST), metrics.Distance(Point(*start()))]
    fm.run(shared_y(), TRAIN, fm.ParallelSGDA(0.1, 0.1), rounds=0, engine=BARE, metrics=judges)
    assert [worker.id for worker, _, _ in letters] == [0, 1, 2], "one letter to each client, for all metrics"
    for worker, request, reply in letters:
        asked, answered = wire.decode(request)["parts"], wire.decode(reply)
        assert set(asked) == set(answered) == {"accuracy", "client_accuracy"}, "the state is the server's own"
        assert asked["client_accuracy"]["metric"] == ("ClientAccuracy", {"clients": parts.Held(0), "each": False})
        assert {k: np.shape(v) for k, v in answered["accuracy"].sum.items()} == {"total": (CLASSES,), "count": (CLASSES,)}
        assert np.shape(answered["client_accuracy"].each) == ()
        assert worker.held_out[0].total == TEST.sizes[worker.id]
        for data in (worker.data, worker.held_out[0]):
            assert np.asarray(data.fields["inputs"])[0].tobytes() not in request + reply


def test_what_needs_all_data_is_refused_where_the_server_has_none():
    task = fm.problems.quadratic(3)
    go = lambda engine, judges: fm.run(task.problem, task.clients, fm.SAGDA(0.1, 0.1), rounds=0, engine=engine, metrics=judges)
    sentence = r"The metric 'phi' needs all clients' data in one place, .*: use AUC\(bins=...\), .*Value, .*parts\."
    with pytest.raises(fm.InputError, match=sentence) as raised:
        go(BARE, [metrics.Value(), metrics.Phi()])
    assert "Moreau" not in str(raised.value)
    assert "Distance" in str(raised.value)
    mine = lambda problem, clients, state: jnp.sum(clients.fields["A"])
    with pytest.raises(fm.InputError, match="The metrics 'mine', 'auc' need all"):
        go(BARE, {"mine": mine, "auc": metrics.AUC()})
    wrong = lambda problem, clients, state: 0.0
    wrong.needs = "nothing"
    with pytest.raises(fm.InputError, match="needs = 'nothing'"):
        go(BARE, {"wrong": wrong})
    lies = lambda problem, clients, state: jnp.sum(clients.fields["A"])
    lies.needs = metrics.STATE
    with pytest.raises(fm.InputError, match="must say needs = 'together'"):
        go(BARE, {"lies": lies})
    fewer = metrics.On(metrics.Value(), fm.problems.quadratic(2).clients)  # no share for each of three
    with pytest.raises(fm.InputError, match="'fewer' needs all"):
        go(BARE, {"fewer": fewer})
    judges = {"mine": mine, "phi": metrics.Phi(), "fewer": fewer, "value": metrics.Value()}
    here, there = go("simulator", judges).final(), go("isolated", judges).final()
    assert list(here) == list(there)
    np.testing.assert_allclose(list(there.values()), list(here.values()), rtol=1e-5)


@pytest.fixture
def own():
    """A metric of a user's own: the mean over clients of the largest |input|, and each one's."""

    @metrics.metric_class
    class Largest:
        power: int = field(default=1, metadata={"static": True})
        scale: Any = 1.0
        name = "largest"
        needs = metrics.PARTS

        def of(self, problem, values, context):
            return {"mean": jnp.mean(values), "each": values, "round": context.round}

        def __call__(self, problem, clients, state, context):
            sizes = jnp.max(jnp.abs(clients.fields["inputs"]), axis=1) ** self.power
            owners = clients.owners()
            return self.of(problem, self.scale * jnp.zeros(clients.count).at[owners].max(sizes), context)

        def part(self, problem, data, told, whose):
            return Part(each=self.scale * jnp.max(jnp.abs(data.fields["inputs"])) ** self.power)

        def whole(self, problem, clients, part, state, context):
            return self.of(problem, part.each, context)

    yield Largest
    del METRICS["Largest"]


def test_a_metric_of_ones_own_with_parts(x64, own):
    expected = [2.5 * np.abs(np.asarray(rows["inputs"])).max() ** 2 for rows in TRAIN]
    for engine in ("simulator", BARE):
        result = fm.run(
            shared_y(), TRAIN, fm.ParallelSGDA(0.1, 0.1), rounds=2, eval_every=1, engine=engine, metrics=own(2, 2.5)
        )
        np.testing.assert_allclose(result.vectors["largest/each"], [expected] * 3, rtol=1e-12)
        assert result.history["largest/round"].tolist() == [0, 1, 2]
    assert METRICS["Largest"] is own
    taken = type("Value", (), {"__module__": "elsewhere"})
    with pytest.raises(fm.InputError, match=r"a metric Value already, that of fedminimax.metrics.optimality.*another name"):
        metrics.metric_class(taken)


# -- arrays, rounds and costs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run whose metric is an array, logged."""
    task = fm.problems.quadratic(5, noise=0.3, examples=4)
    path = tmp_path_factory.mktemp("log") / "run.csv"
    judges = {"loss": metrics.ClientLoss(each=True), "value": metrics.Value()}
    options = {"rounds": 4, "eval_every": 2, "metrics": judges, "progress": True}
    return task, path, fm.run(task.problem, task.clients, fm.SAGDA(0.1, 0.1), observers=[fm.LogCSV(path)], **options)


def test_an_array_is_one_entry_of_the_history(watched, tmp_path):
    _, path, result = watched
    each = result.vectors["loss/each"]
    assert list(result.vectors) == ["loss/each"]
    assert each.shape == (3, 5)
    np.testing.assert_allclose(each.mean(axis=1), result.history["loss/mean"], rtol=1e-6)
    np.testing.assert_allclose(each.max(axis=1), result.history["loss/worst"], rtol=1e-6)
    assert not [name for name in (*result.frame(), *result.final()) if "each" in name]
    assert {"round", "loss/mean", "value", "floats_up"} <= set(result.frame())
    assert "loss/mean = " in repr(result)
    assert "each" not in repr(result)
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert "loss/each" not in header
    assert [float(row[header.index("loss/mean")]) for row in rows] == pytest.approx(result.history["loss/mean"].tolist())
    again = fm.Result.load(result.save(tmp_path / "result.fmx"))
    np.testing.assert_array_equal(again.vectors["loss/each"], each)
    ax = result.plot("loss/each")
    np.testing.assert_array_equal([line.get_ydata() for line in ax.lines], each.T)
    assert len(ax.get_legend().get_texts()) == 1
    assert result.plot().get_ylabel() == "loss/mean"
    with pytest.raises(fm.InputError, match="'loss/each' is an array at every evaluation, not a number"):
        plots.bands({"a": [result]}, "loss/each")
    run = Watched("SAGDA", "", 0, 0, 1, None)
    run.evaluation = {"loss/each": each[0], "value": 1.0}
    with pytest.raises(fm.InputError, match="there is no 'loss/each' to watch: this run has value"):
        fm.StopWhen("loss/each", below=0.0).on_start(run)


def test_tensorboard_gets_arrays_as_histograms(monkeypatch, tmp_path):
    written = []
    writer = type("Writer", (), {"__init__": lambda self, folder: None})
    for kind in ("add_scalar", "add_histogram"):
        setattr(writer, kind, lambda self, name, value, step, kind=kind: written.append((kind, name, step)))
    monkeypatch.setattr(observers, "_wanted", lambda package, observer: type("Package", (), {"SummaryWriter": writer}))
    run = Watched("SAGDA", "", 0, 0, 1, None)
    run.evaluation, run.costs = {"loss/each": np.ones(3), "value": 1.0}, {"floats_up": 7.0}
    fm.TensorBoard(tmp_path).on_evaluation(run)
    assert written == [("add_histogram", "loss/each", 0), ("add_scalar", "value", 0), ("add_scalar", "floats_up", 0)]


def test_a_run_goes_on_with_arrays_that_one_half_did_not_measure(watched):
    task, _, result = watched
    more = fm.run(
        task.problem, task.clients, fm.SAGDA(0.1, 0.1), rounds=2, eval_every=2, start=result,
        metrics={"value": metrics.Value(), "own": metrics.ClientLoss(each=True)},
    )  # fmt: skip
    assert more.vectors["loss/each"].shape == more.vectors["own/each"].shape == (4, 5)
    np.testing.assert_array_equal(np.isnan(more.vectors["loss/each"]).all(axis=1), [False, False, False, True])
    np.testing.assert_array_equal(np.isnan(more.vectors["own/each"]).all(axis=1), [True, True, True, False])
    np.testing.assert_array_equal(more.vectors["loss/each"][:3], result.vectors["loss/each"])


def since(problem, clients, state, context):
    """Return the round and what was sent up."""
    return {"round": context.round, "up": context.costs["floats_up"], "gradients": context.costs["grad_evals"]}


def test_a_metric_sees_the_round_and_the_costs(watched):
    task = watched[0]
    whole = {}
    for engine in ("simulator", "isolated"):
        judges = {"since": since, "on": metrics.On(since, task.clients)}
        result = fm.run(task.problem, task.clients, fm.SAGDA(0.1, 0.1), rounds=4, eval_every=2, metrics=judges, engine=engine)
        for name in judges:
            np.testing.assert_array_equal(result.history[f"{name}/round"], [0, 2, 4])
            np.testing.assert_array_equal(result.history[f"{name}/up"], result.history["floats_up"])
            np.testing.assert_array_equal(result.history[f"{name}/gradients"], result.history["grad_evals"])
        assert result.history["since/up"][-1] > 0
        whole[engine] = result
    more = fm.run(
        task.problem, task.clients, fm.SAGDA(0.1, 0.1), rounds=2, metrics=since, start=whole["simulator"], eval_every=2
    )
    np.testing.assert_array_equal(more.history["since/up"], more.history["floats_up"])


def test_a_sweep_has_arrays_and_rounds_but_no_costs(watched):
    task, _, result = watched
    judges = {"loss": metrics.ClientLoss(each=True), "now": lambda problem, clients, state, context: context.round}
    found = fm.sweep(
        task.problem, task.clients, fm.SAGDA(0.1, 0.1), rounds=4, grid={"lr_x": [0.1, 0.05]}, eval_every=2, metrics=judges,
        devices=1,
    )  # fmt: skip
    assert found.history["loss/each"].shape == (2, 1, 3, 5)
    np.testing.assert_allclose(found.history["loss/each"][0, 0], result.vectors["loss/each"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found.values("now")[:, 0], [[0, 2, 4]] * 2)
    assert "loss/each" not in found.frame()
    for act in (found.best, found.plot):
        with pytest.raises(fm.InputError, match="'loss/each' is an array at every evaluation, not a number"):
            act("loss/each")
    with pytest.raises(fm.InputError, match=r"a metric that reads context.costs needs run\(\)"):
        fm.sweep(task.problem, task.clients, fm.SAGDA(0.1, 0.1), rounds=2, metrics=since, devices=1)


def test_clients_made_on_demand_are_measured_by_their_parts():
    """Where data is never all in one place, parts are the only way to have a number over everybody."""
    make = lambda client: {"inputs": jax.random.normal(jax.random.key(client), (3, 2)), "labels": jnp.arange(3) % CLASSES}
    made = fm.GeneratedClients(make, 4)
    stored = made.take(range(4))
    largest = lambda problem, clients, state: jnp.max(state.x["w"]) + clients.count
    largest.needs = metrics.STATE
    judges = {"value": metrics.Value(), "grad": metrics.GradientNorms(), "largest": largest}
    go = lambda clients, engine: fm.run(
        shared_y().replace(weights=None), clients, fm.ParallelSGDA(0.1, 0.1), rounds=0, metrics=judges, engine=engine
    )
    here, there = go(stored, "simulator").final(), go(made, BARE).final()
    assert list(here) == list(there)
    np.testing.assert_allclose(list(there.values()), list(here.values()), rtol=1e-5)
