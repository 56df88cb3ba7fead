"""How a graph is cut into blocks, such that few of a block's nodes have neighbours in others."""

from __future__ import annotations

import numpy as np

from fedminimax.data.shards import deal


def order(ends: np.ndarray, sizes: np.ndarray, places: int) -> np.ndarray | None:
    """Return an order of nodes from which to cut blocks; None: their own numbers are as good.

    It is that of E. Cuthill and J. McKee (1969), reversed, in whole numbers: whoever computes it finds the same.

    Args:
        ends: the two ends of each edge, [E, 2].
        sizes: how many examples each node has, [M]: blocks have about as many.
        places: how many blocks there are.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    count = len(sizes)
    if places == 1:
        return None
    both = np.concatenate([ends, ends[:, ::-1]]).T
    graph = coo_array((np.ones(both.shape[1], np.int8), tuple(both)), shape=(count, count)).tocsr()
    near = reverse_cuthill_mckee(graph, symmetric_mode=True).astype(np.int32)
    fewer = cut_rows(ends, sizes, near, places) < cut_rows(ends, sizes, np.arange(count), places)
    return near if fewer else None


def cut_rows(ends: np.ndarray, sizes: np.ndarray, order: np.ndarray, places: int) -> int:
    """Return how many rows go from block to block in an exchange, each to each once, where blocks are cut from an order.

    Args:
        ends: the two ends of each edge, [E, 2].
        sizes: how many examples each node has, [M].
        order: the order of the nodes, [M].
        places: how many blocks there are.
    """
    owner = np.empty(len(order), np.int64)
    owner[order] = np.searchsorted(deal(sizes[order], places), np.arange(len(order)), side="right") - 1
    to, of = np.concatenate([ends, ends[:, ::-1]]).T
    cut = owner[to] != owner[of]
    return len(np.unique(of[cut].astype(np.int64) * places + owner[to[cut]]))
