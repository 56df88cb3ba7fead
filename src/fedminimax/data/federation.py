"""Clients' data with test sets of their own, and what is known of them: what fairness over clients is measured on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedminimax.data.clients import ClientData
from fedminimax.data.columns import Column

if TYPE_CHECKING:
    from fedminimax.data.encoder import Encoder

CLASSIFICATION, REGRESSION = "classification", "regression"


@dataclass(frozen=True)
class Federation:
    """A table or data set as clients' data, ready to train on.

    Attributes:
        train: {"inputs": [n, d] float, "labels": int32 class numbers, or floats for a regression}, by client.
        test: likewise; the same clients in the same order.
        names: the clients' names.
        features: the names of the d inputs, such as "age", "age is missing" and "workclass=Private".
        classes: the classes' names by number; None for a regression.
        task: "classification" or "regression".
        target_scale: mean and standard deviation of the training labels, by which a regression's labels were
            standardised; None for a classification.
        missing: how many values of a column were missing in the clients' rows, for each column that lacks any.
        dropped: the clients left out and how many rows each had, not counting an official test part's; and how many rows,
            in both parts, had no client, "(missing client)", or no label, "(missing label)".
        encoder: how rows of the table become inputs; None for a data set that is no table.
        positive: the number of the class that recall, precision and rates by group are about; None where there are more than
            two classes, or a quantity.
        columns: what each column of the table was taken for.
        notes: what was read otherwise than it is written, in sentences.
        groups: the values of a sensitive column as text, one for each of the test rows, in their flat order; "missing" where
            there is none, and None without such a column.
        class_counts: how many rows of each class each client has, [N, C], training and test rows together; None for a
            regression, and for data that is no table.
        target_means: of a regression whose rows are elsewhere, the mean of each client's training labels: all that is known.
    """

    train: ClientData
    test: ClientData
    names: list[str]
    features: list[str]
    classes: list[str] | None
    task: str
    target_scale: tuple[float, float] | None
    missing: dict[str, int]
    dropped: dict[str, int]
    encoder: Encoder | None = None
    positive: int | None = None
    columns: list[Column] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    groups: npt.NDArray[Any] | None = None
    class_counts: npt.NDArray[np.int64] | None = None
    target_means: list[float] | None = None
