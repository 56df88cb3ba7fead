"""Clients whose data is elsewhere: all that a server needs to know of it, and nothing of what is in it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import EPOCHS, REPLACEMENT, ClientData
from fedminimax.errors import InputError
from fedminimax.players import Count, Tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RemoteClients:
    """N clients that keep their data: how many examples each has, and the shapes and dtypes of one example.

    Build it with :meth:`of`. It stands for the clients' data in ``run``, with an engine that asks them.

    Attributes:
        sizes: how many examples each client has, [N].
        structure: the pytree of an example.
        leaves: shape and dtype of each array of an example.
        batching: "replacement" or "epochs", as for :class:`ClientData`.
        smallest: the least size.
        largest: the greatest size.
        total: the number of examples of all clients together.
        names: what the clients are called.
    """

    sizes: Any
    structure: Hashable = field(metadata={"static": True})
    leaves: tuple[tuple[tuple[int, ...], str], ...] = field(metadata={"static": True})
    batching: str = field(metadata={"static": True})
    smallest: int = field(metadata={"static": True})
    largest: int = field(metadata={"static": True})
    total: int = field(metadata={"static": True})
    names: tuple[str, ...] = field(default=(), metadata={"static": True})

    @classmethod
    def of(cls, example: Tree, sizes: Sequence[int], batching: str = REPLACEMENT, names: Sequence[str] = ()) -> RemoteClients:
        """Build from one example.

        Args:
            example: a pytree of arrays, or shapes, whose first axis runs over examples.
            sizes: how many examples each client has.
            batching: how minibatches are drawn.
            names: what the clients are called.
        """
        if batching not in (REPLACEMENT, EPOCHS):
            raise InputError(f"batching must be 'replacement' or 'epochs', not {batching!r}.")
        known = [int(size) for size in sizes]
        if not known or min(known) < 1:
            raise InputError(f"Every client needs at least one example, but the sizes are {known}.")
        leaves, structure = jax.tree.flatten(example)
        kinds = tuple((tuple(np.shape(leaf)[1:]), jnp.result_type(leaf).name) for leaf in leaves)
        array = np.asarray(known, np.int32)
        return cls(array, structure, kinds, batching, min(known), max(known), sum(known), tuple(names))

    @property
    def count(self) -> int:
        """The number of clients N."""
        return int(np.shape(self.sizes)[0])

    @property
    def example(self) -> Tree:
        """The shapes and dtypes of one example, with a leading axis of length 1."""
        return self._examples(lambda shape, dtype: jax.ShapeDtypeStruct((1, *shape), dtype))

    def _examples(self, make: Any) -> Tree:
        return jax.tree.unflatten(self.structure, [make(shape, jnp.dtype(kind)) for shape, kind in self.leaves])

    @property
    def fields(self) -> Tree:
        """There are no examples here."""
        raise InputError("The clients' examples are with the clients: this needs them here, and cannot be had.")

    @property
    def is_seeded(self) -> bool:
        """Whether batches carry fresh random words."""
        return self._has(ClientData.SEED)

    @property
    def is_numbered(self) -> bool:
        """Whether every example carries its client's number."""
        return self._has(ClientData.NUMBER)

    def _has(self, name: str) -> bool:
        example: Any = self.example
        return isinstance(example, dict) and name in example

    def owners(self) -> jax.Array:
        """Return the client of each example, [total]."""
        return jnp.repeat(jnp.arange(self.count), jnp.asarray(self.sizes), total_repeat_length=self.total)

    def at(self, client: Count) -> tuple[ClientData, Count]:
        """Return data of the shape of one client's, for programs that are traced and not run."""
        fields = self._examples(lambda shape, dtype: jnp.zeros((self.largest, *shape), dtype))
        size = jnp.asarray(self.sizes)[client][None]
        return ClientData(fields, jnp.zeros(1, jnp.int32), size, self.smallest, self.largest, self.batching), 0

    def shapes(self, client: int) -> ClientData:
        """Return the shapes of one client's data alone, as a federation of one (see :meth:`ClientData.only`)."""
        size = int(np.asarray(self.sizes)[client])
        fields = self._examples(lambda shape, dtype: jax.ShapeDtypeStruct((size, *shape), dtype))
        one = jax.ShapeDtypeStruct((1,), jnp.dtype("int32"))
        return ClientData(fields, one, one, size, size, self.batching)

    def only(self, client: int) -> ClientData:
        """There are no examples here."""
        return self.fields

    def numbered(self) -> RemoteClients:
        """Return the same clients with the client's own number as one more field of every example."""
        return self._with(ClientData.NUMBER, "int32")

    def seeded(self) -> RemoteClients:
        """Return the same clients with one random word as one more field of every example."""
        return self._with(ClientData.SEED, "uint32")

    def _with(self, name: str, dtype: str) -> RemoteClients:
        example: Any = self.example
        rest = example if isinstance(example, dict) else {ClientData.REST: example}
        more = {**rest, name: jax.ShapeDtypeStruct((1,), jnp.dtype(dtype))}
        return RemoteClients.of(more, np.asarray(self.sizes).tolist(), self.batching, self.names)

    def with_batching(self, batching: str) -> RemoteClients:
        """There is no choice here: each client draws as its data says."""
        if batching != self.batching:
            raise InputError(f"The clients draw batches by {self.batching!r}: let them load their data with {batching!r}.")
        return replace(self)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"RemoteClients({self.count} clients, {self.total} examples, sizes {self.smallest}-{self.largest})"


def alike(data: ClientData, roll: RemoteClients, number: int, first: int) -> ClientData:
    """Return one client's data with the fields that its problem added to what is known of all clients.

    Args:
        data: its own, as a federation of one.
        roll: what is known of all, as bound to the problem.
        number: which of them it is.
        first: how many examples those before it have.
    """
    if roll.is_numbered:
        data = data.numbered()
        data = replace(data, fields={**_dict(data), ClientData.NUMBER: np.full(data.total, number, np.int32)})
    if roll.is_seeded:
        data = data.seeded()
        words = np.arange(first, first + data.total, dtype=np.uint32)
        data = replace(data, fields={**_dict(data), ClientData.SEED: words})
    return data


def _dict(data: ClientData) -> dict[str, Any]:
    assert isinstance(data.fields, dict)
    return data.fields
