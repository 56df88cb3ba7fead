"""Many processes that are one run, or that share many runs: how a process knows of the others.

Whoever starts the processes (``srun``, ``mpirun``, Kubernetes, ``fedminimax launch``) starts the same script in each. For one
run on all of them it calls :func:`join` before JAX is used, or has the variable ``FEDMINIMAX_PROCESSES`` set, and then runs
with ``engine="mesh"``. For sweeps and experiments whose runs are dealt out it calls :func:`apart`, which connects to nobody.
Nothing here talks to a network by itself: JAX's coordination service does.
"""

from __future__ import annotations

import importlib
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedminimax import checks
from fedminimax.errors import InputError

PROCESSES, PROCESS, COORDINATOR = "FEDMINIMAX_PROCESSES", "FEDMINIMAX_PROCESS", "FEDMINIMAX_COORDINATOR"
"""Variables that say how many processes there are ("auto": as SLURM or Open MPI say), which this is, and where process 0 is."""
PATIENCE = "FEDMINIMAX_PATIENCE"
"""After how many seconds of silence a process is taken for lost."""
AUTO = "auto"
DAY = 86_400
"""In seconds."""
DEFAULT_PATIENCE = 30.0
_LAUNCHERS = {
    "SLURM_STEP_NODELIST": ("SLURM_PROCID", ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")),
    "OMPI_COMM_WORLD_RANK": ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    "PMI_RANK": ("PMI_RANK", ("PMI_SIZE",)),
}
"""By a variable that only a process of a launcher's has (what SLURM says of a job, and not of a step, holds for a shell in it
too): its number, and how many there are, the least of what is said."""


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
_APART: list[Place] = []


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
    if coordinator is not None and processes is None and process is None:
        process, processes = launched() or (None, None)
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
        "shutdown_timeout_seconds": DAY,  # whoever is done first waits for those who still work on what came of the run
    }
    try:
        jax.distributed.initialize(**given, **waits)
    except (ValueError, RuntimeError) as error:
        if "RPC server" in str(error):  # which only process 0 starts
            raise InputError(
                f"Process 0 cannot be reached at {coordinator}: the port is taken, or the address is of another machine. Give "
                f"a port that is free there, by {COORDINATOR} or join(), to all processes. ({error})"
            ) from error
        raise InputError(
            "This process found no others: start it with srun, mpirun or `fedminimax launch`, or give join() the address of "
            f"process 0, how many processes there are and its number; and before anything uses JAX. ({error})"
        ) from error


def apart(processes: int | None = None, process: int | None = None, *, patience: float | None = None) -> Place:
    """Be one of several processes that sweeps and experiments deal their runs out to, without being connected to the others.

    They meet in the folder of the sweep or the experiment, which must be on a disk that all share. A process that is lost costs
    its share, and the others go on. Without arguments it takes what ``fedminimax launch`` (or you) set in the environment, and
    else what SLURM or MPI say; a process that nobody counted is alone.

    Args:
        processes: how many processes there are.
        process: the number of this one.
        patience: after how many seconds of silence a process is taken for lost; by default 30.
    """
    if processes is None and process is None:
        process, processes = launched() or (0, 1)
    if processes is None or process is None:
        raise InputError("A process needs to know how many processes there are, and its own number: give both, or neither.")
    checks.integer("processes", processes)
    if not 0 <= checks.integer("process", process, least=0) < processes:
        raise InputError(f"There is no process {process} of {processes}: they are counted from 0.")
    _APART[:] = [Place(process, processes, _seconds() if patience is None else patience)]
    return _APART[0]


def launched() -> tuple[int, int] | None:
    """Return the number of this process and how many there are, as the environment says; None: it does not say."""
    processes, process = _number(PROCESSES), _number(PROCESS)
    if processes == 1:
        return 0, 1
    if processes is not None and process is not None:
        return process, processes
    if processes is not None or process is not None:
        raise InputError(f"A process needs both {PROCESSES} and {PROCESS}: how many there are, and its own number.")
    for mark, (rank, sizes) in _LAUNCHERS.items():
        counts = [count for size in sizes if (count := _number(size)) is not None]
        if mark in os.environ and (number := _number(rank)) is not None and counts:
            return number, min(counts)
    return None


def dealt() -> Place:
    """Return where this process is among those that runs are dealt out to; one that is not :func:`apart` has all of them."""
    return _APART[0] if _APART else Place(patience=_seconds())


def leads() -> bool:
    """Tell whether this process prints and writes for all."""
    return place().leads and dealt().leads


def place() -> Place:
    """Return where this process is among all; one that has not joined any others is alone."""
    return _JOINED[0] if _JOINED else Place(patience=_seconds())


def expect() -> None:
    """Join others where the environment asks for it; one of many processes that has not joined the others is an error."""
    if _JOINED or _APART:
        return
    if os.environ.get(PROCESSES) or service() is not None:
        join()
    elif (count := (launched() or (0, 1))[1]) > 1:
        raise InputError(
            f"This is one of {count} processes, of which each would do the whole run: call fedminimax.distributed.join() "
            "before anything uses JAX, or join(processes=1) where each has a run of its own."
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
