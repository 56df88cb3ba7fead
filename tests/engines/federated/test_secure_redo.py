"""Rounds that are asked for again: of one exchange a site helps to open one sum, after restarts of everybody too."""

import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics, wire
from fedminimax.engines.execution import AtSites
from fedminimax.engines.federated import Federation
from fedminimax.engines.federated.messages import Withheld
from fedminimax.engines.federated.secure import collector as server
from fedminimax.engines.federated.secure import opened
from fedminimax.engines.federated.secure.opened import Given, Opened

sys.path.insert(0, str(Path(__file__).parent))
from sealed import LOST_REPLY, LOST_REQUEST, NAMES, SCAFF_PD, SCAFFOLD, SECURE, Carrier, quadratic, regression, run, sites

GRADIENT = fm.ParallelSGDA(0.02, 0.02)
METHODS = [(quadratic, GRADIENT), (regression, SCAFFOLD), (regression, SCAFF_PD)]
every_method = pytest.mark.parametrize(("task", "method"), METHODS, ids=["ParallelSGDA", "Scaffold", "ScaffPD"])


@pytest.fixture
def sums(monkeypatch):
    """Every sum that the server has got at: by whom, and its integers."""
    found, unmasked = [], server.unmasked

    def kept(exchange, threshold, announced, masked, lost, told):
        total = unmasked(exchange, threshold, announced, masked, lost, told)
        found.append((sorted(masked), total.tobytes()))
        return total

    monkeypatch.setattr(server, "unmasked", kept)
    return found


def without(*names, how=LOST_REQUEST):
    return lambda step, nth, site, request: how if site in names and step != "hello" else None


def same(a, b):
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(left, right)


@every_method
def test_a_redo_without_a_site_is_halted_and_one_with_all_is_the_same(task, method, sums, tmp_path, x64):
    """The difference of the two sums would be the weighted vector of that site."""
    again = lambda fate=lambda *_: None: Carrier(sites(task(), method, folder=tmp_path), fate)  # all sites are started anew
    first = run(task(), method, again(), rounds=1)
    whole = run(task(), method, again(), rounds=1, start=first)
    before = list(sums)
    found = run(task(), method, again(without(NAMES[4])), rounds=1, start=first)
    assert (found.rounds, sums) == (1, before)
    assert f"A secure sum over {', '.join(NAMES)} was opened before" in found.stopped
    assert "start site-4, and go on with the same run" in found.stopped  # for ScaffPD, whose open losses give weights, too
    found = run(task(), method, again(), rounds=1, start=first)
    assert sums[len(before) :] == before[len(before) // 2 :]
    same(found.state, whole.state)


def test_a_redo_is_over_the_sites_of_the_first_time(sums, tmp_path, x64):
    again = lambda fate=lambda *_: None: Carrier(sites(quadratic(), GRADIENT, folder=tmp_path), fate)
    lost = lambda step, nth, site, request: LOST_REPLY if (step, site) == ("input", NAMES[2]) else None
    first = run(quadratic(), GRADIENT, again(lost), rounds=1)
    found = run(quadratic(), GRADIENT, again(), rounds=1)  # a run of another name, with the same seed: the same vectors
    assert sums[0] == sums[1]
    assert sums[0][0] == [0, 1, 3, 4]
    same(found.state, first.state)
    other = run(quadratic(), GRADIENT, again(), rounds=1, seed=4)
    assert (other.stopped, sums[2][0]) == (None, [0, 1, 2, 3, 4])


def test_sites_refuse_a_server_that_does_not_look(sums, tmp_path, x64):
    again = lambda fate=lambda *_: None: Carrier(sites(quadratic(), GRADIENT, folder=tmp_path), fate)
    hide = lambda reply: wire.encode({**wire.decode(reply), "opened": None})
    run(quadratic(), GRADIENT, again(), rounds=1)
    fate = lambda step, nth, site, request: (
        LOST_REPLY if (step, site) == ("input", NAMES[2]) else hide if step == "input" else None
    )
    found = run(quadratic(), GRADIENT, carrier := again(fate), rounds=1)
    assert "it has helped to open this sum before" in found.stopped
    assert (len(sums), [message for _, message in carrier.given("unmask") if "unmask" in message]) == (1, [])


@pytest.mark.parametrize("claims", [[0, 1, 2], [9], []], ids=str)
def test_what_a_few_sites_say_was_opened_stops_nobody(claims, sums, x64):
    lie = lambda reply: wire.encode({**wire.decode(reply), "opened": claims})
    fate = lambda step, nth, site, request: lie if step == "input" and site in NAMES[:2] else None
    found = run(quadratic(), GRADIENT, Carrier(sites(quadratic(), GRADIENT), fate), rounds=2)
    assert (found.stopped, [who for who, _ in sums]) == (None, [[0, 1, 2, 3, 4]] * 2)


class Killed(Exception):
    """The server's end."""


class Dying(Carrier):
    """A carrier whose server is killed when the replies of a step come for the nth time."""

    def __init__(self, workers, step, nth):
        super().__init__(workers)
        self.end = step, nth

    def ask(self, requests, timeout):
        answers = super().ask(requests, timeout)
        step = next(step for step, _, _ in reversed(self.sent))
        if (step, self.counts[step]) == self.end:
            raise Killed
        return answers


@every_method
def test_a_server_that_was_killed_goes_on_from_the_round_before(task, method, sums, tmp_path, x64):
    """It was saved after every round, whatever was asked for; the sum that it had opened since needs the same sites."""
    kept = {"folder": tmp_path / "run", "checkpoint_every": 50, "rounds": 3}
    again = lambda fate=lambda *_: None: Carrier(sites(task(), method, folder=tmp_path / "sites"), fate)
    exchanges = 2 if method is SCAFF_PD else 1
    with pytest.raises(Killed):
        run(task(), method, Dying(sites(task(), method, folder=tmp_path / "sites"), "unmask", 2 * exchanges), **kept)
    assert len(sums) == 2 * exchanges
    halted = run(task(), method, again(without(NAMES[4])), **kept)
    assert (halted.rounds, len(sums)) == (2, 2 * exchanges)
    assert "was opened before" in halted.stopped
    assert "start site-4, and go on with the same run" in halted.stopped
    found = run(task(), method, again(), **kept)
    plain = run(task(), method, Carrier(sites(task(), method)), rounds=3)
    assert (found.rounds, found.stopped) == (3, None)
    same(found.state, plain.state)


def test_a_run_is_known_by_its_name_from_the_start_though_clients_remember_nothing(tmp_path, x64):
    kept = {"folder": tmp_path / "run", "rounds": 2}
    with pytest.raises(Killed):
        run(quadratic(), GRADIENT, Dying(sites(quadratic(), GRADIENT), "unmask", 0), **kept)
    names = lambda carrier: {wire.decode(request).get("run") for _, _, request in carrier.sent} - {None}
    dying = Dying(sites(quadratic(), GRADIENT), "unmask", 1)
    with pytest.raises(Killed):
        run(quadratic(), GRADIENT, dying, **kept)
    found = run(quadratic(), GRADIENT, carrier := Carrier(sites(quadratic(), GRADIENT)), **kept)
    assert names(dying) == names(carrier) == {found.client_states.run}
    plain = fm.run(quadratic().problem, quadratic().clients, GRADIENT, rounds=1, start=found, progress=False)  # elsewhere
    assert (plain.rounds, plain.client_states) == (3, None)
    assert isinstance(found.client_states, AtSites)


def test_metrics_are_opened_over_all_sites_or_not_at_all(sums, x64):
    lost = lambda step, nth, site, request: LOST_REPLY if (step, site) == ("input", NAMES[3]) else None
    for fate, counted in ((lambda *_: None, 1), (lost, 0)):
        carrier = Carrier(workers := sites(quadratic(), GRADIENT), fate)
        found = run(quadratic(), GRADIENT, carrier, rounds=0, metrics=[metrics.GradientNorms()])
        names = [name for name in found.history if name not in ("round", *found.costs)]
        assert names
        assert all(np.isfinite(found.history[name]).all() == bool(counted) for name in names)
        assert (len(sums), "unmask" in carrier.counts) == (counted, bool(counted))
        sums.clear()
    message = next(wire.decode(request) for step, site, request in carrier.sent if (step, site) == ("input", NAMES[0]))
    asked = {"whose": message["whose"], "id": message["id"].replace("input", "unmask"), "secure": {"survivors": [0, 1, 2, 4]}}
    assert wire.decode(workers[NAMES[0]].handle(wire.encode(asked)))["failed"]["kind"] == "refuses"


RUN = "0" * 16


def given(round, exchange=0, run=RUN, terms="t", vector=None):
    return Given(run, round, exchange, terms, f"{run}{round}/{exchange}" if vector is None else vector)


def refused(call, *args):
    with pytest.raises(Withheld) as withheld:
        call(*args)
    return withheld.value.kind


def test_a_loss_that_is_told_only_the_second_time_would_give_other_weights(sums, tmp_path, x64):
    again = lambda fate=lambda *_: None: Carrier(sites(regression(), SCAFF_PD, folder=tmp_path), fate)
    first = run(regression(), SCAFF_PD, again(without(NAMES[1])), rounds=1)
    assert [who for who, _ in sums] == [[0, 2, 3, 4]] * 2
    found = run(regression(), SCAFF_PD, again(), rounds=1)
    assert "stop site-1, and go on with the same run" in found.stopped
    same(run(regression(), SCAFF_PD, again(without(NAMES[1])), rounds=1).state, first.state)
    assert sums[:2] == sums[2:]


def test_what_was_opened_is_known_after_a_restart(tmp_path):
    Opened(tmp_path).keep(given(3), [2, 0, 1])
    with (tmp_path / "sums.opened").open("ab") as file:
        file.write(b'\n["cut')  # by a crash, before its share left
    Opened(tmp_path).keep(given(4), [0, 1, 2, 3])
    found = Opened(tmp_path)
    assert [found.over(given(k)) for k in (3, 4, 5)] == [(0, 1, 2), (0, 1, 2, 3), None]
    found.check(given(3), [0, 1, 2])
    found.check(given(5), [0, 1])
    assert refused(found.check, given(3), [0, 1, 2, 3]) == "opened"
    assert refused(found.over, given(3, terms="others")) == "opened"
    assert found.over(given(3, vector="of another rounding")) == (0, 1, 2)  # the same exchange
    assert found.over(given(9, run="1" * 16, vector=given(3).vector)) == (0, 1, 2)  # the same vector
    assert found.over(given(3, exchange=1)) is None


def test_what_is_kept_is_bounded_and_what_is_forgotten_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(opened, "ROUNDS", 5)
    monkeypatch.setattr(opened, "RUNS", 2)
    monkeypatch.setattr(opened, "_MORE", 10)
    found = Opened(tmp_path)
    for name in ("a", "b", "c"):
        for k in range(100):
            found.keep(given(k, run=name), [0, 1, 2])
    for one in (found, Opened(tmp_path)):
        assert [one.over(given(k, run="c")) for k in (94, 99, 100)] == [(0, 1, 2), (0, 1, 2), None]
        assert refused(one.over, given(50, run="c")) == "forgotten"
        assert one.over(given(99, run="a")) is None  # a run that is long over
    assert len((tmp_path / "sums.opened").read_text().splitlines()) < 50
    size = (tmp_path / "sums.opened").stat().st_size
    found.keep(given(99, run="c"), [0, 1, 2])
    assert (tmp_path / "sums.opened").stat().st_size == size


def test_a_site_whose_memory_was_taken_away_alone_does_not_open_the_sum(sums, tmp_path, x64):
    again = lambda fate=lambda *_: None: Carrier(sites(quadratic(), GRADIENT, folder=tmp_path), fate)
    run(quadratic(), GRADIENT, again(), rounds=1)
    shutil.rmtree(tmp_path / NAMES[0])
    engine = Federation(again(without(NAMES[4])), secure=SECURE, pause=0.0)
    found = run(quadratic(), GRADIENT, None, rounds=1, engine=engine)
    assert (len(sums), "start site-4" in found.stopped) == (1, True)
