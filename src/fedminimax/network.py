"""Who talks to whom: a connected graph of nodes, and the gossip matrix W of one exchange along its edges.

W = sum over edges {i, j} of a_ij (e_i - e_j)(e_i - e_j)', with a_ij > 0: symmetric, positive semi-definite, and zero on
constant vectors only, because the graph is connected (Beznosikov et al., 2022, Assumption 2). Node i's row of W X is the sum
over its neighbours j of a_ij (x_i - x_j): it needs nobody else's.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks, cutting
from fedminimax.edges import Edges, along_edges
from fedminimax.errors import InputError
from fedminimax.players import Array, Tree

# networkx and SciPy are imported where they are used: a ring, a star or a server needs neither.
if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from scipy.sparse import csr_array

LAPLACIAN, WEIGHTED, AVERAGE = "laplacian", "weighted", "average"
_ALL_EIGENVALUES = 600
"""Nodes up to which all eigenvalues are computed at once."""
_DENSE_FROM, _DENSITY = 64, 0.1
"""An exchange is a product with a dense matrix from so many nodes on, where more than this share of its entries is not zero."""


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
    ends: np.ndarray | None
    """The edges; None: one between any two nodes, which need not be listed."""
    weight: np.ndarray | float
    """a_ij of each edge, or of all."""
    names: Sequence[Any]
    smallest: float | None = None
    """The smallest eigenvalue of W above zero, where there is a formula."""
    largest: float | None = None
    """The largest eigenvalue of W, where there is a formula."""

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
        place = {node: k for k, node in enumerate(graph)}
        ends = np.array([(place[a], place[b]) for a, b in graph.edges() if a != b], np.int32).reshape(-1, 2)
        weights = None
        if gossip == WEIGHTED:
            weights = np.array([checks.real(w) for a, b, w in graph.edges(data="weight", default=1.0) if a != b])
        return cls._build(tuple(graph), ends, gossip, normalized, weights)

    @classmethod
    def _build(
        cls,
        names: Sequence[Any],
        ends: np.ndarray | None,
        gossip: str = LAPLACIAN,
        normalized: bool = False,
        weights: np.ndarray | None = None,
        eigenvalues: tuple[float, float] | None = None,
    ) -> Network:
        """Return the network after all checks.

        Args:
            names: of the nodes.
            ends: the edges; None: between any two nodes.
            gossip: as in :meth:`from_graph`.
            normalized: as in :meth:`from_graph`.
            weights: of the edges, for "weighted"; None: all 1.
            eigenvalues: the least above zero and the largest for weights of 1, where they are known.
        """
        count = len(names)
        if count == 0:
            raise InputError("The graph has no nodes: give at least one.")
        if gossip not in (LAPLACIAN, WEIGHTED, AVERAGE):
            raise InputError(f"gossip must be 'laplacian', 'weighted' or 'average', not {gossip!r}.")
        if ends is not None and eigenvalues is None:
            _check_connected(count, ends)
        weight: Any = 1.0
        if weights is not None and gossip == WEIGHTED and len(weights):
            if not (np.isfinite(weights).all() and (weights > 0).all()):
                raise InputError("The weights of edges must be finite numbers above zero.")
            weight = float(weights[0]) if (weights == weights[0]).all() else weights
        if ends is not None and len(ends) == count * (count - 1) // 2 and np.ndim(weight) == 0:
            ends = None
        if ends is None:
            eigenvalues = (float(count), float(count)) if count > 1 else (0.0, 0.0)
        if gossip == AVERAGE:
            if ends is not None:
                raise InputError("'average' needs an edge between any two nodes: use Network.complete, or 'laplacian'.")
            weight, eigenvalues = 1.0 / count, (1.0, 1.0) if count > 1 else (0.0, 0.0)
        elif eigenvalues is not None:
            eigenvalues = (weight * eigenvalues[0], weight * eigenvalues[1])
        network = cls(count, ends, weight, names, *(eigenvalues or ()))
        return network.normalized() if normalized else network

    @classmethod
    def from_edges(cls, edges: Iterable[Sequence[Any]], **options: Any) -> Network:
        """Build from pairs of nodes, or triples with a weight (for ``gossip="weighted"``)."""
        import networkx as nx

        graph = nx.Graph()
        for edge in edges:
            if len(edge) not in (2, 3):
                raise InputError(f"An edge is a pair of nodes, or a pair and a weight, not {edge!r}.")
            graph.add_edge(edge[0], edge[1], **({"weight": edge[2]} if len(edge) == 3 else {}))
        return cls.from_graph(graph, **options)

    @classmethod
    def ring(cls, count: int, **options: Any) -> Network:
        r"""Build a ring: every node has two neighbours. The eigenvalues of W are :math:`4 \sin^2(\pi k / M)`."""
        count = checks.integer("count", count)
        here = np.arange(count, dtype=np.int32)
        ends = np.sort(np.stack([here, (here + 1) % max(1, count)], axis=1), axis=1)
        ends = ends[np.lexsort(ends.T[::-1])] if count > 2 else ends[: count - 1]
        known = (_sine(1, count), _sine(count // 2, count)) if count > 2 else None
        return cls._build(range(count), ends, eigenvalues=known, **options)

    @classmethod
    def star(cls, count: int, **options: Any) -> Network:
        """Build a star: node 0 has all others as its neighbours. The eigenvalues of W are 0, 1 and M."""
        count = checks.integer("count", count)
        ends = np.stack([np.zeros(count - 1, np.int32), np.arange(1, count, dtype=np.int32)], axis=1)
        return cls._build(range(count), ends, eigenvalues=(1.0, float(count)) if count > 2 else None, **options)

    @classmethod
    def grid(cls, rows: int, columns: int, **options: Any) -> Network:
        r"""Build a grid: nodes have those above, below, left and right as their neighbours.

        The eigenvalues of W are :math:`4 \sin^2(\pi k / 2R) + 4 \sin^2(\pi l / 2C)`.
        """
        rows, columns = checks.integer("rows", rows), checks.integer("columns", columns)
        places = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
        down, right = np.full_like(places, -1), np.full_like(places, -1)
        down[:-1], right[:, :-1] = places[1:], places[:, 1:]
        ends = np.stack([np.repeat(places.ravel(), 2), np.stack([down, right], axis=-1).ravel()], axis=1)
        known = None
        if rows * columns > 1:
            known = _sine(1, 2 * max(rows, columns)), _sine(rows - 1, 2 * rows) + _sine(columns - 1, 2 * columns)
        names = [(r, c) for r in range(rows) for c in range(columns)]
        return cls._build(names, ends[ends[:, 1] >= 0], eigenvalues=known, **options)

    @classmethod
    def complete(cls, count: int, gossip: str = AVERAGE, **options: Any) -> Network:
        """Build the complete graph; by default W = I - 11'/M, the case with a server."""
        return cls._build(range(checks.integer("count", count)), None, gossip, **options)

    @classmethod
    def random(cls, count: int, degree: float, seed: int = 0, **options: Any) -> Network:
        """Build an Erdos-Renyi graph of so many neighbours in the mean; the first of a hundred tries that is connected.

        Args:
            count: M.
            degree: the mean number of neighbours, (M - 1) times the probability of an edge.
            seed: of the first try.
            options: ``gossip`` and ``normalized`` of :meth:`from_graph`.
        """
        probability = min(1.0, degree / max(1, checks.integer("count", count) - 1))
        for attempt in range(100):
            ends = _random_edges(count, probability, seed + attempt)
            if _parts(count, ends)[0] == 1:
                return cls._build(range(count), ends, **options)
        raise InputError(
            f"None of 100 random graphs of {count} nodes with {degree} neighbours each is connected: ask for about "
            f"{np.log(count):.0f} neighbours or more."
        )

    def normalized(self) -> Network:
        """Return the same network with W divided by its largest eigenvalue."""
        if self.count == 1:
            return self
        top = self.lambda_max
        known = None if self.smallest is None else self.smallest / top
        return Network(self.count, self.ends, self.weight / top, self.names, known, 1.0)

    # -- edges ---------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def edges(self) -> np.ndarray:
        """The two ends of each edge, [E, 2]."""
        return np.stack(np.triu_indices(self.count, 1), axis=1).astype(np.int32) if self.ends is None else self.ends

    @property
    def weights(self) -> np.ndarray:
        """a_ij of each edge, [E]."""
        return np.broadcast_to(self.weight, self.edge_count)

    @property
    def edge_count(self) -> int:
        """E."""
        return self.count * (self.count - 1) // 2 if self.ends is None else len(self.ends)

    @functools.cached_property
    def degrees(self) -> np.ndarray:
        """How many neighbours each node has, [M]."""
        if self.ends is None:
            return np.full(self.count, self.count - 1)
        return np.bincount(self.ends.ravel(), minlength=self.count)

    @functools.cached_property
    def adjacency(self) -> csr_array:
        """The a_ij, sparse, [M, M], symmetric."""
        from scipy.sparse import coo_array

        (i, j), a = self.edges.T, self.weights
        both = (np.concatenate([i, j]), np.concatenate([j, i]))
        return coo_array((np.concatenate([a, a]), both), shape=(self.count, self.count)).tocsr()

    @functools.cached_property
    def matrix(self) -> csr_array:
        """W, sparse, [M, M]."""
        from scipy.sparse import diags_array

        return (diags_array(self.adjacency.sum(axis=1)) - self.adjacency).tocsr()

    def neighbours(self, node: int) -> list[tuple[int, float]]:
        """Return the neighbours of a node, by number, with a_ij."""
        if self.ends is None:
            return [(k, float(self.weight)) for k in range(self.count) if k != node]
        begin, end = self.adjacency.indptr[node : node + 2]
        return sorted(zip(self.adjacency.indices[begin:end].tolist(), self.adjacency.data[begin:end].tolist(), strict=True))

    def order(self, sizes: Array | Sequence[int], places: int) -> np.ndarray | None:
        """Return an order of the nodes in which neighbours are near each other: blocks of it are cut from few others.

        It is that of Cuthill and McKee (1969), reversed, where that cuts fewer rows off than the nodes' own numbers do; None:
        they do. All processes find the same one without asking each other.

        Args:
            sizes: how many examples each node has: blocks have about as many.
            places: into how many blocks the nodes are dealt out.
        """
        return None if self.ends is None or self.dense else cutting.order(self.ends, np.asarray(sizes), places)

    # -- eigenvalues ---------------------------------------------------------------------------------------------------

    @functools.cached_property
    def lambda_max(self) -> float:
        """The largest eigenvalue of W: by a formula, or computed when first asked for."""
        if self.largest is not None:
            return self.largest
        return _few(self.matrix)[1] if self.count <= _ALL_EIGENVALUES else _largest(self.matrix)

    @functools.cached_property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of W above zero: by a formula, or computed when first asked for."""
        if self.smallest is not None:
            return self.smallest
        return _few(self.matrix)[0] if self.count <= _ALL_EIGENVALUES else _smallest(self.matrix, self.lambda_max)

    @property
    def eigenvalues(self) -> tuple[float, float]:
        """The smallest eigenvalue of W above zero, and the largest."""
        return self.lambda_min, self.lambda_max

    @property
    def spectral_gap(self) -> float:
        """The smallest eigenvalue of W above zero over the largest: how fast gossip agrees (1 on the complete graph)."""
        return self.lambda_min / self.lambda_max if self.count > 1 else 1.0

    # -- one exchange --------------------------------------------------------------------------------------------------

    @property
    def dense(self) -> bool:
        """Whether there are so many edges that an exchange is faster as a product with a dense matrix."""
        return self.count >= _DENSE_FROM and 2 * self.edge_count > _DENSITY * self.count**2

    def product(self, rows: Tree, sound: Any = None) -> Tree:
        """Return W X: node i's row is sum_j a_ij (x_i - x_j).

        It is x_i minus the mean on a complete graph of equal weights, a product with a dense matrix where there are many edges,
        and else a sum over the edges, some at a time: memory never grows like edges times numbers.

        Args:
            rows: X, any pytree of arrays [M, ...].
            sound: which nodes' rows count, [M]; edges of the others carry nothing, and their rows of the result are zero. None:
                all count.
        """
        form = self._by_mean if self.ends is None else self._by_matrix if self.dense else self._by_edges

        def one(x: jax.Array) -> jax.Array:
            flat = jnp.asarray(x).reshape(self.count, -1)
            good = None if sound is None else jnp.asarray(sound)[:, None]
            return form(flat if good is None else jnp.where(good, flat, 0), good).reshape(x.shape)

        return jax.tree.map(one, rows)

    def _by_mean(self, x: jax.Array, good: Any) -> jax.Array:
        """Return a M (x - x-bar), over the nodes that count."""
        if good is None:
            return jnp.asarray(self.lambda_max, x.dtype) * (x - x.mean(axis=0))
        heard = jnp.sum(good, dtype=x.dtype)
        away = x - x.sum(axis=0) / jnp.maximum(heard, 1)
        return jnp.where(good, self.lambda_max * (heard / self.count) * away, 0).astype(x.dtype)

    def _by_matrix(self, x: jax.Array, good: Any) -> jax.Array:
        """Return D x - A x with dense A, the diagonal of D being that of the nodes that count."""
        good = jnp.ones((self.count, 1), bool) if good is None else good
        A, heard = jnp.asarray(self.adjacency.toarray(), x.dtype), good.astype(x.dtype)
        # W is zero on constants: without the mean, rows that nearly agree do not cancel.
        x = heard * (x - x.sum(axis=0) / jnp.maximum(heard.sum(), 1))
        return heard * (jnp.matmul(A, heard, precision="highest") * x - jnp.matmul(A, x, precision="highest"))

    def _by_edges(self, x: jax.Array, good: Any) -> jax.Array:
        """Return the sum over edges, a part of them at a time."""
        i, j = (jnp.asarray(ends) for ends in self.edges.T)
        a = jnp.asarray(self.weights, x.dtype)
        if good is not None:
            a = jnp.where((good[i] & good[j])[:, 0], a, 0)
        return along_edges(jnp.zeros_like(x), x, x, Edges(i, j, a), back=True)

    def plot(self, values: Any = None, *, label: str = "", ax: Axes | None = None, seed: int = 0) -> Axes:
        """Draw the graph, its nodes coloured by a metric.

        Args:
            values: one number for each node.
            label: what the numbers are.
            ax: where to draw; by default a new figure.
            seed: of the layout.
        """
        import networkx as nx
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
        # an eigenvalue that nobody has asked for may take long
        known = self.largest if self.largest is not None else self.__dict__.get("lambda_max")
        spectrum = "" if known is None else f", lambda_max = {known:.4g}"
        return f"Network({self.count} nodes, {self.edge_count} edges{spectrum})"


def _shown(sizes: list[int], most: int = 4) -> str:
    shown = ", ".join(map(str, sizes[:most]))
    return f"{shown} and {len(sizes) - most} more parts" if len(sizes) > most else shown


def _parts(count: int, ends: np.ndarray) -> tuple[int, np.ndarray]:
    """Return into how many parts a graph falls, and the part of each node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(ends), bool), tuple(ends.T)), shape=(count, count))
    number, part = connected_components(graph, directed=False)
    return int(number), part


def _check_connected(count: int, ends: np.ndarray) -> None:
    number, part = _parts(count, ends)
    if number > 1:
        sizes = sorted(np.bincount(part).tolist(), reverse=True)
        raise InputError(
            f"The graph is not connected: it falls into parts of {_shown(sizes)} nodes, which could never agree. Add edges "
            "between them, or train each part alone."
        )


def _random_edges(count: int, probability: float, seed: int) -> np.ndarray:
    """Return the edges of ``networkx.fast_gnp_random_graph(count, probability, seed)``, without a loop.

    Pairs w < v are counted row by row, and the next edge is a geometrically distributed number of pairs further on (V. Batagelj
    and U. Brandes, Efficient generation of large random networks, Physical Review E, 2005).
    """
    pairs = count * (count - 1) // 2
    if probability >= 1:
        return np.stack(np.triu_indices(count, 1), axis=1).astype(np.int32)
    if probability <= 0 or pairs == 0:
        return np.zeros((0, 2), np.int32)
    # Python's generator and NumPy's old one are the same Mersenne twister, seeded in different ways.
    _, words, _ = random.Random(seed).getstate()
    draws = np.random.RandomState()
    draws.set_state(("MT19937", np.array(words[:-1], np.uint32), words[-1], 0, 0.0))
    expected = pairs * probability
    found, reached = [], np.int64(-1)
    while reached < pairs:
        uniform = draws.random_sample(int(expected + 6 * math.sqrt(expected)) + 16)
        # the length of a leap is cut at the number of pairs, beyond which it makes no difference
        leaps = 1 + np.minimum(np.log(1.0 - uniform) / math.log(1.0 - probability), pairs).astype(np.int64)
        found.append(reached + np.cumsum(leaps))
        reached = found[-1][-1]
    place = np.concatenate(found)
    place = place[place < pairs]
    v = ((1 + np.sqrt(8 * place.astype(float) + 1)) / 2).astype(np.int64)
    v -= v * (v - 1) // 2 > place  # where the root was rounded up
    v += (v + 1) * v // 2 <= place
    w = place - v * (v - 1) // 2
    order = np.lexsort((v, w))
    return np.stack([w[order], v[order]], axis=1).astype(np.int32)


def _sine(k: int, n: int) -> float:
    """Return 4 sin^2(pi k / n), which is 2 - 2 cos(2 pi k / n) without cancellation."""
    return 4.0 * math.sin(math.pi * k / n) ** 2


def _few(matrix: csr_array) -> tuple[float, float]:
    """Return the smallest eigenvalue above zero and the largest, of a small matrix."""
    if matrix.shape[0] == 1:
        return 0.0, 0.0
    values = np.linalg.eigvalsh(matrix.toarray())
    return float(values[1]), float(values[-1])


def _lanczos(operator: Any, **options: Any) -> float:
    """Return the largest eigenvalue; always the same number for the same operator."""
    from scipy.sparse.linalg import eigsh

    begin = np.random.default_rng(0).normal(size=operator.shape[0])
    more = {"which": "LA", "return_eigenvectors": False, "tol": 1e-12, "v0": begin, "ncv": 40, **options}
    return float(eigsh(operator, k=1, **more)[0])


def _factorised(matrix: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return what solves a symmetric, positive definite system: its order and pivots keep the factors sparse."""
    from scipy.sparse.linalg import splu

    return splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve


def _largest(matrix: csr_array) -> float:
    """Return the largest eigenvalue of a large W, by Lanczos steps.

    Where the largest are close together, as on long rings and grids, the steps are those of the inverse of sigma I - W, with
    sigma just above the bound max (d_i + d_j) over edges: there W is sparse enough to be factorised.
    """
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator

    try:
        return _lanczos(matrix, maxiter=40)
    except ArpackNoConvergence:
        degrees = matrix.diagonal()
        i, j = matrix.nonzero()
        bound = 1.000001 * float(np.max(np.where(i == j, 0.0, degrees[i] + degrees[j])))
        solve = _factorised(bound * eye_array(matrix.shape[0]) - matrix)
        return bound - 1.0 / _lanczos(LinearOperator(matrix.shape, matvec=solve, dtype=float))


def _smallest(matrix: csr_array, largest: float) -> float:
    """Return the smallest eigenvalue above zero of a large W, by Lanczos steps on what is orthogonal to constants.

    On graphs without bottlenecks the steps on lambda_max I - W are few. On the others W is sparse enough to be factorised, and
    they are those of its pseudo-inverse: with node 0 held at zero W is positive definite.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator

    count = matrix.shape[0]
    operator = lambda step: LinearOperator(matrix.shape, matvec=lambda v: step(v - v.mean()), dtype=float)
    try:
        found = largest - _lanczos(operator(lambda v: largest * v - matrix @ v), maxiter=40)
        if found > 1e-4 * largest:  # below that the difference has lost too many digits
            return found
    except ArpackNoConvergence:
        pass
    solve = _factorised(matrix[1:, 1:])

    def inverse(v: np.ndarray) -> np.ndarray:
        found = np.zeros(count)
        found[1:] = solve(v[1:])
        return found - found.mean()

    return 1.0 / _lanczos(operator(inverse))
