"""Graphs and their gossip matrices."""

import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.network import Network

NETWORKS = {
    "ring": Network.ring(7),
    "star": Network.star(6),
    "grid": Network.grid(3, 4),
    "complete": Network.complete(5),
    "random": Network.random(20, 5),
    "edges": Network.from_edges([("a", "b", 2.0), ("b", "c", 0.5), ("c", "a", 1.5)], gossip="weighted"),
    "alone": Network.ring(1),
}
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


@every_network
def test_w_is_a_gossip_matrix(network):
    W = network.matrix.toarray()
    np.testing.assert_allclose(W, W.T)
    np.testing.assert_allclose(W.sum(axis=1), 0, atol=1e-12)
    values = np.linalg.eigvalsh(W)
    assert values[0] > -1e-12
    if network.count > 1:
        assert values[1] > 1e-9  # zero on constant vectors only
        np.testing.assert_allclose(network.lambda_max, values[-1])
        np.testing.assert_allclose(network.spectral_gap, values[1] / values[-1])
    joined = {frozenset(e) for e in network.edges.tolist()}
    for i in range(network.count):
        assert {j for j, _ in network.neighbours(i)} == {j for j in range(network.count) if frozenset((i, j)) in joined}
        assert all(W[i, j] == 0 for j in range(network.count) if j != i and frozenset((i, j)) not in joined)


@every_network
def test_an_exchange_is_the_product_with_w(network, x64):
    rng = np.random.default_rng(0)
    rows = {"a": rng.normal(size=(network.count, 2, 3)), "b": rng.normal(size=network.count)}
    mixed = network.product({k: jnp.asarray(v) for k, v in rows.items()})
    for name, value in rows.items():
        np.testing.assert_allclose(mixed[name], np.tensordot(network.matrix.toarray(), value, 1), atol=1e-12)


def test_known_matrices():
    np.testing.assert_allclose(Network.complete(4).matrix.toarray(), np.eye(4) - 0.25)
    np.testing.assert_allclose(Network.star(3).matrix.toarray(), [[2, -1, -1], [-1, 1, 0], [-1, 0, 1]])
    assert NETWORKS["complete"].spectral_gap == pytest.approx(1)
    np.testing.assert_allclose(Network.ring(8).lambda_max, 4)
    np.testing.assert_allclose(Network.ring(8, normalized=True).lambda_max, 1)
    np.testing.assert_allclose(NETWORKS["edges"].matrix.toarray()[0], [3.5, -2, -1.5])
    assert NETWORKS["edges"].names == ("a", "b", "c")


def test_eigenvalues_of_large_graphs_are_those_of_the_formula():
    ring = Network.ring(1001)
    np.testing.assert_allclose(ring.lambda_max, 2 - 2 * np.cos(np.pi * 1000 / 1001), rtol=1e-6)
    grid = Network.grid(40, 30)
    np.testing.assert_allclose(grid.eigenvalues[0], 2 - 2 * np.cos(np.pi / 40), rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Network.from_graph(nx.DiGraph([(0, 1)])), "directed"),
        (lambda: Network.from_graph(nx.Graph([(0, 1), (2, 3), (3, 4)])), "not connected: it falls into parts of 3, 2 nodes"),
        (lambda: Network.from_graph(nx.Graph()), "no nodes"),
        (lambda: Network.from_graph(nx.MultiGraph([(0, 1), (0, 1)])), "parallel edges"),
        (lambda: Network.ring(5, gossip="median"), "gossip must be"),
        (lambda: Network.ring(5, gossip="average"), "between any two nodes"),
        (lambda: Network.from_edges([(0, 1, -1.0)], gossip="weighted"), "above zero"),
        (lambda: Network.from_edges([(0,)]), "pair of nodes"),
        (lambda: Network.random(500, 0.5), "None of 100 random graphs"),
        (lambda: Network.ring(0), "count"),
        (lambda: Network.ring(4).plot([1, 2]), "one value for each of 4 nodes"),
    ],
)
def test_what_cannot_gossip_is_named(make, message):
    with pytest.raises(fm.InputError, match=message):
        make()


def test_the_picture_has_a_point_a_node_and_a_line_an_edge(tmp_path):
    network = Network.grid(3, 3)
    ax = network.plot(np.arange(9.0), label="accuracy")
    assert len(ax.lines) == len(network.edges) == 12
    np.testing.assert_array_equal(ax.collections[0].get_array(), np.arange(9.0))
    ax.figure.savefig(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").stat().st_size > 5000
