"""Malformed messages between a coordinator and a network's sites, both ways: nothing crashes, and no row changes.

``FEDMINIMAX_FUZZ=10000`` tries so many of each kind; by default some hundreds.
"""

import copy
import os
import sys
from pathlib import Path

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedminimax import wire
from fedminimax.engines.federated.messages import Refused
from fedminimax.federation.round import Conditions

sys.path.insert(0, str(Path(__file__).parent))
from test_malformed import BYTES, altered, mutated
from test_malformed import often as usual
from test_neighbours import SLIDING, Relay, engine, line, run, sites

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
