"""What all clients' examples are, told from the parts that processes have: the same as of the data in one piece.

A checksum of 32 bits (CRC) is the remainder of a polynomial over two numbers, 0 and 1. That of two pieces one after another
follows from theirs: the first is moved up by the length of the second, and they are added.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fedminimax import wire
from fedminimax.data.shards import ClientShard
from fedminimax.engines.mesh.channel import Channel

_POLYNOMIAL = 0xEDB88320
"""Of the CRC, its highest power (32) left out, with the coefficient of the lowest power in the highest bit."""
_ONE, _X = 1 << 31, 1 << 30


def contents(share: ClientShard, channel: Channel) -> tuple[str, ...]:
    """Return the description of each field of all clients' examples, as of the data in one piece."""
    leaves = jax.tree.leaves(share.fields)
    own = [[_piece(leaf, first, rows) for first, rows in _pieces(share)] for leaf in leaves]
    found: list[Any] = [wire.decode(part) for part in channel.collect(wire.encode(own), everybody=True)]
    texts = []
    for number, leaf in enumerate(leaves):
        check = 0
        for _, *piece in sorted(piece for part in found for piece in part[number]):  # in the clients' order
            check = joined(check, *piece)
        texts.append(f"{leaf.dtype.name}{[share.total, *leaf.shape[1:]]} {check:08x}")
    return tuple(texts)


def _pieces(share: ClientShard) -> Iterator[tuple[int, slice]]:
    """Return, of each run of clients that follow on each other, the first, and where their examples are."""
    sizes = np.asarray(share.sizes)
    for k, clients in enumerate(share.blocks()):
        begin = k * share.rows
        for run in np.split(clients, np.flatnonzero(np.diff(clients) != 1) + 1):
            end = begin + int(sizes[run].sum())
            yield int(run[0]), slice(begin, end)
            begin = end


def _piece(leaf: np.ndarray, first: int, rows: slice) -> list[int]:
    raw = np.ascontiguousarray(leaf[rows]).reshape(-1).view(np.uint8).data
    return [first, zlib.crc32(raw), len(raw)]


def joined(first: int, second: int, length: int) -> int:
    """Return the CRC-32 of two pieces one after another, from theirs and the second's length in bytes."""
    moved, power, times = first, _X, 8 * length
    while times:
        if times & 1:
            moved = _product(moved, power)
        power, times = _product(power, power), times >> 1
    return moved ^ second


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials modulo the CRC's."""
    out = 0
    while a:
        if a & _ONE:
            out ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return out
