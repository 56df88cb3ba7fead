"""What the tasks ask of their clients' examples and of their models."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.data.generated import GeneratedClients
from fedminimax.errors import InputError
from fedminimax.players import Tree


def fields_of(clients: ClientData, task: str, *names: str) -> dict[str, Any]:
    """Return the clients' fields, or say that some are missing."""
    if isinstance(clients, GeneratedClients):
        raise InputError(
            f"{task} looks at its clients' examples: build it on some of them, clients.take(range(1000)), and run it on all."
        )
    fields = clients.fields
    if not isinstance(fields, dict) or not set(names) <= set(fields):
        wanted = " and ".join(repr(name) for name in names)
        raise InputError(f"{task} needs clients with the field{'s' * (len(names) > 1)} {wanted}.")
    return fields


def labelled(clients: ClientData, task: str) -> dict[str, Any]:
    """Return the clients' fields, or say that "inputs" and "labels" are missing."""
    return fields_of(clients, task, "inputs", "labels")


def weights_at_start(model: Any, key: jax.Array, example: Tree) -> Tree:
    """Return the model's initial weights, or say that it keeps something else beside them."""
    # One program, of which only the weights remain; operation by operation a network takes a hundred of them.
    variables = jax.jit(lambda key, example: model.init(key, example))(key, example)
    others = sorted(set(variables) - {"params"})
    if others:
        raise InputError(
            f"{type(model).__name__} keeps {', '.join(others)} beside its weights, which clients cannot share: normalise by "
            "groups (flax.linen.GroupNorm), or by the batch at hand (fedminimax.models.BatchNorm)."
        )
    return variables["params"]


def output_shape(model: Any, weights: Tree, example: Tree) -> tuple[int, ...]:
    """Return the shape of the outputs for a batch of two like the example, after its first axis."""
    two = jax.tree.map(lambda a: jax.ShapeDtypeStruct((2 * a.shape[0], *a.shape[1:]), jnp.result_type(a)), example)
    shape = jax.eval_shape(lambda w, inputs: model.apply({"params": w}, inputs), weights, two).shape
    if shape[:1] != (2,):
        raise InputError(f"The model returns {shape} for two examples: its outputs must have one row for each.")
    return tuple(shape[1:])


def check_outputs(model: Any, weights: Tree, example: Tree, classes: int) -> None:
    """Raise an error unless the model has one output for each class."""
    shape = output_shape(model, weights, example)
    if shape != (classes,):
        found = f"{shape[0]} outputs" if len(shape) == 1 else f"outputs of shape {shape}"
        raise InputError(f"The model has {found}, but the task needs {classes}.")


def check_signs(labels: Any) -> np.ndarray:
    """Return the labels, or say that they are not one number for each example."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "biuf" or (labels.dtype.kind == "f" and np.isnan(labels).any()):
        raise InputError(
            "labels must be one number for each example, none of them NaN, above zero where it is positive; they are "
            f"{labels.dtype} of shape {labels.shape}."
        )
    return labels


def check_classes(labels: Any, classes: int) -> np.ndarray:
    """Return the labels, or say that they are not the numbers of that many classes."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"labels must be whole numbers from 0 to {classes - 1}, one for each example.")
    return labels
