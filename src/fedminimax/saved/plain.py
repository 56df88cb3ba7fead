"""Numbers, texts, lists and dicts, as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedminimax.errors import InputError


def plain(value: Any, what: str) -> Any:
    """Return arrays as lists, and a number that is not finite (an AUC of one class) as None: JSON has no word for it.

    Args:
        value: anything that is made of mappings, lists, arrays, numbers, texts, paths and None.
        what: its name, for messages.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(each, f"{what}[{key!r}]") for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, f"{what}[{k}]") for k, each in enumerate(value)]
    if isinstance(value, np.generic | np.ndarray) or hasattr(value, "__array__"):
        return plain(np.asarray(value).tolist(), what)
    if isinstance(value, Path):
        return str(value)
    raise InputError(f"{what} is a {type(value).__name__}, which JSON cannot hold: give numbers, texts, lists and dicts.")
