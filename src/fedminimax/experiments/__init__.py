"""Experiments: one file says what is run, one folder has what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def rebuild(folder: Path) -> dict[str, Any] | None:
    """Return what :func:`fedminimax.run` was given for a run in the folder of an experiment; None where it is in none.

    Args:
        folder: the run's folder.
    """
    from fedminimax.experiments.execute import inputs_of
    from fedminimax.experiments.home import find_home

    found = find_home(folder)
    if found is None or found[1] is None:
        return None
    return inputs_of(found[0], found[1])
