"""Searches: numbers that are right from round 0 on, players that no program holds as constants, and what "best" means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import fairness, metrics
from fedminimax.data import ClientData

SHAPES = [(1048, 64), (5000, 256)]  # XLA on CPUs gets A @ C wrong here where C is a constant of equal numbers


def regression(rows, width, outputs=10):
    """A linear model that starts at zero, on two clients, and its data."""
    rng = np.random.default_rng(0)
    fields = {"a": rng.normal(size=(rows, width)).astype("float32"), "b": rng.normal(size=(rows, outputs)).astype("float32")}
    loss = lambda x, batch: jnp.mean(jnp.sum((batch["b"] - batch["a"] @ x) ** 2, axis=1))
    problem = fm.RobustProblem(loss, jnp.zeros((width, outputs)), fm.ChiSquare(0.1))
    return problem, ClientData.from_owner(fields, np.arange(rows) % 2), fields


@pytest.mark.parametrize("shape", SHAPES)
def test_a_search_starts_from_the_right_numbers(shape):
    problem, clients, fields = regression(*shape)
    found = fm.sweep(
        problem, clients, fm.FedAvg(0.01, local_steps=1), rounds=1, grid={"lr_x": [1e-3, 1e-2]}, metrics=metrics.ClientLoss()
    )
    at_zero = np.mean(np.sum(fields["b"].astype(float) ** 2, axis=1))
    np.testing.assert_allclose(found.values("client_loss/mean")[:, 0, 0], at_zero, rtol=1e-5)
    assert found.best("client_loss/mean") == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_the_curvature_at_zero_is_exact(shape):
    _, clients, fields = regression(*shape)
    entropy = lambda x, batch: -jnp.mean(jax.nn.log_softmax(batch["a"] @ x)[:, 0])
    problem = fm.RobustProblem(entropy, jnp.zeros((shape[1], 10)), fm.ChiSquare(0.1))
    # softmax at zero: the Hessian is A'A / n times (I / 10 - 11' / 100), whose largest eigenvalue is 1 / 10
    a = fields["a"].astype(float)
    exact = np.linalg.eigvalsh(a.T @ a / len(a))[-1] / 10
    assert 0.8 * exact < fairness.smoothness(problem, clients) < 1.001 * exact


def test_a_linearised_layer_of_zeros_is_multiplied_rightly():
    a = jnp.asarray(regression(*SHAPES[0])[2]["a"])
    model = fm.problems.linearize(fm.models.Logistic(10), {"Dense_0": {"kernel": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}})
    x = model.init(None, a)["params"]
    scores = jax.jit(lambda x, a: jnp.sum(jnp.abs(model.apply({"params": x}, a))))(x, a)
    assert scores == 0


def test_no_program_holds_a_player(monkeypatch):
    """Every program that is compiled while methods run, are searched and judged, on both engines and on nodes."""
    held, programs, jit = [], [], jax.jit

    def watching(fn, **options):
        compiled = jit(fn, **options)
        if options.get("inline"):  # a part of another
            return compiled

        def look(*args, **named):
            static = {"length"} & set(named)
            shaped = lambda *args: fn(*args, **{k: named[k] for k in static})
            programs.append(fn)
            held.extend(np.shape(c) for c in jax.make_jaxpr(shaped)(*args).consts if jnp.issubdtype(c.dtype, jnp.floating))

        def looked(act):
            return lambda *args, **named: look(*args, **named) or act(*args, **named)

        call = looked(compiled)
        call.eval_shape, call.lower = compiled.eval_shape, looked(compiled.lower)
        return call

    monkeypatch.setattr(jax, "jit", watching)
    problem, clients, _ = regression(40, 7, 3)
    model = fm.FedAvg(0.01, local_steps=1)
    fm.run(problem, clients, model, rounds=1, metrics=metrics.WorstCase(), progress=False)
    fm.run(problem, clients, model, rounds=1, engine="isolated", progress=False)
    fm.sweep(problem, clients, model, rounds=1, metrics=metrics.WorstCase())
    fairness.smoothness(problem, clients)
    saddle = fm.problems.quadratic(5, 6, 9, examples=2)
    fm.sweep(saddle.problem, saddle.clients, fm.ParallelSGDA(0.1, 0.1), rounds=1, metrics=metrics.Phi(max_steps=1))
    ring = fm.problems.personalized_quadratic(fm.Network.ring(5), 0.5, 6, 9, examples=2)
    fm.sweep(ring.problem, ring.clients, fm.LocalTraining(0.1, 0.1), rounds=1, metrics=metrics.Residual())
    assert len(programs) >= 7
    starts = jax.tree.leaves((problem.x0, saddle.problem.start, ring.problem.start))
    assert not {leaf.shape for leaf in starts} & set(held), held


@pytest.fixture(scope="module")
def found():
    problem, clients, _ = regression(40, 7, 3)

    def score(problem, clients, state):
        return -jnp.sum(state.x**2)

    def good(problem, clients, state):
        return jnp.sum(state.x**2)

    good.better = "higher"
    grid = {"lr_x": [1e-3, 1e-2, 1e30]}
    return fm.sweep(problem, clients, fm.FedAvg(0.1, local_steps=1), rounds=2, grid=grid, metrics=[score, good])


def test_a_function_of_ones_own_must_say_which_way_is_better(found):
    with pytest.raises(fm.InputError, match="better='lower' or better='higher'"):
        found.best("score")
    with pytest.raises(fm.InputError, match="better is 'up'"):
        found.best("score", "up")
    assert found.best("score", "lower") == 1
    assert found.best("score", better="higher") == 0
    assert found.best("good") == 1  # it has an attribute
    assert found.best("good", "lower") == 0


def test_the_best_setting_is_what_is_drawn(found):
    assert np.array_equal(found.plot("good").lines[0].get_ydata(), found.values("good")[1].mean(axis=0))
    assert np.array_equal(found.plot("score", better="higher").lines[0].get_ydata(), found.values("score")[0].mean(axis=0))


def test_a_search_in_which_nothing_stayed_finite_is_an_error(found):
    assert not np.isfinite(found.values("good")[2]).all()
    lost = fm.Sweep(found.method, found.settings[2:], found.seeds, {k: v[2:] for k, v in found.history.items()}, found.better)
    with pytest.raises(fm.InputError, match="None of the 1 settings of FedAvg kept 'good' finite"):
        lost.best("good")


WAYS = {
    "accuracy/worst20": "higher",
    "accuracy/variance": "lower",
    "accuracy/all": "higher",
    "client_loss/best20": "lower",
    "test auc/auc": "higher",
    "test auc/auc_error": "lower",
    "auc": "higher",
    "robust/accuracy": "higher",
    "robust/loss": "lower",
    "robust/norm": None,
    "value": None,
    "gap": "lower",
    "held out/mean": "higher",
    "nothing": None,
}


@pytest.mark.parametrize("column", WAYS)
def test_metrics_know_which_way_is_better(column):
    labels = {"inputs": np.zeros((2, 1)), "labels": np.array([0, 1])}
    held_out = ClientData.from_list([{"inputs": np.zeros((2, 1)), "labels": np.array([0, 1])}])
    given = {
        **metrics.named(
            [metrics.ClassAccuracy(classes=2), metrics.ClientLoss(), metrics.AUC(), metrics.RobustLoss(), metrics.Value()]
        ),
        **metrics.named(metrics.DualityGap()),
        "test auc": metrics.AUC(labels, bins=4),
        "held out": metrics.On(metrics.ClientAccuracy(), held_out),
    }
    assert metrics.direction(given, column) == WAYS[column]


def test_a_metric_with_an_impossible_direction_is_named():
    strange = lambda problem, clients, state: 0.0
    strange.better = "up"
    with pytest.raises(fm.InputError, match="better = 'up'"):
        metrics.direction({"strange": strange}, "strange")
