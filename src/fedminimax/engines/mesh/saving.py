"""Checkpoints by all processes: each writes its own clients' states, and tells process 0, which writes all else.

No collective is needed, and so the rounds go on meanwhile: the answers go through JAX's coordination service.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedminimax import distributed
from fedminimax.engines.mesh.watch import Watch, hear
from fedminimax.engines.rows import OwnStates, Part


class Saving:
    """What writes a process's own clients' states into checkpoints, one after another.

    Args:
        place: where this process is among all.
        watch: what watches over the others.
    """

    def __init__(self, place: distributed.Place, watch: Watch):
        self._place, self._watch = place, watch
        self._writer = ThreadPoolExecutor(1, "fedminimax-states")

    def write(self, own: OwnStates, folder: Path, number: int) -> None:
        """Write them in a thread, and tell process 0 what came of it.

        Args:
            own: the states.
            folder: the checkpoint's, which process 0 has made.
            number: of the checkpoint, among all that these processes write.
        """
        self._writer.submit(self._write, own, folder, number)

    def _write(self, own: OwnStates, folder: Path, number: int) -> None:
        try:
            answer = json.dumps(own.write(folder))
        except Exception as error:
            answer = json.dumps(f"process {self._place.process}: {type(error).__name__}: {error}"[:500])
        distributed.service().key_value_set(_key(number, self._place.process), answer)

    def together(self, own: OwnStates, folder: Path, number: int) -> Callable[[], list[Part]]:
        """Return what writes process 0's own, waits for those of the others, and returns all; an OSError where one failed."""

        def write() -> list[Part]:
            found: list[Part | str] = []
            try:
                found.append(own.write(folder))
            except OSError as error:
                found.append(f"process 0: {error}")
            found += [self._answer(number, process) for process in range(1, self._place.processes)]
            # Not before all have answered: nobody writes into a folder that is taken away.
            for wrong in (part for part in found if isinstance(part, str)):
                raise OSError(f"{wrong}; all processes must see the folder" if "No such file" in wrong else wrong)
            return [part for part in found if isinstance(part, Part)]

        return write

    def _answer(self, number: int, process: int) -> Part | str:
        service, key = distributed.service(), _key(number, process)
        found = json.loads(hear(service, key, self._watch.check))
        service.key_value_delete(key)
        return found if isinstance(found, str) else Part(*found)

    def close(self) -> None:
        """Wait for what is being written."""
        self._writer.shutdown()


def _key(number: int, process: int) -> str:
    return f"fedminimax/saved/{number}/{process}"
