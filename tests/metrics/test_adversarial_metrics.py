"""The worst perturbation against closed forms: with a linear model and squares it moves along x alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.data import ClientData
from fedminimax.players import Point
from fedminimax.sets import L2Ball

X = np.array([0.6, -0.8, 0.5])
N = np.linalg.norm(X)
P = np.array([0.5, 0.2, 0.3])


def data(count=23, seed=0):
    rng = np.random.default_rng(seed)
    return {"inputs": rng.normal(size=(count, 3)), "labels": rng.integers(0, 2, count)}


@pytest.fixture
def clients(x64):
    return ClientData.from_owner(data(), np.repeat([0, 1, 2], [3, 8, 12]))


def linear(penalty=0.0, radius=None, weights=P):
    """(x'(a + y) - b)^2 - lambda/2 ||y||^2; of class 1 where x'(a + y) > 1/2."""

    def loss(x, y, batch):
        return jnp.mean(((batch["inputs"] + y) @ x - batch["labels"]) ** 2) - penalty / 2 * jnp.sum(y**2)

    def predict(x, inputs):
        return jnp.stack([jnp.full(len(inputs), 0.5), inputs @ x], axis=1)

    y_set = None if radius is None else L2Ball(radius)
    return fm.MinimaxProblem(loss, jnp.asarray(X), jnp.zeros(3), y_set=y_set, weights=weights, predict=predict)


class Exact:
    """F at y = s x / ||x||^2 is E r^2 + 2 s E r + s^2 - lambda s^2 / (2 ||x||^2), for residuals r = x'a - b."""

    def __init__(self, fields, share, penalty=0.0):
        self.fields, self.bend = fields, penalty / (2 * N**2)
        r = fields["inputs"] @ X - fields["labels"]
        self.mean, self.square = share @ r, share @ r**2

    @property
    def s(self):
        return self.mean / (self.bend - 1)

    def at(self, s):
        right = (self.fields["inputs"] @ X + s > 0.5) == self.fields["labels"]
        return {
            "loss": self.square + 2 * s * self.mean + (1 - self.bend) * s**2,
            "accuracy": right.mean(),
            "norm": abs(s) / N,
        }


def share(sizes=(3, 8, 12), p=P):
    return np.repeat(np.asarray(p) / sizes, sizes)


def measure(metric, problem, clients, y):
    z = Point(jnp.asarray(X), None if y is None else jnp.asarray(y))
    return jax.jit(functools.partial(metric, problem))(clients, z)


def check(got, expected, rtol):
    assert set(got) == {"loss", "accuracy", "norm"}
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=rtol, err_msg=name)


@pytest.mark.parametrize(("metric", "rtol"), [(metrics.RobustLoss(tol=1e-9), 1e-6), (metrics.PGD(), 1e-4)])
def test_the_worst_perturbation_under_a_penalty(clients, metric, rtol):
    penalty = 3.2
    exact = Exact(clients.fields, share(), penalty)
    assert exact.at(exact.s)["accuracy"] != exact.at(0.0)["accuracy"], "else a metric that forgets y* passes"
    for y in (np.ones(3), None):
        check(measure(metric, linear(penalty), clients, y), exact.at(exact.s), rtol)


@pytest.mark.parametrize(("y", "radius"), [(np.array([1.0, -2.0, 2.0]), None), (np.array([1.0, -3.0, 0.5]), None), (None, 0.3)])
def test_a_few_plain_steps_of_ascent(clients, y, radius):
    """Twenty steps of size one from y, from zero where ||y||^2 > 10, by hand: here 9 and 10.25."""
    penalty, fields = 2.5, clients.fields
    at = np.zeros(3) if y is None or y @ y > 10 else y
    for _ in range(20):
        r = (fields["inputs"] + at) @ X - fields["labels"]
        at = at + 2 * (share() @ r) * X - penalty * at
        at = at if radius is None else at * min(1, radius / np.linalg.norm(at))
    r = (fields["inputs"] + at) @ X - fields["labels"]
    right = ((fields["inputs"] + at) @ X > 0.5) == fields["labels"]
    expected = {"loss": share() @ r**2 - penalty / 2 * at @ at, "accuracy": right.mean(), "norm": np.linalg.norm(at)}
    check(measure(metrics.PlainAscent(), linear(penalty, radius), clients, y), expected, 1e-9)


@pytest.mark.parametrize("metric", [metrics.RobustLoss, metrics.PGD])
def test_held_out_data(clients, metric):
    """Others' clients count by the problem's weights, arrays evenly, and neither by the training data."""
    fields, penalty = data(10, seed=1), 5.0
    others = ClientData.from_owner(fields, np.repeat([0, 1, 2], [4, 5, 1]))
    for held_out, counts in ((others, share((4, 5, 1))), (fields, np.full(10, 0.1))):
        exact = Exact(fields, counts, penalty)
        check(measure(metric(held_out), linear(penalty), clients, np.ones(3)), exact.at(exact.s), 1e-3)


@pytest.mark.parametrize("metric", [metrics.RobustLoss(examples=5, tol=1e-9), metrics.PGD(examples=5)])
def test_evenly_spaced_examples_keep_their_weights(clients, metric):
    rows = [0, 4, 9, 13, 18]  # 23 k / 5
    part = {k: v[rows] for k, v in clients.fields.items()}
    exact = Exact(part, share()[rows] / share()[rows].sum(), 5.0)
    check(measure(metric, linear(5.0), clients, np.zeros(3)), exact.at(exact.s), 1e-4)


def test_restarts_find_the_other_end_of_the_ball(clients):
    """On a ball both ends of the diameter along x are local maxima. From the lesser one, only random starts find the other."""
    radius = 2.0
    exact, problem = Exact(clients.fields, share()), linear(radius=radius)
    far, near = radius * N * np.sign(exact.mean), -radius * N * np.sign(exact.mean)
    assert abs(exact.mean) < radius * N
    begin = 0.9 * near * X / N**2
    check(measure(metrics.RobustLoss(tol=1e-9), problem, clients, begin), exact.at(near), 1e-6)
    check(measure(metrics.PGD(restarts=0), problem, clients, begin), exact.at(near), 1e-4)
    check(measure(metrics.PGD(), problem, clients, begin), exact.at(far), 1e-4)


def test_a_radius_of_the_users_own(clients):
    exact = Exact(clients.fields, share(), 5.0)
    radius = 0.5 * abs(exact.s) / N
    got = measure(metrics.PGD(radius=radius), linear(5.0), clients, np.full(3, 9.0))
    check(got, exact.at(exact.s / 2), 1e-4)
    assert got["norm"] <= radius * (1 + 1e-12)
    wide = measure(metrics.PGD(radius=4.0), linear(radius=2.0), clients, np.zeros(3))
    assert wide["norm"] == pytest.approx(4.0)


def test_pgd_is_never_better_than_its_starts(clients):
    """A step so long that it must be refused: what remains is the worst of the starts, here the state's y, the exact one."""
    exact = Exact(clients.fields, share(), 5.0)
    got = measure(metrics.PGD(steps=1, step_size=1e6), linear(5.0), clients, exact.s * X / N**2)
    check(got, exact.at(exact.s), 1e-9)


def network(radius):
    model = fm.models.MLP((8,), 2)

    def loss(x, y, batch):
        scores = model.apply({"params": x}, batch["inputs"] + y)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch["labels"]))

    predict = lambda x, inputs: model.apply({"params": x}, inputs)
    x0 = model.init(jax.random.key(1), jnp.zeros((1, 3)))["params"]
    return fm.MinimaxProblem(loss, x0, jnp.zeros(3), y_set=L2Ball(radius), predict=predict, name="network")


def classified(count=40):
    rows = data(count)
    return ClientData.equal({"inputs": rows["inputs"].astype(np.float32), "labels": rows["labels"].astype(np.int32)}, 4)


def test_on_a_network_in_a_run():
    radius = 1.5
    judges = [metrics.Value(), metrics.RobustLoss(), metrics.PGD()]
    result = fm.run(
        network(radius), classified(), fm.ParallelSGDA(0.3, 0.3), rounds=6, metrics=judges, eval_every=3, progress=False
    )
    value, robust, pgd = (result.history[name] for name in ("value", "robust/loss", "pgd/loss"))
    assert (robust > value + 1e-3).all()
    assert (pgd >= robust - 1e-4).all()
    for norm in (result.history["robust/norm"], result.history["pgd/norm"]):
        assert (norm <= radius * (1 + 1e-6)).all()


def test_what_is_not_perturbed_says_so(clients):
    task = fm.problems.quadratic(3)
    arrays = data(4)
    for metric in (metrics.RobustLoss(arrays), metrics.PGD(arrays)):
        with pytest.raises(fm.InputError, match=r"one input's shape, \(3,\).*robust_training"):
            metric(task.problem.replace(y0=jnp.zeros(2)), clients, task.problem.start)
    robust = fm.RobustProblem(lambda x, batch: x, 1.0, fm.Agnostic(), name="other")
    with pytest.raises(fm.InputError, match="other has another y"):
        metrics.PGD()(robust, clients, Point(1.0, None))
    with pytest.raises(fm.InputError, match="need the fields 'inputs' and 'labels'"):
        metrics.RobustLoss()(task.problem, task.clients, task.problem.start)
    for build, message in (
        (lambda: metrics.PGD(steps=0), "steps of PGD is 0: give an integer of at least 1"),
        (lambda: metrics.PGD(steps=2.5), "steps of PGD is 2.5"),
        (lambda: metrics.PGD(radius=0.0), "radius of PGD must be above zero"),
        (lambda: metrics.PGD(restarts=-1), "restarts of PGD must not be negative"),
        (lambda: metrics.RobustLoss(examples=0), "examples of RobustLoss is 0"),
        (lambda: metrics.PlainAscent(step_size=0.0), "step_size of PlainAscent must be above zero"),
    ):
        with pytest.raises(fm.InputError, match=message):
            build()
