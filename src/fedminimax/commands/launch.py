"""``fedminimax launch``: the same script or experiment in many processes of this machine; and how each takes its place."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from fedminimax import checks, devices, distributed
from fedminimax.errors import InputError

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NPROC": "1",  # XLA's threads for products, which wait for each other where processes share the cores
}
_FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
_MESH = "mesh"


def launch(
    arguments: Sequence[str],
    processes: int,
    patience: float = distributed.DEFAULT_PATIENCE,
    more: Mapping[str, str] | None = None,
) -> int:
    """Start something in many processes, wait for them, and return the exit code: 0 where all ended well.

    When one fails that is connected with the others, these are given their time to say so, and are then ended. Processes that
    runs are dealt out to do not depend on each other. Ctrl-C goes to all of them once, and they end by themselves.

    Args:
        arguments: a script, the file of an experiment or the folder of one, and what it is given.
        processes: how many to start.
        patience: after how many seconds of silence a process is taken for lost.
        more: variables of their environment.
    """
    checks.integer("processes", processes)
    command, dealt = _command(arguments)
    environments = _environments(processes, patience, {**(_cores_each(processes) if dealt else {}), **(more or {})})
    started: list[subprocess.Popen[bytes]] = []
    try:
        with _interrupted_alike():
            # Apart from the terminal: Ctrl-C is heard here, and passed on once.
            started += [subprocess.Popen(command, env=env, start_new_session=True) for env in environments]
            try:
                return _wait(started, None if dealt else 2 * patience + 10)
            except KeyboardInterrupt:
                for process in started:
                    process.send_signal(signal.SIGINT)
                return _wait(started, 2 * patience + 10, time.monotonic(), quiet=True)
    except KeyboardInterrupt:  # again: at once then
        return 1
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


def enter(spec: Path, changes: Sequence[str] = (), out: Path | None = None) -> None:
    """Take this process's place among those that were started alike; before JAX starts.

    One run after the other on all of them together where the experiment's engine is a mesh; or else dealt out.

    Args:
        spec: the file of an experiment, its folder, or that of a run in it.
        changes: keys that are set otherwise.
        out: the folder that it is written to; None: as the file says.
    """
    tables = _tables(spec, changes)
    name = tables.get("name", spec.stem)
    devices.offer_recorded(spec if spec.is_dir() else out or Path("runs") / str(name))
    if not _meets(tables):
        distributed.apart()
    elif (distributed.launched() or (0, 1))[1] > 1:
        distributed.join()


def _command(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Return what each process is started with, and whether runs are dealt out to them."""
    what, *given = arguments
    path = Path(what)
    if path.is_dir():
        return [sys.executable, "-m", "fedminimax", "resume", what, *given], not _meets(_tables(path))
    if not path.is_file():
        raise InputError(f"There is no {what}: give a script (.py), a spec (.toml), or the folder of an experiment.")
    if path.suffix != ".toml":
        return [sys.executable, what, *given], False
    changes = [value for option, value in itertools.pairwise(given) if option == "--set"]
    changes += [option.removeprefix("--set=") for option in given if option.startswith("--set=")]
    return [sys.executable, "-m", "fedminimax", "run", what, *given], not _meets(_tables(path, changes))


def _tables(spec: Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the file of an experiment has at the top; nothing where it cannot be read, which its reader says."""
    if spec.is_dir():
        spec = next((f for f in (p / "spec.toml" for p in (spec, *spec.resolve().parents)) if _whole(f)), spec / "spec.toml")
    tables: dict[str, Any] = {}
    with suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        tables = tomllib.loads(spec.read_text(encoding="utf-8"))
    for change in changes:
        key, _, value = change.partition("=")
        if key.strip() in ("engine", "engine.name", "name"):
            with suppress(tomllib.TOMLDecodeError):
                value = tomllib.loads(f"value = {value}")["value"]
            tables[key.strip().partition(".")[0]] = value
    return tables


def _whole(spec: Path) -> bool:
    """Tell whether a file is the spec of an experiment, and not that of a run in one."""
    return spec.is_file() and (spec.parent / "experiment.json").is_file()


def _meets(tables: Mapping[str, Any]) -> bool:
    """Tell whether the processes of an experiment carry out every run together."""
    engine = tables.get("engine")
    names = [engine.get("name", next(iter(engine), None))] if isinstance(engine, Mapping) else [engine]
    return any(isinstance(name, str) and name.strip().lower() == _MESH for name in names)


def _cores_each(processes: int) -> dict[str, str]:
    """Return how many devices each process has, where nobody has said it."""
    said = os.environ.get(devices.VARIABLE)
    return {devices.VARIABLE: said or str(max(1, devices.cores() // processes))}


def _environments(processes: int, patience: float, more: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what each process is told: where the others are, and that it has one core."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
    common = {**os.environ, **_ONE_THREAD, "XLA_FLAGS": flags, **more}
    common |= {distributed.PROCESSES: str(processes), distributed.COORDINATOR: f"127.0.0.1:{_free_port()}"}
    common |= {distributed.PATIENCE: str(patience)}
    return [common | {distributed.PROCESS: str(k)} for k in range(processes)]


def _wait(started: list[subprocess.Popen[bytes]], grace: float | None, since: float = float("inf"), quiet: bool = False) -> int:
    """Wait for processes to end, and return 0 where all ended well.

    Args:
        started: the processes.
        grace: how many seconds the others have when one has failed; None: as long as they take.
        since: when that began.
        quiet: say nothing of how they end.
    """
    while True:
        codes = [process.poll() for process in started]
        bad = {k: code for k, code in enumerate(codes) if code}
        for k, code in bad.items():
            if not quiet and (code < 0 or grace is not None):  # what else happened to one of those apart, process 0 has said
                since, quiet = time.monotonic(), True
                how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
                print(f"Process {k} (pid {started[k].pid}) {how}.", file=sys.stderr, flush=True)
        if all(code is not None for code in codes):
            return 1 if bad else 0
        if grace is not None and time.monotonic() > since + grace:
            return 1
        time.sleep(0.05)


@contextmanager
def _interrupted_alike() -> Iterator[None]:
    """Take the end of the terminal, and being told to end, for Ctrl-C."""

    def press(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: dict[int, Callable[..., Any] | int | None] = {}
    with suppress(ValueError):  # in another thread than the first there are no signals
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {number: signal.signal(number, press) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
