"""What the tasks ask of their clients' examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError


def labelled(clients: ClientData, task: str) -> dict[str, Any]:
    """Return the clients' fields, or say that "inputs" and "labels" are missing."""
    fields = clients.fields
    if not isinstance(fields, dict) or not {"inputs", "labels"} <= set(fields):
        raise InputError(f"{task} needs clients with the fields 'inputs' and 'labels'.")
    return fields


def check_classes(labels: Any, classes: int) -> np.ndarray:
    """Return the labels, or say that they are not the numbers of that many classes."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"labels must be whole numbers from 0 to {classes - 1}, one for each example.")
    return labels
