"""Malformed messages between a coordinator and a network's sites, both ways: nothing crashes, and no row changes.

``FEDMINIMAX_FUZZ=10000`` tries so many of each kind; by default some hundreds.
"""

import copy
import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedminimax import wire
from fedminimax.engines.execution import Halted
from fedminimax.engines.federated.gossip_messages import PublicKey
from fedminimax.engines.federated.messages import Refused, Whose
from fedminimax.federation.round import Conditions

sys.path.insert(0, str(Path(__file__).parent))
from test_malformed import BYTES, altered, mutated
from test_malformed import often as usual
from test_neighbours import NAMES, SLIDING, Relay, engine, line, run, sites

often = settings(usual, max_examples=int(os.environ.get("FEDMINIMAX_FUZZ", "200")))


@pytest.fixture(scope="module")
def asked():
    """A site in the middle of its second round, with the last request and reply, and the coordinator's run."""
    with jax.enable_x64(True):
        relay, kept = Relay(sites()), []

        def after(call, name, reply):
            said = wire.decode(reply).get("gossip", {})
            if name == "south" and "sealed" in said:
                kept.append((wire.encode(relay.requests[-1][1]), reply, copy.deepcopy(relay._workers["south"]._node._memory)))
            return reply

        relay.after = after
        run(relay, rounds=2)
        request, reply, memory = kept[-1]
        assert wire.decode(request)["gossip"]["heard"]
        federation = engine(Relay(sites()))
        execution = federation.open(line().problem, federation.clients, SLIDING, Conditions())
        execution.held["south"] = wire.decode(request)["state"]
        return relay._workers["south"], memory, request, reply, execution


@often
@given(data=st.data())
def test_a_node_answers_whatever_it_is_sent_and_stays_as_it_is(asked, data):
    site, memory, request, reply, _ = asked
    node = site._node
    node._memory = copy.deepcopy(memory)
    sent = data.draw(st.one_of(BYTES, mutated(request), altered(request), altered(request, "gossip")))
    with jax.enable_x64(True):
        answer = wire.decode(site.handle(sent))
        if "failed" in answer or "hello" in answer:
            assert site._node is node
            assert node._memory.answered.id == memory.answered.id
            assert list(node._memory._states) == list(memory._states)
        site._node, node._memory = node, copy.deepcopy(memory)  # what was a request after all has been carried out
        assert site.handle(request) == reply


@often
@given(data=st.data())
def test_a_coordinator_refuses_whatever_is_not_the_reply(asked, data):
    _, _, request, reply, execution = asked
    id = wire.decode(request)["id"]
    sent = data.draw(st.one_of(BYTES, mutated(reply), altered(reply), altered(reply, "gossip"), st.just(reply)))
    with jax.enable_x64(True):
        try:
            found = execution._read("south", sent, id)
        except Refused:
            assert sent != reply
            return
    assert wire.decode(sent)["id"] == id
    assert (found.state, found.done, set(found.sealed)) == (execution.held["south"], None, {0, 2})


@pytest.fixture(scope="module")
def meeting():
    """A coordinator's run before its first round, and what carries its messages."""
    with jax.enable_x64(True):
        federation = engine(relay := Relay(sites()))
        return relay, federation.open(line().problem, federation.clients, SLIDING, Conditions())


ARRAY, KEY = np.array([1, 1]), np.zeros(32, np.uint8)
PARTS = st.sampled_from([1, 2, True, 1.0, "1", None, ARRAY, np.int32(1), KEY, KEY[:0], np.zeros(32), [1], Whose(4, 1, 6)])
KEYS = st.one_of(st.builds(PublicKey, PARTS, PARTS, PARTS, PARTS), st.builds(Whose, PARTS, PARTS, PARTS), PARTS)


@often
@given(data=st.data())
def test_a_coordinator_takes_keys_only(meeting, data):
    relay, execution = meeting
    execution._keys, sent = {}, []

    def after(call, name, reply):
        if name == "south" and "keys" in wire.decode(reply):
            made = st.builds(lambda key: wire.encode({**wire.decode(reply), "keys": key}), KEYS)
            sent.append(data.draw(st.one_of(BYTES, mutated(reply), altered(reply), made, st.just(reply))))
            return sent[-1]
        return reply

    relay.after = after
    with jax.enable_x64(True):
        try:
            execution._meet()
        except Halted:
            assert execution._keys == {}
            return
        key = execution._keys[1]
        assert sorted(execution._keys) == [*range(len(NAMES))]
        assert (type(key), type(key.number), key.number, key.key.shape, key.key.dtype) == (PublicKey, int, 1, (32,), np.uint8)


@pytest.mark.parametrize(
    "key", [Whose(4, 1, 6), PublicKey(ARRAY, KEY, KEY, KEY), PublicKey(1, 1, 2, 3)], ids=["other", "array", "parts"]
)
def test_what_only_looks_like_a_key_is_none(meeting, key, x64):
    relay, execution = meeting
    execution._keys = {}
    relay.after = lambda call, name, reply: wire.encode({**wire.decode(reply), "keys": key}) if name == "south" else reply
    with pytest.raises(Halted, match="south: a key that is not its own"):
        execution._meet()
