"""The federation without a server: nodes that work on what is theirs and exchange it with their neighbours.

What nodes hold is :class:`Rows`: one row each, which a method can hand to :meth:`Nodes.map` (work on every node, each seeing
its own rows) and :meth:`Nodes.mix` (one exchange along the edges), and to nothing else. So a round never touches another node's
row but through ``mix``, whatever carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jax

from fedminimax.errors import InputError
from fedminimax.federation.cohort import Clients
from fedminimax.federation.round import ClientFunction
from fedminimax.network import Network
from fedminimax.players import Tree


class Rows:
    """One value on every node, which only the nodes can compute with."""

    def __init__(self, tree: Tree):
        self._tree = tree

    def _refuse(self, *_: object) -> NoReturn:
        raise InputError(
            "Rows are the nodes' own: compute with them in a method that is given to nodes.map, or exchange them by mix."
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __getitem__ = __array__ = _refuse


class Nodes:
    """The nodes, as a decentralised algorithm's ``step`` sees them.

    Attributes:
        count: M.
        round: the round t.
    """

    def __init__(self, clients: Clients, network: Network):
        current = clients.current
        if current.conditions.availability is not None:
            raise InputError("Nodes of a network are always there: leave availability out.")
        self._clients, self._network, self._everybody = clients, network, clients.all()
        current.asked.in_place = True
        self.count, self.round = clients.count, clients.round

    def map(self, fn: ClientFunction[Tree], *rows: Rows, shared: tuple[Tree, ...] = ()) -> Any:
        """Return what ``fn(problem, node, *shared, *rows)`` gives on every node; a tuple of Rows where it returns a tuple.

        Args:
            fn: a method of the algorithm: the node's program.
            rows: what each node has its own row of.
            shared: what all nodes know, such as a coin that they all can toss.
        """
        values = self._everybody.work(fn, *shared, rows=tuple(_tree(r) for r in rows))
        return tuple(Rows(v) for v in values) if type(values) is tuple else Rows(values)

    def mix(self, rows: Rows, when: jax.Array | None = None) -> Rows:
        """Return W X: on node i the sum over its neighbours j of a_ij (x_i - x_j). Nodes send their rows to their neighbours.

        A neighbour's message that is not finite is ignored, as if there were no such edge this time.

        Args:
            rows: what is exchanged.
            when: whether the exchange takes place at all (a scalar); where not, the rows that come back are zeros.
        """
        return Rows(self._clients.current.gossip(self._network, _tree(rows), when))

    def result(self, rows: Rows) -> Tree:
        """Return what the nodes hold at the end of a round, stacked: for the engine, which keeps it until the next."""
        return _tree(rows)

    def alike(self, rows: Rows, read: Callable[[Tree], Tree]) -> Tree:
        """Return what is the same on every node, such as whether the method has begun: each reads it in its own row."""
        return jax.tree.map(lambda a: a[0], read(_tree(rows)))

    def draw(
        self, name: str, sampler: Callable[[jax.Array], Tree], low: float | None = None, high: float | None = None
    ) -> Tree:
        """Return a random draw that all nodes make alike: a coin from the seed that they share."""
        return self._clients.draw(name, sampler, low, high)


def _tree(rows: Rows) -> Tree:
    if not isinstance(rows, Rows):
        raise InputError(f"Nodes work on Rows (of the state, or of map and mix), not on {type(rows).__name__}.")
    return rows._tree
