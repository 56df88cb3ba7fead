"""What the server is given where sums are secure: all of it is read, and no site's vector is in it."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedminimax as fm
from fedminimax import wire
from fedminimax.engines.federated import Secure, worker
from fedminimax.engines.federated.messages import Whose
from fedminimax.engines.federated.secure import contribution, fixed_point

sys.path.insert(0, str(Path(__file__).parent))
from sealed import NAMES, SCAFF_PD, SCAFFOLD, STEPS, Carrier, quadratic, regression, run, sites

SECRETS = ("value", "weighted", "fixed")


@pytest.fixture
def secrets(monkeypatch):
    """The bytes of every vector that sites have in hand: as computed, weighted, and in fixed point. Losses are no vectors."""
    seen, weighted, pack, carry_out = {kind: [] for kind in SECRETS}, contribution.weighted, fixed_point.pack, worker.carry_out
    vectors = lambda tree: [np.asarray(leaf) for leaf in worker.jax.tree.leaves(tree) if np.size(leaf) > 1]

    def carried_out(*args):
        out, work = carry_out(*args)
        seen["value"] += [leaf.tobytes() for leaf in vectors(out.value)]
        return out, work

    def weighed(replies, asked):
        total = weighted(replies, asked)
        seen["weighted"] += [leaf.tobytes() for leaf in vectors(total["value"])]
        return total

    def packed(tree, secure):
        words = pack(tree, secure)
        seen["fixed"].append(words.tobytes())
        return words

    monkeypatch.setattr(worker, "carry_out", carried_out)
    monkeypatch.setattr(contribution, "weighted", weighed)
    monkeypatch.setattr(fixed_point, "pack", packed)
    return seen


def pieces(text):
    """Every number of 8 bytes in a vector, but for small integers, which may be anywhere."""
    return {text[at : at + 8] for at in range(0, len(text), 8) if len(set(text[at : at + 8])) > 4}


def found_in(received, texts):
    everything = b"\0".join(reply for _, _, reply in received)
    return sum(piece in everything for text in texts for piece in pieces(text))


METHODS = [
    (regression, SCAFF_PD),
    (regression, SCAFFOLD),
    (regression, fm.FedAvg(0.02, local_steps=2)),
    (quadratic, fm.FessGDA(0.02, 0.02, local_steps=2)),  # of both players, whose y the sites share
    (quadratic, fm.CDMAGE(0.02, 0.02, local_steps=2)),
]


@pytest.mark.parametrize(("task", "method"), METHODS, ids=[type(method).__name__ for _, method in METHODS])
def test_no_number_of_any_vector_reaches_the_server(task, method, secrets, x64):
    carrier = Carrier(sites(task(), method))
    run(task(), method, carrier, rounds=3)
    assert all(len(secrets[kind]) >= 15 for kind in SECRETS)
    for kind in SECRETS:
        assert found_in(carrier.received, secrets[kind]) == 0
    plain = Carrier(sites(task(), method, None))
    before = len(secrets["value"])
    run(task(), method, plain, rounds=3, secure=None)
    assert found_in(plain.received, secrets["value"][before:]) >= 45  # the same search finds them all where sums are plain


def test_what_the_server_is_given_is_uniform_and_never_the_same(secrets, x64):
    """Over many runs of one exchange: every byte of the masked vectors, by its place, though the vectors stay the same."""
    task, method, masked = quadratic(), fm.ParallelSGDA(0.02, 0.02), []
    for _ in range(24):
        carrier = Carrier(sites(task, method))
        run(task, method, carrier, rounds=1)
        masked += [(site, message["input"]) for site, message in carrier.given("input")]
    assert len(set(secrets["fixed"])) == 5  # each site has one vector, which it sent 24 times
    rows = np.stack([vector for _, vector in masked]).view(np.uint8)
    assert len({row.tobytes() for row in rows}) == len(rows) == 120
    spread = 127.5 * np.sqrt(257 / 255 / 3) / np.sqrt(len(rows))  # of the mean of uniform bytes
    assert np.abs(rows.mean(axis=0) - 127.5).max() < 6 * spread
    true = np.stack([np.frombuffer(text, np.uint8) for text in secrets["fixed"]])
    assert np.abs(true.mean(axis=0) - 127.5).max() > 15 * spread  # what is hidden is far from that


def test_the_server_is_given_one_kind_of_share_of_each_site(x64):
    lost = lambda step, nth, site, request: "reply" if step == "input" and site == NAMES[2] else None
    carrier = Carrier(sites(quadratic(), fm.ParallelSGDA(0.02, 0.02)), lost)
    run(quadratic(), fm.ParallelSGDA(0.02, 0.02), carrier, rounds=2)
    told = [message["unmask"] for _, message in carrier.given("unmask")]
    assert len(told) == 8
    assert all(set(one["seeds"]) == {"0", "1", "3", "4"} and set(one["keys"]) == {"2"} for one in told)


@pytest.fixture(scope="module")
def exchange():
    """A run's requests to one site, in order, and such a site that was asked nothing yet. (In float64.)"""
    with worker.jax.enable_x64(True):
        carrier = Carrier(sites(regression(), SCAFFOLD))
        run(regression(), SCAFFOLD, carrier, rounds=1)
        first = {step: request for step, site, request in carrier.sent if site == NAMES[0]}
        yield first, lambda: sites(regression(), SCAFFOLD)[NAMES[0]]


def asked(site, request, **changes):
    message = wire.decode(request)
    reply = site.handle(wire.encode({**message, **changes}))
    return wire.decode(reply)


def kind_of(reply):
    return reply.get("failed", {}).get("kind")


def test_a_site_gives_no_vector_in_the_open(exchange, x64):
    requests, make = exchange
    site, message = make(), wire.decode(requests["input"])
    plain = {name: value for name, value in message.items() if name != "secure"}
    attempt = message["id"].rpartition("/")[0]
    assert kind_of(wire.decode(site.handle(wire.encode(plain)))) == "open"
    live = Carrier(workers := sites(regression(), SCAFFOLD))
    run(regression(), SCAFFOLD, live, rounds=1)  # now the reply is in the site's memory, and still is not told
    last = [wire.decode(request) for step, name, request in live.sent if step == "input" and name == NAMES[0]][-1]
    for id in (last["id"], last["id"].rpartition("/")[0], last["id"].split("/0/input")[0]):
        again = {name: value for name, value in last.items() if name != "secure"} | {"id": id}
        assert kind_of(wire.decode(workers[NAMES[0]].handle(wire.encode(again)))) == "open"
    hidden = {**last, "id": f"{attempt}#"} | {"secure": None}
    del hidden["secure"]
    assert kind_of(wire.decode(workers[NAMES[0]].handle(wire.encode(hidden)))) == "malformed"


def test_each_step_is_answered_once_and_again_with_the_same_bytes(x64):
    live = Carrier(workers := sites(regression(), SCAFFOLD))
    run(regression(), SCAFFOLD, live, rounds=1)
    site, sent = workers[NAMES[0]], {step: request for step, name, request in live.sent if name == NAMES[0]}
    got = {step: reply for step, name, reply in live.received if name == NAMES[0]}
    for step in STEPS:
        assert site.handle(sent[step]) == got[step]
    for fewer in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 5]):
        assert kind_of(asked(site, sent["unmask"], secure={"survivors": fewer})) == "otherwise"
    secure = wire.decode(sent["input"])["secure"]
    assert kind_of(asked(site, sent["input"], secure={**secure, "weights": np.ones(1)})) == "otherwise"
    message = wire.decode(sent["keys"])
    attempt = message["id"].rpartition("/")[0].rpartition("/")[0]
    assert kind_of(asked(site, sent["keys"], id=f"{attempt}/1/keys")) == "otherwise"  # one sum of an exchange is enough
    assert "keys" in asked(site, sent["keys"], id="other/0/0/0/keys")
    for step in STEPS[1:]:
        assert kind_of(wire.decode(site.handle(sent[step]))) == "keys"  # the secrets of the sum before are gone


def test_a_site_that_was_started_again_has_no_keys_to_tell(exchange, x64):
    requests, make = exchange
    for step in STEPS[1:]:
        assert kind_of(wire.decode(make().handle(requests[step]))) == "keys"


def test_a_site_without_secure_sums_says_so(exchange, x64):
    requests, _ = exchange
    site = sites(regression(), SCAFFOLD, None)[NAMES[0]]
    assert kind_of(wire.decode(site.handle(requests["keys"]))) == "malformed"


def test_a_site_keeps_to_its_own_least(x64):
    """Whatever the server thinks was agreed on."""
    live = Carrier(sites(regression(), SCAFFOLD))
    strict = sites(regression(), SCAFFOLD, Secure(least=5))[NAMES[0]]
    run(regression(), SCAFFOLD, live, rounds=1)
    sent = {step: request for step, name, request in live.sent if name == NAMES[0]}
    own = asked(strict, sent["keys"])["keys"]
    known = {**wire.decode(sent["shares"])["secure"]["keys"], "0": own}
    four = {name: keys for name, keys in known.items() if name != "3"}
    assert kind_of(asked(strict, sent["shares"], secure={"keys": four})) == "refuses"
    assert set(asked(strict, sent["shares"], secure={"keys": known})["shares"]) == {"1", "2", "3", "4"}


LEAVES = st.one_of(
    st.none(),
    st.integers(-3, 2**40),
    st.text(max_size=4),
    st.sampled_from([np.zeros(96, np.uint8), np.zeros(92, np.uint8), np.zeros(2), np.array([np.nan]), np.zeros(0, np.uint8)]),
)
TREES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("01a"), inner, max_size=3))
)
ASKED = st.one_of(TREES, st.dictionaries(st.sampled_from(["keys", "shares", "survivors", "weights", "max_norm"]), TREES))


@settings(max_examples=300, deadline=None)
@given(step=st.sampled_from([*STEPS, "other", ""]), told=ASKED, whose=st.one_of(TREES, st.just(Whose(5, 0, 0))))
def test_whatever_is_asked_of_a_secure_sum_has_an_answer(step, told, whose):
    site = _SITE.setdefault("site", sites(quadratic(), SCAFFOLD)[NAMES[0]])
    reply = wire.decode(site.handle(wire.encode({"id": f"s/0/0/0/{step}", "whose": whose, "secure": told})))
    assert kind_of(reply) in ("malformed", "refuses", "otherwise", "keys", None if step == "keys" else "malformed")


_SITE = {}
