"""A model's weights as a safetensors file: arrays by their path in the tree, such as "Dense_0/kernel", and no code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpy.typing as npt

from fedminimax.errors import InputError
from fedminimax.players import Tree

if TYPE_CHECKING:
    from flax import linen as nn


def to_bytes(x: Tree, network: nn.Module, shape: Sequence[int]) -> bytes:
    """Return a network's weights by path, as the contents of a safetensors file.

    Args:
        x: the weights.
        network: what they are for.
        shape: of one example.
    """
    from safetensors.numpy import save

    named = jax.tree_util.tree_flatten_with_path(x)[0]
    arrays = {path_of(path): np.array(leaf, order="C") for path, leaf in named}
    if len(arrays) < len(named):
        raise InputError("Two arrays of the weights have one path: do not use / in the names of layers.")
    _fit(arrays, _abstract(network, shape), "The weights do", network)
    broken = [name for name, array in arrays.items() if not np.isfinite(np.asarray(array, np.float64)).all()]
    if broken:
        raise InputError(f"The weights {broken[0]} are not finite, the run diverged: lower its step sizes, and train again.")
    return save(arrays)


def from_bytes(contents: bytes, network: nn.Module, shape: Sequence[int], where: str) -> Tree:
    """Return the weights of a network, checked against its own shapes.

    Args:
        contents: of the file.
        network: what they are for.
        shape: of one example.
        where: the file's name, for messages.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(contents)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{where} is damaged ({error}): copy the model again.") from None
    like = _abstract(network, shape)
    _fit(arrays, like, f"{where} does", network)
    return jax.tree_util.tree_map_with_path(lambda path, leaf: arrays[path_of(path)], like)


def _abstract(network: nn.Module, shape: Sequence[int]) -> Tree:
    """Return the tree of the network's weights, shapes in place of arrays."""
    example = jax.ShapeDtypeStruct((1, *shape), np.float32)
    return jax.eval_shape(network.init, jax.random.key(0), example).get("params", {})


def _fit(arrays: Mapping[str, npt.NDArray[Any]], like: Tree, what: str, network: nn.Module) -> None:
    shapes = {path_of(path): leaf.shape for path, leaf in jax.tree_util.tree_flatten_with_path(like)[0]}
    start = f"{what} not fit the network {type(network).__name__}"
    if odd := sorted(set(shapes) ^ set(arrays)):
        raise InputError(f"{start}: {odd[0]} is in one and not in the other.")
    for name, wanted in shapes.items():
        if arrays[name].shape != wanted:
            raise InputError(f"{start}: {name} has the shape {arrays[name].shape}, and not {wanted}.")


def path_of(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf as text."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
