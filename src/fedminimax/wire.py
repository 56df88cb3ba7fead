"""Trees of arrays to bytes and back, without pickle.

The format describes itself: a JSON header for the structure and the raw bytes of the arrays behind it. It carries dicts,
lists, tuples, None, numbers, strings, arrays, and NamedTuples that were registered with :func:`message`; nothing that it
reads can run code, and nothing is made that is larger than the bytes which tell of it. What is not so is an
:class:`~fedminimax.errors.InputError`, whatever the bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from fedminimax.errors import InputError
from fedminimax.players import Point, Tree

Bytes = bytes | memoryview
"""What a message comes as: where it is large, the place that it was read into."""
_MAGIC = b"FMX1"
_T = TypeVar("_T")
_MESSAGES: dict[str, Any] = {}
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StopIteration, RecursionError)
"""What damaged descriptions lead to. The last: they may be nested deeper than anything that is sent."""
_LONGEST_HEADER = 2**26
_SMALL = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # JAX's own kinds of floats, which NumPy knows by name


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
    return b"".join([_MAGIC, len(header).to_bytes(8, "little"), header, *(_raw(array) for array in arrays)])


def _raw(array: np.ndarray) -> memoryview:
    """Return the bytes of an array where they are, of any kind of numbers: NumPy has no buffers of JAX's own kinds."""
    return array.reshape(-1).view(np.uint8).data


def take_apart(tree: Tree) -> tuple[Any, list[np.ndarray]]:
    """Return a description of a tree that JSON can hold, and its arrays in order."""
    arrays: list[np.ndarray] = []
    return _describe(tree, arrays, ""), arrays


def put_together(description: Any, arrays: Sequence[np.ndarray]) -> Tree:
    """Return the tree that :func:`take_apart` was given."""
    left = iter(arrays)
    try:
        return _rebuild(description, lambda dtype, shape: next(left).reshape(shape).astype(dtype, copy=False))
    except _DAMAGE as error:
        raise InputError(f"The description does not fit its arrays ({error}).") from error


def decode(data: Bytes) -> Tree:
    """Return the tree that :func:`encode` wrote. Arrays come back as NumPy arrays."""
    if data[:4] != _MAGIC:
        raise InputError("These bytes are not a fedminimax message or file.")
    header = int.from_bytes(data[4:12], "little")
    if header > min(len(data) - 12, _LONGEST_HEADER):
        raise InputError("The fedminimax message or file is damaged or cut short (its header is not all there).")
    reader = _Reader(memoryview(data), 12 + header)
    try:
        tree = _rebuild(json.loads(bytes(data[12 : 12 + header])), reader.read)
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"The fedminimax message or file is damaged or cut short ({error}).") from error
    if reader.at != len(data):
        raise InputError("The fedminimax message or file is damaged (more follows its last array).")
    return tree


class _Reader:
    """Reads arrays one after another; each is a view of the bytes, and not larger than what is left of them."""

    def __init__(self, data: memoryview, at: int):
        self._data, self.at = data, at

    def read(self, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        count, first = math.prod(shape), self.at
        self.at += count * dtype.itemsize
        if self.at > len(self._data):
            raise ValueError("an array is longer than what is left")
        return np.frombuffer(self._data, dtype, count, first).reshape(shape)


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
        if not (node["v"] is None or isinstance(node["v"], (bool, int, float, str))):
            raise ValueError("a value is none")
        return node["v"]
    if "f" in node:
        return float(node["f"])
    if "a" in node:
        return read(_numbers(node["a"]), _shape(node["s"]))
    if "d" in node:
        return {key: _rebuild(child, read) for key, child in node["d"].items()}
    children = [_rebuild(child, read) for child in node.get("l") or node.get("t") or node.get("c") or []]
    if "n" in node:
        return _registered(node["n"])(*children)
    return children if "l" in node else tuple(children)


def _numbers(name: str) -> np.dtype:
    """Return the dtype of that name, of those that hold numbers."""
    dtype = np.dtype(name)
    if dtype.kind not in "biufc" and name not in _SMALL:
        raise ValueError("an array is not of numbers")
    return dtype


def _shape(given: list[int]) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > 32 or not all(type(n) is int and 0 <= n < 2**31 for n in given):
        raise ValueError("a shape is none")
    return tuple(given)


def _registered(name: str) -> Any:
    """Return the class of that name. Files from before names had their module in them have the class's alone."""
    found = [_MESSAGES[name]] if name in _MESSAGES else [c for n, c in _MESSAGES.items() if n.rpartition(":")[2] == name]
    if len(found) != 1:
        module, _, cls = name.rpartition(":")
        raise InputError(
            f"The message or file holds a {cls}: import the module that defines it first{module and f' ({module})'}."
        )
    return found[0]
