"""Which sums a site has helped to open, and over whom: of one exchange it opens one, whoever asks, and however often.

The sums of the same vectors over two groups of sites tell what the groups differ in, which may be one site's vector. A server
that goes back to a checkpoint computes the same vectors again, so a site remembers what it has opened, on its disk and before
its shares leave. It remembers an exchange by its name, and by the vector itself: a run that is begun anew has another name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedminimax import wire
from fedminimax.engines.federated.messages import FORGOTTEN, OPENED, Ask, Malformed, Withheld
from fedminimax.engines.undo import sync_folder
from fedminimax.folders import write_atomically
from fedminimax.players import Tree

ROUNDS, RUNS = 1000, 16
"""How many rounds back, and of how many runs, a site remembers what it has opened."""
_FILE = "sums.opened"
_DIGITS = 9
_MORE = 1000
"""So many sums beyond twice those that must be remembered are in the file before it is made shorter."""


class Given(NamedTuple):
    """What a site gives a vector for.

    Attributes:
        run: the run's name.
        round: the round.
        exchange: which exchange of the round.
        terms: a digest of its weights in the sum, and of the guard's bounds.
        vector: a digest of the vector as it is without them, and of the randomness that it was drawn with.
    """

    run: str
    round: int
    exchange: int
    terms: str
    vector: str


def given(ask: Ask, replies: list[dict[str, Tree]], asked: dict[str, Any]) -> Given:
    """Return what a site's replies to an exchange are given for.

    Args:
        ask: what was asked; its id is that of the exchange: session, round and number.
        replies: the site's own.
        asked: the request's ``secure``, with the weights and the guard's bounds.
    """
    _, *numbers = ask.id.split("/")
    if len(numbers) != 2 or not all(n.isascii() and n.isdigit() and len(n) <= _DIGITS for n in numbers):
        raise Malformed("the exchange is none")
    drawn = [[letter["function"], letter["key"], letter["steps_word"]] for letter in ask.letters]
    values = [reply["value"] for reply in replies]
    terms = [asked.get(name) for name in ("weights", "max_norm", "max_loss")]
    return Given(ask.run, int(numbers[0]), int(numbers[1]), _digest(terms), _digest([drawn, values]))


def _digest(tree: Tree) -> str:
    return hashlib.sha256(wire.encode(tree)).hexdigest()[:32]


class _Sum(NamedTuple):
    """A sum that was opened, and the numbers of the sites that it is over."""

    given: Given
    over: tuple[int, ...]


class Opened:
    """The sums that a site has helped to open.

    Args:
        folder: where they are kept; None: in memory, and forgotten with the process.
    """

    def __init__(self, folder: Path | None):
        self._path = None if folder is None else folder / _FILE
        self._by_name: dict[tuple[str, int, int], _Sum] = {}  # in the order in which they were opened
        self._by_vector: dict[str, _Sum] = {}
        self._newest: dict[str, int] = {}  # by run, the last run at the end
        for one in () if self._path is None else _read(self._path):
            self._add(one)
        self._lines, self._room = len(self._by_name), _MORE

    def over(self, given: Given) -> tuple[int, ...] | None:
        """Return which sites a sum of these vectors was opened over; None: none was.

        Raise :class:`Withheld` if it was with other weights, or if that is too long ago to be known.
        """
        known = self._known(given)
        if any(one.given.terms != given.terms for one in known):
            raise Withheld(OPENED, known[0].over)
        if not known and given.round < self._newest.get(given.run, 0) - ROUNDS:
            raise Withheld(FORGOTTEN)
        return known[0].over if known else None

    def check(self, given: Given, over: Collection[int]) -> None:
        """Raise :class:`Withheld` if a sum of these vectors was opened over other sites than these."""
        self.over(given)
        if any(one.over != tuple(sorted(over)) for one in self._known(given)):
            raise Withheld(OPENED)

    def keep(self, given: Given, over: Collection[int]) -> None:
        """Remember a sum that is about to be opened: it is on the disk when this returns."""
        one = _Sum(given, tuple(sorted(over)))
        if self._by_name.get(given[:3]) == one:
            return
        if self._path is not None:
            if not self._path.exists():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, b"")
                sync_folder(self._path.parent)
            with self._path.open("ab") as file:
                file.write(_line(one))
                file.flush()
                os.fsync(file.fileno())
        self._add(one)
        self._lines += 1
        if self._lines > self._room:
            self._forget()

    def _known(self, given: Given) -> list[_Sum]:
        found = self._by_name.get(given[:3]), self._by_vector.get(given.vector)
        return [one for one in found if one is not None]

    def _add(self, one: _Sum) -> None:
        run, round = one.given.run, one.given.round
        self._by_name[one.given[:3]] = self._by_vector[one.given.vector] = one
        self._newest[run] = max(round, self._newest.pop(run, 0))

    def _forget(self) -> None:
        """Forget what is too long ago."""
        since = {run: self._newest[run] - ROUNDS for run in [*self._newest][-RUNS:]}
        left = [one for one in self._by_name.values() if one.given.round >= since.get(one.given.run, math.inf)]
        if self._path is not None:
            write_atomically(self._path, b"".join(map(_line, left)))
            sync_folder(self._path.parent)
        self._by_name, self._by_vector, self._newest = {}, {}, {}
        for one in left:
            self._add(one)
        self._lines, self._room = len(left), _MORE + 2 * len(left)


def _line(one: _Sum) -> bytes:
    """Return a sum as a line. The line's end is at its beginning: what a crash has cut off does not spoil what comes after."""
    return f"\n{json.dumps([*one.given, one.over])}".encode()


def _read(path: Path) -> Iterator[_Sum]:
    """Return the sums in a file; a line that was cut off is of one that was not opened, as no share had left."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            *what, over = json.loads(line)
            yield _Sum(Given(*what), tuple(over))
        except (ValueError, TypeError):
            continue
