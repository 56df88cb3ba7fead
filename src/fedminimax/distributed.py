"""Many processes that are one run: how a process finds the others, on JAX's own distributed runtime.

Whoever starts the processes (``srun``, ``mpirun``, Kubernetes, ``fedminimax launch``) starts the same script in each. It calls
:func:`join` before JAX is used, or has the variable ``FEDMINIMAX_PROCESSES`` set, and then runs with ``engine="mesh"``. Nothing
here talks to a network by itself: JAX's coordination service does.
"""

from __future__ import annotations

import importlib
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedminimax.errors import InputError

PROCESSES, PROCESS, COORDINATOR = "FEDMINIMAX_PROCESSES", "FEDMINIMAX_PROCESS", "FEDMINIMAX_COORDINATOR"
"""Variables that say how many processes there are ("auto": as SLURM or Open MPI say), which this is, and where process 0 is."""
PATIENCE = "FEDMINIMAX_PATIENCE"
"""After how many seconds of silence a process is taken for lost."""
AUTO = "auto"
_LAUNCHERS = {
    "SLURM": ("SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE",),
}
"""What is set in each process that a launcher started; the least number is that of the processes. (What SLURM says of a job,
and not of a step, holds for a shell in it too.)"""
_DAY = 86_400
DEFAULT_PATIENCE = 30.0


@dataclass(frozen=True)
class Place:
    """Where this process is among all.

    Attributes:
        process: its number.
        processes: how many there are.
        patience: after how many seconds of silence one is taken for lost.
    """

    process: int = 0
    processes: int = 1
    patience: float = DEFAULT_PATIENCE

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes."""
        return self.process == 0


_JOINED: list[Place] = []


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    patience: float | None = None,
) -> Place:
    """Join the other processes of a run; call it before anything uses JAX.

    Without arguments it takes what ``fedminimax launch`` (or you) set in the environment, and else what SLURM, Open MPI or
    Kubernetes say, which JAX finds by itself. A process that has joined is not asked again.

    Args:
        coordinator: the address of process 0 and a free port there, such as "10.0.0.1:29500".
        processes: how many processes there are.
        process: the number of this one.
        patience: after how many seconds of silence a process is taken for lost, and the others end; by default 30.
    """
    if not _JOINED:
        _JOINED.append(_found(coordinator, processes, process, _seconds() if patience is None else patience))
        if _JOINED[0].processes > 1:
            # From now on: a process that takes long to load its data is no lost one.
            importlib.import_module("fedminimax.engines.mesh.watch").watch()
    return _JOINED[0]


def _found(coordinator: str | None, processes: int | None, process: int | None, patience: float) -> Place:
    coordinator = coordinator or os.environ.get(COORDINATOR)
    processes = _number(PROCESSES) if processes is None else processes
    process = _number(PROCESS) if process is None else process
    if processes == 1:
        return Place(patience=patience)
    known = [coordinator is not None, processes is not None, process is not None]
    if any(known) and not all(known):
        raise InputError("A process needs to know the coordinator's address, how many processes there are and its own number.")
    if service() is None:
        _connect(coordinator, processes, process, patience)
    import jax

    return Place(jax.process_index(), jax.process_count(), patience)


def _connect(coordinator: str | None, processes: int | None, process: int | None, patience: float) -> None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with suppress(RuntimeError):  # JAX runs already, which is said below
        # A process is a core here: collectives of several host devices of one process would overtake each other.
        jax.config.update("jax_num_cpu_devices", 1)
    given: dict[str, Any] = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    if coordinator is not None:
        given["cluster_detection_method"] = "deactivate"
        if coordinator.startswith("127."):  # nobody else has any business at a port of this machine's own
            given["coordinator_bind_address"] = coordinator
    # JAX's own heartbeats end processes without a sentence: they are for what is worse than what we notice ourselves.
    waits: dict[str, Any] = {
        "heartbeat_timeout_seconds": max(100, int(4 * patience)),
        "shutdown_timeout_seconds": _DAY,  # whoever is done first waits for those who still work on what came of the run
    }
    try:
        jax.distributed.initialize(**given, **waits)
    except (ValueError, RuntimeError) as error:
        raise InputError(
            "This process found no others: start it with srun, mpirun or `fedminimax launch`, or give join() the address of "
            f"process 0, how many processes there are and its number; and before anything uses JAX. ({error})"
        ) from error


def place() -> Place:
    """Return where this process is among all; one that has not joined any others is alone."""
    return _JOINED[0] if _JOINED else Place(patience=_seconds())


def expect() -> None:
    """Join others where the environment asks for it; one of many processes that has not joined the others is an error."""
    if _JOINED:
        return
    if os.environ.get(PROCESSES) or service() is not None:
        join()
        return
    for launcher, names in _LAUNCHERS.items():
        numbers = [os.environ.get(name, "") for name in names]
        count = min((int(number) for number in numbers if number.isdigit()), default=1)
        if count > 1 and numbers[0]:
            raise InputError(
                f"{launcher} started {count} processes, of which each would do the whole run: call "
                "fedminimax.distributed.join() before anything uses JAX, or join(processes=1) where each has a run of its own."
            )


def service() -> Any:
    """Return JAX's client of the coordination service, through which processes tell each other small things."""
    from jax._src import distributed  # as orbax does: there is no other way to it

    return distributed.global_state.client


def described() -> str:
    """Return who this process is, for sentences."""
    return f"process {place().process} (pid {os.getpid()} on {socket.gethostname()})"


def _number(variable: str) -> int | None:
    text = os.environ.get(variable)
    if not text or text == AUTO:
        return None
    if not text.isdigit():
        raise InputError(f"{variable} must be a whole number, not {text!r}.")
    return int(text)


def _seconds() -> float:
    text = os.environ.get(PATIENCE, str(DEFAULT_PATIENCE))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise InputError(f"{PATIENCE} must be a number of seconds above 0, not {text!r}.")
    return seconds
