"""The two ends of FLARE, each against a stand-in for FLARE's network: what is passed on, what is refused, what is said."""

import json
import threading
import time
import weakref
from concurrent.futures import wait
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from fedminimax.engines.federated.group import Event
from fedminimax.engines.federated.resident import Failed
from fedminimax.engines.federated.transport import Failure
from fedminimax.flare import labels
from fedminimax.flare.agreement import Agreement
from fedminimax.flare.payload import taken
from fedminimax.flare.site import Site
from fedminimax.flare.transport import FlareTransport
from fedminimax.flare.watch import Standing


def ok(payload, **headers):
    return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK, **headers}, payload)


def code(name, error=None):
    return new_cell_message({MessageHeaderKey.RETURN_CODE: name, MessageHeaderKey.ERROR: error}, None)


class Cell:
    """FLARE's network, as a function of site, topic and payload."""

    def __init__(self, answer):
        self.answer, self.sent = answer, []

    def send_request(self, *, channel, topic, target, request, timeout, optional, abort_signal):
        assert channel == labels.CHANNEL
        assert request.get_header(labels.TIMEOUT) == timeout
        self.sent.append((target, topic))
        return self.answer(target, topic, request, abort_signal)


def test_one_group_call_with_what_each_site_said():
    said = {
        "a": ok(memoryview(b"yes")),
        "b": code(ReturnCode.TIMEOUT),
        "c": code(ReturnCode.COMM_ERROR, "stream forwarding to c failed: target_unreachable"),
        "d": ok("no bytes"),
        "e": ok(b"", **{labels.FAILURE: "error", labels.TEXT: "the worker failed (ValueError)"}),
        "f": ok(b"", **{labels.FAILURE: "a word of its own"}),
        "g": code(ReturnCode.UNAUTHENTICATED),
        "h": code(ReturnCode.COMM_ERROR, "blob_cb threw ValueError: row 7"),
    }
    transport = FlareTransport(Cell(lambda site, *_: said[site]), list(said))
    answers = transport.ask(dict.fromkeys(said, b"?"), 5.0)
    assert answers.replies == {"a": b"yes"}
    kinds = {site: failure.kind for site, failure in answers.failures.items()}
    assert kinds == {
        "b": "timeout", "c": "gone", "d": "malformed", "e": "error", "f": "malformed", "g": "refused", "h": "error"
    }  # fmt: skip
    assert "row 7" not in str(answers.failures)


def received(contents):
    """A message with bytes as FLARE hands them out, and a way to see whether anybody still holds them."""

    class Watched(bytearray):  # of which there are weak references
        pass

    room = Watched(contents)
    return ok(memoryview(room)), weakref.ref(room)


def test_flare_which_keeps_what_it_received_for_a_minute_keeps_no_bytes_of_it():
    said, held = received(b"a large reply")
    transport = FlareTransport(Cell(lambda *_: said), ["a"])
    reply = transport.ask({"a": b"?"}, 5.0).replies["a"]
    assert reply == b"a large reply"
    assert reply.obj is held()  # and it was not copied
    del reply
    assert held() is None

    asked, held = received(b"a large request")
    asked.headers.update(request().headers)
    site = site_of(lambda payload, timeout: bytes(payload))
    assert settled(site._ask(asked)).payload == b"a large request"
    until = time.monotonic() + 10
    while held() is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert held() is None
    assert site._latest is None  # which would hold the reply until the next


def test_a_view_of_a_part_is_copied_and_others_keep_theirs():
    whole = bytearray(b"before, after")
    part = memoryview(whole)[8:]
    assert taken(ok(part)) == b"after"
    assert part == b"after"
    assert taken(ok(memoryview(np.arange(2, dtype=np.uint8)))) == bytes([0, 1])


def test_all_are_asked_at_once_and_nobody_is_waited_for_longer():
    together = threading.Barrier(3)

    def answer(site, topic, request, cut):
        together.wait(10)  # breaks unless all three are asked at the same time
        while site == "late" and not cut.triggered:
            time.sleep(0.01)
        return ok(request.payload)

    transport = FlareTransport(Cell(answer), ["a", "b", "late"])
    answers = transport.ask({site: site.encode() for site in transport.sites}, 0.5)
    assert answers.replies == {"a": b"a", "b": b"b"}
    assert answers.failures["late"].kind == "timeout"


def test_who_failed_is_first_asked_whether_it_is_there():
    there = False

    def answer(site, topic, request, cut):
        if site == "b" and not there:
            return code(ReturnCode.TIMEOUT)
        return ok(b"")

    cell = Cell(answer)
    transport = FlareTransport(cell, ["a", "b"])
    ask = lambda: transport.ask({"a": b"?", "b": b"?"}, 5.0)
    assert ask().failures["b"].kind == "timeout"
    cell.sent.clear()
    assert ask().failures["b"].kind == "gone"
    assert sorted(cell.sent) == [("a", labels.ASK), ("b", labels.HELLO)]
    there = True
    cell.sent.clear()
    assert set(ask().replies) == {"a", "b"}
    assert sorted(cell.sent) == [("a", labels.ASK), ("b", labels.ASK), ("b", labels.HELLO)]
    cell.sent.clear()
    ask()
    assert sorted(cell.sent) == [("a", labels.ASK), ("b", labels.ASK)]


def test_a_job_that_is_aborted_waits_for_nobody():
    from nvflare.apis.signal import Signal

    abort, held = Signal(), threading.Event()

    def answer(site, topic, request, cut):
        while site == "hangs" and not cut.triggered:
            held.set()
            time.sleep(0.01)
        return ok(b"")

    transport = FlareTransport(Cell(answer), ["a", "hangs"], abort=abort, patience=0.1)
    threading.Thread(target=lambda: held.wait(10) and abort.trigger(True)).start()
    answers = transport.ask({"a": b"?", "hangs": b"?"}, 1e6)
    assert set(answers.replies) == {"a"}
    assert answers.failures["hangs"].kind == "timeout"


class Worker:
    """A site's worker, as a function."""

    def __init__(self, answer):
        self.answer = answer

    def ask(self, request, timeout):
        return self.answer(request, timeout)


def site_of(answer):
    site = Site()
    site._worker, site._study = Worker(answer), "study"
    site._awake.set_result(b"")
    return site


def request(payload=b"?", origin="server.job", study="study", timeout=5.0):
    return new_cell_message({MessageHeaderKey.ORIGIN: origin, labels.STUDY: study, labels.TIMEOUT: timeout}, payload)


def settled(answer):
    return answer.result(10) if hasattr(answer, "result") else answer


def test_bytes_go_to_the_worker_and_back():
    site = site_of(lambda payload, timeout: bytes(payload) + str(timeout).encode())
    reply = settled(site._ask(request(memoryview(b"x"), timeout=2.5)))
    assert reply.payload == b"x2.5"
    assert reply.get_header(labels.FAILURE) is None
    assert site._hello(request()).get_header(labels.FAILURE) is None


def test_a_site_is_there_when_its_worker_is():
    starts, go = [], threading.Event()

    def answer(payload, timeout):
        starts.append(payload)
        if len(starts) == 1:
            raise Failed(Failure("gone", "its worker cannot be started"))
        go.wait(30)
        return b""

    site = Site()
    site._worker, site._study = Worker(answer), "study"
    hello = lambda: site._hello(request()).get_header(labels.TEXT)
    site._wake()
    wait([site._awake])
    assert hello() == labels.NOT_STARTING
    assert hello() == labels.NOT_STARTING  # also while it is started again
    go.set()
    wait([site._awake])
    assert hello() is None


def started(folder, worker):
    """A site of a federation's folder, started as its FLARE client does, and what it says when it is greeted."""
    from fedminimax.commands import federation

    federation.init(folder, ["north", "south"])
    site = Site(worker=worker)
    site._start(folder / "sites" / "north")
    study = Agreement.read(folder / "federation.toml").fingerprint
    return site, lambda: site._hello(request(study=study)).get_header(labels.TEXT)


def test_a_worker_that_ends_before_it_is_there_is_said_to_the_server(tmp_path):
    site, hello = started(tmp_path / "f", "no_such_module")
    try:
        assert hello() == "its worker is not there yet"
        until = time.monotonic() + 60
        while hello() != labels.NOT_STARTING and time.monotonic() < until:
            time.sleep(0.05)
        assert [hello() for _ in range(3)] == [labels.NOT_STARTING] * 3
    finally:
        site.close()


def test_a_site_whose_files_are_wrong_says_so_and_stays(tmp_path):
    site = Site()
    site._start(tmp_path)
    assert site._hello(request()).get_header(labels.TEXT) == labels.NOT_STARTING
    assert settled(site._ask(request())).get_header(labels.FAILURE) == "gone"


def test_where_to_look_is_said_where_a_worker_does_not_start(tmp_path):
    from fedminimax.commands.federation_trial import look_into

    kits = SimpleNamespace(site=lambda name: tmp_path / name)
    standing = {"north": {"why": labels.NOT_STARTING}, "south": {"why": ""}}
    trial = SimpleNamespace(kits=kits, sites=["north", "south", "west"], standing=lambda: standing)
    assert look_into(trial) == [f"north does not start: see {tmp_path / 'north' / 'local' / 'fedminimax' / 'worker.log'}"]


def test_the_table_of_a_trial_says_answered_slow_and_gone(tmp_path):
    """From what the engine tells of each site to the line that is shown."""
    from rich.console import Console

    from fedminimax.commands.federation_trial import shown

    names = ["north", "south", "west", "east", "later"]
    standing = Standing(names, tmp_path / "sites.json")
    for site, what, text in [
        ("north", "answered", ""),
        ("south", "answered", ""),
        ("south", "timeout", "it did not answer in time"),
        ("west", "gone", "it cannot be reached"),
        ("east", "gone", "it cannot be reached"),
        ("east", "back", ""),
        ("north", "answered", ""),
    ]:
        standing(Event(site, what, text))
    standing.write()
    told = {"round": 3, "rounds": 9, "numbers": {"accuracy/mean": 0.75, "accuracy/worst": 0.5}}
    kept = lambda: json.loads((tmp_path / "sites.json").read_text())
    trial = SimpleNamespace(sites=names, standing=kept, progress=lambda: told)
    console = Console(record=True, width=120)
    console.print(shown(trial, time.monotonic()))
    title, *rows = console.export_text().splitlines()
    assert title == "round 3 of 9, 0 s, accuracy/worst 0.5, accuracy/mean 0.75"
    cells = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows if "│" in row]
    assert cells == [
        ["north", "answered", "2", "0", ""],
        ["south", "slow", "1", "1", "it did not answer in time"],
        ["west", "gone", "0", "1", "it cannot be reached"],
        ["east", "answered", "0", "1", ""],
        ["later", "starting", "0", "0", ""],
    ]


@pytest.mark.parametrize("wrong", [{"origin": "site-2"}, {"origin": "site-2.job"}, {"origin": "server"}, {"study": "other"}])
def test_others_than_the_servers_jobs_and_other_studies_are_refused(wrong):
    asked = []
    site = site_of(lambda *given: asked.append(given))
    for answer in (site._ask, site._hello):
        assert settled(answer(request(**wrong))).get_header(labels.FAILURE) == "refused"
    assert asked == []


def test_what_goes_wrong_is_a_category_without_its_text():
    def fail(payload, timeout):
        raise Failed(Failure("timeout", "its worker did not answer in time")) if payload == b"slow" else ValueError("row 7")

    site = site_of(fail)
    for payload, kind in ((b"slow", "timeout"), (b"bad", "error")):
        reply = settled(site._ask(request(payload)))
        assert reply.get_header(labels.FAILURE) == kind
        assert "row 7" not in str(reply.headers)


def test_requests_do_not_pile_up_at_a_worker_that_hangs():
    go = threading.Event()
    site = site_of(lambda payload, timeout: go.wait(30) and b"done")
    waiting = [site._ask(request()) for _ in range(6)]
    go.set()
    said = [settled(answer).get_header(labels.FAILURE) for answer in waiting]
    assert said == [None] * 4 + ["refused"] * 2
    assert settled(site._ask(request())).payload == b"done"
