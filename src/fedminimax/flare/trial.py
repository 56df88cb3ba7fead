"""A whole federation on one machine: every party a process of its own, with its own kit, over mutual TLS on the loopback."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Self

import psutil

from fedminimax.errors import InputError
from fedminimax.flare import labels
from fedminimax.flare.agreement import FEDERATION_FILE
from fedminimax.flare.job import OUTCOME, PROGRESS, SITES, STOP, write_job
from fedminimax.flare.kits import RUN, Kits

CONSOLE, JOB = "console.log", "federation"
_PARTY = "fedminimax.flare.party"
_SERVER = "nvflare.private.fed.app.server.server_train"
_CLIENT = "nvflare.private.fed.app.client.client_train"
_INTERNAL_PORTS = "28200-28999"
_LOCAL = {
    "allow_adhoc_conns": False,
    "backbone_conn_gen": 2,
    "internal": {
        "scheme": "tcp",
        "resources": {"host": "localhost", "ports": [_INTERNAL_PORTS], "connection_security": "clear"},
    },
}
"""How a party's own processes talk to each other: on the loopback, on ports in a known range."""


def free_port() -> int:
    """Return a port of the loopback that nobody has just now."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _free(port: int) -> bool:
    """Tell whether a server could listen on a port of the loopback."""
    with closing(socket.socket()) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: one that has just ended is no hindrance
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Party:
    """One party's FLARE process: the server, or a client.

    Args:
        kit: its kit.
        server: whether it is the server.
    """

    def __init__(self, kit: Path, server: bool = False):
        self.kit, self._server = kit.resolve(), server
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, as the kit's own script does, with its output in a file of the kit. It ends with this one."""
        (self.kit / "local" / "comm_config.json").write_text(json.dumps(_LOCAL), encoding="utf-8")
        settings = ["secure_train=true", "config_folder=config"]
        file = "fed_server.json" if self._server else "fed_client.json"
        settings += ["org=server"] if self._server else [f"uid={self.kit.name}", "org=client"]
        module = [str(os.getpid()), _SERVER if self._server else _CLIENT]
        command = [sys.executable, "-u", "-m", _PARTY, *module, "-m", str(self.kit), "-s", file]
        with (self.kit / CONSOLE).open("ab") as console:
            self._process = subprocess.Popen(
                [*command, "--set", *settings],
                cwd=self.kit,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**os.environ, "MALLOC_ARENA_MAX": "4"},
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the process at once, as a crash would; what it has started is left to itself."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def descendants(self) -> list[psutil.Process]:
        """Return the processes that it has started: the server's job, a site's worker."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []


class Trial:
    """A federation on this machine; use it in a ``with`` statement, so that all of it is ended.

    Args:
        kits: the kits of all parties, furnished, with every site's data brought.
        patience: seconds that each step of the start may take.
    """

    def __init__(self, kits: Kits, patience: float = 60.0):
        self.kits, self.patience = kits, patience
        self.server = Party(kits.server, server=True)
        self.coordinator = Party(kits.coordinator)
        self.sites = {name: Party(kits.site(name)) for name in kits.agreement.sites}
        self._started: dict[int, psutil.Process] = {}

    @property
    def parties(self) -> list[Party]:
        """All of them, the server first."""
        return [self.server, self.coordinator, *self.sites.values()]

    @property
    def run(self) -> Path:
        """The folder of the run, in the server's kit."""
        return self.kits.server / RUN

    def __enter__(self) -> Self:
        port = self.kits.agreement.server.port
        if not _free(port):
            raise InputError(f"Port {port} is taken on this machine: end what has it, or name another in {FEDERATION_FILE}.")
        try:
            for party in self.parties:
                party.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(self, job: Path | None = None) -> str:
        """Submit the job, as the admin does, once the server is there; return its id. A run that was begun is gone on with.

        Args:
            job: the folder of another job than a federation's own.
        """
        for name in (OUTCOME, PROGRESS):
            (self.run / name).unlink(missing_ok=True)
        job = write_job(self.kits.folder / JOB, RUN, self.patience) if job is None else job
        until = time.monotonic() + self.patience
        while True:
            self.check()
            try:
                return submit(self.kits.admin, self.kits.agreement.server.admin, job, timeout=10.0)
            except ConnectionError as error:
                if time.monotonic() > until:
                    raise InputError(f"The job was not taken, as {error}: see {self.server.kit / CONSOLE}.") from None
                time.sleep(0.5)

    def check(self) -> None:
        """Say so if the server has ended."""
        for party in (self.server, self.coordinator):
            if not party.alive:
                raise InputError(f"The {party.kit.name} of the trial has ended: see {party.kit / CONSOLE}.")

    def standing(self) -> dict[str, dict[str, Any]]:
        """Return how each site stands, as the run tells; empty before it has begun."""
        with suppress(FileNotFoundError):
            return dict(json.loads((self.run / SITES).read_text(encoding="utf-8")))
        return {}

    def progress(self) -> dict[str, Any]:
        """Return how far the run is: its round, how many rounds it has, and its newest numbers; empty before it has begun."""
        with suppress(FileNotFoundError):
            return dict(json.loads((self.run / PROGRESS).read_text(encoding="utf-8")))
        return {}

    def outcome(self) -> dict[str, Any] | None:
        """Return how the run ended; None: it has not."""
        with suppress(FileNotFoundError):
            return dict(json.loads((self.run / OUTCOME).read_text(encoding="utf-8")))
        return None

    def watch(self, timeout: float, every: float = 0.25) -> Iterator[dict[str, dict[str, Any]]]:
        """Yield how the sites stand now and then, until the run is over or the time is."""
        until = time.monotonic() + timeout
        while self.outcome() is None:
            if time.monotonic() > until:
                raise InputError(f"The run was not over after {timeout:g} seconds: see {self.server.kit / CONSOLE}.")
            self.check()
            self.remember()
            yield self.standing()
            time.sleep(every)
        yield self.standing()

    def wait(self, timeout: float) -> dict[str, Any]:
        """Wait until the run is over, and return how it ended."""
        for _ in self.watch(timeout):
            pass
        outcome = self.outcome()
        assert outcome is not None
        return outcome

    def halt(self, grace: float = 10.0) -> bool:
        """Ask a run that is under way to end after its round, with a checkpoint; tell whether it did within so many seconds."""
        if self.progress() and self.outcome() is None:
            (self.run / STOP).touch()
            until = time.monotonic() + grace
            while self.outcome() is None and self.server.alive and time.monotonic() < until:
                time.sleep(0.05)
        return self.outcome() is not None

    def remember(self) -> None:
        """Remember the processes that there are now, so that they are ended even if their parents are gone by then."""
        for party in self.parties:
            if party.alive:
                self._started |= {process.pid: process for process in party.descendants()}

    def stop(self, grace: float = 5.0) -> None:
        """End all processes of the trial, each by its id: first by asking, then at once."""
        self.remember()
        mine = [psutil.Process(party.pid) for party in self.parties if party.alive]
        rest = [process for process in self._started.values() if process.is_running()]
        for process in [*mine, *rest]:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, left = psutil.wait_procs([*mine, *rest], timeout=grace)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=grace)
        for party in self.parties:
            party.kill()


def submit(kit: Path, admin: str, job: Path, timeout: float) -> str:
    """Submit a job to FLARE's server with an admin's kit, and return the job's id.

    Args:
        kit: the admin's kit.
        admin: the admin's name.
        job: the job's folder.
        timeout: seconds to try to reach the server, and then for the coordinator to be there: without it no job begins, and
            FLARE looks only every ten seconds.
    """
    from nvflare.fuel.flare_api.api_spec import NoConnection
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        with redirect_stdout(io.StringIO()):  # where FLARE says that it connects
            session = new_secure_session(admin, str(kit), timeout=timeout)
    except NoConnection as error:
        raise ConnectionError(f"FLARE's server cannot be reached ({error})") from None
    until = time.monotonic() + timeout
    try:
        while labels.COORDINATOR not in [client.name for client in session.get_system_info().client_info]:
            if time.monotonic() > until:
                raise ConnectionError("the coordinator is not there")
            time.sleep(0.2)
        return str(session.submit_job(str(job)))
    finally:
        session.close()
