"""``fedminimax federation up`` as it is typed: ended by the system, killed, and gone on with to the report."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import federations
import numpy as np
import psutil
import pytest
from federations import until
from rich.console import Console

import fedminimax as fm
from fedminimax.commands.federation import make_kits
from fedminimax.commands.federation_trial import up
from fedminimax.data import datasets
from fedminimax.data.silos import silos
from fedminimax.errors import InputError
from fedminimax.flare.agreement import Agreement
from fedminimax.flare.kits import Kits
from fedminimax.flare.study import study_of
from fedminimax.testing.contract import close

nvflare = pytest.importorskip("nvflare")


def test_up_is_terminated_and_killed_and_goes_on_to_the_report(tmp_path):
    agreement = federations.write(tmp_path, "ScaffPD", rounds=40, pause=0.5)
    reached = []
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = typed(tmp_path)
        reach(tmp_path, 1 + max(reached, default=0))
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 10  # server and coordinator with their jobs, three sites with their workers
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        until(lambda family=family: not [one for one in family if alive(one)], 30, "the end of all processes")
        reached.append(max(federations.models(tmp_path)))
        if number == signal.SIGTERM:
            assert process.returncode == 130
            assert f"stopped after round {reached[-1]} of 40; the same command goes on" in said
    (tmp_path / "hurry").touch()
    console = Console(record=True, width=120)
    page = up(tmp_path, 3, 40, 90, console)
    said = console.export_text(clear=False)
    assert all(word in said for word in (*federations.SITES, "answered", "round 40 of 40"))
    assert "ScaffPD" in page.read_text()
    assert json.loads((tmp_path / "run" / "outcome.json").read_text()) == {"status": "finished", "rounds": 40, "why": ""}
    compare(tmp_path, agreement)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """As `fedminimax federation up trial --rounds 2` where there is no folder yet: the digits, and a study of its own."""
    folder, console = tmp_path_factory.mktemp("f") / "trial", Console(record=True, width=120)
    page = up(folder, 3, 2, 90, console)
    return folder, Agreement.read(folder / "federation.toml"), page, console.export_text()


def test_up_begins_with_an_empty_folder(begun):
    folder, agreement, page, said = begun
    assert "ScaffPD" in page.read_text()
    assert "round 2 of 2" in said
    assert agreement.sites == ["site-1", "site-2", "site-3"]
    found, study = federations.result_of(folder / "run"), study_of(agreement)
    digits = silos(datasets.load("digits"), 3, 0.3, seed=0).train
    wanted = fm.run(study.problem, digits, study.algorithm, rounds=2, progress=False)
    close((found.x, found.w), (wanted.x, wanted.w), 1e-4)
    assert not np.allclose(found.w, np.full(3, 1 / 3), atol=1e-3)


def typed(folder):
    command = [sys.executable, "-m", "fedminimax", "federation", "up", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def reach(folder, round):
    path = folder / "models.txt"
    until(lambda: path.exists() and max(federations.models(folder), default=0) >= round, 90, f"round {round}")


def alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def compare(folder, agreement):
    """The rounds of all three runs are the simulator's of one, and so are the metrics, of which the sites have sent sums."""
    result, replay = federations.result_of(folder / "run"), federations.Models()
    wanted = federations.simulated(agreement, observers=[replay])
    federations.same(result.state, wanted.state)
    federations.same(federations.models(folder), replay.seen)
    losses = [name for name in wanted.history if name.startswith("losses")]
    assert losses
    for name in losses:
        federations.same(result.history[name], wanted.history[name])


def test_a_port_that_is_taken_and_rows_that_are_not_there_are_said_before_anything_starts(begun):
    folder, agreement, *_ = begun
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the trial may not have timed out yet
        other.bind(("127.0.0.1", agreement.server.port))
        other.listen()
        with pytest.raises(InputError, match=f"Port {agreement.server.port} is taken"):
            up(folder, 3, 2, 50, Console(quiet=True))
    kits = newest(folder, agreement)
    for path in (kits.site("site-2") / "local" / "fedminimax", folder / "sites" / "site-2"):
        os.unlink(path / "rows.npz")
    with pytest.raises(InputError, match=r"site-2: there is no file rows\.npz"):
        up(folder, 3, 2, 50, Console(quiet=True))
    assert newest(folder, agreement).folder == kits.folder  # nothing that is in kits has changed
    follow(folder, agreement, kits)


def newest(folder, agreement):
    return Kits(agreement, sorted(folder.glob("kits/trial/prod_*"))[-1])


def follow(folder, agreement, kits):
    """Kits are made anew, by the same authority, where the port, the host or the sites have changed; what was begun goes on."""

    def anew(old, new):
        path = folder / "federation.toml"
        path.write_text(path.read_text().replace(old, new))
        made = make_kits(folder, Console(quiet=True))
        assert (made.site("site-1") / "startup" / "rootCA.pem").read_bytes() == authority
        return made, (made.site("site-1") / "startup" / "fed_client.json").read_text()

    authority = (kits.site("site-1") / "startup" / "rootCA.pem").read_bytes()
    state = Path("local", "fedminimax", "state")
    (kits.site("site-2") / state).mkdir(exist_ok=True)
    (kits.site("site-2") / state / "begun").touch()
    moved, client = anew(f"port = {agreement.server.port}", "port = 28999")
    assert moved.folder != kits.folder
    assert '"localhost:28999"' in client
    assert (moved.server / "run" / "result.fmx").exists()
    assert (moved.site("site-2") / state / "begun").exists()
    path = folder / "federation.toml"
    path.write_text(path.read_text().replace('host = "localhost"', 'host = "fl.example.org"'))
    more, client = anew('"site-3"]', '"site-3", "four"]')
    assert '"fl.example.org:28999"' in client
    assert (more.site("four") / "startup" / "client.key").exists()
    assert not (more.server / "run").exists()  # which had three sites
