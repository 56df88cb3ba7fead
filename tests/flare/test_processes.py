"""Federations of real processes on this machine, over FLARE with mutual TLS: the simulator's run, whoever dies meanwhile."""

import json
import os
import signal
import socket
import ssl

import pytest

pytest.importorskip("nvflare")

import federations
from rich.console import Console

from fedminimax.commands.federation import up
from fedminimax.flare.trial import Party

MANY = 100_000  # rounds, more than anybody waits for: a test ends the run when it has seen enough


@pytest.mark.parametrize("method", ["CDMAGE", "ScaffPD"])
def test_a_federation_is_the_simulators_run(tmp_path, method):
    agreement = federations.write(tmp_path, method)
    console = Console(record=True, width=120)
    page = up(tmp_path, 3, 5, 50, console)
    assert all(word in console.export_text(clear=False) for word in (*federations.SITES, "answered"))
    assert method in page.read_text()
    assert json.loads((tmp_path / "run" / "outcome.json").read_text()) == {"status": "finished", "rounds": 5, "why": ""}
    result, wanted = federations.result_of(tmp_path / "run"), federations.simulated(agreement)
    federations.same(result.state, wanted.state)
    losses = [name for name in wanted.history if name.startswith("losses")]
    assert losses
    for name in losses:  # of which the sites have sent sums
        federations.same(result.history[name], wanted.history[name])


def test_a_worker_and_a_whole_site_are_killed_and_come_back(tmp_path):
    kits = federations.kits_of(tmp_path, "Scaffold", MANY)
    with federations.running(kits) as trial:
        federations.more(trial, "two")
        (worker,) = trial.sites["two"].descendants()
        os.kill(worker.pid, signal.SIGKILL)
        federations.more(trial, "two")
        assert worker.pid not in [process.pid for process in trial.sites["two"].descendants()]

        trial.sites["three"].kill()
        federations.until(lambda: trial.standing()["three"]["stands"] in ("slow", "gone"), 20, "the site's absence")
        federations.more(trial, "one")  # the others go on
        trial.sites["three"].start()
        federations.more(trial, "three")
        (tmp_path / "enough").touch()
        assert trial.wait(20)["status"] == "stopped"
    result = federations.result_of(trial.run)
    assert trial.standing()["one"]["failed"] == 0
    assert trial.standing()["three"]["failed"] > 0
    federations.same(result.state, federations.simulated(kits.agreement, result).state)


def test_the_server_is_killed_and_a_new_job_goes_on_from_the_checkpoint(tmp_path):
    kits = federations.kits_of(tmp_path, "Scaffold", MANY)
    with federations.running(kits) as trial:
        federations.more(trial, "one", 50)
        trial.remember()
        (job,) = trial.server.descendants()
        os.kill(job.pid, signal.SIGKILL)
        trial.server.kill()
        trial.server.start()
        trial.submit()
        federations.until(lambda: "Going on after" in (trial.run / "log.txt").read_text(), 40, "the job's return")
        federations.more(trial, "one")
        (tmp_path / "enough").touch()
        assert trial.wait(20)["status"] == "stopped"
    result = federations.result_of(trial.run)
    federations.same(result.state, federations.simulated(kits.agreement, result).state)


def greeted(port, context):
    """Tell whether the server greets whoever connects, as HTTP/2 wants it; otherwise it hangs up."""
    try:
        plain = socket.create_connection(("localhost", port), timeout=2)
        with context.wrap_socket(plain, server_hostname="localhost") if context else plain as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            return len(connection.recv(9)) == 9  # the settings with which a server greets
    except OSError:  # also what TLS has against it
        return False


def credentials(kit):
    context = ssl.create_default_context(cafile=kit / "startup" / "rootCA.pem")
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    return context


def test_no_kit_no_encryption_and_another_projects_kit_are_refused(tmp_path):
    kits, others = (federations.kits_of(tmp_path / name, "FessGDA") for name in ("ours", "theirs"))
    port = kits.agreement.server.port
    nobody = ssl.create_default_context(cafile=kits.site("one") / "startup" / "rootCA.pem")
    nobody.set_alpn_protocols(["h2"])
    stranger = credentials(others.site("one"))
    stranger.load_verify_locations(kits.site("one") / "startup" / "rootCA.pem")  # it trusts our server; does ours trust it?
    server = Party(kits.server, server=True)
    try:
        server.start()
        federations.until(lambda: greeted(port, credentials(kits.site("one"))), 30, "the server's start")
        assert not greeted(port, None)
        assert not greeted(port, nobody)
        assert not greeted(port, stranger)
        assert greeted(port, credentials(kits.site("one")))
    finally:
        server.kill()
