"""Trees of arrays to bytes and back, without pickle.

The format describes itself: a JSON header for the structure and the raw bytes of the arrays behind it. It carries dicts,
lists, tuples, None, numbers, strings, arrays, and NamedTuples that were registered with :func:`message`; nothing that it
reads can run code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from fedminimax.errors import InputError
from fedminimax.players import Point, Tree

_MAGIC = b"FMX1"
_T = TypeVar("_T")
_MESSAGES: dict[str, Any] = {}


def message(cls: type[_T]) -> type[_T]:
    """Register a NamedTuple class, so that its values can be sent and saved (a class decorator).

    It is known by its module and name, so that two packages may call theirs alike. A class that is defined anew where it was,
    as in a notebook, takes the place of the one before.
    """
    if not hasattr(cls, "_fields"):
        raise TypeError(f"{cls.__name__} is not a NamedTuple")
    _MESSAGES[_name(cls)] = cls
    return cls


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


message(Point)


def encode(tree: Tree) -> bytes:
    """Return a tree as bytes."""
    description, arrays = take_apart(tree)
    header = json.dumps(description).encode()
    return b"".join([_MAGIC, len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in arrays)])


def take_apart(tree: Tree) -> tuple[Any, list[np.ndarray]]:
    """Return a description of a tree that JSON can hold, and its arrays in order."""
    arrays: list[np.ndarray] = []
    return _describe(tree, arrays, ""), arrays


def put_together(description: Any, arrays: Sequence[np.ndarray]) -> Tree:
    """Return the tree that :func:`take_apart` was given."""
    left = iter(arrays)
    try:
        return _rebuild(description, lambda dtype, shape: next(left).reshape(shape).astype(dtype, copy=False))
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise InputError(f"The description does not fit its arrays ({error}).") from error


def decode(data: bytes) -> Tree:
    """Return the tree that :func:`encode` wrote. Arrays come back as NumPy arrays."""
    if data[:4] != _MAGIC:
        raise InputError("These bytes are not a fedminimax message or file.")
    end = 12 + int.from_bytes(data[4:12], "little")
    try:
        return _rebuild(json.loads(data[12:end]), _reader(memoryview(data), end))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"The fedminimax message or file is damaged or cut short ({error}).") from error


def _reader(data: memoryview, at: int) -> Callable[[np.dtype, tuple[int, ...]], np.ndarray]:
    """Return a function that reads the next array of so many bytes."""

    def read(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        nonlocal at
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
        return array

    return read


def _describe(node: Any, arrays: list[np.ndarray], path: str) -> Any:
    if node is None or isinstance(node, (bool, int, float, str)):
        return {"v": node} if not isinstance(node, float) or np.isfinite(node) else {"f": repr(node)}
    if isinstance(node, dict):
        if not all(isinstance(k, str) for k in node):
            raise InputError(f"Only dicts with string keys can be sent, but {path or 'the tree'} has {list(node)}.")
        return {"d": {k: _describe(v, arrays, f"{path}[{k!r}]") for k, v in node.items()}}
    if hasattr(node, "_fields"):
        name = _name(type(node))
        if _MESSAGES.get(name) is not type(node):
            known = (
                "was defined anew since: make it again" if name in _MESSAGES else "was not registered: decorate it with @state"
            )
            raise InputError(f"{path or 'The tree'} is a {type(node).__name__}, a class that {known}.")
        return {"n": name, "c": [_describe(v, arrays, f"{path}.{k}") for k, v in node._asdict().items()]}
    if isinstance(node, (list, tuple)):
        kind = "l" if isinstance(node, list) else "t"
        return {kind: [_describe(v, arrays, f"{path}[{k}]") for k, v in enumerate(node)]}
    if isinstance(node, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(node)
        arrays.append(np.ascontiguousarray(array))
        return {"a": array.dtype.name, "s": list(array.shape)}
    raise InputError(
        f"{path or 'The tree'} is a {type(node).__name__}, which cannot be sent: use dicts, lists, tuples and arrays."
    )


def _rebuild(node: Any, read: Callable[[np.dtype, tuple[int, ...]], np.ndarray]) -> Any:
    if "v" in node:
        return node["v"]
    if "f" in node:
        return float(node["f"])
    if "a" in node:
        return read(np.dtype(node["a"]), tuple(node["s"]))
    if "d" in node:
        return {key: _rebuild(child, read) for key, child in node["d"].items()}
    children = [_rebuild(child, read) for child in node.get("l") or node.get("t") or node.get("c") or []]
    if "n" in node:
        return _registered(node["n"])(*children)
    return children if "l" in node else tuple(children)


def _registered(name: str) -> Any:
    """Return the class of that name. Files from before names had their module in them have the class's alone."""
    found = [_MESSAGES[name]] if name in _MESSAGES else [c for n, c in _MESSAGES.items() if n.rpartition(":")[2] == name]
    if len(found) != 1:
        module, _, cls = name.rpartition(":")
        raise InputError(
            f"The message or file holds a {cls}: import the module that defines it first{module and f' ({module})'}."
        )
    return found[0]
