"""What a site, or its carrier, fails to do costs its own contribution: the simulator replays the trace of who answered."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics, wire
from fedminimax.algorithms.base import Algorithm, algorithm
from fedminimax.engines.federated import InProcess, Worker
from fedminimax.federation.round import Conditions
from fedminimax.players import Point
from fedminimax.testing.contract import close

sys.path.insert(0, str(Path(__file__).parent))
from faulty import (
    GONE,
    HANGS,
    LOST_REPLY,
    LOST_REQUEST,
    NAMES,
    SCAFF_PD,
    SCAFFOLD,
    Faulty,
    engine,
    quadratic,
    regression,
    replayed,
    run,
    sites,
    states,
)

CDMAGE = fm.CDMAGE(0.02, 0.02, local_steps=2, same_cohort=True)


def other(reply, change):
    """A reply whose numbers are changed, and whose id is right."""
    message = wire.decode(reply)
    for one in message["replies"]:
        one["value"] = jax.tree.map(change, one["value"])
    return wire.encode(message)


WRONG = {
    "nan": lambda reply: other(reply, lambda a: a * np.nan),
    "huge": lambda reply: other(reply, lambda a: a + 1e12),
    "shape": lambda reply: other(reply, lambda a: np.stack([a, a])),
    "type": lambda reply: other(reply, lambda a: a.astype(np.float32)),
    "structure": lambda reply: other(reply, lambda a: [a, a]),
    "cut": lambda reply: reply[:-8],
    "none": lambda reply: b"",
    "text": lambda reply: b"Traceback (most recent call last)",
    "no message": lambda reply: wire.encode([1, 2]),
    "missing": lambda reply: wire.encode({"id": wire.decode(reply)["id"]}),
    "too many": lambda reply: wire.encode({**wire.decode(reply), "replies": wire.decode(reply)["replies"] * 2}),
    "long": lambda reply: reply + bytes(10**6),
    "stuffed": lambda reply: wire.encode({**wire.decode(reply), "more": np.zeros(10**6)}),
}
"""What may come back in place of a reply."""


@pytest.mark.parametrize("method", [SCAFFOLD, SCAFF_PD, CDMAGE], ids=lambda method: type(method).__name__)
def test_what_is_lost_or_wrong_is_not_counted_and_its_trace_replays(method, x64):
    task = quadratic() if method is CDMAGE else regression()
    workers, chance, kinds, done = sites(task, method), np.random.default_rng(1), list(WRONG), []

    def fate(nth, site, reply):
        if site == "west":  # one is always well
            return None
        if reply is None:
            return chance.choice([None, LOST_REQUEST, LOST_REPLY, GONE], p=[0.7, 0.1, 0.1, 0.1])
        if chance.random() < 0.7:
            return None
        done.append(kinds[len(done) % len(kinds)])
        return WRONG[done[-1]](reply)

    found = run(task, Faulty(workers, fate), method, rounds=12)
    assert len(done) >= 5
    answers = np.concatenate([np.asarray(a) for a in found.trace.answers], axis=1)
    assert 0.2 < answers.mean() < 0.95
    again = replayed(task, method, found)
    close(found.state, again.state, 1e-8)
    if method is SCAFFOLD:
        close(states(workers, found), again.client_states, 1e-8)


@pytest.mark.parametrize("kind", WRONG)
def test_each_wrong_reply_is_refused_and_the_site_is_named(kind, x64):
    task = regression()
    carrier = Faulty(sites(task, SCAFFOLD), lambda nth, site, reply: WRONG[kind](reply) if reply and site == "south" else None)
    federation, told = engine(carrier), []
    federation._listener = told.append
    found = run(task, carrier, SCAFFOLD, rounds=2, federation=federation)
    np.testing.assert_array_equal(found.trace.answers[0], [[True, False, True]] * 2)
    wrong = [event for event in told if event.what != "answered"]
    assert [event.site for event in wrong] == ["south", "south"]
    assert all(event.what in ("malformed", "refused") and event.text for event in wrong)
    close(found.state, replayed(task, SCAFFOLD, found).state, 1e-8)


def louder():
    """Return a method that no list of methods keeps after a test."""

    @algorithm
    class Louder(Algorithm):
        """Of five clients each sends the square of 1 to 5, times (1, -2); the first one's is a million times longer."""

        solves = fm.RobustProblem

        def init(self, problem):
            return Point(jnp.zeros(2), None)

        def round(self, problem, state, clients):
            return Point(state.x + clients.all().mean(self.report, state.x).x, None)

        def report(self, problem, client, x):
            said = (client.id + 1) ** 2 * jnp.array([1.0, -2.0]) * jnp.where(client.id == 0, 1e6, 1.0)
            return Point(said, None)

    return Louder()


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        (fm.Guard(aggregate="median"), 16),
        (fm.Guard(aggregate="trimmed", trim=0.2), (9 + 16 + 25) / 3),
        (fm.Guard(), (1e6 + 4 + 9 + 16 + 25) / 5),
    ],
    ids=lambda given: getattr(given, "aggregate", ""),
)
def test_one_site_that_shouts_does_not_move_a_median(guard, expected, x64):
    task, method = fm.problems.robust_regression(5, 4, 6, rho=0.1, sigma=0.5), louder()
    workers = {f"site-{k}": Worker(task.problem, method, task.clients.only(k)) for k in range(5)}
    federation = engine(InProcess(workers), outliers=None)  # which would refuse it before
    found = run(task, None, method, rounds=2, federation=federation, guard=guard)
    here = fm.run(task.problem, task.clients, method, rounds=2, seed=3, guard=guard, progress=False)
    close(found.state, here.state, 1e-12)
    np.testing.assert_allclose(found.x, 2 * expected * np.array([1.0, -2.0]), rtol=1e-12)


def inflated(reply, factor):
    """A reply that reports its loss so many times larger; one without a loss as it is."""
    message = wire.decode(reply)
    for one in message["replies"]:
        if hasattr(one["value"], "loss"):
            one["value"] = one["value"]._replace(loss=np.asarray(one["value"].loss * factor))
    return wire.encode(message)


def test_a_loss_inflated_to_seize_the_weights_is_refused_by_default(x64):
    """Of four sites one lies; without a bound it has all the weight, and with the default less than when it is honest."""
    names = (*NAMES, "east")
    task = fm.problems.robust_regression(4, 4, 6, rho=0.1, sigma=0.5)

    def after(factor, **settings):
        workers = {name: Worker(task.problem, SCAFF_PD, task.clients.only(k)) for k, name in enumerate(names)}
        lie = lambda nth, site, reply: inflated(reply, factor) if reply and site == "south" else None
        found = run(task, None, SCAFF_PD, rounds=20, federation=engine(Faulty(workers, lie), **settings))
        return found.w, found

    honest, _ = after(1.0)
    for factor in (1e6, 9_999.0):
        seized, _ = after(factor, loss_outliers=None, outliers=None)
        assert seized[1] > 0.999
        kept, found = after(factor)
        assert kept[1] <= honest[1] + 0.01
        others = lambda w: np.delete(w, 1) / np.delete(w, 1).sum()
        np.testing.assert_allclose(others(kept), others(honest), atol=0.05)
        assert not np.asarray(found.trace.answers[0])[:, 1].any()
        close(found.state, replayed(task, SCAFF_PD, found).state, 1e-8)
    # Honest sites may differ by a hundred: the worst of them is not refused.
    _, found = after(100.0)
    assert np.asarray(found.trace.answers[0]).all()


def test_an_old_reply_is_known_by_its_id(x64):
    task, kept = regression(), []

    def fate(nth, site, reply):
        if site == "north" and reply is not None:
            kept.append(reply)
            return kept[0] if nth > 1 else None
        return None

    carrier = Faulty(sites(task, SCAFFOLD), fate)
    federation = engine(carrier)
    found = run(task, carrier, SCAFFOLD, rounds=3, federation=federation)
    np.testing.assert_array_equal(found.trace.answers[0][:, 0], [True, False, False])
    assert {event.text for event in federation.events if event.site == "north" and event.what == "malformed"} == {
        "a reply to another request, an old one perhaps"
    }
    close(found.state, replayed(task, SCAFFOLD, found).state, 1e-8)


def test_a_site_that_hangs_is_waited_for_once_and_taken_in_again(x64):
    task = regression()
    workers = sites(task, SCAFFOLD)
    carrier = Faulty(workers)

    def fate(nth, site, reply):
        carrier.down = {"south"} if 3 <= carrier.calls <= 8 else set()
        return HANGS if site in carrier.down else None

    carrier.fate = fate
    federation = engine(carrier, timeout=60.0, probe=1.0)
    found = run(task, carrier, SCAFFOLD, rounds=20, federation=federation)
    assert carrier.waited.count(60.0) == 1
    assert 1 <= carrier.waited.count(1.0) <= 4
    assert sum(carrier.waited) < 65
    there = found.trace.answers[0][:, 1]
    assert there[:2].all()
    assert not there[2:8].any()
    assert there[14:].all()  # within a few rounds
    asked = [names for kind, names in carrier.asked if kind == "round"]
    assert all("south" not in names for names in asked[3:8])
    assert ("south", "back") in [(event.site, event.what) for event in federation.events]
    again = replayed(task, SCAFFOLD, found)
    close(found.state, again.state, 1e-8)
    close(states(workers, found), again.client_states, 1e-8)


def test_phase_two_goes_to_those_whose_phase_one_counted(x64):
    task, asked = regression(), {}

    def fate(nth, site, reply):
        asked.setdefault(nth, set()).add(site)
        return LOST_REPLY if site == "north" and nth % 3 == 1 else None

    found = run(task, Faulty(sites(task, SCAFF_PD), fate), SCAFF_PD, rounds=2)
    assert len(found.trace.answers) == 3
    assert [asked[nth] for nth in sorted(asked)] == [set(NAMES), {"south", "west"}, {"south", "west"}] * 2
    close(found.state, replayed(task, SCAFF_PD, found).state, 1e-8)


def test_too_few_replies_are_asked_for_again(x64):
    task, tries = regression(), []

    def fate(nth, site, reply):
        if reply is None:
            tries.append((nth, site))
        return LOST_REPLY if nth in (2, 3) and site != "west" else None

    workers = sites(task, SCAFFOLD)
    found = run(task, None, SCAFFOLD, rounds=3, federation=engine(Faulty(workers, fate), min_replies=3))
    assert [site for nth, site in tries if nth in (3, 4)] == ["north", "south"] * 2  # the one that replied is not asked again
    exact = fm.run(task.problem, task.clients, SCAFFOLD, rounds=3, seed=3, progress=False)
    close(found.state, exact.state, 1e-8)  # from what they had computed
    close(states(workers, found), exact.client_states, 1e-8)


def test_a_run_without_enough_sites_stops_with_a_checkpoint_and_goes_on_later(x64, tmp_path):
    task, workers = regression(), sites(regression(), SCAFFOLD, tmp_path / "sites")
    broken = Faulty(workers, lambda nth, site, reply: LOST_REQUEST if nth > 5 and site != "west" else None)
    how = {"rounds": 7, "folder": tmp_path / "run", "checkpoint_every": 3, "metrics": metrics.ClientLoss(each=True)}
    how["eval_every"] = 7  # the first call is that of the first evaluation, and those after it are rounds
    with pytest.warns(UserWarning, match="The run ended after 4 rounds; its result is kept"):
        found = run(task, broken, SCAFFOLD, federation=engine(broken, min_replies=2, retries=1), **how)
    assert found.rounds == 4
    assert found.stopped.startswith("1 of 3 sites replied, and min_replies is 2 (north: error; south: error): see to these")
    last = found.history["client_loss/each"][-1]
    assert np.isfinite(last[2])
    assert np.isnan(last[:2]).all()
    on = run(task, None, SCAFFOLD, federation=engine(Faulty(sites(task, SCAFFOLD, tmp_path / "sites"))), **how)
    exact = fm.run(task.problem, task.clients, SCAFFOLD, rounds=7, seed=3, metrics=how["metrics"], eval_every=7, progress=False)
    assert on.rounds == 7
    close(on.state, exact.state, 1e-8)
    close(on.history["client_loss/worst"], exact.history["client_loss/worst"], 1e-8)


class Timed(Faulty):
    """Keeps how long each site was given to answer, and for what."""

    def __init__(self, *given):
        super().__init__(*given)
        self.given = []

    def ask(self, requests, timeout):
        answers = super().ask(requests, timeout)
        self.given += [(site, self.asked[-1][0], timeout) for site in requests]
        return answers


@pytest.mark.parametrize("kind", [HANGS, GONE])
def test_a_site_that_hangs_is_asked_again_for_a_moment_only(kind, x64):
    """One that is gone answers at once, or is being started anew: it has the whole time."""
    task = regression()
    carrier = Timed(sites(task, SCAFFOLD), lambda nth, site, reply: kind if site == "south" else None)
    federation = engine(carrier, timeout=60.0, probe=1.0, min_replies=3, retries=2)
    federation.clients  # noqa: B018  (the first hello has all the time)
    carrier.given.clear()
    carrier.down = {"south"} if kind == HANGS else set()
    with pytest.warns(UserWarning, match=r"2 of 3 sites replied, and min_replies is 3 \(south"):
        assert run(task, None, SCAFFOLD, rounds=3, federation=federation).rounds == 0
    again = ("hello", 1.0) if kind == HANGS else ("round", 60.0)
    assert [call[1:] for call in carrier.given if call[0] == "south"] == [("round", 60.0), again, again]
    assert sum(carrier.waited[1:]) == (62.0 if kind == HANGS else 0.0)


def test_a_site_that_hung_is_asked_again_once_it_is_there(x64):
    task = regression()
    carrier = Timed(sites(task, SCAFFOLD), lambda nth, site, reply: HANGS if nth == 2 and site == "south" else None)
    found = run(
        task, carrier, SCAFFOLD, rounds=3, federation=engine(carrier, timeout=60.0, probe=1.0, min_replies=3, retries=2)
    )
    exact = fm.run(task.problem, task.clients, SCAFFOLD, rounds=3, seed=3, progress=False)
    close(found.state, exact.state, 1e-8)
    assert sum(carrier.waited) == 60.0
    assert [call[1:] for call in carrier.given if call[0] == "south"][2:5] == [("round", 60.0), ("hello", 1.0), ("round", 60.0)]


def test_too_few_replies_of_a_usual_length_are_asked_for_again(x64):
    """A reply that was spoilt on its way is right the second time, and who was not heard at all may be heard then."""
    task, tries = regression(), []

    def fate(nth, site, reply):
        if reply is None:
            tries.append((nth, site))
        if nth == 2 and site == "north":
            return LOST_REPLY
        return WRONG["huge"](reply) if reply and nth == 2 and site == "south" else None

    carrier = Faulty(sites(task, SCAFFOLD), fate)
    found = run(task, carrier, SCAFFOLD, rounds=3, federation=engine(carrier, min_replies=3))
    assert [site for nth, site in tries if nth == 3] == ["north", "south"]
    close(found.state, fm.run(task.problem, task.clients, SCAFFOLD, rounds=3, seed=3, progress=False).state, 1e-8)


def test_a_run_with_too_few_replies_of_a_usual_length_stops_and_names_all_who_lack(x64, tmp_path):
    task = regression()

    def fate(nth, site, reply):
        if nth > 3 and site == "north":
            return LOST_REQUEST
        return WRONG["huge"](reply) if reply and nth > 3 and site == "south" else None

    carrier = Faulty(sites(task, SCAFFOLD), fate)
    with pytest.warns(UserWarning, match="The run ended after 3 rounds; its result is kept"):
        found = run(task, carrier, SCAFFOLD, rounds=5, federation=engine(carrier, min_replies=2, retries=1), folder=tmp_path)
    assert carrier.calls == 3 + 2  # it was tried once again
    assert found.rounds == 3
    assert found.stopped.startswith("1 of 3 sites replied, and min_replies is 2 (north: error; south: its reply is far longer")


class Killed(BaseException):
    """The server's process is no more."""


def test_a_server_that_died_goes_on_from_its_checkpoint_though_sites_are_ahead(x64, tmp_path):
    task, workers = regression(), sites(regression(), SCAFFOLD, tmp_path / "sites")

    def fate(nth, site, reply):
        if nth == 9 and site == "west":
            raise Killed
        return None

    how = {"rounds": 9, "folder": tmp_path / "run", "checkpoint_every": 3}
    with pytest.raises(Killed):
        run(task, None, SCAFFOLD, federation=engine(Faulty(workers, fate)), **how)

    fresh = sites(task, SCAFFOLD, tmp_path / "sites")  # they were started anew, too
    on = run(task, None, SCAFFOLD, federation=engine(Faulty(fresh)), **how)
    exact = fm.run(task.problem, task.clients, SCAFFOLD, rounds=9, seed=3, progress=False)
    assert on.rounds == 9
    close(on.state, exact.state, 1e-8)
    close(states(fresh, on), exact.client_states, 1e-8)


@pytest.mark.parametrize("method", [SCAFFOLD, SCAFF_PD], ids=lambda method: type(method).__name__)
def test_a_worker_that_is_started_anew_at_any_time_has_what_it_needs(method, x64, tmp_path):
    task = regression()
    workers = sites(task, method, tmp_path)

    class Restarting(Faulty):
        def ask(self, requests, timeout):
            self._workers.update(sites(task, method, tmp_path))
            return super().ask(requests, timeout)

    found = run(task, Restarting(workers), method, rounds=3)
    assert found.rounds == 3
    assert all(np.asarray(answers).all() for answers in found.trace.answers)
    close(found.state, replayed(task, method, found).state, 1e-8)


@pytest.mark.parametrize("policy", ["refuse", "restart"])
def test_a_site_that_lost_its_state_says_so(policy, x64):
    task, workers = regression(), sites(regression(), SCAFFOLD)

    class Forgetful(Faulty):
        def ask(self, requests, timeout):
            if self.calls == 3:
                self._workers["south"] = sites(task, SCAFFOLD)["south"]
            return super().ask(requests, timeout)

    federation = engine(Forgetful(workers), on_lost_state=policy)
    found = run(task, None, SCAFFOLD, rounds=6, federation=federation)
    there = found.trace.answers[0][:, 1]
    np.testing.assert_array_equal(there, [True] * 3 + [False] + [policy == "restart"] * 2)
    assert "it has lost its state of this run" in [event.text for event in federation.events if event.site == "south"]
    if policy == "refuse":
        close(found.state, replayed(task, SCAFFOLD, found).state, 1e-8)


def test_a_site_that_comes_back_as_another_is_left_out(x64):
    task = regression()
    carrier = Faulty(sites(task, SCAFFOLD), lambda nth, site, reply: GONE if nth == 1 and site == "north" else None)
    federation = engine(carrier)
    federation.clients  # noqa: B018  (it is asked while all are as they were)
    carrier._workers["north"] = sites(task, SCAFFOLD.replace(lr_x=0.5))["north"]
    found = run(task, None, SCAFFOLD, rounds=4, federation=federation)
    assert not found.trace.answers[0][:, 0].any()
    assert any("not what it was" in event.text for event in federation.events)


def test_a_run_goes_on_without_a_site_that_was_there_before(x64, tmp_path):
    task, how = regression(), {"folder": tmp_path / "run", "checkpoint_every": 2}
    at = {"folder": tmp_path / "sites"}
    run(task, None, SCAFFOLD, rounds=3, federation=engine(Faulty(sites(task, SCAFFOLD, **at)), known=tmp_path / "known"), **how)
    carrier = Faulty(sites(task, SCAFFOLD, **at))
    carrier.down = {"south"}
    carrier.fate = lambda nth, site, reply: carrier.down.discard("south") if nth == 4 else None
    with pytest.raises(fm.InputError, match=r"south \(timeout\) did not answer"):
        run(task, None, SCAFFOLD, rounds=12, federation=engine(carrier), **how)
    on = run(task, None, SCAFFOLD, rounds=12, federation=engine(carrier, known=tmp_path / "known"), **how)
    there = on.trace.answers[0][:, 1]
    assert there[:3].all()
    assert not there[3:7].any()
    assert there[-2:].all()
    again = replayed(task, SCAFFOLD, on)
    close(on.state, again.state, 1e-8)
    (tmp_path / "other").write_bytes(wire.encode({"north": 3}))
    with pytest.raises(fm.InputError, match="does not hold what sites said"):
        run(task, None, SCAFFOLD, federation=engine(carrier, known=tmp_path / "other"))


def test_sites_keep_the_states_to_which_a_round_that_fails_goes_back(x64):
    task = regression()
    federation = engine(Faulty(sites(task, SCAFFOLD)))
    problem, clients = task.problem.bind(federation.clients)
    with federation.open(problem, clients, SCAFFOLD, Conditions()) as execution:
        execution.advance(1)
        before = execution.held["north"]
        execution.next_round()
        execution.held["north"] = "later/1/0"
        assert before in execution.kept("north")
        session = execution.session
        execution.restore(execution.snapshot())
        assert execution.session != session  # what is asked from here on is not what was asked before
