"""A trained network as plain arrays: dense layers with ReLU between them, in the units of the user's table."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Scaling(NamedTuple):
    """How columns are standardised: (value - mean) / deviation."""

    mean: Array
    deviation: Array

    @classmethod
    def of(cls, values: Array, wanted: bool = True) -> Scaling:
        """Return the columns' means and deviations, which sites could give by their sums; a constant column is centred only."""
        if not wanted:
            return cls(np.zeros(values.shape[1:]), np.ones(values.shape[1:]))
        mean = values.mean(axis=0)
        deviation = values.std(axis=0)
        # A column that is constant but for rounding is constant: its noise is not to become a feature.
        constant = deviation <= 10 * np.finfo(values.dtype).eps * np.abs(values).max(axis=0)
        return cls(mean, np.where(constant, 1.0, deviation))

    def __call__(self, values: Array) -> Array:
        """Return the values, standardised."""
        return (values - self.mean) / self.deviation


class Layers(NamedTuple):
    """h_0 = inputs, h_k = relu(h_{k-1} W_k + b_k); the last without ReLU."""

    kernels: list[Array]
    biases: list[Array]

    @classmethod
    def of(cls, parameters: Any) -> Layers:
        """Return the layers of a Flax network of dense layers."""
        dense = [parameters[f"Dense_{k}"] for k in range(len(parameters))]
        return cls(*([np.asarray(layer[part], float) for layer in dense] for part in ("kernel", "bias")))

    def on_raw_inputs(self, scaling: Scaling) -> Layers:
        """Return the layers for inputs that are not standardised: (x - m)/s W + b = x (W/s) + (b - (m/s) W)."""
        first = self.kernels[0] / scaling.deviation[:, None]
        return Layers([first, *self.kernels[1:]], [self.biases[0] - scaling.mean @ first, *self.biases[1:]])

    def with_outputs(self, factor: float, shift: float) -> Layers:
        """Return the layers whose outputs are factor times these plus shift."""
        return Layers([*self.kernels[:-1], self.kernels[-1] * factor], [*self.biases[:-1], self.biases[-1] * factor + shift])

    def __call__(self, inputs: Array) -> Array:
        """Return the outputs, [rows, outputs]."""
        hidden = inputs
        for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(hidden @ kernel + bias, 0.0)
        return hidden @ self.kernels[-1] + self.biases[-1]
