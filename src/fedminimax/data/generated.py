"""Clients whose data is made when they are asked: a million devices in the memory of one cohort."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks
from fedminimax.data.clients import EPOCHS, REPLACEMENT, ClientData
from fedminimax.errors import InputError
from fedminimax.players import Count, Tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GeneratedClients:
    """N clients of equally many examples, each a function of the client's number.

    Nothing is stored. A client's examples are made, inside the compiled round, whenever it takes part in an exchange.

    Args:
        make: a JAX function of a client's number that returns its examples: a pytree of arrays [size, ...]. It is compiled, so
            the number is no Python int in it: draw with ``jax.random.key(client)``, choose with ``jnp.where``.
        count: N.
        batching: "replacement" or "epochs", as for :class:`ClientData`.
    """

    make: Callable[[Any], Tree] = field(metadata={"static": True})
    count: int = field(metadata={"static": True})
    batching: str = field(default=REPLACEMENT, metadata={"static": True})

    def __post_init__(self) -> None:
        checks.integer("count", self.count)
        if not callable(self.make):
            raise InputError(
                f"make must be a function of a client's number that returns its examples, not {type(self.make).__name__}."
            )
        if self.batching not in (REPLACEMENT, EPOCHS):
            raise InputError(f"batching must be 'replacement' or 'epochs', not {self.batching!r}.")
        shapes = {s.shape[:1] for s in jax.tree.leaves(self._shapes)}
        if len(shapes) != 1 or () in shapes or (0,) in shapes:
            raise InputError("make(client) must return arrays of one length, that of the client's examples, above zero.")

    @functools.cached_property
    def _shapes(self) -> Tree:
        try:
            return jax.eval_shape(self.make, jax.ShapeDtypeStruct((), jnp.int32))
        except (TypeError, jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
            raise InputError(
                "make(client) is compiled once for all clients, and failed: use jax.random.key(client) and jnp.where in place "
                f"of NumPy's random numbers and `if`, and shapes that are the same for all clients. ({error})"
            ) from error

    @property
    def smallest(self) -> int:
        """How many examples each client has."""
        return int(jax.tree.leaves(self._shapes)[0].shape[0])

    largest = smallest

    @property
    def sizes(self) -> np.ndarray:
        """How many examples each client has, [N]."""
        return np.full(self.count, self.smallest, np.int32)

    @property
    def total(self) -> int:
        """The number of examples of all clients together."""
        return self.count * self.smallest

    @property
    def fields(self) -> Tree:
        """There is no such thing as all examples."""
        raise InputError(
            "The examples of generated clients are made on demand, never all at once: evaluate on some of them, as in "
            "metrics.On(metric, clients.take(range(1000)))."
        )

    def owners(self) -> jax.Array:
        """There is no such thing as all examples."""
        return self.fields

    @property
    def example(self) -> Tree:
        """The shapes and dtypes of one example, with a leading axis of length 1."""
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape[1:]), s.dtype), self._shapes)

    @property
    def is_seeded(self) -> bool:
        """Whether batches carry fresh random words."""
        return isinstance(self._shapes, dict) and ClientData.SEED in self._shapes

    def at(self, client: Count) -> tuple[ClientData, int]:
        """Return data that holds one client's examples, and the client's place in it."""
        size = self.smallest
        zero, sizes = np.zeros(1, np.int32), np.full(1, size, np.int32)
        return ClientData(self.make(client), zero, sizes, size, size, self.batching), 0

    def only(self, client: int) -> ClientData:
        """Return the data of one client alone, as a federation of one."""
        return self.take([client])

    def take(self, ids: Iterable[int]) -> ClientData:
        """Return the data of some clients, stored: for metrics, or for a smaller federation."""
        chosen = np.asarray(list(ids), np.int32)
        if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= self.count:
            raise InputError(f"take needs client numbers from 0 to {self.count - 1}.")
        made = jax.jit(jax.vmap(self.make))(chosen)
        pooled = jax.tree.map(lambda a: np.asarray(a).reshape(-1, *a.shape[2:]), made)
        return ClientData.equal(pooled, len(chosen), self.batching)

    def numbered(self) -> GeneratedClients:
        """Return the same clients with the client's own number as one more field of every example."""
        return replace(self, make=_numbered(self.make))

    def seeded(self) -> GeneratedClients:
        """Return the same clients with one random word as one more field of every example."""
        return replace(self, make=_seeded(self.make))

    def with_batching(self, batching: str) -> GeneratedClients:
        """Return the same clients with minibatches drawn with "replacement" or by reshuffled "epochs"."""
        return replace(self, batching=batching)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"GeneratedClients({self.count} clients of {self.smallest} examples, made on demand)"


# Kept, so that the same clients give the same function: a new one would compile every run anew.
@functools.lru_cache(maxsize=64)
def _numbered(make: Callable[[Any], Tree]) -> Callable[[Any], Tree]:
    return lambda id: _with(make(id), ClientData.NUMBER, lambda size: jnp.full(size, id, jnp.int32))


@functools.lru_cache(maxsize=64)
def _seeded(make: Callable[[Any], Tree]) -> Callable[[Any], Tree]:
    return lambda id: _with(make(id), ClientData.SEED, lambda size: jnp.arange(size, dtype=jnp.uint32))


def _with(examples: Tree, name: str, value: Callable[[int], jax.Array]) -> Tree:
    rest = examples if isinstance(examples, dict) else {ClientData.REST: examples}
    return {**rest, name: value(jax.tree.leaves(examples)[0].shape[0])}
