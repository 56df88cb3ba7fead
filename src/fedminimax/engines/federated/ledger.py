"""What a site has told of its data, counted by the site itself: nobody can make it tell more than its owner allows."""

from __future__ import annotations

import math
from pathlib import Path

from fedminimax import checks
from fedminimax.engines.undo import sync_folder
from fedminimax.errors import InputError
from fedminimax.federation import spending
from fedminimax.federation.privacy import Privacy
from fedminimax.folders import write_atomically

_FILE = "noise.spent"


class PrivacySpent(Exception):
    """Another reply would cost more than the site's owner allows."""


class Ledger:
    """Counts the replies of a site, of all runs, and refuses the one that is too many.

    What the server counts is what it says it has asked. Here it is what was answered, rounds that failed and were asked again
    included; on disk before the reply leaves.

    Args:
        privacy: what protects the replies.
        folder: where the count is kept; None: in memory.
        budget: the greatest epsilon; None: any.
    """

    def __init__(self, privacy: Privacy, folder: Path | None, budget: float | None):
        if budget is not None:
            checks.not_negative("budget", budget)
            spending.check_installed()
        self._privacy, self._budget = privacy, budget
        self._path = None if folder is None else folder / _FILE
        self._spent = 0.0 if self._path is None else _read(self._path)

    @property
    def epsilon(self) -> float:
        """What has been spent."""
        return spending.epsilon(self._spent, self._privacy.delta)

    def spend(self, parts: int) -> None:
        """Count a reply, or raise :class:`PrivacySpent`.

        Args:
            parts: how many parts it has (see :meth:`Privacy.parts`).
        """
        spent = self._spent + parts * self._privacy.cost
        if self._budget is not None and spending.epsilon(spent, self._privacy.delta) > self._budget:
            raise PrivacySpent
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, repr(spent).encode())
            sync_folder(self._path.parent)
        self._spent = spent


def _read(path: Path) -> float:
    if not path.exists():
        return 0.0
    try:
        spent = float(path.read_text())
    except ValueError:
        spent = math.nan
    if not spent >= 0:
        raise InputError(f"{path} does not say what the site has spent, a number: put back the file as it was.")
    return spent
