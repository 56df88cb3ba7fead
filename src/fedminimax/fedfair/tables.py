"""A site's rows as a table: of a file, or of what a function of the site's own returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.data.reading import read_frame
from fedminimax.errors import InputError
from fedminimax.experiments.kinds import find_file, own


def table_of(source: str, folder: Path, config: Mapping[str, Any]) -> pd.DataFrame:
    """Return a site's rows.

    Args:
        source: a file (.csv, .tsv, .parquet, .npz), or a function, "data.py:load", that is given ``config`` and returns arrays
            by column, or a data frame.
        folder: where files are looked for.
        config: of the site.
    """
    if ":" in source and source.partition(":")[0].endswith(".py"):
        return frame_of(own(source, [folder])(dict(config)))
    path = find_file(source, [folder])
    if path is None:
        raise InputError(f"There is no file {source} in {folder}: give the path of the site's data.")
    if path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            return frame_of({key: stored[key] for key in stored.files})
    return read_frame(path).frame


def frame_of(stored: Mapping[str, Any] | pd.DataFrame) -> pd.DataFrame:
    """Return a table of what a site's own function returned: arrays by column, or a data frame.

    An array of several numbers a row becomes as many columns: "inputs 0", "inputs 1", ...
    """
    if isinstance(stored, pd.DataFrame):
        return stored.reset_index(drop=True)
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, values in stored.items():
        array = np.asarray(values)
        if array.ndim == 1:
            columns[str(name)] = array
        else:
            flat = array.reshape(len(array), -1) if array.ndim else array.reshape(1, 1)
            columns |= {f"{name} {k}": flat[:, k] for k in range(flat.shape[1])}
    _same_length(list(columns.values()))
    return pd.DataFrame(columns)


def _same_length(columns: Sequence[npt.NDArray[Any]]) -> None:
    if len({len(values) for values in columns}) > 1:
        raise InputError("The arrays of the site's data have different lengths: give one entry a row in each.")
