"""The abstraction itself: sampling, weights, accounting, the guard, availability, traces, client state and notes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import players
from fedminimax.algorithms import ALGORITHMS, Algorithm, algorithm, state, static
from fedminimax.data import ClientData
from fedminimax.federation import client as of_clients
from fedminimax.federation.client import Reply
from fedminimax.players import Point

BOTH = pytest.mark.parametrize("engine", ["simulator", "isolated"])


@state
class Log(NamedTuple):
    """A state that keeps what the test wants to look at."""

    x: Any
    y: Any
    seen: Any


def method(cls):
    """Make a test's class an algorithm without listing it among the methods."""
    made = algorithm(cls)
    del ALGORITHMS[made.__name__]
    return made


def toy(clients=6, weights=None, dim=2):
    """Return a problem whose client i holds the number i."""
    data = ClientData.from_list([{"v": np.full((3, dim), float(i))} for i in range(clients)])
    loss = lambda x, y, batch: jnp.mean(jnp.sum((x - batch["v"]) ** 2, axis=1)) / 2 + jnp.sum(x[:1] * y) - jnp.sum(y**2)
    return fm.MinimaxProblem(loss, jnp.zeros(dim), jnp.zeros(1), weights=weights), data


class Asking(Algorithm):
    """Asks a cohort for the clients' numbers, and keeps the answer."""

    def init(self, problem):
        return Log(problem.x0, problem.y0, jnp.zeros(()))

    def number(self, problem, client, x):
        return client.full.data.fields["v"][client._start, 0]


@method
class AskMean(Asking):
    cohort_size: int | None = static(default=None)
    uniform: bool = static(default=False)

    def round(self, problem, state, clients):
        cohort = clients.sample(self.cohort_size)
        weights = jnp.ones(cohort.size) if self.uniform else None
        return Log(state.x, state.y, cohort.mean(self.number, state.x, weights=weights))


@method
class AskSum(Asking):
    def round(self, problem, state, clients):
        return Log(state.x, state.y, clients.all().sum(self.number, state.x, weights=jnp.arange(float(clients.count))))


@BOTH
def test_mean_uses_the_problems_weights_and_sum_the_given_ones(x64, engine):
    problem, data = toy(weights=[1, 1, 1, 1, 1, 5])
    assert np.isclose(fm.run(problem, data, AskMean(), rounds=1, engine=engine).state.seen, (0 + 1 + 2 + 3 + 4 + 25) / 10)
    assert np.isclose(fm.run(problem, data, AskMean(uniform=True), rounds=1, engine=engine).state.seen, 2.5)
    assert np.isclose(fm.run(problem, data, AskSum(), rounds=1, engine=engine).state.seen, sum(i * i for i in range(6)))


@method
class AskAll(Asking):
    cohort_size: int | None = static(default=None)

    def init(self, problem):
        return Log(problem.x0, problem.y0, jnp.zeros(6))

    def round(self, problem, state, clients):
        replies = clients.sample(self.cohort_size).map(self.twice, state.x, per_client=(jnp.arange(self.cohort_size),))
        return Log(state.x, state.y, replies.scatter(clients.count))

    def twice(self, problem, client, x, place):
        return 2 * self.number(problem, client, x) + 1 + 0 * place


@BOTH
def test_map_stacks_replies_and_scatter_puts_them_back(x64, engine):
    problem, data = toy()
    trace = fm.Trace((np.array([[4, 1, 2]]),))
    seen = fm.run(problem, data, AskAll(cohort_size=3), rounds=1, engine=engine, trace=trace).state.seen
    np.testing.assert_allclose(seen, [0, 3, 5, 0, 9, 0])


@method
class Counting(Algorithm):
    """Every client counts its visits in its own state, and reports them."""

    cohort_size: int | None = static(default=None)
    broken_at: int = static(default=-1)

    def init(self, problem):
        return Log(problem.x0, problem.y0, jnp.zeros(()))

    def init_client(self, problem):
        return {"visits": jnp.zeros(())}

    def round(self, problem, state, clients):
        return Log(state.x, state.y, clients.sample(self.cohort_size).sum(self.visit, state.x))

    def visit(self, problem, client, x):
        visits = client.state["visits"] + 1
        broken = (client.round == self.broken_at) & (client.id == 1)
        return Reply(jnp.where(broken, jnp.nan, visits), state={"visits": visits})


@BOTH
def test_client_state_lives_with_the_engine(x64, engine):
    problem, data = toy()
    trace = fm.Trace((np.array([[0, 1], [1, 2], [1, 5]]),))
    first = fm.run(problem, data, Counting(cohort_size=2), rounds=2, engine=engine, trace=trace)
    rest = fm.run(problem, data, Counting(cohort_size=2), rounds=1, engine=engine, trace=trace, start=first)
    np.testing.assert_allclose(first.client_states["visits"], [1, 2, 1, 0, 0, 0])
    np.testing.assert_allclose(rest.client_states["visits"], [1, 3, 1, 0, 0, 1])
    assert np.isclose(rest.state.seen, 4)


@BOTH
def test_a_client_whose_work_broke_keeps_its_old_state(x64, engine):
    problem, data = toy()
    with pytest.warns(UserWarning, match="refused 1 of 18 replies"):
        result = fm.run(problem, data, Counting(broken_at=1), rounds=3, engine=engine)
    np.testing.assert_allclose(result.client_states["visits"], [3, 2, 3, 3, 3, 3])
    assert result.costs["dropped"].tolist() == [0, 1, 0]


@method
class TwoPhases(Asking):
    """Keeps a note from the first phase for the second; reports the product of both."""

    cohort_size: int | None = static(default=None)

    def round(self, problem, state, clients):
        cohort = clients.sample(self.cohort_size)
        cohort.mean(self.first, state.x)
        return Log(state.x, state.y, cohort.mean(self.second, state.x))

    def first(self, problem, client, x):
        return Reply(x[0], note=self.number(problem, client, x))

    def second(self, problem, client, x):
        return client.note * (1 + self.number(problem, client, x))


@BOTH
def test_notes_stay_with_their_clients(x64, engine):
    problem, data = toy()
    result = fm.run(problem, data, TwoPhases(), rounds=2, engine=engine)
    assert np.isclose(result.state.seen, np.mean([i * (1 + i) for i in range(6)]))


@method
class Draws(Asking):
    def round(self, problem, state, clients):
        return Log(state.x, state.y, clients.draw("t", lambda key: jax.random.uniform(key)))


@BOTH
def test_the_servers_draws_are_reproducible_and_replayable(x64, engine):
    problem, data = toy()
    one, two = (fm.run(problem, data, Draws(), rounds=1, seed=s, engine=engine).state.seen for s in (0, 1))
    assert one != two
    assert one == fm.run(problem, data, Draws(), rounds=1, seed=0).state.seen
    trace = fm.Trace(draws={"t": np.array([0.25])})
    replayed = fm.run(problem, data, Draws(), rounds=1, trace=trace, engine=engine)
    assert replayed.state.seen == 0.25
    assert replayed.costs["floats_up"].tolist() == [0], "a round that asks nobody costs nothing"


@method
class TwoCohorts(Asking):
    """Asks two cohorts in turn, twice each: every client must find the note that belongs to its place."""

    def round(self, problem, state, clients):
        first, second = clients.sample(3), clients.sample(3)
        for cohort, offset in ((first, 10.0), (second, 20.0)):
            cohort.mean(self.keep, state.x, offset)
        return Log(state.x, state.y, first.mean(self.recall, state.x) + 1000 * second.mean(self.recall, state.x))

    def keep(self, problem, client, x, offset):
        return Reply(x[0], note=offset + self.number(problem, client, x))

    def recall(self, problem, client, x):
        return client.note


@BOTH
def test_notes_of_two_cohorts_do_not_meet(x64, engine):
    problem, data = toy()
    trace = fm.Trace((np.array([[0, 1, 2]]), np.array([[2, 1, 5]])))
    seen = fm.run(problem, data, TwoCohorts(), rounds=1, engine=engine, trace=trace).state.seen
    assert np.isclose(seen, 10 + (0 + 1 + 2) / 3 + 1000 * (20 + (2 + 1 + 5) / 3))


@method
class WithReplacement(Counting):
    def round(self, problem, state, clients):
        return Log(state.x, state.y, clients.sample(2, replace=True).sum(self.visit, state.x))


@BOTH
def test_clients_with_a_memory_are_not_drawn_twice(x64, engine):
    problem, data = toy()
    with pytest.raises(fm.InputError, match="cannot be drawn with replacement"):
        fm.run(problem, data, WithReplacement(), rounds=1, engine=engine)


@method
class HeardTooEarly(Asking):
    def round(self, problem, state, clients):
        return Log(state.x, state.y, clients.all().heard)


def test_nobody_is_heard_before_there_was_a_question():
    problem, data = toy()
    with pytest.raises(fm.InputError, match="known after a mean or a sum"):
        fm.run(problem, data, HeardTooEarly(), rounds=1)


@BOTH
def test_weights_follow_their_clients_in_whatever_order_they_come(x64, engine):
    problem, data = toy(weights=[1, 2, 3, 4, 5, 85])
    go = lambda method, **options: fm.run(problem, data, method, engine=engine, **options)
    method = fm.FedNormSGDA(0.1, 0.1, local_steps=2)
    backwards = fm.Trace((np.tile(np.arange(6)[::-1], (2, 1)),))
    np.testing.assert_allclose(go(method, rounds=2).x, go(method, rounds=2, trace=backwards).x, rtol=1e-12)
    some = fm.Trace((np.array([[5, -1, 3, -1, -1, 1]]),))
    assert np.isclose(go(AskMean(), rounds=1, trace=some).state.seen, (5 * 85 + 3 * 4 + 1 * 2) / (85 + 4 + 2))


def test_a_recorded_run_that_was_continued_has_one_trace(x64):
    problem, data = toy()
    go = lambda **options: fm.run(problem, data, AskMean(cohort_size=3), **options)
    whole, rest = go(rounds=4, record=True), go(rounds=2, record=True, start=go(rounds=2, record=True))
    np.testing.assert_array_equal(whole.trace.cohorts[0], rest.trace.cohorts[0])
    with pytest.raises(fm.InputError, match="no trace to add to"):
        go(rounds=2, record=True, start=go(rounds=2))


# -- accounting --------------------------------------------------------------------------------------------------------


@BOTH
def test_costs_are_counted_to_the_float(x64, engine):
    problem, data = toy(dim=3)
    local = fm.LocalSGDAPlus(0.1, 0.1, local_steps=4, batch_size=2, cohort_size=5)
    costs = fm.run(problem, data, local, rounds=2, engine=engine).costs
    assert costs["floats_down_x"].tolist() == [5 * (3 + 3)] * 2  # x and its snapshot
    assert costs["floats_down_y"].tolist() == [5 * 1] * 2
    assert costs["floats_up"].tolist() == [5 * 4] * 2
    assert costs["grad_evals"].tolist() == [5 * 4 * 2 * 2] * 2  # one pass for x, one for y
    sagda = fm.SAGDA(0.1, 0.1, local_steps=4, batch_size=2, cohort_size=5)
    result = fm.run(problem, data, sagda, rounds=1, engine=engine)
    assert [m.function for m in result.messages] == ["report_gradient", "local_update"]
    assert result.costs["floats_up"].tolist() == [2 * 5 * 4]
    assert result.costs["grad_evals"].tolist() == [5 * (2 + 4 * 2)]
    full = fm.run(problem, data, fm.ParallelSGDA(0.1, 0.1), rounds=1, engine=engine)
    assert full.costs["grad_evals"].tolist() == [18]


@BOTH
def test_unequal_steps_are_counted_client_by_client(x64, engine):
    problem, data = toy()
    trace = fm.Trace((np.array([[0, 3], [5, 1]]),), steps=np.array([[1, 2, 3, 4, 5, 6], [2, 2, 2, 2, 2, 9]]))
    method = fm.FedNormSGDA(0.1, 0.1, local_steps=7, batch_size=2, cohort_size=2)
    costs = fm.run(problem, data, method, rounds=2, engine=engine, trace=trace).costs
    assert costs["grad_evals"].tolist() == [2 * (1 + 4), 2 * (9 + 2)]
    assert costs["local_steps"].tolist() == [1 + 4, 9 + 2]


def test_two_turns_a_pass_are_what_users_run_and_change_nothing(x64, monkeypatch):
    """Tests compile one turn of a client's loop, to be fast; users two, where JAX optimises."""
    for optimised, turns in ((True, 2), (False, 1)):
        jax.config.update("jax_disable_most_optimizations", not optimised)
        assert of_clients.turns_a_pass() == turns
    task = lambda: fm.problems.quadratic(3, examples=6, noise=0.3)  # another problem each time, and so another program
    runs = []
    for turns in (1, 2):
        monkeypatch.setattr(of_clients, "turns_a_pass", lambda turns=turns: turns)
        runs.append(fm.run(task().problem, task().clients, fm.LocalSGDA(0.05, 0.05, local_steps=3, batch_size=2), rounds=3))
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=1e-12)
    assert runs[0].costs["grad_evals"].tolist() == runs[1].costs["grad_evals"].tolist() == [3 * 3 * 2] * 3
    assert runs[0].costs["local_steps"].tolist() == runs[1].costs["local_steps"].tolist() == [3 * 3] * 3


def test_counts_beyond_32_bits_stay_exact(x64):
    fields = {"v": np.zeros((60_000, 1), np.float32)}
    data = ClientData.equal(fields, 2)
    loss = lambda x, y, batch: jnp.mean(batch["v"]) + jnp.sum(x**2) - jnp.sum(y**2)
    problem = fm.MinimaxProblem(loss, jnp.ones(1), jnp.zeros(1))

    @method
    class Billing(fm.LocalSGDA):
        def local_update(self, problem, client, x, y):
            client.took_gradients(2_000_000_011)
            return Point(jnp.zeros_like(x), jnp.zeros_like(y))

    costs = fm.run(problem, data, Billing(0.1, 0.1, local_steps=1, batch_size=1), rounds=2).costs
    assert costs["grad_evals"].tolist() == [2 * 2_000_000_011] * 2


def test_counts_of_a_million_clients_stay_exact():
    from fedminimax.federation import accounting

    counts = np.random.default_rng(0).integers(0, 2**31 - 1, 1_000_000, dtype=np.int32)
    work = jnp.sum(accounting.split(accounting.Work(counts, counts // 3)), axis=0)
    traffic = accounting.Traffic(*(np.array([[v]]) for v in (0, 0, 0, work, 0.0)))
    nothing = dict.fromkeys(accounting.PLAYERS, 0)
    costs = accounting.history([accounting.Message("f", nothing, nothing)], traffic)
    assert costs["grad_evals"].tolist() == [int(counts.astype(np.int64).sum())]
    assert costs["local_steps"].tolist() == [int((counts // 3).astype(np.int64).sum())]


# -- the guard ---------------------------------------------------------------------------------------------------------


@method
class Reports(Asking):
    """Client i reports the number i, client 5 something else; as a loss or as a vector."""

    odd: float = 1e9
    field: str = static(default="loss")

    def round(self, problem, state, clients):
        return Log(state.x, state.y, clients.all().mean(self.report, state.x)[self.field])

    def report(self, problem, client, x):
        value = self.number(problem, client, x)
        return {self.field: jnp.where(client.id == 5, self.odd, value)}


@BOTH
@pytest.mark.parametrize(
    ("guard", "expected", "dropped"),
    [
        (fm.Guard(), (0 + 1 + 2 + 3 + 4 + 1e9) / 6, 0),
        (fm.Guard(max_loss=100.0), 2.0, 1),
        (fm.Guard(max_norm=4.0), (0 + 1 + 2 + 3 + 4 + 4) / 6, 0),
        (fm.Guard(aggregate="median"), 2.5, 0),
        (fm.Guard(aggregate="median", max_loss=100.0), 2.0, 1),
        (fm.Guard(aggregate="trimmed", trim=0.2), (1 + 2 + 3 + 4) / 4, 0),
        (fm.Guard(aggregate="trimmed", trim=0.01), (1 + 2 + 3 + 4) / 4, 0),
    ],
    ids=str,
)
def test_guards(x64, engine, guard, expected, dropped):
    problem, data = toy()
    method = Reports(field="loss" if guard.max_norm is None else "x")
    result = fm.run(problem, data, method, rounds=1, engine=engine, guard=guard)
    assert np.isclose(result.state.seen, expected)
    assert result.costs["dropped"].tolist() == [dropped]


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_are_renormalised_over_those_that_replied(x64, engine, bad):
    problem, data = toy(weights=[1, 2, 3, 4, 5, 85])
    result = fm.run(problem, data, Reports().replace(odd=jnp.asarray(bad)), rounds=1, engine=engine)
    assert np.isclose(result.state.seen, (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4 + 4 * 5) / 15)


# -- availability ------------------------------------------------------------------------------------------------------


def test_over_invited_cohorts_are_filled_with_those_that_answer(x64):
    problem, data = toy(clients=60)
    chance = fm.Availability(probability=0.5, over_invite=4)
    result = fm.run(problem, data, AskMean(cohort_size=10), rounds=200, availability=chance, record=True)
    (cohorts,) = result.trace.cohorts
    assert (result.costs["replies"] == (cohorts >= 0).sum(axis=1)).all()
    assert (cohorts >= 0).all(axis=1).mean() > 0.99  # P(fewer than 10 of 40 answer) is below 0.1 %
    assert result.costs["floats_down"].tolist() == [40 * 2] * 200  # everybody invited is sent the request
    counts = np.bincount(cohorts[cohorts >= 0], minlength=60)
    assert counts.min() > 10, "every client has the same chance: 33 expected"
    for cohort in cohorts:
        kept = cohort[cohort >= 0]
        assert len(set(kept)) == len(kept)


def test_clients_answer_with_their_own_probability(x64):
    problem, data = toy()
    chance = fm.Availability(probability=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    result = fm.run(problem, data, AskMean(), rounds=1000, availability=chance, record=True)
    (cohorts,) = result.trace.cohorts
    np.testing.assert_allclose((cohorts >= 0).mean(axis=0), [0, 0.2, 0.4, 0.6, 0.8, 1.0], atol=0.05)


# -- unequal steps -----------------------------------------------------------------------------------------------------


def test_uniform_steps_are_drawn_anew_for_each_client_and_round(x64):
    problem, data = toy()
    method = fm.FedNormSGDA(0.0, 0.0, local_steps=fm.UniformSteps(2, 5), batch_size=1)
    totals = fm.run(problem, data, method, rounds=2000).costs["grad_evals"] / 6
    assert totals.min() >= 2
    assert totals.max() <= 5
    np.testing.assert_allclose(totals.mean(), 3.5, atol=0.05)
    np.testing.assert_allclose(totals.var(), (4**2 - 1) / 12 / 6, rtol=0.15)  # independent over clients


def test_epochs_count_passes_over_each_clients_own_data(x64):
    data = ClientData.from_list([{"v": np.zeros((n, 2))} for n in (1, 4, 10)])
    problem = toy()[0]
    method = fm.FedNormSGDA(0.1, 0.1, local_steps=fm.ClientSteps((1, 2, 3), unit="epochs"), batch_size=4)
    costs = fm.run(problem, data, method, rounds=1).costs
    assert costs["grad_evals"].tolist() == [4 * (1 * 1 + 2 * 1 + 3 * 3)]


# -- what an algorithm may not do ---------------------------------------------------------------------------------------


@method
class Cheats(Asking):
    """Maps a closure over the server's state: nothing a real client could be sent."""

    def round(self, problem, state, clients):
        return Log(state.x, state.y, clients.all().mean(lambda problem, client, x: players.norm(state.x), state.x))


def test_the_isolated_engine_refuses_closures():
    problem, data = toy()
    fm.run(problem, data, Cheats(), rounds=1)
    with pytest.raises(fm.InputError, match="map a method of the algorithm"):
        fm.run(problem, data, Cheats(), rounds=1, engine="isolated")


def test_workers_hold_their_own_data_only(x64):
    from fedminimax.engines.isolated import Isolated
    from fedminimax.federation.round import Conditions

    problem, data = toy()
    execution = Isolated().open(problem, data, fm.LocalSGDA(0.1, 0.1), Conditions())
    for i, worker in enumerate(execution.workers):
        assert worker.data.count == 1
        np.testing.assert_array_equal(worker.data.fields["v"], np.full((3, 2), float(i)))
        assert not np.shares_memory(worker.data.fields["v"], data.fields["v"])
