"""A trained model that predicts: what :func:`fedminimax.load_model` returns."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pandas as pd
from flax import linen as nn

from fedminimax.data.encoder import Encoder
from fedminimax.data.federation import REGRESSION
from fedminimax.errors import InputError
from fedminimax.players import Tree
from fedminimax.saved.outputs import Floats, classes_of, probabilities, quantity
from fedminimax.saved.weaknesses import weaknesses

_BLOCK = 1024  # rows that a program is given at once
Rows = pd.DataFrame | npt.NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A network with its weights, and all that is needed to make predictions of the rows of a table.

    Attributes:
        network: the Flax module.
        x: its weights.
        encoder: how rows become inputs; None: the inputs are given as arrays.
        spec: what ``model.json`` has: task, classes, method, settings, versions.
        metrics: what was measured when it was made.
        card: the model card, Markdown.
    """

    network: nn.Module
    x: Tree
    encoder: Encoder | None
    spec: dict[str, Any]
    metrics: dict[str, Any]
    card: str

    def __repr__(self) -> str:
        what = (
            "a quantity" if self.classes is None else " or ".join(self.classes[:4]) + (" ..." if len(self.classes) > 4 else "")
        )
        label = "" if self.encoder is None else f" {self.encoder.label!r}"
        return f"Model({self.spec['network']['name']} by {self.spec['method']}: predicts{label}, {what})"

    @property
    def task(self) -> str:
        """Either "classification" or "regression"."""
        return str(self.spec["task"])

    @property
    def classes(self) -> list[str] | None:
        """The classes' names by number; None for a quantity."""
        return self.spec["classes"]

    @property
    def positive(self) -> str | None:
        """The name of the positive one of two classes; None otherwise."""
        place = self.spec["positive"]
        return None if place is None or self.classes is None else self.classes[place]

    @property
    def threshold(self) -> float | None:
        """The probability from which on the positive one of two classes is predicted; None: the likelier one is."""
        return self.spec["threshold"]

    @property
    def weaknesses(self) -> list[str]:
        """What it is known to be bad at, in sentences: those of the card."""
        return weaknesses(self.metrics, self.spec)

    def predict(self, frame: Rows, *, strict: bool = False) -> pd.Series[Any]:
        """Return the predicted class, by name, or the predicted quantity in the label's units, for each row.

        Args:
            frame: rows with the columns of the training table, in any order; others are ignored. Without an encoder an array of
                inputs.
            strict: make an error of what is unlike the training rows, such as a new category; by default it is a warning.
        """
        return self.decide(self.scores(frame, strict=strict), _index(frame))

    def predict_proba(self, frame: Rows, *, strict: bool = False) -> pd.DataFrame:
        """Return the probability of each class, one column a class.

        A model that was trained with squared loss has no probabilities in the proper sense: these are its scores, clipped at
        zero and normalised.

        Args:
            frame: as for :meth:`predict`.
            strict: likewise.
        """
        return self.likelihood(self.scores(frame, strict=strict), _index(frame))

    def decide(self, scores: Floats, index: pd.Index[Any]) -> pd.Series[Any]:
        """Return what :meth:`predict` does, given :meth:`scores`."""
        name = "predicted" if self.encoder is None else self.encoder.label
        if self.classes is None:
            return pd.Series(quantity(scores, self.spec["target_scale"]), index, name=name)
        numbers = classes_of(probabilities(scores, self.spec["loss"]), self.spec["positive"], self.threshold)
        return pd.Series(np.array(self.classes, object)[numbers], index, name=name)

    def likelihood(self, scores: Floats, index: pd.Index[Any]) -> pd.DataFrame:
        """Return what :meth:`predict_proba` does, given :meth:`scores`."""
        if self.task == REGRESSION:
            raise InputError("The model predicts a quantity, which has no classes: use predict.")
        return pd.DataFrame(probabilities(scores, self.spec["loss"]), index, columns=self.classes)

    def scores(self, frame: Rows, *, strict: bool = False) -> Floats:
        """Return the network's outputs, [n, C].

        Args:
            frame: as for :meth:`predict`.
            strict: likewise.
        """
        inputs, notes = self.inputs(frame)
        if notes and strict:
            raise InputError(" ".join(notes))
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        return self.apply(inputs)

    def inputs(self, frame: Rows) -> tuple[npt.NDArray[Any], list[str]]:
        """Return rows as the network's inputs, [n, ...], and what is noticed of them, in sentences."""
        if self.encoder is not None:
            return self.encoder.read(frame, self._dtype)
        inputs, shape = np.asarray(frame, self._dtype), tuple(self.spec["inputs"])
        if inputs.shape[1:] != shape:
            raise InputError(f"The inputs have the shape {inputs.shape}: give an array [n, {', '.join(map(str, shape))}].")
        return inputs, []

    def apply(self, inputs: npt.NDArray[Any]) -> Floats:
        """Return the network's outputs for inputs, [n, C].

        Rows are computed one after another by one compiled program: so that a row's numbers do not depend, to the last bit, on
        which and how many others there are.
        """
        found = [np.zeros((0, 1 if self.classes is None else len(self.classes)))]
        with jax.enable_x64(self._dtype == np.float64):
            for start in range(0, len(inputs), _BLOCK):
                block = np.zeros((_BLOCK, *inputs.shape[1:]), self._dtype)
                rows = inputs[start : start + _BLOCK]
                block[: len(rows)] = rows
                found.append(np.asarray(self._program(self.x, block, len(rows)), np.float64)[: len(rows)])
        return np.concatenate(found)

    def evaluate(self, frame: pd.DataFrame, *, strict: bool = False) -> dict[str, float]:
        """Return how good the predictions are, for rows that have the label too.

        For classes accuracy and balanced accuracy, and of two classes the AUC, and recall and precision of the positive one;
        of a quantity RMSE and MAE, in its units. What does not exist, such as the AUC of one class, is left out.

        Args:
            frame: rows with the label's column; those without a label are left out.
            strict: as for :meth:`predict`.
        """
        from fedminimax.saved.judge import judge

        return judge(self, frame, self.scores(frame, strict=strict))

    def to_onnx(self, path: str | os.PathLike[str]) -> Path:
        """Write the network with its weights as an ONNX file, checked with onnxruntime; it takes ``fedminimax[onnx]``.

        Its input are the encoder's inputs, [n, d] with any n; its output are the scores, of which :meth:`predict_proba` makes
        probabilities.

        Args:
            path: the file to write, such as "model.onnx".
        """
        from fedminimax.saved.onnx_file import write_onnx

        return write_onnx(self.network, self.x, tuple(self.spec["inputs"]), self.apply, Path(path))

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64 if any(a.dtype == np.float64 for a in jax.tree.leaves(self.x)) else np.float32)

    @cached_property
    def _program(self) -> Callable[[Tree, npt.NDArray[Any], int], jax.Array]:
        """Return the compiled program: the outputs for the first of a block's rows."""

        def program(x: Tree, block: jax.Array, count: jax.Array) -> jax.Array:
            score = lambda row: self.network.apply({"params": x}, row[None])[0]
            like = jax.eval_shape(score, block[0])
            empty = jnp.zeros((len(block), *like.shape), like.dtype)
            return jax.lax.fori_loop(0, count, lambda k, out: out.at[k].set(score(block[k])), empty)

        return jax.jit(program)


def _index(frame: Rows) -> pd.Index[Any]:
    return frame.index if isinstance(frame, pd.DataFrame) else pd.RangeIndex(len(frame))
