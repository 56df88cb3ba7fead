"""Who talks to whom: a connected graph of nodes, and the gossip matrix W of one exchange along its edges.

W = sum over edges {i, j} of a_ij (e_i - e_j)(e_i - e_j)', with a_ij > 0: symmetric, positive semi-definite, and zero on
constant vectors only, because the graph is connected (personalized-minmax.txt, Assumption 2). Node i's row of W X is the sum
over its neighbours j of a_ij (x_i - x_j): it needs nobody else's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import LinearOperator, eigsh

from fedminimax import checks
from fedminimax.errors import InputError
from fedminimax.players import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAPLACIAN, WEIGHTED, AVERAGE = "laplacian", "weighted", "average"
_DENSE = 600
"""Nodes up to which all eigenvalues are computed at once."""


@dataclass(frozen=True, eq=False)
class Network:
    """M nodes and the edges between them. Build one with :meth:`ring`, :meth:`star`, ..., or :meth:`from_graph`.

    Attributes:
        count: M.
        edges: the two ends of each edge, [E, 2].
        weights: a_ij of each edge, [E].
        names: of the nodes, as the graph called them.
    """

    count: int
    edges: np.ndarray
    weights: np.ndarray
    names: tuple[Any, ...]

    @classmethod
    def from_graph(cls, graph: nx.Graph, gossip: str = LAPLACIAN, *, normalized: bool = False) -> Network:
        """Build from any connected, undirected graph.

        Args:
            graph: of networkx; its nodes are numbered in the graph's own order.
            gossip: "laplacian" (a_ij = 1), "weighted" (a_ij = the edge's ``weight``), or "average" (a_ij = 1/M on the complete
                graph, W = I - 11'/M: what a server does).
            normalized: whether to divide W by its largest eigenvalue.
        """
        if graph.is_directed():
            raise InputError("The graph is directed, but gossip goes both ways along an edge: use graph.to_undirected().")
        if graph.is_multigraph():
            raise InputError("The graph has parallel edges: use networkx.Graph(graph), which merges them.")
        count = graph.number_of_nodes()
        if count == 0:
            raise InputError("The graph has no nodes: give at least one.")
        if count > 1 and not nx.is_connected(graph):
            parts = sorted((len(part) for part in nx.connected_components(graph)), reverse=True)
            raise InputError(
                f"The graph is not connected: it falls into parts of {_shown(parts)} nodes, which could never agree. Add edges "
                "between them, or train each part alone."
            )
        place = {node: k for k, node in enumerate(graph)}
        ends = [(place[a], place[b], data) for a, b, data in graph.edges(data=True) if a != b]
        edges = np.array([(a, b) for a, b, _ in ends], np.int32).reshape(-1, 2)
        if gossip == LAPLACIAN:
            weights = np.ones(len(edges))
        elif gossip == WEIGHTED:
            weights = np.array([checks.real(data.get("weight", 1.0)) for *_, data in ends])
            if not (np.isfinite(weights).all() and (weights > 0).all()):
                raise InputError("The weights of edges must be finite numbers above zero.")
        elif gossip == AVERAGE:
            if len(edges) < count * (count - 1) // 2:
                raise InputError("'average' needs an edge between any two nodes: use Network.complete, or 'laplacian'.")
            weights = np.full(len(edges), 1.0 / count)
        else:
            raise InputError(f"gossip must be 'laplacian', 'weighted' or 'average', not {gossip!r}.")
        network = cls(count, edges, weights, tuple(graph))
        return network.normalized() if normalized else network

    @classmethod
    def from_edges(cls, edges: Iterable[Sequence[Any]], **options: Any) -> Network:
        """Build from pairs of nodes, or triples with a weight (for ``gossip="weighted"``)."""
        graph = nx.Graph()
        for edge in edges:
            if len(edge) not in (2, 3):
                raise InputError(f"An edge is a pair of nodes, or a pair and a weight, not {edge!r}.")
            graph.add_edge(edge[0], edge[1], **({"weight": edge[2]} if len(edge) == 3 else {}))
        return cls.from_graph(graph, **options)

    @classmethod
    def ring(cls, count: int, **options: Any) -> Network:
        """Build a ring: every node has two neighbours."""
        return cls.from_graph(nx.cycle_graph(checks.integer("count", count)), **options)

    @classmethod
    def star(cls, count: int, **options: Any) -> Network:
        """Build a star: node 0 has all others as its neighbours."""
        return cls.from_graph(nx.star_graph(checks.integer("count", count) - 1), **options)

    @classmethod
    def grid(cls, rows: int, columns: int, **options: Any) -> Network:
        """Build a grid: nodes have those above, below, left and right as their neighbours."""
        graph = nx.grid_2d_graph(checks.integer("rows", rows), checks.integer("columns", columns))
        return cls.from_graph(graph, **options)

    @classmethod
    def complete(cls, count: int, gossip: str = AVERAGE, **options: Any) -> Network:
        """Build the complete graph; by default W = I - 11'/M, the case with a server."""
        return cls.from_graph(nx.complete_graph(checks.integer("count", count)), gossip, **options)

    @classmethod
    def random(cls, count: int, degree: float, seed: int = 0, **options: Any) -> Network:
        """Build an Erdos-Renyi graph of so many neighbours in the mean; the first of a hundred tries that is connected.

        Args:
            count: M.
            degree: the mean number of neighbours, (M - 1) times the probability of an edge.
            seed: of the first try.
            options: passed to :meth:`from_graph`.
        """
        probability = min(1.0, degree / max(1, checks.integer("count", count) - 1))
        for attempt in range(100):
            graph = nx.fast_gnp_random_graph(count, probability, seed=seed + attempt)
            if count == 1 or nx.is_connected(graph):
                return cls.from_graph(graph, **options)
        raise InputError(
            f"None of 100 random graphs of {count} nodes with {degree} neighbours each is connected: ask for about "
            f"{np.log(count):.0f} neighbours or more."
        )

    def normalized(self) -> Network:
        """Return the same network with W divided by its largest eigenvalue."""
        return Network(self.count, self.edges, self.weights / self.lambda_max, self.names) if len(self.edges) else self

    @functools.cached_property
    def matrix(self) -> csr_array:
        """W, sparse, [M, M]."""
        i, j = self.edges.T
        a = self.weights
        rows, columns = np.concatenate([i, j, i, j]), np.concatenate([i, j, j, i])
        return coo_array((np.concatenate([a, a, -a, -a]), (rows, columns)), shape=(self.count, self.count)).tocsr()

    @functools.cached_property
    def eigenvalues(self) -> tuple[float, float]:
        """The smallest eigenvalue of W above zero, and the largest."""
        if self.count == 1:
            return 0.0, 0.0
        if self.count <= _DENSE:
            values = np.linalg.eigvalsh(self.matrix.toarray())
            return float(values[1]), float(values[-1])
        largest = float(eigsh(self.matrix, k=1, which="LA", return_eigenvectors=False)[0])
        # The smallest above zero is what is left of lambda_max I - W once the constant vector is taken out.
        ones = np.full(self.count, 1 / np.sqrt(self.count))
        flipped = LinearOperator(
            self.matrix.shape, matvec=lambda v: largest * (v - ones * (ones @ v)) - self.matrix @ v, dtype=float
        )
        return largest - float(eigsh(flipped, k=1, which="LA", return_eigenvectors=False, tol=1e-8)[0]), largest

    @property
    def lambda_max(self) -> float:
        """The largest eigenvalue of W."""
        return self.eigenvalues[1]

    @property
    def spectral_gap(self) -> float:
        """The smallest eigenvalue of W above zero over the largest: how fast gossip agrees (1 on the complete graph)."""
        return self.eigenvalues[0] / self.lambda_max if self.count > 1 else 1.0

    def product(self, rows: Tree, open_edges: Any = None) -> Tree:
        """Return W X, as a sum over edges: node i's row is sum_j a_ij (x_i - x_j).

        Args:
            rows: X, any pytree of arrays [M, ...].
            open_edges: which edges carry anything, [E]; None: all.
        """
        i, j = (jnp.asarray(ends) for ends in self.edges.T)

        def one(x: jax.Array) -> jax.Array:
            a = jnp.asarray(self.weights, x.dtype)
            a = a if open_edges is None else jnp.where(open_edges, a, 0)
            along = a.reshape(-1, *[1] * (x.ndim - 1)) * (x[i] - x[j])
            return jnp.zeros_like(x).at[i].add(along).at[j].add(-along)

        return jax.tree.map(one, rows)

    def neighbours(self, node: int) -> list[tuple[int, float]]:
        """Return the neighbours of a node, by number, with a_ij."""
        found: list[tuple[int, float]] = []
        for here, there in (self.edges.T, self.edges.T[::-1]):
            found += zip(there[here == node].tolist(), self.weights[here == node].tolist(), strict=True)
        return sorted(found)

    def plot(self, values: Any = None, *, label: str = "", ax: Axes | None = None, seed: int = 0) -> Axes:
        """Draw the graph, its nodes coloured by a metric.

        Args:
            values: one number for each node.
            label: what the numbers are.
            ax: where to draw; by default a new figure.
            seed: of the layout.
        """
        from matplotlib.figure import Figure

        if values is not None and np.shape(values) != (self.count,):
            raise InputError(f"plot needs one value for each of {self.count} nodes, not an array of shape {np.shape(values)}.")
        ax = Figure(figsize=(5.2, 4.2), layout="constrained").subplots() if ax is None else ax
        graph = nx.Graph()
        graph.add_nodes_from(range(self.count))
        graph.add_edges_from(self.edges.tolist())
        layout = nx.kamada_kawai_layout(graph) if self.count <= 200 else nx.spring_layout(graph, seed=seed)
        spots = np.array([layout[k] for k in range(self.count)])
        for i, j in self.edges.tolist():
            ax.plot(*spots[[i, j]].T, color="0.75", linewidth=1, zorder=1)
        size = float(np.clip(4000 / self.count, 12, 320))
        points = ax.scatter(
            spots[:, 0],
            spots[:, 1],
            c=np.zeros(self.count) if values is None else values,
            s=size,
            zorder=2,
            edgecolors="white",
        )
        if values is not None:
            ax.figure.colorbar(points, ax=ax, label=label, shrink=0.85)
        if self.count <= 40:
            for k, name in enumerate(self.names):
                ax.annotate(str(name), spots[k], ha="center", va="center", fontsize=7, color="white", zorder=3)
        ax.set_axis_off()
        ax.set_aspect("equal")
        return ax

    def __repr__(self) -> str:
        return f"Network({self.count} nodes, {len(self.edges)} edges, lambda_max = {self.lambda_max:.4g})"


def _shown(sizes: list[int], most: int = 4) -> str:
    shown = ", ".join(map(str, sizes[:most]))
    return f"{shown} and {len(sizes) - most} more parts" if len(sizes) > most else shown
