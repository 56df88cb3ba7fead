"""A worker in a process of its own: it is killed in the middle of a round, comes back, and nothing is lost but that reply."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.engines.federated import InProcess
from fedminimax.engines.federated.resident import Failed, Processes, Resident, receive, send, serve
from fedminimax.testing.contract import close

sys.path.insert(0, str(Path(__file__).parent))
from faulty import SCAFFOLD, engine, regression, replayed, run, sites

HERE = Path(__file__).parent
ECHO = """
import sys, time
from fedminimax.engines.federated.resident import serve
class Echo:
    def handle(self, request):
        if request == b"die":
            import os; os.kill(os.getpid(), 9)
        time.sleep(30 if request == b"hang" else 0)
        return bytes(request)[::-1]
serve(sys.argv[1], Echo(), most=1000)
"""


class Echo:
    def handle(self, request):
        return bytes(request)[::-1]


@pytest.fixture
def serving(tmp_path):
    """A socket that a thread of this process serves."""
    path = tmp_path / "s"
    threading.Thread(target=serve, args=(path, Echo()), kwargs={"most": 1000}, daemon=True).start()
    while not path.exists():
        time.sleep(0.01)
    return path


def talk(path, data, then=b""):
    """Send raw bytes, and return what comes back."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(data)
        if then:
            connection.sendall(then)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionResetError):  # it was closed with something unread
            while part := connection.recv(1000):
                found += part
        return found


def test_frames_are_answered_and_nonsense_is_not(serving):
    frame = lambda message: len(message).to_bytes(8, "little") + message
    assert oct(serving.stat().st_mode)[-3:] == "600"
    assert talk(serving, frame(b"abc")) == frame(b"cba")
    assert talk(serving, frame(b"abc"), frame(b"")) == frame(b"cba") + frame(b"")
    assert talk(serving, b"abc") == b""  # no length
    assert talk(serving, (10).to_bytes(8, "little") + b"abc") == b""  # less than its length
    assert talk(serving, (2**60).to_bytes(8, "little") + b"abc") == b""  # more than may be
    assert talk(serving, frame(b"abc")) == frame(b"cba")  # and it is still there


def test_a_frame_takes_no_room_before_its_bytes_are_there():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, b"x" * 3000)
        assert receive(theirs, 3000) == b"x" * 3000
        ours.sendall((2**31).to_bytes(8, "little"))
        ours.close()
        assert receive(theirs) is None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, b"x" * 3000)
        with pytest.raises(Failed, match="too long"):
            receive(theirs, 2999)


def test_a_process_that_dies_is_started_anew_and_one_that_hangs_is_killed(tmp_path):
    resident = Resident([sys.executable, "-c", ECHO, str(tmp_path / "s")], tmp_path / "s", pause=0.1, hung_after=0.2)
    transport = Processes({"a": resident, "b": Resident(["/no/such/program"], tmp_path / "b", start_within=1.0)})
    try:
        answers = transport.ask({"a": b"abc", "b": b"abc", "c": b"abc"}, 60)
        assert answers.replies == {"a": b"cba"}
        assert [answers.failures[site].kind for site in "bc"] == ["gone", "gone"]
        first = resident.pid
        assert transport.ask({"a": b"die"}, 60).failures["a"].kind == "gone"
        assert transport.ask({"a": b"abc"}, 60).replies == {"a": b"cba"}
        assert resident.pid not in (None, first)
        assert transport.ask({"a": b"hang"}, 0.3).failures["a"].kind == "timeout"
        assert resident.pid is not None
        assert transport.ask({"a": b"abc"}, 0.3).failures["a"].kind == "timeout"  # and it is killed: the next one is answered
        assert transport.ask({"a": b"abc"}, 60).replies == {"a": b"cba"}
    finally:
        transport.close()
    assert resident.pid is None


class Mixed(InProcess):
    """Two sites in this process, and one in its own."""

    def __init__(self, workers, resident):
        super().__init__(workers)
        self.apart = Processes({"south": resident})

    def ask(self, requests, timeout):
        answers = super().ask({site: r for site, r in requests.items() if site != "south"}, timeout)
        if "south" in requests:
            more = self.apart.ask({"south": requests["south"]}, timeout)
            answers.replies.update(more.replies)
            answers.failures.update(more.failures)
        return answers


def test_a_worker_is_killed_in_the_middle_of_rounds_and_comes_back_with_its_state(tmp_path, x64):
    task, trigger = regression(), tmp_path / "die"
    command = [sys.executable, "-m", "fedminimax.engines.federated.resident", str(tmp_path / "s"), "fragile_site:fragile"]
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    command += ["1", str(tmp_path / "south"), str(trigger)]
    resident = Resident(command, tmp_path / "s", environment={"PYTHONPATH": path})
    federation = engine(Mixed(sites(task, SCAFFOLD), resident), timeout=120.0, probe=120.0)

    class Killing:
        def on_rounds(self, watched):
            if watched.round == 3:
                trigger.touch()  # in its next exchange, after it has written what it learnt
            if watched.round == 9 and resident.pid is not None:
                os.kill(resident.pid, signal.SIGKILL)  # between two

    try:
        found = run(task, None, SCAFFOLD, rounds=16, federation=federation, observers=Killing())
    finally:
        resident.close()
    there = np.asarray(found.trace.answers[0])
    assert there[:, [0, 2]].all()
    assert there[:3, 1].all()
    assert not there[3, 1]
    assert not there[9, 1]
    assert there[-1, 1]
    again = replayed(task, SCAFFOLD, found)
    close(found.state, again.state, 1e-8)
    whole = fm.run(task.problem, task.clients, SCAFFOLD, rounds=found.rounds, seed=3, progress=False)
    assert not np.allclose(found.x, whole.x, atol=1e-8)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a long path is an error")
def test_a_socket_in_a_folder_with_a_long_path(tmp_path):
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    folder.mkdir(parents=True)
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    with contextlib.closing(Resident([sys.executable, str(script), str(folder / "s")], folder / "s")) as resident:
        assert resident.ask(b"abc", 60) == b"cba"
    assert len(str(folder / "s")) > 108
