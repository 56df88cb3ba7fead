"""What a site of a network has in the end: its own players, in a file of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedminimax import wire
from fedminimax.errors import InputError
from fedminimax.players import Tree

MODEL = "model.fmx"


@wire.message
class NodeModel(NamedTuple):
    """The players that a site came to, which never left it.

    Attributes:
        x: its own min player.
        y: its own max player.
        rounds: how many rounds had been run.
        method: the algorithm's name.
        problem: the problem's name.
        number: which node it is.
        run: the name of the run.
    """

    x: Tree
    y: Tree
    rounds: int
    method: str
    problem: str
    number: int
    run: str

    @classmethod
    def load(cls, folder: str | Path) -> NodeModel:
        """Read the model of a site's folder, that of the last run which came to its end or was stopped."""
        path = Path(folder) / MODEL if Path(folder).is_dir() else Path(folder)
        if not path.is_file():
            raise InputError(f"There is no {path}: a site writes its model into its folder when a run ends.")
        found = wire.decode(path.read_bytes())
        if not isinstance(found, cls):
            raise InputError(f"{path} is no model of a site.")
        return found
