import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.data import ClientData
from fedminimax.federation.client import Client
from fedminimax.random import keys


def uneven():
    return [{"u": np.arange(n * 2.0).reshape(n, 2) + 100 * i, "v": np.full(n, i)} for i, n in enumerate((3, 1, 4))]


def test_from_list_from_owner_and_iteration_agree():
    listed = ClientData.from_list(uneven())
    pooled = {k: np.concatenate([c[k] for c in uneven()]) for k in ("u", "v")}
    owner = np.repeat([0, 1, 2], [3, 1, 4])
    order = np.random.default_rng(0).permutation(8)
    owned = ClientData.from_owner({k: v[order] for k, v in pooled.items()}, owner[order])
    assert listed.count == owned.count == 3
    assert (listed.smallest, listed.largest, listed.total) == (1, 4, 8)
    for i, (a, b) in enumerate(zip(listed, owned, strict=True)):
        np.testing.assert_array_equal(a["u"], uneven()[i]["u"])
        np.testing.assert_array_equal(np.sort(b["u"], axis=0), uneven()[i]["u"])
    np.testing.assert_array_equal(listed.owners(), owner)


def test_examples_that_nobody_holds_are_left_out():
    data = ClientData.from_owner(np.arange(6.0), np.array([1, -1, 0, 1, -1, 0]))
    np.testing.assert_array_equal(data[0], [2, 5])
    np.testing.assert_array_equal(data[1], [0, 3])


def test_arrays_are_used_in_place_by_every_device():
    data = ClientData.equal({"z": np.arange(1000.0, dtype=np.float32)[1:]}, 3)
    pointer = data.fields["z"].ctypes.data
    assert pointer % 64 == 0
    for device in jax.devices():
        assert jax.device_put(data.fields["z"], device).unsafe_buffer_pointer() == pointer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClientData.from_list([]), "There are no clients"),
        (lambda: ClientData.from_list([{"a": np.ones(2)}, {"b": np.ones(2)}]), "Client 1 has the structure"),
        (lambda: ClientData.from_list([{"a": np.ones((2, 3))}, {"a": np.ones((2, 4))}]), r"\['a'\] of client 1 .* \(4,\)"),
        (lambda: ClientData.from_list([{"a": np.ones(2), "b": np.ones(3)}]), "fields of client 0 differ in length"),
        (lambda: ClientData.from_list([{"a": np.float64(1)}]), r"\['a'\] of client 0 is a scalar"),
        (lambda: ClientData.from_list([np.ones(2), np.ones(0)]), "Client 1 has no examples"),
        (lambda: ClientData.from_list([np.ones(2), np.array([1, np.nan])]), "of client 1 has a NaN .* example 1"),
        (lambda: ClientData.from_owner(np.ones(3), np.array([0, 2, 2])), "Client 1 has no examples"),
        (lambda: ClientData.from_owner(np.ones(3), np.array([0, 1])), "has 3 examples, but owner names"),
        (lambda: ClientData.from_owner(np.ones(2), np.array([0, 5]), 3), "from 0 to 5, but there are 3 clients"),
        (lambda: ClientData.from_owner(np.ones(2), np.array([0.5, 1])), "vector of client numbers"),
        (lambda: ClientData.equal(np.ones(7), 3), "3 equal parts"),
        (lambda: ClientData.equal(np.ones(6), 3, batching="often"), "'replacement' or 'epochs'"),
        (lambda: ClientData.equal(np.ones(6), 3).with_batching("often"), "'replacement' or 'epochs'"),
    ],
)
def test_wrong_data_is_named(make, message):
    with pytest.raises(fm.InputError, match=message):
        make()


def test_there_is_no_client_beyond_the_last():
    with pytest.raises(IndexError, match="There is no client 3"):
        ClientData.from_list(uneven())[3]


def client(data, i, seed=0, t=0):
    return Client(id=i, row=i, data=data, round=t, key=keys.derive(keys.root(seed), i), steps_word=jnp.uint32(0))


def test_batches_with_replacement_come_from_the_client_alone_and_evenly():
    data = ClientData.from_list(uneven())
    drawn = np.asarray(client(data, 2).batch(6000)["u"][:, 0])
    values, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(values, [200, 202, 204, 206])
    np.testing.assert_allclose(counts / 6000, 0.25, atol=0.03)


def test_reshuffled_epochs_visit_every_example_once_a_pass():
    data = ClientData.from_list([{"v": np.arange(float(n))} for n in (7, 10)]).with_batching("epochs")
    for i, n in enumerate((7, 10)):
        me = client(data, i)
        draw = lambda k, log, me=me: (k + 1, log.at[k].set(me.batch(3)["v"]))
        seen = np.asarray(me.repeat(n, draw, 0, jnp.zeros((n, 3)))[1])
        passes = seen.reshape(3, n)
        for one in passes:
            np.testing.assert_array_equal(np.sort(one), np.arange(n))
        assert len({tuple(p) for p in passes}) > 1


def test_draws_differ_by_step_place_client_and_seed():
    data = ClientData.from_list([np.arange(1000.0), np.arange(1000.0)])
    me = client(data, 0)
    first, second = me.batch(4), me.batch(4)
    steps = me.repeat(3, lambda k, log: (k + 1, log.at[k].set(me.batch(4))), 0, jnp.zeros((3, 4)))[1]
    rows = [first, second, *steps, client(data, 1).batch(4), client(data, 0, seed=1).batch(4)]
    assert len({tuple(np.asarray(r).tolist()) for r in rows}) == len(rows)
    again = client(data, 0)
    np.testing.assert_array_equal(again.batch(4), first)


def test_full_gradients_of_unequal_clients_need_the_memory_of_the_model(x64):
    """Not that of a model an example: a thousand examples of a 100 x 100 matrix would be 40 MB."""
    data = ClientData.from_list([np.ones((n, 100), np.float32) for n in (1000, 999)])
    loss = lambda x, y, batch: jnp.mean(jnp.sum((batch @ x) ** 2, axis=1)) - jnp.sum(y**2)
    problem = fm.MinimaxProblem(loss, jnp.ones((100, 100), jnp.float32), jnp.zeros(1, jnp.float32))
    everybody = jax.jit(lambda z, data: fm.metrics.gradient(problem, data, z))
    alone = jax.jit(lambda z, data: problem.grad(z.x, z.y, client(data, 0).full))
    for program in (everybody, alone):
        compiled = program.lower(problem.start, data).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 8e6


def test_full_batches_of_unequal_clients_are_exact(x64):
    """Padded, masked, and in chunks: the mean is the client's own."""
    from fedminimax.problems import base

    rng = np.random.default_rng(0)
    data = ClientData.from_list([rng.normal(size=(n, 2)) for n in (1, 5, 300)])
    loss = lambda x, y, batch: jnp.mean(jnp.sin(batch @ x)) * y[0]
    problem = fm.MinimaxProblem(loss, jnp.asarray([0.3, -0.2]), jnp.asarray([2.0]))
    for chunk in (2048, 64):
        old, base.CHUNK = base.CHUNK, chunk
        try:
            for i in range(3):
                expected = jax.value_and_grad(loss)(problem.x0, problem.y0, jnp.asarray(data[i]))
                me = client(data, i)
                np.testing.assert_allclose(problem.value(problem.x0, problem.y0, me.full), expected[0], rtol=1e-12)
                np.testing.assert_allclose(problem.grad(problem.x0, problem.y0, me.full).x, expected[1], rtol=1e-12)
        finally:
            base.CHUNK = old
