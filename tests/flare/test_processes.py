"""Federations of real processes on this machine, over FLARE with mutual TLS: methods, and who is let in."""

import os
import socket
import ssl
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import federations

from fedminimax.flare.trial import Party

HERE = Path(__file__).parent
THIRD = (
    "LocalSGDAPlus", "SAGDA", "FessGDA", "FedSGDAM", "FedNormSGDA-UniformSteps", "CDMAGE", "CODASCA", "Scaffold", "DRFA",
    "ScaffPD", "ScaffPDStale",
)  # fmt: skip
"""Of every kind a method: momentum, two phases, clients with states, with steps of their own, weights on clients."""


def test_methods_are_the_simulators(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    import many

    found = federations.methods(tmp_path, [many.NAMES.index(name) for name in THIRD], 120)
    assert len(found) == len(THIRD)
    for number, apart in found.items():
        assert isinstance(apart, float), f"{many.NAMES[number]}: {apart}"
        assert apart <= 1e-8, f"{many.NAMES[number]}: {apart}"


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
