"""What is needed to make a model's inputs of new rows, and words of what it says: kept with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax.data.encoding import Encoding, inputs
from fedminimax.data.new_rows import read_rows
from fedminimax.errors import InputError, nearest


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
        return [*self.encoding.numeric, *self.encoding.categories]

    @property
    def features(self) -> list[str]:
        """The names of the inputs, in order."""
        return self.encoding.features

    def inputs(self, frame: object, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Return rows as inputs, [n, d]. Columns that the model does not know are ignored; one that it lacks is an error."""
        return self.read(frame, dtype)[0]

    def read(self, frame: object, dtype: npt.DTypeLike = np.float32) -> tuple[npt.NDArray[Any], list[str]]:
        """Return rows as inputs, [n, d], and what is noticed of them, in sentences.

        Noticed are new categories, values that no training row lacked, texts among numbers, and columns that seem to be in
        other units than in training.
        """
        rows, notes = read_rows(self._checked(frame), self.encoding)
        return inputs(rows, self.encoding, dtype), notes

    def _checked(self, frame: object) -> pd.DataFrame:
        """Return the columns that are needed, in the order of training."""
        if not isinstance(frame, pd.DataFrame):
            raise InputError(
                f"The rows are a {type(frame).__name__}: give a pandas DataFrame with the columns of the training table."
            )
        there = [str(column) for column in frame.columns]
        for column in self.columns:
            if column not in frame.columns:
                needed = ", ".join(self.columns)
                raise InputError(f"The rows have no column {column!r}{nearest(column, there)}: the model needs {needed}.")
            if there.count(column) > 1:
                raise InputError(f"The rows have two columns {column!r}: rename one.")
        return frame[self.columns]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it; floats survive to the last bit."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Encoder:
        """Return what :meth:`to_dict` was called on."""
        pair = lambda values: (float(values[0]), float(values[1]))
        try:
            encoding = dict(kept["encoding"])
            encoding["scales"] = {column: pair(scale) for column, scale in encoding["scales"].items()}
            scale = kept["target_scale"]
            return cls(**{**kept, "encoding": Encoding(**encoding), "target_scale": None if scale is None else pair(scale)})
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"This is no description of an encoder ({reason}): give what Encoder.to_dict returned.") from error
