"""What a site has told of its data, counted by the site itself: nobody can make it tell more than its owner allows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedminimax import checks
from fedminimax.engines.federated.messages import Untold
from fedminimax.engines.undo import sync_folder
from fedminimax.errors import InputError
from fedminimax.federation import spending
from fedminimax.federation.privacy import Privacy
from fedminimax.folders import write_atomically
from fedminimax.metrics.parts import METRICS

_FILE, _TOLD = "noise.spent", "measures.told"


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
        _keep(self._path, repr(spent))
        self._spent = spent


class Allowance:
    """Counts the parts of metrics that a site tells, of all runs, and refuses the one that is too many.

    They are told without noise, and no epsilon covers them.

    Args:
        measures: how often each metric may be told, by the name of its class.
        folder: where the count is kept; None: in memory.
    """

    def __init__(self, measures: Mapping[str, int], folder: Path | None):
        unknown = [name for name in measures if name not in METRICS]
        if unknown:
            raise InputError(f"measures names {', '.join(unknown)}, but the metrics are {', '.join(sorted(METRICS))}.")
        self.measures = {name: checks.integer(f"measures[{name!r}]", most) for name, most in measures.items()}
        self._path = None if folder is None else folder / _TOLD
        self._told = Counter[str]() if self._path is None else _read_told(self._path)

    def spend(self, kinds: Sequence[str]) -> None:
        """Count what a request asks for, or raise :class:`Untold`.

        Args:
            kinds: the names of its metrics' classes.
        """
        told = self._told + Counter(kinds)
        for kind in kinds:
            if told[kind] > self.measures.get(kind, 0):
                raise Untold(kind)
        _keep(self._path, json.dumps(told))
        self._told = told


def _keep(path: Path | None, text: str) -> None:
    """Write a count to the disk, before the reply that it counts leaves."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
        sync_folder(path.parent)


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


def _read_told(path: Path) -> Counter[str]:
    if not path.exists():
        return Counter()
    try:
        told = json.loads(path.read_text())
    except ValueError:
        told = None
    if not isinstance(told, dict) or not all(type(times) is int and times >= 0 for times in told.values()):
        raise InputError(f"{path} does not say how often the site has told metrics: put back the file as it was.")
    return Counter(told)
