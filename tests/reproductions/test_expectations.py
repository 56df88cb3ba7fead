"""Verdicts on made-up runs, whose right answers are known."""

import numpy as np
import pytest
from pydantic import ValidationError

import fedminimax as fm
from fedminimax.folders import DIVERGED, FINISHED, Record
from fedminimax.reproductions.expectations import (
    CONTRADICTS,
    HELD,
    NOT_SHOWN,
    PART,
    Expectation,
    Finding,
    in_words,
    judge,
    readings_of,
    verdict_of,
)


def runs(label, ends, better="higher", status=None):
    """Runs whose metric goes from 0 in a straight line to some ends, one a seed, in rounds 0, 10, ... 100."""
    rounds = np.arange(0, 101, 10)
    return [
        Record(
            label, label, "", seed, 100, 100, DIVERGED if status and seed in status else FINISHED,
            {"round": rounds, "m": np.linspace(0, end, 11)}, better={"m": better},
        )
        for seed, end in enumerate(ends)
    ]  # fmt: skip


def judged(records, **expected):
    given = {"says": "so it is", "metric": "m", "method": "A", **expected}
    return judge([Expectation(**given)], {"all": records})


A, B = [0.90, 0.92, 0.91, 0.89, 0.93], [0.80, 0.83, 0.80, 0.80, 0.82]


def test_a_lead_that_is_more_than_noise_held_and_the_other_way_contradicts():
    found = judged(runs("A", A) + runs("B", B), than=["B"])[0]
    leads = np.array(A) - np.array(B)
    half = 2.7764451052 * leads.std(ddof=1) / np.sqrt(5)  # Student's quantile with four degrees of freedom
    assert (found.verdict, found.seeds) == (HELD, 5)
    np.testing.assert_allclose([found.lead, found.low, found.high], [leads.mean(), leads.mean() - half, leads.mean() + half])
    assert judged(runs("A", B) + runs("B", A), than=["B"])[0].verdict == CONTRADICTS
    assert judged(runs("A", B, "lower") + runs("B", A, "lower"), than=["B"])[0].verdict == HELD


def test_a_lead_within_noise_or_below_what_counts_does_not_show():
    noisy = [0.9, 0.7, 0.95, 0.75, 0.8]
    assert judged(runs("A", noisy) + runs("B", B), than=["B"])[0].verdict == NOT_SHOWN
    assert judged(runs("A", A) + runs("B", B), than=["B"], by=0.2)[0].verdict == NOT_SHOWN
    assert judged(runs("A", A[:2]) + runs("B", B[:2]), than=["B"])[0].verdict == NOT_SHOWN


def test_intervals_are_wider_the_more_is_compared():
    records = runs("A", A) + runs("B", B) + runs("C", B)
    one, two = judged(records, than=["B"])[0], judged(records, than=["B", "C"])[0]
    assert two.low < one.low
    assert two.lead == one.lead


def test_who_diverges_is_behind():
    found = judged(runs("A", A) + runs("B", B, status={1}), than=["B"])[0]
    assert (found.verdict, found.sentence) == (HELD, "B diverged with 1 of 5 seeds.")
    assert judged(runs("A", A, status={1}) + runs("B", B), than=["B"])[0].verdict == CONTRADICTS
    assert judged(runs("A", A, status={1}) + runs("B", B, status={2}), than=["B"])[0].seeds == 3


def test_rounds_to_a_level():
    """Straight lines to .9 and to .6 pass .5 in rounds 60 and 90; one to .4 never does, which counts as twice the rounds."""
    found = judged(runs("A", [0.9] * 3) + runs("B", [0.6] * 3), than=["B"], reaches=0.5)[0]
    assert (found.verdict, found.lead) == (HELD, 30)
    assert judged(runs("A", [0.9] * 3) + runs("B", [0.4] * 3), than=["B"], reaches=0.5)[0].lead == 140


def test_errors_are_compared_by_powers_of_ten():
    """One that is a thousandth of the other, whatever their size, is ahead by three; plain differences say nothing here."""
    large, small = [1e-1, 1e-5, 1e-9], [1e-4, 1e-8, 1e-12]
    records = runs("A", small, "lower") + runs("B", large, "lower")
    found = judged(records, than=["B"], log=True)[0]
    np.testing.assert_allclose([found.lead, found.low], [3, 3], rtol=1e-12)
    assert found.verdict == HELD
    assert judged(records, than=["B"])[0].verdict == NOT_SHOWN


def test_sides_that_should_be_alike():
    near = [a + 0.001 for a in A]
    assert judged(runs("A", A) + runs("B", near), than=["B"], like=True, by=0.01)[0].verdict == HELD
    assert judged(runs("A", A) + runs("B", B), than=["B"], like=True, by=0.01)[0].verdict == CONTRADICTS
    noisy = [0.9, 0.7, 0.95, 0.75, 0.8]
    assert judged(runs("A", noisy) + runs("B", B), than=["B"], like=True, by=0.01)[0].verdict == NOT_SHOWN


def test_bounds_hold_with_every_seed_or_with_none():
    assert judged(runs("A", A), above=0.89)[0].verdict == HELD
    assert judged(runs("A", A), above=0.9)[0].verdict == NOT_SHOWN
    assert judged(runs("A", A), below=0.5)[0].verdict == CONTRADICTS
    assert judged(runs("A", A, status={0}), above=0.5)[0].verdict == NOT_SHOWN


def test_sides_of_other_panels():
    panels = {"K = 1": runs("A", B), "K = 9": runs("A", A)}
    wanted = Expectation(says="more is better", metric="m", method="A @ K = 9", than=["A @ K = 1"], panels=["K = 9"])
    assert [found.verdict for found in judge([wanted], panels)] == [HELD]
    with pytest.raises(fm.InputError, match="the panel 'K = 2', which there is not: there are K = 1, K = 9"):
        judge([wanted.model_copy(update={"than": ["A @ K = 2"]})], panels)
    with pytest.raises(fm.InputError, match=r"needs m of 'Z' in 'K = 1', where there are A"):
        judge([wanted.model_copy(update={"method": "Z", "panels": []})], panels)


def test_not_being_behind_is_enough_where_that_is_asked():
    near = [a + 0.001 for a in A]
    wanted = {"than": ["B"], "no_worse": True, "by": 0.01}
    assert judged(runs("A", A) + runs("B", near), **wanted)[0].verdict == HELD
    assert judged(runs("A", A) + runs("B", B), **wanted)[0].verdict == HELD  # a lead of .1 is no fault
    assert judged(runs("A", B) + runs("B", A), **wanted)[0].verdict == CONTRADICTS
    noisy = [0.9, 0.7, 0.95, 0.75, 0.8]
    assert judged(runs("A", noisy) + runs("B", B), **wanted)[0].verdict == NOT_SHOWN


def test_leads_of_two_panels_are_compared_seed_by_seed():
    """A leads by .3, give or take, where it is hard and by .1 where it is easy."""
    hard = [b + 0.3 + 0.01 * k for k, b in enumerate(B)]
    easy = [b + 0.1 + 0.01 * k for k, b in enumerate(B)]
    panels = {"hard": runs("A", hard) + runs("B", B), "easy": runs("A", easy) + runs("B", B)}
    wanted = {"says": "", "metric": "m", "method": "A", "than": ["B"]}
    found = judge([Expectation(**wanted, panels=["hard"], wider_than="easy")], panels)[0]
    np.testing.assert_allclose([found.lead, found.low, found.high], 0.2)
    assert found.verdict == HELD
    assert "further ahead than in easy by 0.2" in found.sentence
    assert judge([Expectation(**wanted, panels=["easy"], wider_than="hard")], panels)[0].verdict == CONTRADICTS
    panels["easy"] = runs("A", easy, status={2}) + runs("B", B)
    found = judge([Expectation(**wanted, panels=["hard"], wider_than="easy")], panels)[0]
    assert (found.verdict, found.sentence) == (NOT_SHOWN, "A or B has diverged in easy: their leads cannot be compared.")


def test_who_never_reaches_a_level_is_told():
    found = judged(runs("A", [0.9] * 3) + runs("B", [0.4, 0.6, 0.4]), than=["B"], reaches=0.5)[0]
    assert found.sentence.endswith("B never gets there with 2 of 3: counted as twice the run.")
    assert "A never" not in found.sentence
    assert "rounds until m is 0.5" in judged(runs("A", [0.9] * 3), below=100, reaches=0.5)[0].sentence


def test_each_reading_of_a_paper_has_a_verdict():
    wanted = {"says": "", "metric": "m"}
    one = Expectation(**wanted, method="A", than=["B"], reading="drawn anew")
    two = Expectation(**wanted, method="B", than=["A"], reading="fixed")
    found = judge([one, two], {"all": runs("A", A) + runs("B", B)})
    assert readings_of(found) == {"drawn anew": HELD, "fixed": CONTRADICTS}
    assert in_words(found) == f"{PART} (drawn anew: {HELD}; fixed: {CONTRADICTS})"
    assert in_words(found[:1]) == f"{HELD} (drawn anew: {HELD})"
    assert in_words(judged(runs("A", A) + runs("B", B), than=["B"])) == HELD


def sloping(ends, slope, over=(1.0, 10.0, 100.0), **expected):
    """The verdict on a slope over panels, in each of which the metric ends somewhere with each seed."""
    panels = {f"at {value}": runs("A", values, "lower") for value, values in zip(over, ends, strict=True)}
    group = dict(zip(panels, over, strict=True))
    given = {"says": "", "metric": "m", "method": "A", "slope": slope, "group": "g", "over": group, **expected}
    return judge([Expectation(**given)], panels)[0]


def test_a_slope_is_fitted_seed_by_seed_and_judged_by_its_interval():
    """Seed k's number is (k + 1) x^(k / 2): the slopes of three seeds are 0, 1/2 and 1, whatever the factors."""
    ends = [[(k + 1) * x ** (k / 2) for k in range(3)] for x in (1.0, 10.0, 100.0)]
    found = sloping(ends, (-1.0, 2.0))
    half = 4.3026527297 * 0.5 / np.sqrt(3)  # Student's quantile with two degrees of freedom
    np.testing.assert_allclose([found.lead, found.low, found.high], [0.5, 0.5 - half, 0.5 + half], rtol=1e-9)
    assert (found.verdict, found.panel, found.seeds) == (HELD, "g", 3)
    assert sloping(ends, (0.4, 0.6)).verdict == NOT_SHOWN  # the mean alone says nothing
    assert sloping(ends, (2.0, 3.0)).verdict == sloping(ends, (-3.0, -2.0)).verdict == CONTRADICTS
    assert sloping(ends[:2], (-1.0, 2.0), over=(1.0, 10.0)).verdict == NOT_SHOWN  # two points always lie on a line
    assert judge([Expectation(says="", metric="m", method="A", slope=(0, 1), group="g")], {})[0].verdict == NOT_SHOWN


def test_a_slope_of_what_it_takes_needs_all_runs_to_get_there():
    """Lines to e pass .5 at the fraction .5 / e of the way, where .5 is to be passed from below, as a metric to maximise."""
    panels = lambda last: {f"{e}": runs("A", [e, e, last]) for e in (1.0, 2.5, 5.0)}
    wanted = Expectation(
        says="", metric="m", method="A", slope=(-1.1, -0.9), group="g", over={"1.0": 1.0, "2.5": 2.5, "5.0": 5.0}, reaches=0.5
    )
    rounds = [50, 20, 10]
    expected = np.polyfit(np.log([1, 2.5, 5]), np.log(rounds), 1)[0]
    same = judge([wanted], {name: runs("A", [float(name)] * 3) for name in wanted.over})[0]
    np.testing.assert_allclose(same.lead, expected)
    assert same.verdict == HELD
    assert judge([wanted], panels(0.1))[0].verdict == NOT_SHOWN  # a run that never gets there has no place on a line


def test_means_over_a_run_and_other_costs():
    """A straight line from 0 has half its end as its mean; costs that are twice the rounds make leads twice as long."""
    found = judged(runs("A", A) + runs("B", B), than=["B"], average=True)[0]
    np.testing.assert_allclose(found.lead, np.mean(np.array(A) - np.array(B)) / 2)
    records = runs("A", [0.9] * 3) + runs("B", [0.6] * 3)
    for record in records:
        record.history["gossip_rounds"] = 2 * record.history["round"]
    found = judged(records, than=["B"], reaches=0.5, counts="gossip_rounds")[0]
    assert found.lead == 60
    assert found.sentence.startswith("gossip rounds until m is 0.500: A 120")


def test_the_verdict_of_an_item():
    said = lambda *verdicts: verdict_of([Finding("", "", verdict, "") for verdict in verdicts])
    assert said(HELD, HELD) == HELD
    assert said(HELD, NOT_SHOWN) == said(HELD, CONTRADICTS) == PART
    assert said(NOT_SHOWN, CONTRADICTS) == CONTRADICTS
    assert said(NOT_SHOWN) == NOT_SHOWN


def test_what_is_asked_beyond_the_paper_is_told_and_does_not_count():
    records = {"all": runs("A", A) + runs("B", B)}
    expected = lambda method, than, beyond: Expectation(says="", metric="m", method=method, than=[than], beyond=beyond)
    found = judge([expected("A", "B", False), expected("B", "A", True)], records)
    assert [(one.verdict, one.beyond) for one in found] == [(HELD, False), (CONTRADICTS, True)]
    assert verdict_of(found) == HELD
    assert verdict_of(judge([expected("A", "B", True), expected("B", "A", False)], records)) == CONTRADICTS


@pytest.mark.parametrize("wrong", [{}, {"than": ["B"], "below": 1.0}, {"than": ["B"], "like": True}, {"below": 1, "abve": 2},
     {"slope": (0, 1)}, {"slope": (1, 0), "group": "g"}, {"below": 1, "group": "g"}, {"below": 1, "counts": "floats_up"},
     {"below": 1, "average": True, "reaches": 2}])  # fmt: skip
def test_expectations_that_say_nothing_or_two_things_are_refused(wrong):
    with pytest.raises(ValidationError):
        Expectation(says="", metric="m", method="A", **wrong)
