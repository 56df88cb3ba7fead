"""Nodes on many devices: what is sent between them, what each holds, and that it is the same exchange as in one place."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import cutting, metrics, problems
from fedminimax.data.shards import ClientShard, deal
from fedminimax.engines.layout import AXIS
from fedminimax.engines.mesh import halo
from fedminimax.engines.mesh.dealt import Dealt
from fedminimax.errors import InputError
from fedminimax.federation.round import Conditions
from fedminimax.testing.contract import close, same_costs


def shuffled_ring(count, step):
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from((step * k % count, step * (k + 1) % count) for k in range(count))
    return fm.Network.from_graph(graph)


def weighted(count):
    graph = nx.path_graph(count)
    nx.set_edge_attributes(graph, {(k, k + 1): 0.5 + k for k in range(count - 1)}, "weight")
    return fm.Network.from_graph(graph, "weighted")


NETWORKS = {
    "ring": fm.Network.ring(11),
    "shuffled": shuffled_ring(11, 4),
    "star": fm.Network.star(11),
    "weighted": weighted(11),
    "complete": fm.Network.complete(11),
    "random": fm.Network.random(30, 4),
    "dense": fm.Network.random(66, 12),
}


def dealt_out(network, places):
    sizes = 1 + np.arange(network.count) % 3  # blocks of different numbers of nodes
    order = network.order(sizes, places)
    cuts = deal(sizes if order is None else sizes[order], places)
    return [Dealt(cuts, k, 1, order) for k in range(places)]


def everybody_sends(part, places):
    """Return the same exchange, in which those send too of whom nothing is read: vmap wants whole permutations."""
    shift = lambda pairs: (pairs[0][1] - pairs[0][0]) % places
    whole = lambda link: replace(link, pairs=tuple((p, (p + shift(link.pairs)) % places) for p in range(places)))
    return replace(part, links=tuple(whole(link) for link in part.links))


def mixed_over(network, rows, places, drop):
    """Return W X and what was ignored, by the devices' own programs side by side."""
    dealt = dealt_out(network, places)
    halos = jax.tree.map(lambda *parts: jnp.stack(parts), *(everybody_sends(halo.cut(network, d), places) for d in dealt))
    blocks = jax.tree.map(lambda *parts: jnp.stack(parts), *(jax.tree.map(d.part, rows) for d in dealt))
    device = lambda own, part, count: halo.mixed(own, network, part, count, drop)[:2]
    counts = jnp.diff(dealt[0].cuts)
    out, ignored = jax.jit(jax.vmap(device, axis_name=AXIS))(halos, blocks, counts)
    back = lambda leaf: dealt[0].joined([d.rows(np.asarray(leaf[k])) for k, d in enumerate(dealt)])
    return jax.tree.map(back, out), int(ignored.sum())


@pytest.mark.parametrize("places", [1, 2, 5])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_mix_over_many_devices_is_that_of_one(name, places, x64):
    network, rng = NETWORKS[name], np.random.default_rng(0)
    rows = {"x": rng.normal(size=(network.count, 2, 3)), "y": rng.normal(size=network.count).astype(np.float32)}
    out, ignored = mixed_over(network, rows, places, drop=True)
    want = network.product(rows)
    np.testing.assert_allclose(out["x"], want["x"], atol=1e-12)
    np.testing.assert_allclose(out["y"], want["y"], rtol=1e-4, atol=1e-5)
    assert ignored == 0
    assert out["y"].dtype == np.float32


@pytest.mark.parametrize("name", ["shuffled", "star", "complete", "dense"])
def test_rows_that_are_not_finite_are_ignored_everywhere(name, x64):
    network = NETWORKS[name]
    rows = np.random.default_rng(0).normal(size=(network.count, 3))
    rows[[0, 5], 1] = np.nan, np.inf
    sound = np.isfinite(rows).all(axis=1)
    out, ignored = mixed_over(network, rows, 3, drop=True)
    np.testing.assert_allclose(out, network.product(rows, sound), atol=1e-12)
    assert ignored == network.degrees[~sound].sum()


def test_what_is_not_finite_stays_with_its_neighbours_where_it_is_let_through(x64):
    network = NETWORKS["random"]
    rows = np.random.default_rng(0).normal(size=(30, 30))
    np.fill_diagonal(rows, np.nan)  # in each column another node
    out, _ = mixed_over(network, rows, 3, drop=False)
    np.testing.assert_allclose(out, network.product(rows), atol=1e-12)


# -- where blocks are cut -------------------------------------------------------------------------------------------------


def test_neighbours_are_put_near_each_other_where_that_saves_rows():
    network, sizes = shuffled_ring(60, 23), np.full(60, 2)
    order = network.order(sizes, 4)
    assert sorted(order) == list(range(60))
    assert cutting.cut_rows(network.edges, sizes, np.arange(60), 4) > 60
    assert cutting.cut_rows(network.edges, sizes, order, 4) <= 4 * 4  # a ring folded flat: two ends at either side
    assert fm.Network.ring(60).order(sizes, 4) is None
    assert fm.Network.complete(60).order(sizes, 4) is None


def test_a_ring_takes_two_permutations_of_a_row():
    parts = [halo.cut(fm.Network.ring(12), Dealt(deal([1] * 12, 4), k, 1)) for k in range(4)]
    for part in parts:
        assert [len(link.sends) for link in part.links] == [1, 1]
        assert {link.pairs for link in part.links} == {
            tuple((p, (p + s) % 4) for p in range(4)) for s in (1, 3)
        }  # to the next, and to the one before


def test_shares_in_an_order_have_every_client_once():
    rng = np.random.default_rng(0)
    data = fm.ClientData.from_list([{"a": rng.normal(size=(n, 3))} for n in (5, 1, 7, 2, 2, 9, 4)])
    order = np.array([6, 0, 3, 1, 5, 2, 4])
    shares = [data.shard(k, 3, order=order) for k in range(3)]
    assert [i for share in shares for i in share.own] == order.tolist()
    for share in shares:
        for i in share.own:
            jax.tree.map(np.testing.assert_array_equal, share[i], data[i])
            jax.tree.map(np.testing.assert_array_equal, share.numbered()[i], data.numbered()[i])
            jax.tree.map(np.testing.assert_array_equal, share.seeded()[i], data.seeded()[i])
    with pytest.raises(InputError, match="once"):
        ClientShard.read(data.__getitem__, data.sizes, 0, 3, order=[0] * 7)


# -- whole runs -----------------------------------------------------------------------------------------------------------


def test_nodes_on_two_devices_equal_the_simulator(x64):
    task = problems.personalized_quadratic(shuffled_ring(9, 4), examples=6, noise=0.3)
    method = fm.LocalExtraStep(0.02, 0.4, batch_size=4)
    measured = [metrics.NodeLoss(each=True), metrics.Residual(), metrics.Consensus()]
    go = lambda engine: fm.run(
        task.problem, task.clients, method, rounds=6, seed=3, eval_every=3, engine=engine, progress=False, metrics=measured,
        record=True,
    )  # fmt: skip
    here, there = go(fm.Simulator("vmap", 1)), go(fm.Mesh(devices=2))
    close(there.state, here.state, 1e-10)
    same_costs(there, here)
    for name, values in here.history.items():
        np.testing.assert_allclose(there.history[name], values, rtol=1e-9, atol=1e-12)


def opened(nodes, dim):
    loss = lambda x, y, batch: 0.5 * ((x - batch["a"]) ** 2).mean() + x @ y - 0.5 * (y**2).sum()
    problem = fm.PersonalizedProblem(loss, np.zeros(dim), np.zeros(dim), 0.3, fm.Network.ring(nodes))
    clients = fm.ClientData.equal({"a": np.arange(2.0 * nodes * dim).reshape(2 * nodes, dim)}, nodes)
    return fm.Mesh(devices=2).open(problem, clients, fm.DecentralizedExtraGradient(0.1, 0.1), Conditions())


def test_a_device_holds_its_own_rows_and_sends_those_on_cut_edges(x64):
    nodes, dim = 40, 50
    run = opened(nodes, dim)
    run.advance(2)
    for leaf in jax.tree.leaves(run._carry.state):
        assert {shard.data.shape for shard in leaf.addressable_shards} == {(nodes // 2, dim)}
    # Of two devices each sends the rows at both its ends, x, y and whether they are sound, twice a round.
    assert run.packed == [2 * (2 * dim + 1) * 8, 0] * 2
    program = run._program._advance.lower(run._given, run._carry, 0, 1, length=1).compile().as_text()
    kinds = "all-reduce|all-gather|all-to-all|collective-permute"
    moved = re.findall(rf"= \(?([a-z0-9]+\[[0-9,]*\]).*? ({kinds})(?:-start)?\(", program)
    # Two mixes, and what was counted, of all rounds at once, which two places swap.
    assert [kind for _, kind in moved] == ["collective-permute"] * 3
    size = lambda shape: np.prod([int(n) for n in re.findall(r"\[(.*)\]", shape)[0].split(",") if n], initial=1)
    assert max(size(shape) for shape, kind in moved) == 2 * (2 * dim + 1)  # nothing of all rows, 40 x 100


def test_metrics_of_own_rows_gather_none(monkeypatch):
    run = opened(6, 3)
    monkeypatch.setattr(Dealt, "gathered", lambda *_: pytest.fail("rows were gathered"))
    assert run.evaluate({"loss": metrics.NodeLoss()})["loss/worst"] > 0
