"""A sweep's folder: what has been run is in it, and is not run again.

- ``plan.json``: what the sweep is, and how many runs go side by side;
- ``progress.json``: how far it is, for those who watch; gone when all is done;
- ``parts/``: the numbers of runs that went side by side, and how those under way stand; gone when all is done;
- ``sweep.json``, ``sweep.npz``: the outcome (:meth:`~fedminimax.Sweep.save`), also of a sweep that was interrupted;
- ``environment.json`` and ``log.txt``, as in the folder of a run.

Several processes (:mod:`fedminimax.crew`) share a folder: each writes its own parts, and process 0 all else.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedminimax import folders
from fedminimax._version import __version__
from fedminimax.crew import Crew
from fedminimax.engines.program import Carry
from fedminimax.errors import InputError
from fedminimax.folders import PLAN, PROGRESS, read_json, write_json
from fedminimax.identity import describe, differences, identity
from fedminimax.interrupts import uninterrupted
from fedminimax.plan import Plan
from fedminimax.runfolder import locked
from fedminimax.sweeps.standing import Part, Standing
from fedminimax.sweeps.table import SWEEP, Sweep, packed, unpacked

PARTS = "parts"
_TELL_SECONDS = 1.0
"""How far ``progress.json`` may be behind."""


class Finished(Exception):
    """Process 0 has finished the sweep."""


@contextmanager
def opened(
    folder: str | os.PathLike[str] | None, plan: Plan, varied: Sequence[str], asked: Mapping[str, Any], crew: Crew
) -> Iterator[Ledger]:
    """Open the folder of a sweep: nobody else writes it meanwhile. One that holds another sweep is refused.

    Args:
        folder: where; None: nothing is kept.
        plan: what every run of the sweep is, but for its setting and seed.
        varied: the hyper-parameters that the settings give.
        asked: what else the sweep is, by name.
        crew: the processes that share it.
    """
    if folder is None:
        yield Ledger(None, {}, crew)
        return
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, but a sweep needs a folder: name another.")
    folders.make_folder(path)
    with crew.room(path.name), locked(path) if crew.leads else nullcontext():
        if not crew.leads:
            crew.begin()
            crew.wait(lambda: (path / PLAN).exists() or None, 0, path.name)
        every = identity(plan)
        every["method"] = {name: value for name, value in every["method"].items() if name not in varied}
        own = json.loads(json.dumps({"identity": every, "sweep": {k: describe(v) for k, v in asked.items()}}))
        if not (path / PLAN).exists():
            if (path / SWEEP).exists() or (path / folders.RUN).exists():
                raise InputError(f"{path} holds something that sweep(folder=...) did not begin: name another folder.")
            own |= {"format": folders.FORMAT, "version": __version__, "at_once": {}}
            folders.write_environment(path)
            write_json(path / PLAN, own)
            folders.log(path, f"A sweep of {plan.method} begins (fedminimax {__version__})")
        else:
            kept = read_json(path / PLAN)
            said = [*differences(kept["identity"], own["identity"]), *_differences(kept["sweep"], own["sweep"])]
            if said:
                raise InputError(f"{path} holds another sweep: {'; '.join(said)}. Name another folder, or run what it holds.")
            own = kept
        if crew.leads:
            crew.begin()
        yield Ledger(path, own, crew)


class Ledger:
    """The folder of a sweep, or nothing.

    Args:
        folder: where it is; None: nowhere, and nothing is kept.
        plan: the contents of its ``plan.json``.
        crew: the processes that share it.
    """

    def __init__(self, folder: Path | None, plan: dict[str, Any], crew: Crew):
        self.folder, self._plan, self.crew = folder, plan, crew
        self._parts = Path() if folder is None else folder / PARTS
        self._known: dict[str, Any] = {"format": folders.FORMAT, "version": __version__}
        self._told = -_TELL_SECONDS  # long enough ago

    def progress(self, **known: Any) -> None:
        """Write down how far the sweep is, unless that was just done, for those who watch: a sweep goes on without it.

        Args:
            known: what is new of ``settings``, ``finished`` and ``early`` (how many there are, have run to the end, and were
                ended early), ``seeds``, ``length`` (the rounds of a run), ``rounds`` and ``total`` (of all runs), and ``timed``
                and ``seconds`` (rounds that were timed, and how long they took).
        """
        self._known |= known
        if self.folder is None or not self.crew.leads or time.monotonic() - self._told < _TELL_SECONDS:
            return
        self._told = time.monotonic()
        with suppress(OSError):
            write_json(self.folder / PROGRESS, self._known)

    def outcome(self) -> Sweep | None:
        """Return the outcome of a sweep that is finished; None: there is something left to run."""
        if self.folder is None or not (self.folder / SWEEP).exists():
            return None
        return None if read_json(self.folder / SWEEP)["interrupted"] else Sweep.load(self.folder)

    def finished(self) -> Sweep:
        """Wait for process 0 to finish the sweep, and return the outcome."""
        assert self.folder is not None
        return self.crew.wait(self.outcome, 0, self.folder.name)

    def finish(self, found: Sweep) -> None:
        """Write the outcome; when nothing is left to run, the parts go."""
        if self.folder is None:
            return
        if found.interrupted:
            self.crew.leave(self.folder.name, KeyboardInterrupt())
        if not self.crew.leads:
            return
        found.save(self.folder)
        if found.interrupted:
            self._told = -_TELL_SECONDS
            self.progress()
            folders.log(self.folder, "The sweep was interrupted.")
            return
        folders.log(self.folder, "The sweep is finished.")
        shutil.rmtree(self._parts, ignore_errors=True)
        (self.folder / PROGRESS).unlink(missing_ok=True)

    def at_once(self, kind: int, new: Callable[[], int]) -> int:
        """Return how many runs go side by side: as when they were first run, so that the same programs give the same bytes."""
        if self.folder is None:
            return new()
        if str(kind) not in self._plan["at_once"] and self.crew.leads:
            self._plan["at_once"][str(kind)] = new()
            write_json(self.folder / PLAN, self._plan)
        elif str(kind) not in self._plan["at_once"]:
            self._plan["at_once"] = self.crew.wait(lambda: self._decided(kind), 0, self.folder.name)
        return int(self._plan["at_once"][str(kind)])

    def _decided(self, kind: int) -> dict[str, int] | None:
        """Return how many runs go side by side, by the numbers of their programs, once process 0 has decided on this one."""
        assert self.folder is not None
        known: dict[str, int] = read_json(self.folder / PLAN)["at_once"]
        return known if str(kind) in known else None

    def read(self, name: str, whose: str, like: Carry) -> Part | None:
        """Return what is kept of some runs; None: nothing.

        Args:
            name: of the runs.
            whose: which settings and seeds they are; others under the same name are refused.
            like: a carry of the same structure.
        """
        if self.folder is None:
            return None
        try:
            arrays = unpacked((self._parts / f"{name}.npz").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            folders.log(self.folder, f"The part {name} cannot be read ({error}), and is run again.")
            return None
        if str(arrays["whose"]) != whose:
            raise InputError(f"{self.folder} holds other settings ({arrays['whose']}) than {whose}: give another folder.")
        under = lambda folder: {k[len(folder) :]: values for k, values in arrays.items() if k.startswith(folder)}
        leaves, structure = under("carry/"), jax.tree.structure(like)
        carry = jax.tree.unflatten(structure, [leaves[str(k)] for k in range(len(leaves))]) if leaves else None
        return Part(Standing(carry, under("spent/"), int(arrays["rounds"])), under("rows/"))

    def collect(self, name: str, whose: str, like: Carry, until: int, process: int) -> Part:
        """Wait for runs that another process carries out, until they have come to a round; see :meth:`read`."""
        assert self.folder is not None
        file, stamp = self._parts / f"{name}.npz", None

        def there() -> Part | None:
            nonlocal stamp
            try:
                now = file.stat()
            except FileNotFoundError:
                if not self.crew.leads and self.outcome() is not None:  # the parts are gone
                    raise Finished from None
                return None
            if stamp == (now.st_mtime_ns, now.st_ino):
                return None
            stamp = now.st_mtime_ns, now.st_ino
            part = self.read(name, whose, like)
            return part if part is not None and part.standing.round >= until else None

        return self.crew.wait(there, process, self.folder.name)

    def write(self, name: str, whose: str, part: Part) -> None:
        """Keep some runs."""
        if self.folder is None:
            return
        carry, spent, rounds = part.standing
        arrays = {"whose": np.array(whose), "rounds": np.array(rounds)}
        arrays |= {f"rows/{key}": values for key, values in part.rows.items()}
        arrays |= {f"carry/{k}": np.asarray(leaf) for k, leaf in enumerate(jax.tree.leaves(carry))}
        arrays |= {f"spent/{key}": values for key, values in spent.items()}
        self._parts.mkdir(exist_ok=True)
        with uninterrupted():
            folders.write_atomically(self._parts / f"{name}.npz", packed(arrays))


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Say in words how the sweep of a folder differs from the one that is at hand."""
    said = []
    for name in dict.fromkeys([*there, *here]):
        a, b = there.get(name), here.get(name)
        if a == b:
            continue
        if isinstance(a, list) and isinstance(b, list) and len(a) != len(b):
            said.append(f"there are {len(a)} {name} in the folder and {len(b)} here")
        elif isinstance(a, list) and isinstance(b, list):
            first = next(k for k in range(len(a)) if a[k] != b[k])
            said.append(f"number {first} of the {name} is {a[first]} in the folder and {b[first]} here")
        else:
            said.append(f"{name} is {a} in the folder and {b} here")
    return said
