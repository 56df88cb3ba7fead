"""``fedminimax launch``: the same script in many processes of this machine, which find each other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedminimax import checks, distributed
from fedminimax.errors import InputError

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def launch(
    arguments: Sequence[str],
    processes: int,
    patience: float = distributed.DEFAULT_PATIENCE,
    more: Mapping[str, str] | None = None,
) -> int:
    """Start a script in many processes, wait for them, and return the exit code: 0 where all ended well.

    When one fails, the others are given their time to say so, and are then ended.

    Args:
        arguments: the script, and what it is given.
        processes: how many to start.
        patience: after how many seconds of silence a process is taken for lost.
        more: variables of their environment.
    """
    checks.integer("processes", processes)
    if not Path(arguments[0]).is_file():
        raise InputError(f"There is no script {arguments[0]}.")
    started = [
        subprocess.Popen([sys.executable, *arguments], env=environment)
        for environment in _environments(processes, patience, more)
    ]
    try:
        return _wait(started, patience)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


def _environments(processes: int, patience: float, more: Mapping[str, str] | None) -> list[dict[str, str]]:
    """Return what each process is told: where the others are, and that it has one core."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
    common = {**os.environ, **_ONE_THREAD, "XLA_FLAGS": flags, **(more or {})}
    common |= {distributed.PROCESSES: str(processes), distributed.COORDINATOR: f"127.0.0.1:{_free_port()}"}
    common |= {distributed.PATIENCE: str(patience)}
    return [common | {distributed.PROCESS: str(k)} for k in range(processes)]


def _wait(started: list[subprocess.Popen[bytes]], patience: float) -> int:
    deadline = float("inf")
    while True:
        codes = [process.poll() for process in started]
        bad = [k for k, code in enumerate(codes) if code]
        if bad and deadline == float("inf"):
            deadline = time.monotonic() + 2 * patience + 10
            code = codes[bad[0]] or 0
            how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
            print(f"Process {bad[0]} (pid {started[bad[0]].pid}) {how}.", file=sys.stderr, flush=True)
        if all(code is not None for code in codes):
            return 1 if bad else 0
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.05)


def _free_port() -> int:
    """Return a port above 20000 of this machine that nobody uses."""
    for port in range(20_000 + os.getpid() % 10_000, 60_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise InputError("There is no free port above 20000 on this machine.")
