"""Who answers and how soon: waves, dropout, delays, clients that vanish; and what the server makes of it in a run."""

import dataclasses
import functools
import math
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.random import keys, sampling

pytestmark = pytest.mark.usefixtures("x64")

RUN = keys.root(11)
MANY = jnp.arange(20_000)


def request(t, phase=0, run=RUN):
    return keys.derive(run, t, phase)


def near(share, probability, count=MANY.size):
    """Whether a share of ``count`` draws is within four standard deviations of its probability."""
    return abs(float(share) - probability) <= 4 * math.sqrt(probability * (1 - probability) / count)


# -- probability and waves ---------------------------------------------------------------------------------------------


def test_clients_answer_as_often_as_their_probability_says():
    chance = fm.Availability(0.3)
    first, second = (np.asarray(chance.answers(RUN, request(t), t, MANY)) for t in (0, 1))
    assert near(first.mean(), 0.3)
    assert near((first & second).mean(), 0.09), "rounds are independent"
    own = fm.Availability(tuple(np.repeat([0.0, 0.2, 1.0], [5000, 10_000, 5000])))
    answers = np.asarray(own.answers(RUN, request(0), 0, MANY))
    assert not answers[:5000].any()
    assert near(answers[5000:15_000].mean(), 0.2, 10_000)
    assert answers[15_000:].all()


def test_a_wave_has_its_peak_and_its_trough():
    chance = fm.Availability(0.6, wave=fm.Wave(0.5, period=8, phase=0.0))
    share = lambda t: np.asarray(chance.answers(RUN, request(t), t, MANY)).mean()
    for t, probability in ((0, 0.6), (2, 0.9), (4, 0.6), (6, 0.3), (10, 0.9)):
        assert near(share(t), probability), t


@pytest.mark.parametrize("t", [0, 1, 17, 1_000_003])
def test_a_wave_follows_its_formula(t):
    phases, rates = (0.0, 0.3, -0.45, 7.9), (0.2, 0.5, 0.7, 1.0)
    wave = fm.Wave(0.8, period=24.7, phase=phases)
    wanted = np.clip(np.array(rates) * (1 + 0.8 * np.sin(2 * np.pi * (t / 24.7 + np.array(phases)))), 0, 1)
    found = fm.Availability(rates, wave=wave).chance(RUN, t, jnp.arange(4))
    np.testing.assert_allclose(found, wanted, atol=2e-3)  # 24.7 rounds to a 32-bit fraction, a million times
    some = fm.Availability(rates, wave=wave).chance(RUN, t, jnp.array([3, 1]))
    np.testing.assert_array_equal(some, found[jnp.array([3, 1])])


def test_a_wave_higher_than_one_is_cut_off():
    chance = fm.Availability(0.5, wave=fm.Wave(3.0, period=4, phase=0.0))
    assert [float(chance.chance(RUN, t, MANY[:1])[0]) for t in range(4)] == [0.5, 1.0, 0.5, 0.0]
    assert np.asarray(chance.answers(RUN, request(1), 1, MANY)).all()
    assert not np.asarray(chance.answers(RUN, request(3), 3, MANY)).any()


def test_by_default_every_client_has_a_time_zone_of_its_own():
    chance = fm.Availability(0.5, wave=fm.Wave(1.0, period=12))
    now, tomorrow, tonight = (np.asarray(chance.chance(RUN, t, MANY)) for t in (5, 17, 11))
    np.testing.assert_allclose(now, tomorrow, atol=1e-3)
    np.testing.assert_allclose(now + tonight, 1.0, atol=1e-3)
    zones = np.arcsin(2 * now - 1) / np.pi + 0.5  # uniform phases: the arcsine law
    np.testing.assert_allclose(np.quantile(zones, [0.1, 0.25, 0.5, 0.75, 0.9]), [0.1, 0.25, 0.5, 0.75, 0.9], atol=0.02)
    other = np.asarray(chance.chance(keys.root(12), 5, MANY))
    assert abs(np.corrcoef(now, other)[0, 1]) < 0.05, "another seed, other zones"


# -- dropout -----------------------------------------------------------------------------------------------------------


def test_survivors_decay_geometrically_and_nobody_comes_back():
    chance = fm.Availability(1.0, dropout=0.05)
    before = np.ones(MANY.size, bool)
    for t in range(80):
        there = np.asarray(chance.answers(RUN, request(t), t, MANY))
        assert near(there.mean(), 0.95**t), t
        assert not (there & ~before).any(), "somebody came back"
        before = there


def test_dropout_has_its_edges_and_its_own_rates():
    chance = fm.Availability(1.0, dropout=tuple(np.repeat([0.0, 1.0, 0.5], [5000, 5000, 10_000])))
    there = [np.asarray(chance.answers(RUN, request(t), t, MANY)) for t in (0, 1, 2, 100_000)]
    assert there[0].all()
    assert all(rows[:5000].all() for rows in there)
    assert not any(rows[5000:10_000].any() for rows in there[1:])
    assert near(there[2][10_000:].mean(), 0.25, 10_000)
    assert not there[3][10_000:].any()


def test_rare_dropouts_are_spread_over_the_rounds():
    chance = fm.Availability(1.0, dropout=1e-5)
    ids = jnp.arange(1_000_000)
    left = [int(ids.size - np.asarray(chance.remains(RUN, t, ids)).sum()) for t in (0, 1, 2, 10)]
    for t, gone in zip((0, 1, 2, 10), left, strict=True):
        assert abs(gone - 10 * t) <= 4 * math.sqrt(10 * t), (t, gone)


def test_lifetimes_differ_between_seeds():
    there = [np.asarray(fm.Availability(1.0, dropout=0.1).remains(keys.root(seed), 7, MANY)) for seed in (0, 1)]
    assert near((there[0] & there[1]).mean(), 0.9**14)


# -- delays ------------------------------------------------------------------------------------------------------------


def quantile(words):
    """Return the standard normal quantile of random words, in float64: the last bit is the tail, the first 23 how far out."""
    words = np.asarray(words).astype(np.int64)
    rare = ((words >> 9) * 2 + 1) / 2**25
    return np.array([NormalDist().inv_cdf(p) for p in np.where(words & 1, 1 - rare, rare)])


def test_a_delay_is_the_product_of_a_device_and_a_request():
    ids = MANY[:3000]
    both = fm.Delay(8.0, spread=0.3, slow=0.9).seconds(RUN, request(3), ids)
    device = fm.Delay(8.0, spread=0.0, slow=0.9).seconds(RUN, request(3), ids)
    this_time = fm.Delay(1.0, spread=0.3, slow=0.0).seconds(RUN, request(3), ids)
    np.testing.assert_allclose(both, device * this_time, rtol=1e-6)
    np.testing.assert_allclose(this_time, np.exp(0.3 * quantile(keys.words_for(request(3), ids))), rtol=0.002)
    np.testing.assert_array_equal(device, fm.Delay(8.0, spread=0.0, slow=0.9).seconds(RUN, request(4), ids))
    assert both.dtype == jnp.float32


@pytest.mark.parametrize(("spread", "slow"), [(0.5, 0.0), (0.0, 1.0), (0.6, 0.8)])
def test_delays_are_log_normal(spread, slow):
    logs = np.log(np.asarray(fm.Delay(20.0, spread=spread, slow=slow).seconds(RUN, request(0), MANY)) / 20)
    normal = NormalDist(0, math.hypot(spread, slow))
    for z in (-3.0, -1.0, -0.2, 0.0, 0.7, 2.0, 3.0):
        assert near((logs < z * normal.stdev).mean(), NormalDist().cdf(z)), z


def test_slow_devices_are_slow_in_every_round():
    times = lambda run=RUN, **how: np.log(
        np.stack([np.asarray(fm.Delay(5.0, **how).seconds(run, request(t), MANY)) for t in (0, 1)])
    )
    always, never = times(spread=0.1, slow=1.0), times(spread=1.0, slow=0.0)
    assert np.corrcoef(always)[0, 1] > 0.98
    assert abs(np.corrcoef(never)[0, 1]) < 0.04
    other_seed = times(run=keys.root(12), spread=0.1, slow=1.0)
    assert abs(np.corrcoef(always[0], other_seed[0])[0, 1]) < 0.04


@pytest.mark.parametrize("double", [False, True])
def test_draws_belong_to_clients_whatever_their_company_and_the_compiler(double):
    chance = fm.Availability(0.6, 2.0, wave=fm.Wave(0.7, 10.3), dropout=0.01, delay=fm.Delay(9.0))

    def draw(run, key, t, ids):
        seconds = chance.delay.seconds(run, keys.variant(key, 4), ids)
        return chance.answers(run, key, t, ids), seconds, chance.chance(run, t, ids), chance.remains(run, t, ids)

    some = jnp.asarray(np.random.default_rng(0).permutation(MANY.size)[:7])
    with jax.enable_x64(double):
        together, alone = (draw(RUN, request(40), 40, ids) for ids in (MANY, some))
        compiled = jax.jit(draw)(RUN, request(40), 40, MANY)
    for all_, few, same in zip(together, alone, compiled, strict=True):
        np.testing.assert_array_equal(all_[some], few)
        np.testing.assert_array_equal(all_, same)


# -- runs --------------------------------------------------------------------------------------------------------------

CLIENTS = 40


@functools.cache
def task():
    return fm.problems.quadratic(CLIENTS)


def go(availability, *, rounds=30, size=8, method=fm.ParallelSGDA, **options):
    shape = {"local_steps": 1} if method is fm.SAGDA else {}
    algorithm = method(0.01, 0.01, cohort_size=size, **shape)
    options = {
        "rounds": rounds,
        "availability": availability,
        "record": True,
        "seed": 11,
        "engine": fm.Simulator(devices=1),
        **options,
    }
    return fm.run(task().problem, task().clients, algorithm, **options)


def invited(t, phase, count):
    """Return whom the server of a run with seed 11 invites, and the key of the request."""
    key = request(t, phase)
    return np.asarray(sampling.subset(keys.variant(key, 0), CLIENTS, count)), key


def costs_of(result):
    return {name: values.tolist() for name, values in result.costs.items()}


def test_the_fastest_of_the_invited_are_kept_and_waited_for():
    delay = fm.Delay(10.0, spread=0.8)
    chance = fm.Availability(0.7, over_invite=3, delay=delay)
    result = go(chance, rounds=12)
    (cohorts,) = result.trace.cohorts
    for t in range(12):
        ids, key = invited(t, 0, 24)
        answers = np.asarray(chance.answers(RUN, keys.variant(key, 2), t, jnp.asarray(ids)))
        seconds = dict(zip(ids, np.asarray(delay.seconds(RUN, keys.variant(key, 4), jnp.asarray(ids))), strict=True))
        fastest = sorted(ids[answers], key=seconds.__getitem__)[:8]
        kept = cohorts[t][cohorts[t] >= 0]
        assert kept.tolist() == fastest, "in the order of their arrival"
        assert result.costs["waited"][t] == seconds[fastest[-1]]
    assert (cohorts >= 0).all(), "with 24 invited, 8 answer"
    assert len(np.unique(result.costs["waited"])) == 12


def test_replies_after_the_deadline_are_lost_and_empty_places_cost_the_deadline():
    delay = fm.Delay(10.0, spread=0.5, slow=0.0, deadline=12.0)
    result = go(fm.Availability(1.0, delay=delay), size=CLIENTS, rounds=50)
    (cohorts,) = result.trace.cohorts
    assert near((cohorts >= 0).mean(), NormalDist().cdf(math.log(1.2) / 0.5), cohorts.size)
    assert (result.costs["waited"] == 12.0).all()
    late = [np.asarray(delay.seconds(RUN, keys.variant(request(t), 4), jnp.arange(CLIENTS))) > 12 for t in range(50)]
    np.testing.assert_array_equal(cohorts < 0, late)
    roomy = go(fm.Availability(1.0, over_invite=4, delay=delay), rounds=10)
    assert (roomy.trace.cohorts[0] >= 0).all()
    assert (roomy.costs["waited"] < 12.0).all(), "nobody waits for those that are not needed"


def test_equally_fast_replies_come_in_a_random_order():
    result = go(fm.Availability(1.0, over_invite=5, delay=fm.Delay(3.0, spread=0.0, slow=0.0)), rounds=300)
    counts = np.bincount(result.trace.cohorts[0].ravel(), minlength=CLIENTS)
    np.testing.assert_allclose(counts, 60, atol=4 * math.sqrt(300 * 0.2 * 0.8))
    assert (result.costs["waited"] == 3.0).all()


def second_share(**how):
    """Return the share of a cohort's members that answer its second request, and how many members there were."""
    first, second = go(fm.Availability(**how), method=fm.SAGDA, size=20, rounds=60).trace.answers
    assert not (second & ~first).any(), "nobody joins a cohort later"
    return second.sum() / first.sum(), int(first.sum()), first.mean()


def test_clients_vanish_between_the_phases():
    share, members, joined = second_share(probability=0.6, vanish=0.25)
    assert near(joined, 0.6, 60 * 20)
    assert near(share, 0.75, members)
    share, members, _ = second_share(probability=0.6)
    assert near(share, 0.6, members), "by default they answer with the same probability again"
    own = fm.Availability(1.0, vanish=(0.0,) * 20 + (1.0,) * 20)
    result = go(own, method=fm.SAGDA, size=CLIENTS, rounds=3)
    assert result.trace.answers[0].all()
    np.testing.assert_array_equal(result.trace.answers[1], np.tile(np.arange(CLIENTS) < 20, (3, 1)))


def test_later_requests_have_the_deadline_too_and_a_round_waits_for_all_its_exchanges():
    delay = fm.Delay(10.0, spread=1.0, slow=0.0, deadline=25.0)
    result = go(fm.Availability(1.0, over_invite=2, delay=delay, vanish=0.0), method=fm.SAGDA, size=10, rounds=40)
    first, second = result.trace.answers
    in_time = NormalDist().cdf(math.log(2.5))
    assert near(second.sum() / first.sum(), in_time, int(first.sum()))
    assert first.all()
    for t in range(40):
        ids = jnp.asarray(result.trace.cohorts[0][t])
        # They are invited in phase 0, do their work in phase 1, and are asked again in phase 2.
        waits = [np.asarray(delay.seconds(RUN, keys.variant(request(t, phase), 4), ids)) for phase in (0, 2)]
        np.testing.assert_array_equal(second[t], waits[1] <= 25)
        expected = float(waits[0].max()) + (float(waits[1].max()) if second[t].all() else 25.0)
        assert result.costs["waited"][t] == expected


def test_dropout_empties_a_run_for_good():
    (cohorts,) = go(fm.Availability(1.0, dropout=0.2), size=CLIENTS, rounds=25).trace.cohorts
    there = cohorts >= 0
    assert there[0].all()
    assert not (there[1:] & ~there[:-1]).any()
    assert 0 < there[5].sum() < 25  # 13 expected
    assert there[24].sum() <= 2


def test_without_delays_nobody_waits():
    assert go(fm.Availability(0.5)).costs["waited"].tolist() == [0.0] * 30
    assert go(None).costs["waited"].tolist() == [0.0] * 30


EVERYTHING = fm.Availability(
    0.8,
    over_invite=1.5,
    wave=fm.Wave(0.4, 5.5),
    dropout=0.02,
    delay=fm.Delay(10.0, spread=0.7, slow=0.4, deadline=20.0),
    vanish=0.2,
)


@functools.cache
def regression():
    return fm.problems.robust_regression(20, 4, 6, rho=0.1, sigma=0.5)


def two_cohorts(availability, **options):
    """Run a method that draws one cohort with replacement and another without, six of twenty clients each."""
    method = fm.DRFA(0.01, 0.01, local_steps=2, cohort_size=6)
    options = {
        "rounds": 6,
        "availability": availability,
        "record": True,
        "seed": 3,
        "engine": fm.Simulator(devices=1),
        **options,
    }
    return fm.run(regression().problem, regression().clients, method, **options)


def asked_twice(availability, **options):
    return go(availability, method=fm.SAGDA, rounds=6, **options)


@pytest.mark.parametrize("start", [asked_twice, two_cohorts])
def test_engines_agree_and_a_trace_replays(start, tmp_path):
    recorded = start(EVERYTHING)
    assert len(np.unique(recorded.costs["waited"])) > 1
    assert 0 < recorded.costs["replies"].sum() < recorded.rounds * 2 * 8
    again = fm.Result.load(recorded.save(tmp_path / "run")).trace
    for other in (start(EVERYTHING, engine="isolated"), start(None, trace=recorded.trace), start(None, trace=again)):
        np.testing.assert_allclose(jax.tree.leaves(recorded.x)[0], jax.tree.leaves(other.x)[0], rtol=1e-10)
        assert costs_of(other) == costs_of(recorded)
    silent = costs_of(start(None, trace=dataclasses.replace(recorded.trace, waited=())))
    assert silent == costs_of(recorded) | {"waited": [0.0] * recorded.rounds}


def test_both_cohorts_of_a_round_are_over_invited():
    result = two_cohorts(fm.Availability(0.7, over_invite=2.4))
    assert [i.tolist() for i in result.trace.invited] == [[15] * 6] * 2  # ceil(2.4 * 6), with replacement and without
    filled = [(c >= 0).mean() for c in result.trace.cohorts]
    assert min(filled) > 0.9, "70 % without the other nine"


def test_the_wait_goes_on_where_a_run_is_continued():
    whole, half = go(EVERYTHING, rounds=6), go(EVERYTHING, rounds=3)
    rest = go(EVERYTHING, rounds=3, start=half)
    assert costs_of(rest) == costs_of(whole)
    np.testing.assert_array_equal(rest.trace.waited[0], whole.trace.waited[0])
    np.testing.assert_array_equal(rest.history["waited"], np.concatenate([[0], np.cumsum(whole.costs["waited"])]))
    assert rest.history["waited"][-1] > 0
    older = dataclasses.replace(half, costs={k: v for k, v in half.costs.items() if k != "waited"})
    continued = go(EVERYTHING, rounds=3, start=older).costs["waited"]
    assert continued.tolist() == [0.0] * 3 + whole.costs["waited"][3:].tolist()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_availability_can_be_a_key_and_takes_arrays():
    make = lambda: fm.Availability(np.full(3, 0.5), 2, fm.Wave(1, 24, [0.1, 0.2, 0.3]), [0.1] * 3, fm.Delay(3), np.float32(0.5))
    assert {make(): 1}[make()] == 1
    assert make().probability == (0.5, 0.5, 0.5)
    make().check(3)


WRONG = [
    (lambda: fm.Availability(-0.1), "probability must be between 0 and 1.*not -0.1"),
    (lambda: fm.Availability("often"), "probability must be one number, or one per client, not 'often'"),
    (lambda: fm.Availability(float("nan")), "finite"),
    (lambda: fm.Availability(None), "finite"),
    (lambda: fm.Availability(1.0, dropout=(0.1, 1.2)), "dropout must be between 0 and 1.*not 1.2"),
    (lambda: fm.Availability(1.0, vanish=-1), "vanish must be between 0 and 1"),
    (lambda: fm.Availability(1.0, over_invite=0.9), "over_invite must be at least 1, not 0.9"),
    (lambda: fm.Availability(1.0, over_invite=float("inf")), "over_invite must be a finite number"),
    (lambda: fm.Availability(1.0, wave=0.5), r"wave must be a Wave\(...\) or None, not 0.5"),
    (lambda: fm.Availability(1.0, delay=3.0), r"delay must be a Delay\(...\) or None, not 3.0"),
    (lambda: fm.Wave(-0.5, 24), "amplitude must be at least 0, not -0.5: shift the phase"),
    (lambda: fm.Wave(0.5, 0), "period must be a positive number of rounds"),
    (lambda: fm.Wave(0.5, 24, "noon"), "one number, one per client, or \"random\", not 'noon'"),
    (lambda: fm.Delay(0), "median must be a positive number of seconds"),
    (lambda: fm.Delay("slow"), "median must be a finite number, not 'slow'"),
    (lambda: fm.Delay(1.0, spread=-0.1), "spread must be from 0 to 5, not -0.1"),
    (lambda: fm.Delay(1.0, slow=9), "slow must be from 0 to 5, not 9.0"),
    (lambda: fm.Delay(1.0, deadline=0), "deadline must be a positive number of seconds, not 0.0: None waits"),
    (lambda: fm.Availability((0.5,) * 3).check(4), "3 probabilities, but there are 4 clients: give one number, or one each"),
    (lambda: fm.Availability(0.5, dropout=(0.5,) * 5).check(4), "5 dropout rates, but there are 4 clients"),
    (lambda: fm.Availability(0.5, vanish=(0.5,)).check(4), "1 vanish rates, but there are 4 clients"),
    (lambda: fm.Availability(0.5, wave=fm.Wave(0.5, 24, (0.5, 0.2))).check(4), "2 phases of its wave, but there are 4"),
    (lambda: fm.Trace(waited=(np.zeros(2),)).check(3, 4), "waited 0 covers 2 rounds, but 3 are to be run"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_numbers_are_named(make, message):
    with pytest.raises(fm.InputError, match=message):
        make()
