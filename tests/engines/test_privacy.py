"""Messages are clipped, and get the noise that they should, on every engine alike."""

import functools
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import problems, wire
from fedminimax.algorithms.base import Algorithm, algorithm, state
from fedminimax.engines.federated import Federation, InProcess, Worker
from fedminimax.engines.federated.ledger import Ledger
from fedminimax.federation.spending import epsilon
from fedminimax.players import Point
from fedminimax.problems import RobustProblem
from fedminimax.random import gaussian, keys
from fedminimax.testing.contract import close, same_costs

sys.path.insert(0, str(Path(__file__).parent.parent / "algorithms"))
from roster import ROSTER

WIDE = fm.Privacy(clip=1e6, noise=0.0, clip_loss=1e6)
NOISY = fm.Privacy(clip=1.0, noise=0.5, clip_loss=2.0)


class Telling(NamedTuple):
    loss: jax.Array
    x: jax.Array
    y: jax.Array


TELLING = Telling(jnp.asarray(3.0), jnp.array([3.0, 0.0]), jnp.array([[4.0]]))
KEY = keys.root(7)


# -- the mechanism -----------------------------------------------------------------------------------------------------


def test_a_message_is_cut_to_its_bounds_and_a_shorter_one_is_left_as_it_is():
    cut = fm.Privacy(clip=1.0, noise=0.0, clip_loss=2.0).protect(TELLING, KEY)
    close(cut, Telling(2.0, jnp.array([0.6, 0.0]), jnp.array([[0.8]])), 1e-6)
    close(fm.Privacy(clip=1.0, noise=0.0, clip_loss=2.0).protect(Telling(-9.0, *TELLING[1:]), KEY).loss, -2.0, 1e-6)
    kept = fm.Privacy(clip=5.1, noise=0.0, clip_loss=3.1).protect(TELLING, KEY)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), kept, TELLING)))


def test_what_is_long_is_cut_and_what_is_not_finite_is_zero():
    cut = fm.Privacy(clip=2.0, noise=0.0)
    long = cut.protect(Point(jnp.array([3e30, 4e30], jnp.float32), None), KEY)  # whose squares single precision does not hold
    np.testing.assert_allclose(long.x, [1.2, 1.6], rtol=1e-6)
    for wrong in (jnp.nan, jnp.inf):
        assert not cut.protect(Point(jnp.array([1.0, wrong]), jnp.ones(2)), KEY).y.any()
    noisy = fm.Privacy(clip=2.0, noise=1.0).protect(Point(jnp.array([1.0, jnp.nan]), None), KEY)
    assert jnp.isfinite(noisy.x).all()
    assert not fm.Privacy(clip=2.0, noise=0.0).protect(Point(jnp.zeros(2), None), KEY).x.any()


@functools.cache
def draws(count, bound=3.0):
    """Noise of many clients, phases and rounds: [rounds, phases, clients, 4]."""
    privacy = fm.Privacy(clip=bound, noise=2.0, clip_loss=bound)
    zero = Telling(jnp.zeros(()), jnp.zeros(2), jnp.zeros((1, 1)))

    def one(t, phase, client):
        sent = privacy.protect(zero, keys.derive(keys.derive(KEY, t, phase), client))
        return jnp.concatenate([sent.loss[None], sent.x, sent.y[0]])

    over = lambda f, axes: jax.vmap(f, axes)
    all_ = over(over(over(one, (None, None, 0)), (None, 0, None)), (0, None, None))
    return np.asarray(jax.jit(all_)(jnp.arange(count), jnp.arange(2), jnp.arange(count)))


def test_noise_has_the_mean_and_the_variance_that_it_should():
    noise = draws(100).reshape(-1) / 6.0  # 2 times the bound
    n = noise.size
    assert abs(noise.mean()) < 5 / np.sqrt(n)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs((noise**4).mean() - 3) < 5 * np.sqrt(96 / n)
    beyond = np.abs(noise) > 3  # 2.7e-3 of them
    assert abs(beyond.mean() - 2.6998e-3) < 5 * np.sqrt(2.7e-3 / n)


def test_noise_of_clients_phases_rounds_and_numbers_is_independent():
    noise = draws(100) / 6.0
    n = noise[1:].size / 2
    for axis in range(4):
        one, other = (np.take(noise, range(*ends), axis=axis) for ends in ((0, noise.shape[axis] - 1), (1, noise.shape[axis])))
        assert abs((one * other).mean()) < 5 / np.sqrt(n), axis
        assert abs((one**2 * other**2).mean() - 1) < 5 * np.sqrt(8 / n), axis
    assert len(np.unique(noise)) > 0.99 * noise.size


def test_tails_are_longer_than_those_of_24_bits():
    drawn = np.asarray(jax.jit(lambda key: jnp.max(gaussian.normal(key, (2**24,), jnp.dtype("float32"))))(KEY))
    assert 5.0 < drawn < 9.5


def test_the_least_that_words_can_be_is_far_out_and_finite(monkeypatch):
    monkeypatch.setattr(keys, "words", lambda key, count, step: jnp.zeros(count, jnp.uint32))
    np.testing.assert_allclose(gaussian.normal(KEY, (2,), jnp.dtype("float32")), [np.sqrt(130 * np.log(2)), 0], rtol=1e-6)
    monkeypatch.setattr(keys, "words", lambda key, count, step: jnp.full(count, 2**32 - 1, jnp.uint32))
    np.testing.assert_allclose(gaussian.normal(KEY, (2,), jnp.dtype("float32")), 0, atol=1e-3)


def test_noise_is_not_what_the_clients_program_draws():
    noise = fm.Privacy(clip=1.0, noise=1.0).protect(Point(jnp.zeros(4), None), KEY).x
    others = [gaussian.normal(keys.variant(KEY, draw), (4,), jnp.dtype("float32")) for draw in range(50)]
    assert not any(np.isclose(noise, other).any() for other in others)


# -- engines -----------------------------------------------------------------------------------------------------------


@functools.cache
def task_of(kind, precision):
    if kind is RobustProblem:
        return problems.robust_regression(3, 4, 6, rho=0.1, sigma=0.5)
    return problems.quadratic(3, examples=6, noise=0.3, weights=[1, 2, 3])


def regression():
    return task_of(RobustProblem, jax.config.read("jax_enable_x64"))


METHOD = fm.ScaffPD(0.02, 0.02, mu_x=0.2, local_steps=2)


def go(engine="simulator", clients=None, method=METHOD, rounds=3, **given):
    task = regression()
    clients = task.clients if clients is None else clients
    settings = {"rounds": rounds, "seed": 3, "eval_every": 1, "progress": False}
    return fm.run(task.problem, clients, method, engine=engine, **{**settings, **given})


def federated(privacy, method=METHOD, folder=None, **more):
    at = lambda k: None if folder is None else folder / str(k)
    task = regression()
    sites = {f"s{k}": Worker(task.problem, method, task.clients.only(k), at(k), privacy=privacy, **more) for k in range(3)}
    return Federation(InProcess(sites))


def test_all_engines_send_the_same(x64):
    here = go(privacy=NOISY, record=True)
    engine = federated(NOISY, replayable=True)
    for there in (go("isolated", privacy=NOISY), go(engine, engine.clients, privacy=NOISY)):
        close(there.state, here.state, 1e-8)
        same_costs(there, here)
        np.testing.assert_allclose(there.history["epsilon"], here.history["epsilon"], rtol=1e-12)
    assert not np.allclose(here.x, go().x, atol=1e-3)  # and it is not what is sent without
    again = go(privacy=NOISY, trace=here.trace, engine=fm.Simulator("map", 1))
    close(again.state, here.state, 1e-8)


def test_no_noise_and_wide_bounds_change_nothing_at_all():
    for method in (METHOD, fm.Scaffold(0.02, local_steps=2)):
        with_, without = go(privacy=WIDE, method=method), go(method=method)
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (np.asarray(a) == b).all(), with_.state, without.state)))
        assert np.isinf(with_.history["epsilon"][1:]).all()
        assert with_.history["epsilon"][0] == 0
        assert "epsilon" not in without.history


@state
class _Point(NamedTuple):
    x: jax.Array
    y: None


def broken_method():
    @algorithm
    class Breaks(Algorithm):
        """Its first client sends what is not finite, and all count how often theirs was."""

        solves = RobustProblem

        def init(self, problem):
            return _Point(jnp.zeros(2), None)

        def init_client(self, problem):
            return jnp.zeros(())

        def round(self, problem, state, clients):
            return _Point(state.x + clients.all().mean(self.report, state.x).x, None)

        def report(self, problem, client, x):
            return fm.authoring.Reply(_Point(jnp.where(client.id == 0, jnp.nan, 0.1) * jnp.ones(2), None), client.state + 1)

    return Breaks()


def test_a_client_that_breaks_sends_noise_and_remembers_nothing_of_it(x64):
    method, privacy = broken_method(), fm.Privacy(clip=1.0, noise=0.1)
    results = [go(engine, method=method, privacy=privacy, rounds=2) for engine in ("simulator", "isolated")]
    for result in results:
        np.testing.assert_allclose(result.client_states, [0, 2, 2])
        assert np.isfinite(result.x).all()
        assert result.costs["dropped"].sum() == 0  # which would tell on it
    close(results[0].x, results[1].x, 1e-12)


# -- sites -------------------------------------------------------------------------------------------------------------


def test_a_site_draws_noise_that_nobody_can_draw_again(tmp_path):
    runs = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        engine = federated(NOISY, folder=folder)
        runs.append(go(engine, engine.clients, privacy=NOISY, rounds=1))
    assert not np.allclose(runs[0].x, runs[1].x, atol=1e-6)  # the seed does not tell
    assert not np.allclose(runs[0].x, go(privacy=NOISY, rounds=1).x, atol=1e-6)


class Listening(InProcess):
    """Keeps what the first site is asked."""

    def ask(self, requests, timeout):
        self.heard = [*getattr(self, "heard", []), requests.get("s0")]
        return super().ask(requests, timeout)


def test_one_question_has_one_answer_and_what_is_computed_anew_has_other_noise_and_is_counted(tmp_path):
    """Also where the question is the same to the letter, and what the site remembers has been changed in between."""
    task = regression()
    sites = {f"s{k}": Worker(task.problem, METHOD, task.clients.only(k), tmp_path / str(k), privacy=NOISY) for k in range(3)}
    carrier = Listening(sites)
    engine = Federation(carrier)
    go(engine, engine.clients, privacy=NOISY, rounds=1)
    first, second, last = [request for request in carrier.heard if request and "letters" in wire.decode(request)]
    told = lambda request: np.concatenate(
        [np.ravel(leaf) for leaf in jax.tree.leaves(wire.decode(sites["s0"].handle(request))["replies"][0]["value"])]
    )
    spent = lambda: float((tmp_path / "0" / "noise.spent").read_text())
    before = spent()
    np.testing.assert_array_equal(told(last), told(last))  # it is remembered, and costs nothing
    assert spent() == before
    answers = []
    for nth, shift in enumerate((0.0, 1e-6)):  # the notes of the first exchange are others by a little
        other = wire.decode(first)
        other["letters"][0]["arguments"] = jax.tree.map(
            lambda a, by=shift: a + a.dtype.type(by), other["letters"][0]["arguments"]
        )
        told(wire.encode({**other, "id": f"{other['id']}/{nth}"}))
        answers.append(told(second))
    assert np.linalg.norm(answers[0] - answers[1]) > 0.02
    assert spent() > before + 4 * NOISY.cost * 0.99


def test_a_site_holds_to_its_own_privacy():
    engine = federated(NOISY)
    for wanted in (None, fm.Privacy(clip=1.0, noise=0.1, clip_loss=2.0)):
        with pytest.raises(fm.InputError, match="the privacy is Privacy"):
            go(engine, engine.clients, privacy=wanted)


def test_a_site_counts_what_it_tells_and_stops_at_its_budget(tmp_path):
    method, cost = fm.FedAvg(0.02, local_steps=2), fm.Privacy(clip=1.0, noise=8.0)
    engine = federated(cost, method, tmp_path, budget=2.0)  # 4 replies are 1.99 (of mu^2 = 4/16), and the fifth would be more
    with pytest.warns(UserWarning, match="PrivacySpent"):
        result = go(engine, engine.clients, method=method, privacy=cost, rounds=9)
    assert result.rounds == sum(epsilon(k / 16, 1e-5) <= 2.0 for k in range(1, 10)) > 2
    assert float((tmp_path / "0" / "noise.spent").read_text()) == pytest.approx(result.rounds / 16)
    engine = federated(cost, method, tmp_path, budget=2.0)  # another run, and a new process
    with pytest.warns(UserWarning, match="PrivacySpent"):
        assert go(engine, engine.clients, method=method, privacy=cost, rounds=1).rounds == 0
    assert Ledger(cost, tmp_path / "0", None).epsilon == result.history["epsilon"][-1]


def test_a_ledger_that_cannot_be_read_is_not_begun_anew(tmp_path):
    for said in ("", "nan", "-1.0", "much"):
        (tmp_path / "noise.spent").write_text(said)
        with pytest.raises(fm.InputError, match="does not say what the site has spent"):
            Ledger(NOISY, tmp_path, None)
    with pytest.raises(fm.InputError, match="needs noise"):
        Worker(regression().problem, METHOD, regression().clients.only(0), budget=1.0)


# -- every method ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROSTER])
def test_every_method_stands_the_noise(row):
    task = task_of(row.kind, False)
    privacy = fm.Privacy(clip=1.0, noise=3.0, clip_loss=1.0)
    settings = {"rounds": 2, "eval_every": 2, "privacy": privacy, "engine": fm.Simulator("vmap", 1), "progress": False}
    result = fm.run(task.problem, task.clients, row.algorithm, **settings)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state))
    assert result.costs["dropped"].sum() == 0
    assert 0 < result.history["epsilon_of_sums"][-1] <= result.history["epsilon"][-1] < 20


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clip": 0.0, "noise": 1.0}, "clip must be positive"),
        ({"clip": np.inf, "noise": 1.0}, "clip must be positive"),
        ({"clip": 1.0, "noise": -1.0}, "noise must be at least 0"),
        ({"clip": 1.0, "noise": 1.0, "delta": 0.0}, "delta must be between"),
        ({"clip": 1.0, "noise": 1.0, "clip_loss": -1.0}, "clip_loss must be positive"),
        ({"clip": 1.0, "noise": 1.0, "adjacency": "add"}, "adjacency must be"),
    ],
)
def test_settings_that_cannot_be(given, said):
    with pytest.raises(fm.InputError, match=said):
        fm.Privacy(**given)


def test_losses_need_a_bound_and_nodes_have_no_server():
    with pytest.raises(fm.InputError, match="clip_loss"):
        go(privacy=fm.Privacy(clip=1.0, noise=1.0), rounds=1)
    with pytest.raises(fm.InputError, match="must be a Privacy"):
        go(privacy={"clip": 1.0}, rounds=1)
    with pytest.raises(fm.InputError, match="real numbers alone"):
        NOISY.protect(Point(jnp.arange(3), None), KEY)
    ring = problems.personalized_quadratic(fm.Network.ring(3))
    method = fm.LocalTraining(0.02, 0.02, local_steps=1)
    with pytest.raises(fm.InputError, match="neighbours"):
        fm.run(ring.problem, ring.clients, method, rounds=1, privacy=NOISY)
