"""What a site remembers of a run: its client's states by name, and its last reply with the notes of the round.

A state is written before the reply that tells of it is sent, and counts from when a request names it: a reply that was lost
leaves the client as it was. Each file is there whole or not at all, and is on the disk when the reply leaves.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedminimax import wire
from fedminimax.engines.federated.messages import START
from fedminimax.engines.undo import sync_folder
from fedminimax.errors import InputError
from fedminimax.folders import write_atomically
from fedminimax.players import Tree

_RUNS = 3
"""Of how many runs a site keeps what it remembers."""
_LAST = "last.fmx"


@wire.message
class Answered(NamedTuple):
    """The last exchange that a site has answered.

    Attributes:
        id: of the request.
        turn: the round in which its notes hold.
        notes: what is kept until the end of the round, by place in the cohort.
        reply: the bytes that were sent, as an array.
    """

    id: str
    turn: str
    notes: dict[str, Tree]
    reply: Any


class LostState(Exception):
    """The site has not the state that it is asked to go on from."""


class Memory:
    """What a site remembers of one run.

    Args:
        folder: where all runs are kept; None: in memory, and lost with the process.
        run: which run.
        first: the client's state before its first exchange; None: it remembers nothing from round to round.
    """

    def __init__(self, folder: Path | None, run: str, first: Tree):
        self.run, self._first = run, first
        self._folder = None if folder is None else folder / run
        self._states: dict[str, Tree] = {}  # the newest, and all of them where there is no folder
        self._others: dict[str, Tree] = {}
        self.answered: Answered | None = None
        if self._folder is not None:
            self.answered = _read(self._folder / _LAST, Answered)

    def state(self, name: str) -> Tree:
        """Return the client's state of a name, or raise :class:`LostState`."""
        if name == START:
            return self._first
        if name not in self._states and self._folder is not None:
            kept = _read(self._path(name), tuple)
            if kept is not None and len(kept) == 2 and kept[0] == name:
                self._states[name] = kept[1]
        if name not in self._states:
            raise LostState
        return self._states[name]

    def notes(self, turn: str) -> dict[str, Tree]:
        """Return what was kept in this round, by place."""
        return dict(self.answered.notes) if self.answered is not None and self.answered.turn == turn else {}

    def remember(self, name: str | None, state: Tree, answered: Answered) -> None:
        """Keep what an exchange has brought, before its reply is sent.

        Args:
            name: of the new state; None: there is none.
            state: the new state.
            answered: the reply, and the notes of the round.
        """
        if self._folder is not None and (name is not None or answered.notes):
            self._make_folder()
            if name is not None:
                write_atomically(self._path(name), wire.encode((name, state)))
            write_atomically(self._folder / _LAST, wire.encode(answered))
            sync_folder(self._folder)
        if name is not None:
            self._states[name] = state
        self.answered = answered

    def keep(self, name: str, what: Tree) -> None:
        """Keep something else of the run under a name."""
        self._others[name] = what
        if self._folder is not None:
            self._make_folder()
            write_atomically(self._folder / f"{name}.fmx", wire.encode(what))
            sync_folder(self._folder)

    def kept(self, name: str) -> Tree:
        """Return what was kept under a name; None: nothing was."""
        if name not in self._others and self._folder is not None:
            found = _read(self._folder / f"{name}.fmx", object)
            if found is not None:
                self._others[name] = found
        return self._others.get(name)

    def _make_folder(self) -> None:
        assert self._folder is not None
        if not self._folder.exists():
            self._folder.mkdir(mode=0o700, parents=True)  # what is in it is nobody else's business
            _forget_old_runs(self._folder.parent)

    def forget_but(self, names: set[str]) -> None:
        """Forget the states that no request will name again."""
        for name in set(self._states) - names:
            del self._states[name]
        if self._folder is not None:
            wanted = {self._path(name).name for name in names}
            for path in self._folder.glob("state-*.fmx"):
                if path.name not in wanted:
                    path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"state-{name.replace('/', '-').replace('.', '-')}.fmx"


def _read(path: Path, kind: type) -> Any:
    """Return what a file holds; None: it is not there, or not as it was written."""
    try:
        kept = wire.decode(path.read_bytes())
    except (OSError, InputError):
        return None
    return kept if isinstance(kept, kind) else None


def reply_of(answered: Answered) -> bytes:
    """Return the reply that was sent."""
    return np.asarray(answered.reply, np.uint8).tobytes()


def _forget_old_runs(folder: Path) -> None:
    runs = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for old in runs[:-_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
