"""Trees of arrays to bytes and back, without pickle.

The format describes itself: a JSON header for the structure and the raw bytes of the arrays behind it. It carries dicts,
lists, tuples, None, numbers, strings, arrays, and NamedTuples that were registered with :func:`message`; nothing that it
reads can run code.
"""

from __future__ import annotations

import json
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
    blobs: list[bytes] = []
    header = json.dumps(_describe(tree, blobs, "")).encode()
    return b"".join([_MAGIC, len(header).to_bytes(8, "little"), header, *blobs])


def decode(data: bytes) -> Tree:
    """Return the tree that :func:`encode` wrote. Arrays come back as NumPy arrays."""
    if data[:4] != _MAGIC:
        raise InputError("These bytes are not a fedminimax message or file.")
    end = 12 + int.from_bytes(data[4:12], "little")
    try:
        tree, _ = _rebuild(json.loads(data[12:end]), memoryview(data), end)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"The fedminimax message or file is damaged or cut short ({error}).") from error
    return tree


def _describe(node: Any, blobs: list[bytes], path: str) -> Any:
    if node is None or isinstance(node, (bool, int, float, str)):
        return {"v": node} if not isinstance(node, float) or np.isfinite(node) else {"f": repr(node)}
    if isinstance(node, dict):
        if not all(isinstance(k, str) for k in node):
            raise InputError(f"Only dicts with string keys can be sent, but {path or 'the tree'} has {list(node)}.")
        return {"d": {k: _describe(v, blobs, f"{path}[{k!r}]") for k, v in node.items()}}
    if hasattr(node, "_fields"):
        name = _name(type(node))
        if _MESSAGES.get(name) is not type(node):
            known = (
                "was defined anew since: make it again" if name in _MESSAGES else "was not registered: decorate it with @state"
            )
            raise InputError(f"{path or 'The tree'} is a {type(node).__name__}, a class that {known}.")
        return {"n": name, "c": [_describe(v, blobs, f"{path}.{k}") for k, v in node._asdict().items()]}
    if isinstance(node, (list, tuple)):
        kind = "l" if isinstance(node, list) else "t"
        return {kind: [_describe(v, blobs, f"{path}[{k}]") for k, v in enumerate(node)]}
    if isinstance(node, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(node)
        blobs.append(np.ascontiguousarray(array).tobytes())
        return {"a": array.dtype.name, "s": list(array.shape)}
    raise InputError(
        f"{path or 'The tree'} is a {type(node).__name__}, which cannot be sent: use dicts, lists, tuples and arrays."
    )


def _rebuild(node: Any, data: memoryview, at: int) -> tuple[Any, int]:
    if "v" in node:
        return node["v"], at
    if "f" in node:
        return float(node["f"]), at
    if "a" in node:
        dtype, shape = np.dtype(node["a"]), tuple(node["s"])
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, at).reshape(shape)
        return array, at + count * dtype.itemsize
    if "d" in node:
        out = {}
        for key, child in node["d"].items():
            out[key], at = _rebuild(child, data, at)
        return out, at
    children = []
    for child in node.get("l") or node.get("t") or node.get("c") or []:
        value, at = _rebuild(child, data, at)
        children.append(value)
    if "n" in node:
        return _registered(node["n"])(*children), at
    return (children if "l" in node else tuple(children)), at


def _registered(name: str) -> Any:
    """Return the class of that name. Files from before names had their module in them have the class's alone."""
    found = [_MESSAGES[name]] if name in _MESSAGES else [c for n, c in _MESSAGES.items() if n.rpartition(":")[2] == name]
    if len(found) != 1:
        module, _, cls = name.rpartition(":")
        raise InputError(
            f"The message or file holds a {cls}: import the module that defines it first{module and f' ({module})'}."
        )
    return found[0]
