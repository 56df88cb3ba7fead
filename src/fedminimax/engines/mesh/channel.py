"""How the processes of a run talk: process 0 says what comes next, and bytes go to and fro in collectives."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import jax
import numpy as np
from jax.sharding import Mesh

from fedminimax import distributed
from fedminimax.engines.layout import AXIS
from fedminimax.engines.mesh.placement import APART, EVERYWHERE, apart
from fedminimax.engines.mesh.saving import Saving
from fedminimax.engines.mesh.watch import Lost, hear, watch
from fedminimax.errors import InputError

_CHUNK = 2**22
"""Words that go in one collective."""
_KEPT = 4096
"""So many words of process 0 are kept for those who listen late."""
_FAILED = "failed "


class Told(InputError):
    """An error that every process knows of, and raises."""


class Channel:
    """What process 0 says, in order, and what all send each other. Every process must take part in the same order.

    Args:
        mesh: the devices of all processes.
    """

    _said = 0  # in this process, by whichever channel
    _met = False

    def __init__(self, mesh: Mesh):
        self.place, self._mesh, self._watch = distributed.place(), mesh, watch()
        self._each = mesh.size // self.place.processes

    @property
    def leads(self) -> bool:
        """Whether this is process 0."""
        return self.place.leads

    @property
    def saving(self) -> Saving | None:
        """A new writer of this process's own clients' states; None: this one is alone."""
        return None if self._watch is None else Saving(self.place, self._watch)

    @property
    def words(self) -> int:
        """How many words process 0 has said so far."""
        return Channel._said

    def say(self, what: str) -> None:
        """Tell all others what comes next; only process 0 does."""
        number = self._next()
        if self.place.processes > 1:
            service = distributed.service()
            service.key_value_set(f"fedminimax/said/{number}", what)
            if number >= _KEPT:
                service.key_value_delete(f"fedminimax/said/{number - _KEPT}")

    def hear(self) -> str:
        """Wait for what process 0 says next. That it failed is an error here too."""
        assert self._watch is not None
        said = hear(distributed.service(), f"fedminimax/said/{self._next()}", self._watch.listens)
        if said.startswith(_FAILED):
            raise Told(said[len(_FAILED) :])
        return said

    @classmethod
    def _next(cls) -> int:
        Channel._said += 1
        return Channel._said - 1

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Do what process 0 does while the others follow: if it fails, they are told."""
        with self.running():
            try:
                yield
            except Lost:
                raise
            except BaseException as error:
                if self._watch is not None and self._watch.stuck:  # they wait for this process, and do not listen to it
                    self._watch.failed(error)
                else:
                    self.say(f"{_FAILED}Process 0 ended the run: {error or type(error).__name__}")
                raise

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Do what all others do at the same time: if it fails here, they are told."""
        with self.running():
            try:
                yield
            except (Lost, Told):
                raise
            except BaseException as error:
                if self._watch is not None:
                    self._watch.failed(error)
                raise

    def agree(self, wrong: InputError | None) -> None:
        """Raise an error on every process where one of them found something wrong; every process calls it."""
        found = self.collect(str(wrong or "").encode(), everybody=True)
        if wrong is not None:
            raise Told(str(wrong)) from None
        for process, what in enumerate(found):
            if what:
                raise Told(f"Process {process} cannot begin: {what.decode()}")

    def running(self) -> AbstractContextManager[None]:
        """Say that a run is under way."""
        return nullcontext() if self._watch is None else self._watch.running()

    def meeting(self) -> AbstractContextManager[None]:
        """Wait for the others in here; who is lost is said."""
        return nullcontext() if self._watch is None else self._watch.meeting()

    def total(self, words: np.ndarray) -> np.ndarray:
        """Return the sum of every process's whole numbers, [n]."""
        room = np.zeros((self._each, 1 << max(4, (len(words) - 1).bit_length())), np.int32)
        room[0, : len(words)] = words
        with self.meeting():
            if not Channel._met and jax.process_count() > 1:
                self._meet(room)
            return np.asarray(_total(self._mesh)(apart(room, self._mesh)))[: len(words)]

    def _meet(self, room: np.ndarray) -> None:
        """Have the processes connect, which gloo prints a line about in each of them: only process 0 prints."""
        distributed.service().wait_at_barrier("fedminimax/met", 1000 * distributed.DAY)  # so that it takes no time afterwards
        with _unprinted():
            jax.block_until_ready(_total(self._mesh)(apart(np.zeros_like(room), self._mesh)))
        Channel._met = True

    def share(self, contents: bytes | None) -> bytes:
        """Return what process 0 gives, on every process."""
        return self.collect(contents or b"", everybody=True)[0]

    def deal(self, contents: Callable[[int], bytes]) -> bytes:
        """Return what process 0 gives each process, by its number; each has its own only."""
        own = b""
        for process in range(self.place.processes):
            found = self._collect(contents(process) if self.leads else b"", keep=process == self.place.process)
            own = found[0] if found else own
        return own

    def collect(self, contents: bytes, everybody: bool = False) -> list[bytes]:
        """Return what each process gives; only process 0 has it afterwards, unless everybody is to have it."""
        return self._collect(contents, everybody or self.leads)

    def _collect(self, contents: bytes, keep: bool) -> list[bytes]:
        if self.place.processes == 1:
            return [contents]
        padded = -(-len(contents) // 4) * 4
        lengths = np.zeros(2 * self.place.processes, np.int32)
        lengths[2 * self.place.process : 2 * self.place.process + 2] = len(contents) >> 20, len(contents) & 0xFFFFF
        lengths = self.total(lengths).astype(np.int64)
        sizes = (lengths[::2] << 20) + lengths[1::2]
        firsts = np.concatenate([[0], np.cumsum(-(-sizes // 4))])  # in words
        own = np.frombuffer(contents.ljust(padded, b"\0"), np.int32)
        whole = np.empty(int(firsts[-1]) if keep else 0, np.int32)
        begin = int(firsts[self.place.process])
        for first in range(0, int(firsts[-1]), _CHUNK):
            last = min(first + _CHUNK, int(firsts[-1]))
            part = np.zeros(last - first, np.int32)
            low, high = max(first, begin), min(last, begin + len(own))
            if low < high:
                part[low - first : high - first] = own[low - begin : high - begin]
            part = self.total(part)
            if keep:
                whole[first:last] = part
        if not keep:
            return []
        raw = whole.tobytes()
        return [raw[4 * int(first) : 4 * int(first) + int(size)] for first, size in zip(firsts, sizes, strict=False)]


@contextmanager
def _unprinted() -> Iterator[None]:
    """Let nothing through to the standard output, whoever writes to it."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


@functools.cache
def _total(mesh: Mesh) -> jax.stages.Wrapped:
    add = lambda words: jax.lax.psum(words[0], AXIS)
    return jax.jit(jax.shard_map(add, mesh=mesh, in_specs=APART, out_specs=EVERYWHERE, check_vma=False))
