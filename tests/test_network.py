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


FORMS = {
    "mean": Network.complete(70, "laplacian"),
    "mean_of_a_server": Network.complete(49),
    "matrix": Network.random(80, 30),
    "edges": Network.random(80, 6),
    "edges_in_parts": Network.random(80, 6),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_exchange_is_the_sum_over_sound_edges(form, x64, monkeypatch):
    """On the complete graph x minus the mean, with many edges a dense product, else a sum over them, in parts if many."""
    network, at_once = FORMS[form], 60 if form == "edges_in_parts" else 1 << 18
    monkeypatch.setattr("fedminimax.edges._AT_ONCE", at_once)
    x = np.random.default_rng(1).normal(size=(network.count, 3)) + 5.0
    sound = np.arange(network.count) % 7 != 2
    i, j = network.edges.T
    for counts in (np.ones(network.count, bool), sound):
        a = (network.weights * (counts[i] & counts[j]))[:, None]
        expected = np.zeros_like(x)
        np.add.at(expected, i, a * (x[i] - x[j]))
        np.add.at(expected, j, a * (x[j] - x[i]))
        given = np.where(counts[:, None], x, np.nan)  # what does not count may be anything
        np.testing.assert_allclose(network.product(given, counts), expected, atol=1e-12)
        if counts.all():
            np.testing.assert_allclose(network.product(x), expected, atol=1e-12)
    alike = np.broadcast_to(x[:1], x.shape)
    assert np.abs(network.product(alike)).max() < 1e-14 * network.lambda_max  # nodes that agree stay as they are
    np.testing.assert_array_equal(network.product(x, np.zeros(network.count, bool)), 0)


def test_an_exchange_on_the_complete_graph_needs_no_list_of_edges():
    network = Network.complete(3000)
    product = network.product(np.arange(3000.0, dtype=np.float32)[:, None])
    np.testing.assert_allclose(product[:, 0], np.arange(3000) - 1499.5, rtol=1e-6)
    assert (network.edge_count, network.degrees.sum(), network.lambda_max) == (4498500, 8997000, 1.0)
    assert "edges" not in vars(network)
    assert network.neighbours(1)[:2] == [(0, 1 / 3000), (2, 1 / 3000)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("normalized", [False, True])
def test_eigenvalues_by_formula_are_those_of_the_matrix(count, normalized):
    kinds = [Network.ring, Network.star, Network.complete, lambda n, **o: Network.complete(n, "laplacian", **o)]
    kinds += [lambda n, m=m, **o: Network.grid(n, m, **o) for m in (1, 2, 5)]
    for kind in kinds:
        network = kind(count, normalized=normalized)
        if network.count == 1:
            assert network.eigenvalues == (0, 0)
            continue
        values = np.linalg.eigvalsh(network.matrix.toarray())
        assert network.largest is not None
        np.testing.assert_allclose(network.eigenvalues, (values[1], values[-1]), rtol=1e-12)
        if normalized:
            assert network.lambda_max == 1.0


def test_the_edges_of_the_families_are_those_of_networkx():
    for count in (1, 2, 3, 6):
        same(Network.ring(count), nx.cycle_graph(count))
        same(Network.star(count), nx.star_graph(count - 1))
        same(Network.complete(count), nx.complete_graph(count))
        same(Network.grid(count, 3), nx.grid_2d_graph(count, 3))
    for count, degree in ((40, 8.0), (300, 9.0), (25, 30.0)):
        graph = nx.fast_gnp_random_graph(count, min(1.0, degree / (count - 1)), seed=3)
        assert nx.is_connected(graph)
        same(Network.random(count, degree, seed=3), graph)


def same(network, graph):
    place = {node: k for k, node in enumerate(graph)}
    assert network.edges.tolist() == [[place[a], place[b]] for a, b in graph.edges() if a != b]
    assert list(network.names) == list(graph)


def test_known_matrices():
    np.testing.assert_allclose(Network.complete(4).matrix.toarray(), np.eye(4) - 0.25)
    np.testing.assert_allclose(Network.star(3).matrix.toarray(), [[2, -1, -1], [-1, 1, 0], [-1, 0, 1]])
    assert NETWORKS["complete"].spectral_gap == pytest.approx(1)
    np.testing.assert_allclose(Network.ring(8).lambda_max, 4)
    np.testing.assert_allclose(Network.ring(8, normalized=True).lambda_max, 1)
    np.testing.assert_allclose(NETWORKS["edges"].matrix.toarray()[0], [3.5, -2, -1.5])
    assert NETWORKS["edges"].names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("graph", "known"),
    [(nx.cycle_graph(1001), Network.ring(1001)), (nx.grid_2d_graph(40, 30), Network.grid(40, 30)),
     (nx.star_graph(700), Network.star(701))],
    ids=["ring", "grid", "star"],
)  # fmt: skip
def test_eigenvalues_of_large_graphs_are_those_of_the_formula(graph, known):
    found = Network.from_graph(graph)
    assert found.largest is None
    np.testing.assert_allclose(found.eigenvalues, known.eigenvalues, rtol=1e-9)


def test_eigenvalues_of_a_large_random_graph():
    network = Network.random(900, 12)
    values = np.linalg.eigvalsh(network.matrix.toarray())
    np.testing.assert_allclose(network.eigenvalues, (values[1], values[-1]), rtol=1e-9)


def test_showing_a_network_computes_no_eigenvalue():
    network = Network.random(2000, 15)
    assert repr(network).endswith("edges)")
    assert "matrix" not in vars(network)
    assert repr(Network.ring(10_000)) == "Network(10000 nodes, 10000 edges, lambda_max = 4)"
    small = Network.random(20, 6)
    top = small.lambda_max
    assert repr(small).endswith(f"lambda_max = {top:.4g})")


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
