"""Secure sums between sites: equal to plain ones up to the fixed point, whoever is lost, and refused where they cannot be."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics, wire
from fedminimax.engines.federated import Federation, InProcess, Secure, worker
from fedminimax.engines.federated.messages import Withheld
from fedminimax.engines.federated.secure import fixed_point
from fedminimax.errors import InputError
from fedminimax.testing.contract import close

sys.path.insert(0, str(Path(__file__).parent))
from sealed import (
    LOST_REPLY,
    LOST_REQUEST,
    NAMES,
    SCAFF_PD,
    SCAFFOLD,
    SECURE,
    SGDA,
    STEPS,
    Carrier,
    quadratic,
    regression,
    replayed,
    round_of,
    run,
    sites,
    states,
)

TOLERANCE = 5 * 2.0**-32
"""Five sites' roundings of 2^-33 in a mean by weights that sum to 1, and twice that for what rounds make of them."""


def losing(step, lost, how, at=0):
    return lambda kind, nth, site, request: how if kind == step and nth == at and site in lost else None


def answered(result, exchange=0):
    return [[NAMES[k] for k in np.flatnonzero(row)] for row in np.asarray(result.trace.answers[exchange])]


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_REPLY])
@pytest.mark.parametrize("lost", [(), NAMES[1:2], (NAMES[0], NAMES[3])], ids=len)
@pytest.mark.parametrize("step", STEPS)
def test_the_sum_is_that_of_those_whose_vectors_came(step, lost, how, x64):
    carrier = Carrier(sites(quadratic(), SGDA), losing(step, lost, how))
    found = run(quadratic(), SGDA, carrier)
    counted = NAMES if step == "unmask" else tuple(n for n in NAMES if n not in lost)
    assert answered(found) == [[*counted], [*NAMES]]
    assert carrier.counts == {"hello": 0} | dict.fromkeys(STEPS, 1)  # no step was taken twice
    close(found.state, replayed(quadratic(), SGDA, found).state, TOLERANCE)


EVERYBODY_OR_FOUR = [(), NAMES[1:2]]
CDMAGE = fm.CDMAGE(0.02, 0.02, local_steps=2)
FESS = fm.FessGDA(0.02, 0.02, local_steps=2)
FEWER = fm.CDMAGE(0.02, 0.02, local_steps=2, cohort_size=4)


@pytest.mark.parametrize("lost", EVERYBODY_OR_FOUR, ids=len)
@pytest.mark.parametrize("method", [CDMAGE, FEWER, FESS], ids=["CDMAGE", "CDMAGE of 4", "FessGDA"])
def test_other_methods_with_a_shared_max_player(method, lost, x64):
    carrier = Carrier(sites(quadratic(), method), losing("input", lost, LOST_REPLY, at=1))
    found = run(quadratic(), method, carrier, rounds=3)
    assert (found.rounds, "letters" in carrier.counts, found.stopped) == (3, False, None)
    close(found.state, replayed(quadratic(), method, found).state, TOLERANCE)


def test_losses_in_every_step_at_once_and_states_that_count(x64):
    """In every second round one site is lost before it shares and one after; in the others one tells nothing at the end."""
    at = ({"shares": NAMES[4], "input": NAMES[2]}, {"unmask": NAMES[0]})
    fate = lambda step, nth, site, request: (
        LOST_REPLY if step in STEPS and at[round_of(request) % 2].get(step) == site else None
    )
    carrier = Carrier(workers := sites(regression(), SCAFFOLD), fate)
    found = run(regression(), SCAFFOLD, carrier, rounds=4)
    assert answered(found) == [[NAMES[0], NAMES[1], NAMES[3]], [*NAMES]] * 2
    again = replayed(regression(), SCAFFOLD, found)
    close(found.state, again.state, TOLERANCE)
    close(states(workers, found), again.client_states, TOLERANCE)


def test_the_second_phase_goes_to_those_of_the_first(x64):
    """ScaffPD's losses come in the open; who is lost there, or in the first sum, is not in the second."""

    def fate(step, nth, site, request):
        open_ = step == "letters" and nth == 0 and site == NAMES[2]
        return LOST_REPLY if open_ or (step == "input" and nth == 0 and site == NAMES[4]) else None

    found = run(regression(), SCAFF_PD, Carrier(sites(regression(), SCAFF_PD), fate))
    three = [NAMES[0], NAMES[1], NAMES[3]]
    assert [answered(found, k)[0] for k in range(3)] == [[*three, NAMES[4]], [*three, NAMES[4]][:3], three]
    assert [answered(found, k)[1] for k in range(3)] == [[*NAMES]] * 3
    close(found.state, replayed(regression(), SCAFF_PD, found).state, TOLERANCE)


@pytest.mark.parametrize("step", STEPS[:3])
def test_a_sum_that_lost_too_many_is_tried_again_under_new_keys(step, x64, monkeypatch):
    calls = []
    monkeypatch.setattr(worker, "carry_out", lambda *args: calls.append(args) or carried_out(*args))
    carrier = Carrier(workers := sites(regression(), SCAFFOLD), losing(step, NAMES[:3], LOST_REPLY))
    found = run(regression(), SCAFFOLD, carrier, rounds=1)
    assert answered(found) == [[*NAMES]]
    assert carrier.counts["keys"] == 1
    assert len(calls) == 5  # the second attempt takes what the sites computed for the first
    keys = [bytes(message["keys"]) for _, message in carrier.given("keys")]
    assert len(set(keys)) == len(keys) >= 7
    again = replayed(regression(), SCAFFOLD, found)
    close(found.state, again.state, TOLERANCE)
    close(states(workers, found), again.client_states, TOLERANCE)


carried_out = worker.carry_out


def test_too_few_sites_halt_the_run_with_a_sentence_and_it_can_go_on(x64, tmp_path):
    gone = {NAMES[0], NAMES[1], NAMES[4]}
    fate = lambda step, nth, site, request: LOST_REQUEST if site in gone and step == "input" else None
    carrier = Carrier(sites(regression(), SCAFFOLD), fate)
    options = {"folder": tmp_path / "run", "checkpoint_every": 1}
    found = run(regression(), SCAFFOLD, carrier, **options)
    assert (found.rounds, carrier.counts["keys"], carrier.counts.get("unmask")) == (0, 2, None)
    assert "A secure sum over 5 sites has too few of them left, where it needs 3" in found.stopped
    assert [site for site in NAMES if site in found.stopped] == sorted(gone)
    gone.clear()
    found = run(regression(), SCAFFOLD, carrier, **options)
    close(found.state, replayed(regression(), SCAFFOLD, found).state, TOLERANCE)


def test_masks_are_asked_off_again_with_the_same_list_only(x64):
    """Those who told their shares, and whose replies were lost, tell them again; no other attempt is made at the sum."""
    carrier = Carrier(sites(quadratic(), SGDA), losing("unmask", NAMES[:4], LOST_REPLY))
    found = run(quadratic(), SGDA, carrier, rounds=1)
    assert carrier.counts == {"hello": 0, "keys": 0, "shares": 0, "input": 0, "unmask": 1}
    close(found.state, replayed(quadratic(), SGDA, found).state, TOLERANCE)


def test_a_false_share_is_found_out(x64):
    def lie(reply):
        message = wire.decode(reply)
        seeds = {site: np.zeros(32, np.uint8) for site in message["unmask"]["seeds"]}
        return wire.encode({**message, "unmask": {**message["unmask"], "seeds": seeds}})

    liars = {NAMES[0], NAMES[1]}
    carrier = Carrier(sites(quadratic(), SGDA), lambda step, nth, site, _: lie if step == "unmask" and site in liars else None)
    close((found := run(quadratic(), SGDA, carrier, rounds=1)).state, replayed(quadratic(), SGDA, found).state, TOLERANCE)
    liars |= {NAMES[2]}
    assert "was told shares that do not fit together" in run(quadratic(), SGDA, carrier, rounds=1).stopped


WRONG = {
    "keys": lambda message: {"keys": np.zeros(95, np.uint8)},
    "shares": lambda message: {"shares": dict(list(message["shares"].items())[1:])},
    "input": lambda message: {"input": message["input"][1:]},
    "unmask": lambda message: {"unmask": {"seeds": message["unmask"]["seeds"]}},
}


OLD = dict.fromkeys(STEPS, lambda message: {"id": "another"})


@pytest.mark.parametrize("change", [WRONG, OLD, {}], ids=["parts", "id", "none"])
@pytest.mark.parametrize("step", STEPS)
def test_what_cannot_be_is_that_sites_loss(step, change, x64):
    def other(reply):
        message = wire.decode(reply)
        return wire.encode({**message, **change[step](message)}) if change else b"nothing"

    carrier = Carrier(sites(quadratic(), SGDA), lambda kind, nth, site, _: other if kind == step and site == NAMES[1] else None)
    engine = Federation(carrier, secure=SECURE, pause=0.0)
    found = run(quadratic(), SGDA, carrier, rounds=1, engine=engine)
    assert answered(found) == [[*NAMES] if step == "unmask" else [n for n in NAMES if n != NAMES[1]]]
    assert {(e.site, e.what) for e in engine.events if e.what != "answered"} == {(NAMES[1], "malformed")}
    close(found.state, replayed(quadratic(), SGDA, found).state, TOLERANCE)


def test_float32():
    task = fm.problems.quadratic(5, examples=6, noise=0.3, weights=[1, 2, 3, 4, 5])
    found = run(task, SGDA, Carrier(sites(task, SGDA)))
    plain = replayed(task, SGDA, found)
    assert found.state.x.dtype == np.float32
    close(found.state, plain.state, 1e-6)


def test_weights_of_zero_and_sums_that_would_be_of_too_few(x64):
    weighing = lambda *weights: fm.problems.quadratic(5, examples=6, noise=0.3, weights=weights)
    task = weighing(1, 0, 2, 0, 3)
    found = run(task, SGDA, Carrier(sites(task, SGDA)))
    close(found.state, replayed(task, SGDA, found).state, TOLERANCE)
    for little in (0, 1e-6, 0.019):  # the sum would tell of two sites, though five take part
        task = weighing(1, little, 2, 0, little)
        carrier = Carrier(sites(task, SGDA))
        assert "needs 3 whose weights are at least 1% of the largest" in run(task, SGDA, carrier).stopped
        assert "input" not in carrier.counts
    task = weighing(1, 0.021, 2, 0, 0)
    assert run(task, SGDA, Carrier(sites(task, SGDA))).stopped is None


@pytest.mark.parametrize(("limit", "kind"), [(2.0**20, "not finite"), (1e-9, "beyond Secure.limit")])
def test_a_site_withholds_what_does_not_fit(limit, kind, x64, monkeypatch):
    def broken(*args):
        out, work = carried_out(*args)
        return out._replace(value=jax.tree.map(lambda leaf: leaf * (np.nan if args[3] == 2 else 1.0), out.value)), work

    secure = Secure(limit=limit)
    monkeypatch.setattr(worker, "carry_out", broken)
    engine = Federation(carrier := Carrier(sites(quadratic(), SGDA, secure)), secure=secure, pause=0.0)
    found = run(quadratic(), SGDA, carrier, rounds=1, engine=engine)
    assert kind in {event.site: event.text for event in engine.events if event.what == "refused"}[NAMES[2 if limit > 1 else 0]]
    if limit > 1:
        assert answered(found) == [[n for n in NAMES if n != NAMES[2]]]
    else:
        assert "(site-0, site-1, site-3, site-4: it withheld its reply: a number is beyond Secure.limit" in found.stopped


def test_the_guard_shortens_replies_at_the_site(x64):
    guard = fm.Guard(max_norm=1e-2)
    found = run(quadratic(), SGDA, Carrier(sites(quadratic(), SGDA)), guard=guard)
    close(found.state, replayed(quadratic(), SGDA, found, guard=guard).state, TOLERANCE)
    with pytest.raises(AssertionError):
        close(found.state, replayed(quadratic(), SGDA, found).state, 1e-4)


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        (SGDA, {"guard": fm.Guard(aggregate="median")}, "needs each site's reply, which secure sums hide"),
        (SGDA.replace(cohort_size=2), {}, "is summed over 2 sites, and secure sums are over at least 3"),
    ],
    ids=["median", "cohort"],
)
def test_what_cannot_be_summed_is_refused_before_anybody_is_asked(method, options, sentence, x64):
    carrier = Carrier(sites(quadratic(), method))
    with pytest.raises(InputError, match=sentence):
        run(quadratic(), method, carrier, **options)
    assert carrier.counts == {"hello": 0}


def test_losses_in_the_open_can_be_refused(x64):
    secure = Secure(open_numbers=0)
    carrier = Carrier(sites(regression(), SCAFF_PD, secure))
    with pytest.raises(InputError, match=r"ScaffPD.report sends 1 numbers of each site apart, .* a site tells 0 in the open"):
        run(regression(), SCAFF_PD, carrier, secure=secure)
    assert carrier.counts == {"hello": 0}


def test_all_must_agree_on_secure_sums(x64):
    for there, here in ((SECURE, None), (None, SECURE), (Secure(bits=30), SECURE)):
        with pytest.raises(InputError, match="At site-0 the secure sum is"):
            run(quadratic(), SGDA, Carrier(sites(quadratic(), SGDA, there)), secure=here)


def test_settings_that_cannot_be():
    for wrong in ({"least": 1}, {"bits": 0}, {"limit": 0.0}, {"limit": np.nan}, {"threshold": 1}, {"open_numbers": -1}):
        with pytest.raises(InputError):
            Secure(**wrong)
    with pytest.raises(InputError, match="do not fit into 64 bits"):
        Secure(bits=50)
    with pytest.raises(InputError, match=r"Sums over 5 sites of numbers up to 1.04858e\+06 with 41 binary digits"):
        Federation(InProcess(dict.fromkeys(NAMES)), secure=Secure(bits=41))


def test_fixed_point_is_exact_to_half_a_step():
    secure, chance = Secure(bits=20, limit=8.0), np.random.default_rng(0)
    tree = {"a": chance.normal(size=(3, 4)), "b": chance.normal(size=5).astype(np.float32), "n": np.array([-3, 2**40])}
    found = fixed_point.unpack(fixed_point.pack(tree, secure), tree, secure)
    assert {name: leaf.dtype for name, leaf in found.items()} == {name: leaf.dtype for name, leaf in tree.items()}
    for name, most in (("a", 2.0**-21), ("b", 2.0**-21 + 1e-7)):
        assert 2.0**-23 < np.abs(found[name] - tree[name]).max() <= most
    np.testing.assert_array_equal(found["n"], tree["n"])
    assert (fixed_point.pack({"a": np.array([8.0, -8.0])}, secure).view(np.int64) == [2**23, -(2**23)]).all()
    for bad in (8.1, -8.1, np.inf, np.nan):
        with pytest.raises(Withheld):
            fixed_point.pack({"a": np.array([1.0, bad])}, secure)


GRADIENTS = [metrics.GradientNorms(), metrics.ClientLoss()]


def test_metrics_are_summed_in_secret_too(x64):
    carrier = Carrier(sites(quadratic(), SGDA))
    found = run(quadratic(), SGDA, carrier, metrics=GRADIENTS)
    plain = replayed(quadratic(), SGDA, found, metrics=GRADIENTS)
    names = [name for name in plain.history if "radient" in name or "oss" in name]
    assert len(names) >= 3
    for name in names:
        np.testing.assert_allclose(found.history[name], plain.history[name], atol=1e-8)
    told = [message["each"] for _, message in carrier.given("input") if "each" in message]
    assert len(told) == 5 * len(found.history["round"])  # each site's own loss, and nothing of its gradient
    assert all(sum(np.size(leaf) for leaf in each.values() if leaf is not None) == 1 for each in told)


def test_a_metric_that_lacks_a_site_is_unknown(x64):
    fate = lambda step, nth, site, request: LOST_REPLY if step == "input" and nth == 0 and site == NAMES[3] else None
    found = run(quadratic(), SGDA, Carrier(sites(quadratic(), SGDA), fate), metrics=GRADIENTS)
    names = [name for name in found.history if "radient" in name]
    assert all(np.isnan(found.history[name][0]) and np.isfinite(found.history[name][1:]).all() for name in names)
