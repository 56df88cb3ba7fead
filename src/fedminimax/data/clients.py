"""All clients' data, flat.

Every field is one array that holds all clients' examples, client after client; a client is a start and a size. A batch is
a gather. Nothing is padded, and a million clients cost two integers each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks
from fedminimax.errors import InputError
from fedminimax.players import Count, Tree

if TYPE_CHECKING:
    from fedminimax.data.shards import ClientShard

REPLACEMENT, EPOCHS = "replacement", "epochs"


class ClientSource(Protocol):
    """Where a run's examples come from: stored (:class:`ClientData`), or made on demand (``GeneratedClients``)."""

    @property
    def count(self) -> int:
        """The number of clients N."""
        ...

    @property
    def sizes(self) -> Any:
        """How many examples each client has, [N]."""
        ...

    @property
    def smallest(self) -> int:
        """The least size."""
        ...

    @property
    def largest(self) -> int:
        """The greatest size."""
        ...

    @property
    def total(self) -> int:
        """The number of examples of all clients together."""
        ...

    @property
    def batching(self) -> str:
        """How minibatches are drawn."""
        ...

    @property
    def fields(self) -> Tree:
        """All examples of all clients, where there is such a thing."""
        ...

    @property
    def example(self) -> Tree:
        """The shapes and dtypes of one example, with a leading axis of length 1."""
        ...

    @property
    def is_seeded(self) -> bool:
        """Whether batches carry fresh random words."""
        ...

    def owners(self) -> jax.Array:
        """Return the client of each example, [total]."""
        ...

    def at(self, client: Count) -> tuple[ClientData, Count]:
        """Return data that holds one client's examples, and the client's place in it."""
        ...

    def only(self, client: int) -> ClientData:
        """Return the data of one client alone, as a federation of one."""
        ...

    def numbered(self) -> Self:
        """Return the same clients with the client's own number as one more field of every example."""
        ...

    def seeded(self) -> Self:
        """Return the same clients with one random word as one more field of every example."""
        ...

    def with_batching(self, batching: str) -> Self:
        """Return the same clients with minibatches drawn in another way."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ClientData:
    """The data of N clients: ``fields`` is a pytree of arrays whose first axis runs over all examples of all clients.

    Build it with :meth:`from_list`, :meth:`from_owner` or :meth:`equal`, which check what they are given.

    Attributes:
        fields: pytree of arrays [total, ...].
        starts: where each client's examples begin, [N].
        sizes: how many examples each client has, [N].
        smallest: the least size, known when programs are compiled.
        largest: the greatest size.
        batching: "replacement" (each batch drawn afresh) or "epochs" (reshuffled passes over the client's data).
    """

    NUMBER: ClassVar[str] = "_client"
    REST: ClassVar[str] = "_fields"
    SEED: ClassVar[str] = "_seed"

    fields: Tree
    starts: Any
    sizes: Any
    smallest: int = field(metadata={"static": True})
    largest: int = field(metadata={"static": True})
    batching: str = field(default=REPLACEMENT, metadata={"static": True})

    @classmethod
    def from_list(cls, clients: Sequence[Tree], batching: str = REPLACEMENT) -> ClientData:
        """Build from one pytree per client, each leaf an array over that client's examples."""
        if not clients:
            raise InputError("There are no clients: give at least one pytree of arrays.")
        structure: Any = jax.tree.structure(clients[0])
        sizes = []
        for i, client in enumerate(clients):
            if structure != jax.tree.structure(client):
                raise InputError(
                    f"Client {i} has the structure {jax.tree.structure(client)}, but client 0 has {structure}; give every "
                    "client the same fields."
                )
            sizes.append(_client_size(i, client))
        for (path, first), *others in zip(*(jax.tree_util.tree_leaves_with_path(c) for c in clients), strict=True):
            for i, (_, other) in enumerate(others, start=1):
                if np.shape(other)[1:] != np.shape(first)[1:]:
                    raise InputError(
                        f"Field {_name(path)} of client {i} has examples of shape {np.shape(other)[1:]}, but client 0's "
                        f"have {np.shape(first)[1:]}."
                    )

        def joined(*leaves: Any) -> np.ndarray:
            arrays = [np.asarray(leaf) for leaf in leaves]
            out = aligned((sum(sizes), *np.shape(leaves[0])[1:]), np.result_type(*arrays))
            return np.concatenate(arrays, out=out)

        return cls._checked(jax.tree.map(joined, *clients), np.asarray(sizes), batching)

    @classmethod
    def from_owner(cls, fields: Tree, owner: Any, count: int | None = None, batching: str = REPLACEMENT) -> ClientData:
        """Build from pooled arrays and the index of the client that holds each example.

        Args:
            fields: pytree of arrays over all examples.
            owner: integer array; ``owner[j]`` is the client of example j, or -1 for an example nobody holds.
            count: the number of clients; by default the largest owner plus one.
            batching: how minibatches are drawn.
        """
        owner = np.asarray(owner)
        if owner.ndim != 1 or not np.issubdtype(owner.dtype, np.integer):
            raise InputError(f"owner must be a vector of client numbers, not {owner.dtype} of shape {owner.shape}.")
        _check_fields(fields)
        for path, leaf in jax.tree_util.tree_leaves_with_path(fields):
            if np.shape(leaf)[:1] != owner.shape:
                raise InputError(
                    f"Field {_name(path)} has {np.shape(leaf)[0] if np.ndim(leaf) else 'no'} examples, but owner names a "
                    f"client for {owner.size}."
                )
        count = int(owner.max(initial=-1)) + 1 if count is None else count
        if owner.max(initial=-1) >= count or owner.min(initial=0) < -1:
            raise InputError(
                f"owner has values from {owner.min()} to {owner.max()}, but there are {count} clients: use 0 to "
                f"{count - 1}, or -1 for an example that nobody holds."
            )
        order = np.argsort(owner, kind="stable")
        order = order[np.count_nonzero(owner < 0) :]
        sizes = np.bincount(owner[owner >= 0], minlength=count)

        def sorted_by_client(leaf: Any) -> np.ndarray:
            leaf = np.asarray(leaf)
            return np.take(leaf, order, axis=0, out=aligned((order.size, *leaf.shape[1:]), leaf.dtype), mode="clip")

        return cls._checked(jax.tree.map(sorted_by_client, fields), sizes, batching)

    @classmethod
    def equal(cls, fields: Tree, count: int, batching: str = REPLACEMENT) -> ClientData:
        """Build from pooled arrays cut, in order, into ``count`` equal parts."""
        checks.integer("count", count)
        _check_fields(fields)
        total = {np.shape(leaf)[0] for leaf in jax.tree.leaves(fields)}
        if len(total) != 1 or min(total) % count or not min(total):
            raise InputError(f"{count} equal parts need fields of one length that {count} divides, not {sorted(total)}.")
        return cls._checked(jax.tree.map(_aligned_copy, fields), np.full(count, min(total) // count), batching)

    @classmethod
    def _checked(cls, fields: Tree, sizes: np.ndarray, batching: str) -> ClientData:
        if batching not in (REPLACEMENT, EPOCHS):
            raise InputError(f"batching must be 'replacement' or 'epochs', not {batching!r}.")
        if sizes.size == 0:
            raise InputError("There are no clients: every example is owned by nobody.")
        empty = np.flatnonzero(sizes == 0)
        if empty.size:
            raise InputError(
                f"Client {empty[0]} has no examples ({empty.size} such in all): leave empty clients out, or give them data."
            )
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        for path, leaf in jax.tree_util.tree_leaves_with_path(fields):
            bad = _first_bad(leaf)
            if bad is not None:
                client = int(np.searchsorted(starts, bad, side="right")) - 1
                raise InputError(
                    f"Field {_name(path)} of client {client} has a NaN or infinite number in its example "
                    f"{bad - int(starts[client])}: clean or drop that example."
                )
        return cls(fields, starts.astype(np.int32), sizes.astype(np.int32), int(sizes.min()), int(sizes.max()), batching)

    @property
    def count(self) -> int:
        """The number of clients N."""
        return int(np.shape(self.sizes)[0])

    @property
    def total(self) -> int:
        """The number of examples of all clients together."""
        return int(np.shape(jax.tree.leaves(self.fields)[0])[0])

    @property
    def is_seeded(self) -> bool:
        """Whether batches carry fresh random words (see :meth:`seeded`)."""
        return isinstance(self.fields, dict) and self.SEED in self.fields

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, client: int) -> Tree:
        if not -self.count <= client < self.count:
            raise IndexError(f"There is no client {client}: there are {self.count}.")
        start, size = int(self.starts[client]), int(self.sizes[client])
        return jax.tree.map(lambda a: a[start : start + size], self.fields)

    def __iter__(self) -> Iterator[Tree]:
        return (self[i] for i in range(self.count))

    @property
    def example(self) -> Tree:
        """The shapes and dtypes of one example, with a leading axis of length 1."""
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *np.shape(a)[1:]), jnp.result_type(a)), self.fields)

    def at(self, client: Count) -> tuple[ClientData, Count]:
        """Return data that holds one client's examples, and the client's place in it."""
        return self, client

    def only(self, client: int) -> ClientData:
        """Return a copy of the data of one client alone, as a federation of one."""
        size = int(self.sizes[client])
        own = jax.tree.map(np.array, self[client])
        return ClientData(own, np.zeros(1, np.int32), np.full(1, size, np.int32), size, size, self.batching)

    def shard(self, process: int, processes: int, devices: int = 1, order: np.ndarray | None = None) -> ClientShard:
        """Return a copy of the examples of one process's clients, which knows of the others how many they have.

        Args:
            process: whose: 0, 1, ...
            processes: over how many the clients are dealt out, in contiguous blocks that have about as many examples each.
            devices: how many blocks each process has.
            order: of the clients, from which blocks are cut (see :meth:`Network.order`); None: as they are numbered.
        """
        from fedminimax.data.shards import ClientShard

        options: dict[str, Any] = {"devices": devices, "batching": self.batching, "order": order}
        return ClientShard.read(self.__getitem__, np.asarray(self.sizes), process, processes, **options)

    def with_batching(self, batching: str) -> ClientData:
        """Return the same data with minibatches drawn with "replacement" or by reshuffled "epochs"."""
        if batching not in (REPLACEMENT, EPOCHS):
            raise InputError(f"batching must be 'replacement' or 'epochs', not {batching!r}.")
        return replace(self, batching=batching)

    def numbered(self) -> ClientData:
        """Return the same data with the client's own number as one more field of every example."""
        rest = self.fields if isinstance(self.fields, dict) else {self.REST: self.fields}
        traced = isinstance(self.sizes, jax.core.Tracer)
        owner = self.owners() if traced else np.repeat(np.arange(self.count, dtype=np.int32), np.asarray(self.sizes))
        return replace(self, fields={**rest, self.NUMBER: owner})

    def seeded(self) -> ClientData:
        """Return the same data with one random word as one more field of every example, which each batch replaces afresh."""
        rest = self.fields if isinstance(self.fields, dict) else {self.REST: self.fields}
        return replace(self, fields={**rest, self.SEED: np.arange(self.total, dtype=np.uint32)})

    def owners(self) -> jax.Array:
        """Return the client of each example, [total]."""
        return jnp.repeat(jnp.arange(self.count), jnp.asarray(self.sizes), total_repeat_length=self.total)

    def __repr__(self) -> str:
        fields = {_name(p): np.shape(v)[1:] for p, v in jax.tree_util.tree_leaves_with_path(self.fields)}
        return f"ClientData({self.count} clients, {self.total} examples, sizes {self.smallest}-{self.largest}, {fields})"


def _first_bad(leaf: np.ndarray, chunk: int = 65_536) -> int | None:
    """Return the first example with a non-finite number, looking at a chunk at a time: no copy of the data's size."""
    if not np.issubdtype(leaf.dtype, np.floating):
        return None
    for first in range(0, len(leaf), chunk):
        rows = np.isfinite(leaf[first : first + chunk])
        if not rows.all():
            return first + int(np.argmin(rows.reshape(len(rows), -1).all(axis=1)))
    return None


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an empty array that begins at a multiple of 64 bytes: JAX then uses it in place, on every core, uncopied."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + size].view(dtype).reshape(shape)


def _aligned_copy(leaf: Any) -> np.ndarray:
    leaf = np.asarray(leaf)
    out = aligned(leaf.shape, leaf.dtype)
    out[...] = leaf
    return out


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "(the array)"


def _check_fields(fields: Tree) -> None:
    """Raise an :class:`InputError` unless the pooled fields are arrays of numbers over examples."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(fields):
        checks.numbers(f"Field {_name(path)}" if path else "What is given", leaf)
        if np.ndim(leaf) == 0:
            raise InputError(
                f"Field {_name(path)} is a scalar: its first axis must run over examples (give an array, not a list)."
            )


def _client_size(i: int, client: Tree) -> int:
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(client):
        checks.numbers(f"Field {_name(path)} of client {i}" if path else f"Client {i}", leaf)
        if np.ndim(leaf) == 0:
            raise InputError(
                f"Field {_name(path)} of client {i} is a scalar: its first axis must run over examples (give an array, not a "
                "list)."
            )
        sizes[_name(path)] = np.shape(leaf)[0]
    if not sizes:
        raise InputError(f"Client {i} has no fields: give it at least one array.")
    if len(set(sizes.values())) > 1:
        raise InputError(f"The fields of client {i} differ in length ({sizes}): each must have one entry per example.")
    return next(iter(sizes.values()))
