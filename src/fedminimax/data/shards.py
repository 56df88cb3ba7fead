"""A process's share of the clients: the examples of its own, and of all others no more than how many they have.

Clients are dealt out in contiguous blocks, one for each place (a device of a process), such that the largest block has as few
examples as can be; nodes of a network in an order in which neighbours are near each other. All blocks have arrays of one
length, as programs that run everywhere need: the shorter are filled up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks
from fedminimax.data.clients import EPOCHS, REPLACEMENT, ClientData, aligned
from fedminimax.data.remote import RemoteClients
from fedminimax.errors import InputError
from fedminimax.players import Count, Tree


def deal(sizes: Sequence[int] | np.ndarray, places: int) -> np.ndarray:
    """Return where contiguous blocks of clients begin and end, [places + 1]: the fullest has as few examples as can be.

    Every block has a client. Of the divisions with the least maximum this is the one that fills the first blocks first.

    Args:
        sizes: how many examples each client has.
        places: how many blocks there are.
    """
    known = np.asarray(sizes, np.int64)
    if not 1 <= places <= len(known):
        raise InputError(f"{len(known)} clients cannot be dealt out over {places} processes: start fewer.")
    ends = np.concatenate([[0], np.cumsum(known)])
    low, high = int(max(known.max(), -(-ends[-1] // places))), int(ends[-1])
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_cuts(ends, middle)) <= places + 1 else (middle + 1, high)
    cuts = _cuts(ends, low)
    while len(cuts) <= places:  # a block with several clients is cut in two, so that nobody is idle
        widest = int(np.argmax(np.diff(cuts)))
        cuts.insert(widest + 1, (cuts[widest] + cuts[widest + 1] + 1) // 2)
    return np.asarray(cuts, np.int32)


def _cuts(ends: np.ndarray, most: int) -> list[int]:
    """Return where blocks of at most so many examples begin and end, each as full as it can be."""
    cuts = [0]
    while cuts[-1] < len(ends) - 1:
        cuts.append(int(np.searchsorted(ends, ends[cuts[-1]] + most, side="right")) - 1)
    return cuts


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientShard:
    """A process's share of N clients' data. ``ClientData.shard`` cuts one out of data that is here; :meth:`read` loads one.

    It stands for the clients' data in ``run(..., engine=Mesh())``, on every process with its own share.

    Attributes:
        fields: pytree of arrays [devices * rows, ...]: the examples of its own clients, block after block, each filled up.
        sizes: how many examples each of all N clients has, [N].
        cuts: where blocks of clients begin and end, [processes * devices + 1].
        process: whose share it is.
        processes: how many shares there are.
        devices: how many blocks a process has.
        smallest: the least size of all.
        largest: the greatest.
        total: the number of examples of all clients together.
        rows: how many examples there is room for in a block.
        batching: "replacement" or "epochs".
        contents: of each field a description of all clients' examples, once the processes have told each other.
        order: of the clients, from which blocks are cut, [N]; None: as they are numbered.
    """

    fields: Tree
    sizes: Any
    cuts: Any
    process: int = field(metadata={"static": True})
    processes: int = field(metadata={"static": True})
    devices: int = field(metadata={"static": True})
    smallest: int = field(metadata={"static": True})
    largest: int = field(metadata={"static": True})
    total: int = field(metadata={"static": True})
    rows: int = field(metadata={"static": True})
    batching: str = field(default=REPLACEMENT, metadata={"static": True})
    contents: tuple[str, ...] | None = field(default=None, metadata={"static": True})
    order: Any = None

    @classmethod
    def read(
        cls,
        read: Callable[[int], Tree],
        sizes: Sequence[int] | np.ndarray,
        process: int,
        processes: int,
        *,
        devices: int = 1,
        batching: str = REPLACEMENT,
        order: Sequence[int] | np.ndarray | None = None,
    ) -> ClientShard:
        """Load the examples of a process's own clients, one client after another, and nothing of the others.

        Args:
            read: returns the examples of the client with a number: a pytree of arrays over examples.
            sizes: how many examples each of all clients has.
            process: whose share to load.
            processes: how many processes there are.
            devices: how many devices each of them has.
            batching: how minibatches are drawn.
            order: of the clients, from which blocks are cut, such as ``network.order(sizes, processes)``, by which neighbours
                are near each other; None: as they are numbered. All processes must give the same.
        """
        if batching not in (REPLACEMENT, EPOCHS):
            raise InputError(f"batching must be 'replacement' or 'epochs', not {batching!r}.")
        known = np.asarray(sizes, np.int32)
        if known.ndim != 1 or known.size == 0 or known.min() < 1:
            raise InputError("sizes must have a number of examples, at least 1, for each client.")
        numbers = np.arange(len(known)) if order is None else _checked_order(order, len(known))
        cuts = _dealt(known[numbers], process, processes, devices)
        ends = np.concatenate([[0], np.cumsum(known[numbers], dtype=np.int64)])
        rows = int(np.diff(ends[cuts]).max())
        room: Tree = None
        for block in range(devices):
            first, last = cuts[process * devices + block], cuts[process * devices + block + 1]
            for place in range(int(first), int(last)):
                client = int(numbers[place])
                own = jax.tree.map(np.asarray, read(client))
                _check(own, client, int(known[client]))
                if room is None:
                    room = jax.tree.map(lambda a: _room(devices * rows, a), own)
                at = block * rows + int(ends[place] - ends[first])
                jax.tree.map(lambda all_, part, at=at: _put(all_, part, at), room, own)
        static = int(known.min()), int(known.max()), int(ends[-1]), rows
        return cls(room, known, cuts, process, processes, devices, *static, batching, None, None if order is None else numbers)

    @classmethod
    def from_owner(cls, fields: Tree, owner: Any, process: int, processes: int, **more: Any) -> ClientShard:
        """Load a process's own clients' examples from pooled arrays, such as ``np.load(file, mmap_mode="r")``: no other rows.

        It is the share of ``ClientData.from_owner(fields, owner)``, which has all of them.

        Args:
            fields: pytree of arrays over all examples; of files that are mapped into memory, only its own rows are read.
            owner: ``owner[j]`` is the client of example j, or -1 for an example that nobody holds.
            process: whose share to load.
            processes: how many processes there are.
            more: devices, batching and order, as for :meth:`read`.
        """
        owner = np.asarray(owner)
        if owner.ndim != 1 or not np.issubdtype(owner.dtype, np.integer) or owner.min(initial=0) < -1:
            raise InputError("owner must be a vector of client numbers, from 0, with -1 for an example that nobody holds.")
        if any(np.shape(leaf)[:1] != owner.shape for leaf in jax.tree.leaves(fields)):
            raise InputError(f"owner names a client for {owner.size} examples, but a field has another number of them.")
        order = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
        sizes = np.bincount(owner[order])
        ends = np.cumsum(sizes)
        rows = lambda client: order[ends[client] - sizes[client] : ends[client]]
        return cls.read(lambda client: jax.tree.map(lambda a: a[rows(client)], fields), sizes, process, processes, **more)

    @property
    def count(self) -> int:
        """The number of all clients N."""
        return int(np.shape(self.sizes)[0])

    @property
    def block_clients(self) -> int:
        """How many clients there is room for in a block."""
        return int(np.diff(np.asarray(self.cuts)).max())

    @property
    def own(self) -> list[int]:
        """The numbers of this process's clients."""
        return [int(client) for block in self.blocks() for client in block]

    def blocks(self) -> Iterator[np.ndarray]:
        """Return the numbers of the clients of each block of this process."""
        for k in range(self.process * self.devices, (self.process + 1) * self.devices):
            first, last = int(self.cuts[k]), int(self.cuts[k + 1])
            yield np.arange(first, last) if self.order is None else np.asarray(self.order)[first:last]

    def starts(self) -> np.ndarray:
        """Return where each of this process's clients begins within its block, [devices * block_clients]; zeros fill up."""
        return self._by_block(lambda own: np.concatenate([[0], np.cumsum(own)[:-1]]))

    def own_sizes(self) -> np.ndarray:
        """Return how many examples each of this process's clients has, [devices * block_clients]; ones fill up."""
        return np.maximum(self._by_block(lambda own: own), 1)

    def _by_block(self, numbers: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        out = np.zeros((self.devices, self.block_clients), np.int32)
        for k, clients in enumerate(self.blocks()):
            out[k, : len(clients)] = numbers(np.asarray(self.sizes)[clients])
        return out.reshape(-1)

    def places(self) -> np.ndarray:
        """Return where each of this process's clients begins in ``fields``, in the order of :attr:`own`."""
        starts = self.starts().reshape(self.devices, -1)
        return np.concatenate([starts[k, : len(own)] + k * self.rows for k, own in enumerate(self.blocks())])

    def place(self, client: int) -> int:
        """Return where a client of this process begins in ``fields``."""
        for k, clients in enumerate(self.blocks()):
            if (found := np.flatnonzero(clients == client)).size:
                return k * self.rows + int(np.sum(np.asarray(self.sizes)[clients[: found[0]]]))
        raise InputError(f"The examples of client {client} are with another process: this is {self!r}.")

    def __getitem__(self, client: int) -> Tree:
        start, size = self.place(client), int(self.sizes[client])
        return jax.tree.map(lambda a: a[start : start + size], self.fields)

    def only(self, client: int) -> ClientData:
        """Return the data of one of this process's clients, as a federation of one."""
        own, size = jax.tree.map(np.array, self[client]), int(self.sizes[client])
        return ClientData(own, np.zeros(1, np.int32), np.full(1, size, np.int32), size, size, self.batching)

    @property
    def example(self) -> Tree:
        """The shapes and dtypes of one example, with a leading axis of length 1."""
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *np.shape(a)[1:]), jnp.result_type(a)), self.fields)

    @property
    def is_seeded(self) -> bool:
        """Whether batches carry fresh random words."""
        return isinstance(self.fields, dict) and ClientData.SEED in self.fields

    def owners(self) -> jax.Array:
        """Return the client of each example of all, [total]."""
        return jnp.repeat(jnp.arange(self.count), jnp.asarray(self.sizes), total_repeat_length=self.total)

    def at(self, client: Count) -> tuple[ClientData, Count]:
        """Return data of the shape of one client's, for programs that are traced and not run."""
        return RemoteClients.of(self.example, np.full(self.count, self.largest).tolist(), self.batching).at(client)

    def numbered(self) -> ClientShard:
        """Return the same clients with the client's own number as one more field of every example."""
        return self._with(ClientData.NUMBER, lambda client, first: np.full(int(self.sizes[client]), client, np.int32))

    def seeded(self) -> ClientShard:
        """Return the same clients with one random word as one more field of every example."""
        return self._with(
            ClientData.SEED, lambda client, first: np.arange(first, first + int(self.sizes[client]), dtype=np.uint32)
        )

    def _with(self, name: str, values: Callable[[int, int], np.ndarray]) -> ClientShard:
        rest = self.fields if isinstance(self.fields, dict) else {ClientData.REST: self.fields}
        ends = np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])
        more = _room(self.devices * self.rows, values(self.own[0], 0))
        for client, place in zip(self.own, self.places().tolist(), strict=True):
            _put(more, values(client, int(ends[client])), place)
        return replace(self, fields={**rest, name: more})

    def with_batching(self, batching: str) -> ClientShard:
        """Return the same clients with minibatches drawn with "replacement" or by reshuffled "epochs"."""
        if batching not in (REPLACEMENT, EPOCHS):
            raise InputError(f"batching must be 'replacement' or 'epochs', not {batching!r}.")
        return replace(self, batching=batching)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        whose = f"process {self.process} of {self.processes}"
        return f"ClientShard({len(self.own)} of {self.count} clients, {whose})"


def _dealt(sizes: np.ndarray, process: int, processes: int, devices: int) -> np.ndarray:
    checks.integer("processes", processes)
    checks.integer("devices", devices)
    if not 0 <= process < processes:
        raise InputError(f"process is {process}, but there are {processes}: they are numbered from 0.")
    return deal(sizes, processes * devices)


def _checked_order(order: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    numbers = np.asarray(order)
    if numbers.shape != (count,) or (np.sort(numbers) != np.arange(count)).any():
        raise InputError(f"order must have each of the clients' numbers, 0 to {count - 1}, once.")
    return numbers.astype(np.int32)


def _room(rows: int, like: np.ndarray) -> np.ndarray:
    # Not `zeros`: memory that is written once, where the examples go, is touched once.
    return aligned((rows, *like.shape[1:]), like.dtype)


def _put(room: np.ndarray, part: np.ndarray, at: int) -> None:
    if part.dtype != room.dtype or part.shape[1:] != room.shape[1:]:
        raise InputError(
            f"A client has examples of {part.dtype.name}{list(part.shape[1:])}, but others of this process have "
            f"{room.dtype.name}{list(room.shape[1:])}: give every client the same fields."
        )
    room[at : at + len(part)] = part


def _check(own: Tree, client: int, size: int) -> None:
    for leaf in jax.tree.leaves(own):
        if np.ndim(leaf) == 0 or len(leaf) != size:
            shape = np.shape(leaf)
            raise InputError(f"Client {client} was said to have {size} examples, but what was read has the shape {shape}.")
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            raise InputError(f"Client {client} has a NaN or infinite number among its examples: clean or drop it.")
