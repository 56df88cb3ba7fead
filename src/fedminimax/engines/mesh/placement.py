"""Clients where they are: each block of them, with its examples and its clients' states, on one device of one process."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.shards import ClientShard
from fedminimax.engines.layout import AXIS
from fedminimax.engines.mesh.dealt import Dealt, order_of
from fedminimax.engines.mesh.halo import Halo, cut
from fedminimax.errors import InputError
from fedminimax.network import Network
from fedminimax.players import Count, Tree
from fedminimax.problems.robust import Problem

EVERYWHERE, APART = PartitionSpec(), PartitionSpec(AXIS)
"""What is the same on all devices, and what each has its own part of."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Blocks:
    """All clients, as a device sees them inside of a compiled round: its own block of them, and the numbers of all.

    Attributes:
        local: the block's examples, or what makes any client's.
        cuts: where blocks begin and end, [places + 1].
        sizes: how many examples each of all clients has, [N].
        order: from which blocks are cut, [N], and where in it each client is, [N]; None: as clients are numbered.
        halo: of nodes, what leads from one to another; None: they are clients.
        count: N.
        smallest: the least size.
        largest: the greatest size.
        total: the number of examples of all clients together.
        most: how many clients the largest block has.
        batching: how minibatches are drawn.
    """

    local: ClientSource
    cuts: Any
    sizes: Any
    order: tuple[Any, Any] | None
    halo: Halo | None
    count: int = field(metadata={"static": True})
    smallest: int = field(metadata={"static": True})
    largest: int = field(metadata={"static": True})
    total: int = field(metadata={"static": True})
    most: int = field(metadata={"static": True})
    batching: str = field(metadata={"static": True})

    def first_and_last(self) -> tuple[jax.Array, jax.Array]:
        """Return the first client of this device's block, and the one after its last."""
        me, cuts = jax.lax.axis_index(AXIS), jnp.asarray(self.cuts)
        return cuts[me], cuts[me + 1]

    def rows(self, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the rows of some clients in this device's block, and which of them are in it. The others' rows are any."""
        first, last = self.first_and_last()
        at = ids if self.order is None else jnp.asarray(self.order[1])[ids]
        return jnp.clip(at - first, 0, last - first - 1), (at >= first) & (at < last)

    def numbers(self, at: jax.Array) -> jax.Array:
        """Return the clients at some places of this device's block."""
        at = self.first_and_last()[0] + at
        return (at if self.order is None else jnp.asarray(self.order[0])[at]).astype(jnp.int32)

    def at(self, client: Count) -> tuple[ClientData, Count]:
        """Return data that holds one client's examples, if it is of this block, and the client's place in it."""
        if isinstance(self.local, GeneratedClients):
            return self.local.at(client)
        return self.local.at(self.rows(jnp.asarray(client))[0])


@functools.cache
def device_mesh(devices: int) -> Mesh:
    """Return the mesh of so many devices of every process."""
    chosen: dict[int, list[jax.Device]] = {}
    for device in jax.devices():
        chosen.setdefault(device.process_index, []).append(device)
    fewest = min(len(own) for own in chosen.values())
    if devices > fewest:
        raise InputError(f"devices is {devices}, but a process has {fewest}: ask for fewer.")
    if devices > 1 and len(chosen) > 1 and jax.default_backend() == "cpu":
        raise InputError("Several host devices of one process overtake each other in collectives: start a process a core.")
    return Mesh(np.asarray([device for p in sorted(chosen) for device in chosen[p][:devices]]), (AXIS,))


def own_share(
    clients: ClientSource, problem: Problem, process: int, processes: int, devices: int
) -> ClientShard | GeneratedClients:
    """Return a process's share of some clients; what is a share already must be this one."""
    if isinstance(clients, GeneratedClients):
        return clients
    if isinstance(clients, ClientData):
        return clients.shard(process, processes, devices, order_of(problem, clients.sizes, processes * devices))
    if not isinstance(clients, ClientShard):
        raise InputError(f"The mesh runs on ClientData, a share of it, or GeneratedClients, not on {type(clients).__name__}.")
    if (clients.process, clients.processes, clients.devices) != (process, processes, devices):
        raise InputError(f"This is process {process} of {processes} with {devices} devices, but it was given {clients!r}.")
    return clients


def placed(share: ClientShard | GeneratedClients, dealt: Dealt, mesh: Mesh, network: Network | None = None) -> Blocks:
    """Put a process's clients on its devices: the blocks of all processes together.

    Args:
        share: the process's clients.
        dealt: which of all clients are where.
        mesh: all devices.
        network: of nodes whose rows are where their data is; None: there is none, or all rows are everywhere.
    """
    local: ClientSource = share if isinstance(share, GeneratedClients) else _local(share, mesh)
    halo = None if network is None else apart(cut(network, dealt), mesh)
    order = None if dealt.order is None else (dealt.order, np.argsort(dealt.order))
    cuts_there, sizes_there, order_there = everywhere((dealt.cuts, np.asarray(share.sizes), order), mesh)
    return Blocks(
        local,
        cuts_there,
        sizes_there,
        order_there,
        halo,
        count=share.count,
        smallest=share.smallest,
        largest=share.largest,
        total=share.total,
        most=dealt.most,
        batching=share.batching,
    )


def _local(share: ClientShard, mesh: Mesh) -> ClientData:
    fields, starts, sizes = apart((share.fields, share.starts(), share.own_sizes()), mesh)
    return ClientData(fields, starts, sizes, share.smallest, share.largest, share.batching)


def specs(blocks: Blocks) -> Any:
    """Return how the arrays of blocks are spread over devices."""
    return Blocks(
        jax.tree.map(lambda _: APART, blocks.local),
        EVERYWHERE,
        EVERYWHERE,
        jax.tree.map(lambda _: EVERYWHERE, blocks.order),
        jax.tree.map(lambda _: APART, blocks.halo),
        *(blocks.count, blocks.smallest, blocks.largest, blocks.total, blocks.most, blocks.batching),
    )


def apart(tree: Tree, mesh: Mesh) -> Tree:
    """Put each process's own part of arrays, over its devices in order, on its devices: arrays of all parts together."""
    where, share = NamedSharding(mesh, APART), mesh.size // len({d.process_index for d in mesh.devices.flat})

    def put(leaf: Any) -> jax.Array:
        whole = (leaf.shape[0] * (mesh.size // share), *leaf.shape[1:])
        return jax.make_array_from_process_local_data(where, np.asarray(leaf, jnp.result_type(leaf)), whole)

    return jax.tree.map(put, tree)


def everywhere(tree: Tree, mesh: Mesh) -> Tree:
    """Put a tree, that every process has alike, on every device. Python's numbers stay what they are."""
    where = NamedSharding(mesh, EVERYWHERE)

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
            return leaf
        if isinstance(leaf, jax.Array) and leaf.sharding == where:
            return leaf
        host = np.asarray(leaf).astype(jnp.result_type(leaf), copy=False)
        return jax.make_array_from_callback(host.shape, where, lambda index: host[index])

    return jax.tree.map(put, tree)


def own_part(leaf: jax.Array) -> np.ndarray:
    """Return what this process has of an array whose parts are on its devices, in order."""
    parts = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in parts])
