"""What one site says in a secure sum, damaged or made up, in every step: nothing crashes, and no model comes of it.

``FEDMINIMAX_FUZZ=10000`` tries so many of each kind; by default some dozens.
"""

import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedminimax as fm
from fedminimax import wire
from fedminimax.engines.federated import Federation
from fedminimax.testing.contract import close

sys.path.insert(0, str(Path(__file__).parent))
from sealed import LOST_REPLY, NAMES, SECURE, STEPS, Carrier, quadratic, run, sites
from test_malformed import BYTES, SCALARS, altered, mutated
from test_malformed import often as usual

often = settings(usual, max_examples=int(os.environ.get("FEDMINIMAX_FUZZ", "60")))
GRADIENT = fm.ParallelSGDA(0.02, 0.02)
BAD = NAMES[1]
FOLD = ["accuses", "opened", "forgotten", "refuses", "keys", "lost", "malformed"]
NUMBERS = st.one_of(SCALARS, st.lists(st.one_of(st.integers(-1, 6), SCALARS), max_size=6))


def one_round(fate):
    carrier = Carrier(sites(quadratic(), GRADIENT), fate)
    return run(quadratic(), GRADIENT, carrier, rounds=1, record=False)


@pytest.fixture(scope="module")
def right():
    """The states that a round may come to: with all, or without one of them; and where it began."""
    with jax.enable_x64(True):
        lost = lambda name: lambda step, nth, site, request: LOST_REPLY if (step, site) == ("input", name) else None
        return [one_round(lost(name)).state for name in (None, *NAMES)], GRADIENT.init(quadratic().problem)


def replies(step, reply):
    """What a site may say in a step instead of its reply."""
    id, inner = wire.decode(reply)["id"], wire.decode(reply)[step]
    failure = st.builds(
        lambda kind, whom: wire.encode({"id": id, "failed": {"kind": kind, "whom": whom}}), st.sampled_from(FOLD), NUMBERS
    )
    before = st.builds(lambda said: wire.encode({**wire.decode(reply), "opened": said}), NUMBERS)
    within = [altered(reply, step)] if isinstance(inner, dict) else []
    return st.one_of(BYTES, mutated(reply), altered(reply), failure, before, *within)


def is_a_vector(sent, reply):
    """Whether what was sent in the place of a masked vector is another one: nobody can tell it from the site's own."""
    try:
        told, words = wire.decode(sent), wire.decode(reply)["input"]
    except fm.InputError:
        return False
    found = told.get("input") if isinstance(told, dict) else None
    return isinstance(found, np.ndarray) and (found.dtype, found.shape) == (words.dtype, words.shape)


@pytest.mark.filterwarnings("ignore:A secure sum")
@pytest.mark.parametrize("step", STEPS)
@often
@given(data=st.data())
def test_a_server_puts_up_with_whatever_a_site_says(step, right, data):
    sent = []

    def instead(reply):
        sent.append((data.draw(replies(step, reply)), reply))
        return sent[-1][0]

    with jax.enable_x64(True):
        found = one_round(lambda kind, nth, site, request: instead if kind == step and site == BAD and nth == 0 else None)
        assert len(sent) == 1
        whole, start = right
        if found.stopped is not None:
            assert found.rounds == 0
            close(found.state, start, 0.0)
        elif step != "input" or not is_a_vector(*sent[0]):
            assert any(np.allclose(found.x, state.x, atol=1e-8) and np.allclose(found.y, state.y, atol=1e-8) for state in whole)


def replaced(step, make):
    """A fate: one site's part of a step is another, each time."""

    def other(reply):
        message = wire.decode(reply)
        return wire.encode({**message, step: make(message[step])}) if step in message else reply

    return lambda kind, nth, site, request: other if kind == step and site == BAD else None


LONG = {"1" * 5000: np.zeros(92, np.uint8)}
"""What Python refuses to read as a number."""


@pytest.mark.parametrize(
    ("step", "make"),
    [("shares", lambda shares: {**shares, **LONG}), ("unmask", lambda said: {**said, "seeds": {**said["seeds"], **LONG}})],
    ids=["shares", "unmask"],
)
def test_a_number_of_5000_digits_is_that_sites_loss(step, make, right, x64):
    found = one_round(replaced(step, make))
    close(found.state, right[0][1 + NAMES.index(BAD) if step == "shares" else 0], 1e-8)


GARBAGE = {
    "sealed shares": ("shares", lambda shares: {number: box ^ np.uint8(1) for number, box in shares.items()}),
    "mask's key": ("keys", lambda keys: np.concatenate([keys[:32], np.zeros(32, np.uint8), keys[64:]])),
    "cipher's key": ("keys", lambda keys: np.concatenate([np.zeros(32, np.uint8), keys[32:]])),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_site_whose_keys_or_shares_are_none_is_left_out_of_the_next_attempt(kind, right, x64):
    fate = replaced(*GARBAGE[kind])
    carrier = Carrier(sites(quadratic(), GRADIENT), fate)
    engine = Federation(carrier, secure=SECURE, pause=0.0)
    found = run(quadratic(), GRADIENT, carrier, rounds=1, engine=engine)
    close(found.state, right[0][1 + NAMES.index(BAD)], 1e-8)
    assert (found.stopped, carrier.counts["keys"], carrier.counts["unmask"]) == (None, 1, 0)
    accused = {event.site for event in engine.events if event.text == f"it cannot use what {BAD} sent to it in a secure sum"}
    assert accused == set(NAMES) - {BAD}


def test_the_sentence_names_the_site_and_who_accuses_it(x64):
    carrier = Carrier(sites(quadratic(), GRADIENT), replaced(*GARBAGE["sealed shares"]))
    engine = Federation(carrier, secure=SECURE, pause=0.0, retries=0)
    with pytest.warns(UserWarning, match="A secure sum"):
        found = run(quadratic(), GRADIENT, carrier, rounds=1, engine=engine)
    assert f"(site-0, site-2, site-3, site-4: it cannot use what {BAD} sent to it" in found.stopped
    gone = lambda step, nth, site, request: (
        LOST_REPLY if nth and site in NAMES[2:4] else replaced(*GARBAGE["sealed shares"])(step, nth, site, request)
    )
    carrier = Carrier(sites(quadratic(), GRADIENT), gone)
    with pytest.warns(UserWarning, match="A secure sum"):
        found = run(quadratic(), GRADIENT, carrier, rounds=1)
    assert f"{BAD}: it is left out, as site-0, site-2, site-3, site-4 cannot use what it sent to them" in found.stopped


@pytest.mark.parametrize("accusers", [1, 2])
def test_accusations_of_half_of_the_others_or_fewer_cost_the_accusers_place(accusers, right, x64):
    lie = lambda reply: wire.encode({"id": wire.decode(reply)["id"], "failed": {"kind": "accuses", "whom": [1]}})
    fate = lambda step, nth, site, request: lie if step == "shares" and site in NAMES[2 : 2 + accusers] else None
    carrier = Carrier(sites(quadratic(), GRADIENT), fate)
    found = run(quadratic(), GRADIENT, carrier, rounds=1)
    present = np.flatnonzero(np.asarray(found.trace.answers[0])[0])
    assert (carrier.counts["keys"], [*present]) == (0, [k for k in range(5) if not 2 <= k < 2 + accusers])
