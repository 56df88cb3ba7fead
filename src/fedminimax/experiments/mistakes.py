"""What is wrong with an experiment: all of it at once, each with its place in the file and the nearest name that is right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedminimax.errors import InputError
from fedminimax.experiments.positions import Path


class Mistake(NamedTuple):
    """One thing that is wrong.

    Attributes:
        path: the keys that lead to it.
        says: a sentence with the cause and the cure.
    """

    path: Path
    says: str


class Mistakes:
    """Collects what is wrong, so that a user hears of everything at once.

    Args:
        file: the file's name, to begin messages with; None: the experiment was made in Python.
        lines: the line of each path in it.
        changes: paths that were set beside the file, by ``--set``.
    """

    def __init__(self, file: str | None = None, lines: Mapping[Path, int] | None = None, changes: Sequence[Path] = ()):
        self.file, self.changes = file, tuple(changes)
        self.lines: dict[Path, int] = dict(lines) if lines else {(): 1}
        self.found: list[Mistake] = []

    def add(self, path: Path, says: str) -> None:
        """Note a mistake; the same sentence about the same place once."""
        mistake = Mistake(tuple(path), says)
        if mistake not in self.found:
            self.found.append(mistake)

    def within(self, *paths: Path) -> bool:
        """Tell whether something is wrong in one of these tables."""
        return any(mistake.path[: len(path)] == tuple(path) for mistake in self.found for path in paths)

    def line(self, path: Path) -> int:
        """Return the line of a path, or of the nearest table around it that is in the file."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def __str__(self) -> str:
        if self.file is None:
            return "\n".join(mistake.says for mistake in self.found)
        ordered = sorted(self.found, key=lambda mistake: self.line(mistake.path))
        return "\n".join(f"{self._place(mistake.path)}: {mistake.says}" for mistake in ordered)

    def _place(self, path: Path) -> str:
        changed = next((change for change in self.changes if path[: len(change)] == change), None)
        return f"{self.file}:{self.line(path)}" if changed is None else f"--set {dotted(changed)}"

    def raise_if_any(self) -> None:
        """Raise an :class:`InputError` with all of them, a line each."""
        if self.found:
            raise InputError(str(self))


def dotted(path: Iterable[str | int]) -> str:
    """Return a path as a file would write it: methods."my label".lr_x."""
    shown = [f"{key}" if isinstance(key, int) or re.fullmatch(r"[\w-]+", key) else f'"{key}"' for key in path]
    return ".".join(shown) or "the experiment"


def nearest(word: Any, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with the nearest name, or all names where none is near."""
    names = list(known)
    alike = {plain(name): name for name in reversed(names)}
    close = difflib.get_close_matches(plain(str(word)), alike, n=1, cutoff=0.6)
    if close:
        return f"did you mean {alike[close[0]]!r}?"
    return f"it may be {', '.join(names)}." if names else "there is none."


def plain(name: str) -> str:
    """Return a name without what people write in different ways: capitals, hyphens and underscores."""
    return re.sub(r"[-_\s]", "", name).lower()
