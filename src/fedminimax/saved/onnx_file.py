"""A network as an ONNX file, by jax2onnx, compared with onnxruntime before it is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedminimax.errors import InputError
from fedminimax.players import Tree

if TYPE_CHECKING:
    from flax import linen as nn

TOLERANCE = 1e-5
"""How far onnxruntime's outputs may be from the network's, in units of the largest."""
_ROWS = 64


def write_onnx(
    network: nn.Module,
    x: Tree,
    shape: tuple[int, ...],
    apply: Callable[[npt.NDArray[Any]], npt.NDArray[np.float64]],
    path: Path,
) -> Path:
    """Write the file and return its path. A file whose outputs are not the network's is an error, and is not left there.

    Args:
        network: the Flax module.
        x: its weights.
        shape: of one example.
        apply: the network's outputs for inputs, which the file's are compared with.
        path: the file to write.
    """
    try:
        import onnxruntime
        from jax2onnx import to_onnx
    except ImportError as error:
        raise InputError(f"To write ONNX takes {error.name}: pip install 'fedminimax[onnx]'.") from None
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(f"{path} cannot be written: give a file in a folder that there is.")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            to_onnx(
                lambda inputs: network.apply({"params": x}, inputs),
                inputs=[("n", *shape)],
                model_name=type(network).__name__,
                return_mode="file",
                output_path=str(unfinished),
            )
        except Exception as error:  # of a converter that meets an operation it does not know, anything may come
            name = type(network).__name__
            raise InputError(f"jax2onnx cannot convert the network {name} ({error}): linear models and MLPs it can.") from error
        session = onnxruntime.InferenceSession(str(unfinished), providers=["CPUExecutionProvider"])
        inputs = np.random.default_rng(0).normal(size=(_ROWS, *shape)).astype(np.float32)
        found, wanted = session.run(None, {session.get_inputs()[0].name: inputs})[0], apply(inputs)
        off = float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))
        if not off <= TOLERANCE:
            raise InputError(f"The ONNX file's outputs differ from the network's by {off:.1e}: it was not kept.")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
