"""Starting contenders as processes of their own, and asking them in turn."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ALL = "all"
MOST_ROUNDS = 4096
"""The most rounds of a block: what ``run`` puts into one call."""


class Missing(Exception):
    """A contender cannot run here."""


@dataclass(frozen=True)
class Command:
    """How to start a contender.

    Attributes:
        label: what to call it.
        python: the interpreter of its environment.
        script: a file in this folder.
        arguments: the script's.
        threads: "1", or "all" for every core.
        core: which core to pin to, with one thread.
    """

    label: str
    python: str
    script: str
    arguments: tuple[str, ...]
    threads: str = "1"
    core: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables that fix the number of threads, for JAX and for PyTorch."""
        if self.threads == ALL:
            cores = str(len(os.sched_getaffinity(0)))
            return {"FEDMINIMAX_DEVICES": cores, "OMP_NUM_THREADS": cores, "XLA_FLAGS": ""}
        return {
            "FEDMINIMAX_DEVICES": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        }


class Child:
    """A contender's process: idle until it is asked for something."""

    def __init__(self, command: Command):
        self.label = command.label
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        pin = partial(os.sched_setaffinity, 0, {command.core}) if command.threads != ALL else None
        self._process = subprocess.Popen(
            [command.python, str(HERE / command.script), *command.arguments],
            env={**os.environ, **command.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=pin,
        )
        self.greeting = self._answer()

    def ask(self, request: str) -> dict[str, Any]:
        """Send a request and return the answer."""
        assert self._process.stdin is not None
        print(request, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise Missing(f"{self.label}, which ended:\n{self._errors.read()[-1500:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def block_of(child: Child, seconds: float) -> int:
    """Return how many rounds take about so many seconds."""
    rounds = 1
    for _ in range(3):  # a call costs something by itself: a block of one round says little about a long one
        rounds = max(1, min(MOST_ROUNDS, round(seconds / child.ask(f"go {rounds}")["wall"])))
    return rounds


def interleave(children: dict[str, Child], blocks: dict[str, int], repetitions: int) -> dict[str, dict[str, list[float]]]:
    """Ask everybody for a block, in a new order each time, and return what each repetition took.

    The others are idle meanwhile. What slows the machine for a while then slows everybody, and ratios are taken within
    a repetition.
    """
    order, shuffle = list(children), random.Random(0).shuffle
    times: dict[str, dict[str, list[float]]] = {label: {"wall": [], "cpu": [], "waiting": []} for label in children}
    for _ in range(repetitions):
        shuffle(order)
        for label in order:
            answer = children[label].ask(f"go {blocks[label]}")
            for name, values in times[label].items():
                values.append(answer[name])
    return times


def ratio(above: list[float], below: list[float]) -> float:
    """Return the median over repetitions of above / below."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def machine() -> dict[str, Any]:
    """Describe where this runs, without naming the place."""
    info = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": (models or [platform.processor()])[0],
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy")},
        "load_before": round(os.getloadavg()[0], 2),
    }


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
