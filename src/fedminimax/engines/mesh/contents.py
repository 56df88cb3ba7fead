"""What all clients' examples are, told from the parts that processes have: the same as of the data in one piece.

A checksum of 32 bits (CRC) is the remainder of a polynomial over two numbers, 0 and 1. That of two pieces one after another
follows from theirs: the first is moved up by the length of the second, and they are added.
"""

from __future__ import annotations

import zlib
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
    ends = np.concatenate([[0], np.cumsum(np.asarray(share.sizes), dtype=np.int64)])
    own: list[list[int]] = []
    for leaf in leaves:
        check, length = 0, 0
        for k, (first, last) in enumerate(share.blocks()):
            rows = np.ascontiguousarray(leaf[k * share.rows : k * share.rows + int(ends[last] - ends[first])])
            raw = rows.reshape(-1).view(np.uint8).data
            check, length = zlib.crc32(raw, check), length + len(raw)
        own.append([check, length])
    found: list[Any] = [wire.decode(part) for part in channel.collect(wire.encode(own), everybody=True)]
    texts = []
    for number, leaf in enumerate(leaves):
        check = 0
        for part in found:
            check = joined(check, *part[number])
        texts.append(f"{leaf.dtype.name}{[share.total, *leaf.shape[1:]]} {check:08x}")
    return tuple(texts)


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
