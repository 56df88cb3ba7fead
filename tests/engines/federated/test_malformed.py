"""Malformed messages, both ways: nothing crashes, nothing large is made of little, and no model or state changes.

``FEDMINIMAX_FUZZ=10000`` tries so many of each kind; by default some hundreds, and 10,000 damaged ones each way.
"""

import copy
import json
import os
import sys
import tracemalloc
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedminimax as fm
from fedminimax import wire
from fedminimax.engines.federated import Answers, InProcess, hello
from fedminimax.engines.federated.messages import Refused
from fedminimax.federation.client import Reply
from fedminimax.federation.guard import Guard
from fedminimax.federation.round import Conditions

sys.path.insert(0, str(Path(__file__).parent))
from faulty import SCAFFOLD, engine, regression, run, sites

MANY = int(os.environ.get("FEDMINIMAX_FUZZ", "400"))
DAMAGED = max(10_000, MANY)
often = settings(max_examples=MANY, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)

NAMES = ["fedminimax.players:Point", "Point", "fedminimax.engines.federated.messages:Whose", "os:system", "", "a" * 200]
DTYPES = [
    "float64",
    "float32",
    "int32",
    "uint32",
    "bool",
    "bfloat16",
    "O",
    "S9",
    "V8",
    "M8[ns]",
    "float65",
    ">f8",
    "i4,i4",
    "U4",
]
SIZES = st.one_of(
    st.integers(-3, 5), st.sampled_from([2**31, 2**40, 2**62, 10**30]), st.none(), st.floats(), st.text(max_size=2)
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
LEAVES = st.one_of(
    st.builds(lambda v: {"v": v}, SCALARS),
    st.builds(lambda f: {"f": f}, st.one_of(st.sampled_from(["inf", "nan", "-inf", "x", "1e999"]), SCALARS)),
    st.builds(lambda a, s: {"a": a, "s": s}, st.sampled_from(DTYPES), st.one_of(st.lists(SIZES, max_size=4), SCALARS)),
    SCALARS,
)
NODES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda d: {"d": d}, st.one_of(st.dictionaries(st.text(max_size=6), inner, max_size=3), inner)),
        st.builds(lambda kind, c: {kind: c}, st.sampled_from(["l", "t", "c", "v", "q"]), st.lists(inner, max_size=3)),
        st.builds(lambda n, c: {"n": n, "c": c}, st.sampled_from(NAMES), st.lists(inner, max_size=4)),
    ),
    max_leaves=8,
)


def framed(header, tail, length=None):
    text = json.dumps(header).encode()
    return b"FMX1" + (len(text) if length is None else length).to_bytes(8, "little") + text + tail


BYTES = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda tail: b"FMX1" + tail, st.binary(max_size=60)),
    st.builds(framed, NODES, st.binary(max_size=40)),
    st.builds(framed, NODES, st.binary(max_size=8), st.integers(0, 2**64 - 1)),
)


def mutated(message):
    """Ways in which one message may be damaged: a byte changed, its end cut off, something put in or taken out."""
    place = st.integers(0, len(message) - 1)
    return st.one_of(
        st.builds(lambda k, b: message[:k] + bytes([b]) + message[k + 1 :], place, st.integers(0, 255)),
        st.builds(lambda k: message[:k], place),
        st.builds(lambda k, more: message[:k] + more + message[k:], place, st.binary(min_size=1, max_size=9)),
        st.builds(lambda k, n: message[:k] + message[k + n :], place, st.integers(1, 40)),
    )


def altered(message, within=None):
    """The same message with one of its fields, or of those within one, replaced by whatever else can be sent."""
    values, tree = st.one_of(SCALARS, *(st.just(v) for v in ([], {}, (), [None], {"a": []}, np.zeros(3)))), wire.decode(message)
    if within is None:
        fields = st.sampled_from([*tree, "hello", "parts", "failed"])
        return st.builds(lambda field, value: wire.encode({**tree, field: value}), fields, values)
    inner = tree[within]
    change = lambda field, value: wire.encode({**tree, within: {**inner, field: value}})
    return st.builds(change, st.sampled_from([*inner, "kind"]), values)


@often
@given(BYTES)
def test_bytes_are_read_or_refused_and_take_no_more_room_than_they_are(data):
    tracemalloc.start()
    try:
        wire.decode(data)
    except fm.InputError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 10**6


@pytest.mark.parametrize(
    "header",
    [
        {"a": "float64", "s": [2**30]},
        {"a": "float64", "s": [-1]},
        {"a": "float64", "s": [2**32, 2**32]},
        {"a": "float64", "s": [0, 2**60]},
        {"a": "O", "s": [1]},
        {"a": "S100000000", "s": []},
        {"v": [1, 2]},
        {"n": "builtins:exec", "c": [{"v": "1"}]},
        [],
        {"l": 5},
        {"s": [1]},
    ],
    ids=str,
)
def test_descriptions_of_what_is_not_there_are_refused(header):
    if header != {"s": [1]}:  # which is an empty tuple
        with pytest.raises(fm.InputError):
            wire.decode(framed(header, bytes(8)))
    with pytest.raises(fm.InputError):
        wire.decode(b"FMX1" + (2**40).to_bytes(8, "little") + b"{}")
    deep = b'{"l":[' * 100_000
    with pytest.raises(fm.InputError):
        wire.decode(b"FMX1" + len(deep).to_bytes(8, "little") + deep)


class Keeping(InProcess):
    """Keeps the last request and reply of a site."""

    def ask(self, requests, timeout):
        answers = super().ask(requests, timeout)
        if "letters" in wire.decode(requests["north"]):
            self.request, self.reply = requests["north"], answers.replies["north"]
        return answers


@pytest.fixture(scope="module")
def asked():
    """A site that has answered two exchanges, with the last request and reply."""
    with jax.enable_x64(True):
        carrier = Keeping(sites(regression(), SCAFFOLD))
        run(regression(), carrier, SCAFFOLD, rounds=2)
        return carrier._workers["north"], carrier.request, carrier.reply


@often
@given(data=st.data())
def test_a_site_answers_whatever_it_is_sent_and_stays_as_it_is(asked, data):
    site, request, reply = asked
    sent, before = data.draw(st.one_of(BYTES, mutated(request), altered(request))), copy.deepcopy(site._memory)
    with jax.enable_x64(True):
        answer = wire.decode(site.handle(sent))
        if "failed" in answer or "hello" in answer or "parts" in answer:
            assert (site._memory.run, site._memory.answered.id) == (before.run, before.answered.id)
            assert list(site._memory._states) == list(before._states)
        site._memory = before  # what was a request after all has been carried out
        assert site.handle(request) == reply


def damaged(message, count, seed):
    """Yield so many copies of a message that are damaged as :func:`mutated` has it, without what hypothesis takes for each."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        at, how, length = int(rng.integers(len(message))), int(rng.integers(4)), int(rng.integers(1, 40))
        head, tail = message[:at], message[at:]
        put = (rng.bytes(1) + tail[1:], b"", rng.bytes(length) + tail, tail[length:])[how]
        yield head + put


def test_ten_thousand_damaged_requests_change_no_state_of_a_site(asked):
    site, request, reply = asked
    before, refused = copy.deepcopy(site._memory), 0
    with jax.enable_x64(True):
        for sent in damaged(request, DAMAGED, 1):
            answer = wire.decode(site.handle(sent))
            if "failed" not in answer:  # it was a request after all
                site._memory = copy.deepcopy(before)
                continue
            refused += 1
            assert (site._memory.run, site._memory.answered.id) == (before.run, before.answered.id)
            assert list(site._memory._states) == list(before._states)
        assert site.handle(request) == reply
    assert refused > DAMAGED / 2


def test_ten_thousand_damaged_replies_are_refused_or_have_the_right_form(asked, server):
    _, request, reply = asked
    round_, execution = server
    id, right = wire.decode(request)["id"], wire.decode(reply)["replies"]
    execution.held["north"] = wire.decode(request)["state"]
    expected = Reply(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), right[0]["value"]))
    refused = 0
    with jax.enable_x64(True):
        for sent in damaged(reply, DAMAGED, 2):
            try:
                state, [found] = round_._read("north", sent, id, 1, expected, Guard())
            except Refused:
                refused += 1
                continue
            assert state in (id, execution.held["north"])
            assert jax.tree.structure(found.value) == jax.tree.structure(right[0]["value"])
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.value))
    assert refused > DAMAGED / 2


@pytest.fixture(scope="module")
def server():
    """A round of a run at the server."""
    with jax.enable_x64(True):
        task = regression()
        federation = engine(InProcess(sites(task, SCAFFOLD)))
        problem, clients = task.problem.bind(federation.clients)
        execution = federation.open(problem, clients, SCAFFOLD, Conditions())
        return execution.next_round(), execution


@often
@given(data=st.data())
def test_a_server_refuses_whatever_is_not_the_reply(asked, server, data):
    _, request, reply = asked
    round_, execution = server
    id, right = wire.decode(request)["id"], wire.decode(reply)["replies"]
    execution.held["north"] = wire.decode(request)["state"]
    expected = Reply(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), right[0]["value"]))
    failure = wire.encode({"id": id, "failed": {"kind": "error", "type": "ValueError"}})
    ways = BYTES, mutated(reply), altered(reply), altered(failure), altered(failure, "failed"), st.just(reply)
    sent = data.draw(st.one_of(*ways))
    with jax.enable_x64(True):
        try:
            state, [found] = round_._read("north", sent, id, 1, expected, Guard())
        except Refused:
            assert sent != reply
            return
    # What passes has the shapes and types of a reply, and the id of the request.
    assert jax.tree.structure(found.value) == jax.tree.structure(right[0]["value"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.value))
    assert (wire.decode(sent)["id"], state in (id, execution.held["north"])) == (id, True)


@often
@given(data=st.data())
def test_what_a_site_says_of_itself_is_read_or_refused(asked, data):
    said = asked[0].handle(wire.encode({"id": "hello/0", "hello": True}))
    sent = data.draw(st.one_of(BYTES, mutated(said), altered(said), altered(said, "hello")))

    class Answering:
        def ask(self, requests, timeout):
            return Answers({"north": sent}, {})

    with mock.patch.object(hello.secrets, "token_hex", return_value="0"):
        found, failures = hello.ask(Answering(), ("north",), 1.0)
    assert set(found) | set(failures) == {"north"}
    for one in found.values():
        assert one.data.size > 0
        assert isinstance(one.kind, tuple)
