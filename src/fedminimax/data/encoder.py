"""What is needed to make a model's inputs of new rows, and words of what it says: kept with the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.data.encoding import Encoding, encode


@dataclass(frozen=True)
class Encoder:
    """How the rows of a table become inputs, and what the model's outputs mean.

    Attributes:
        encoding: the columns' scales and categories, as the server made them of the clients' reports.
        label: the column that is predicted.
        client: the column that says who holds a row; it is no input.
        task: "classification" or "regression".
        classes: the classes' names by number; None for a regression.
        target_scale: mean and standard deviation of a regression's labels; None for a classification.
    """

    encoding: Encoding
    label: str
    client: str
    task: str
    classes: list[str] | None
    target_scale: tuple[float, float] | None

    @property
    def columns(self) -> list[str]:
        """The columns that rows must have."""
        return list(dict.fromkeys([*self.encoding.scales, *self.encoding.gaps, *self.encoding.categories]))

    def inputs(self, frame: pd.DataFrame, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Return rows as inputs, [n, d]."""
        return encode(frame, self.encoding, dtype)
