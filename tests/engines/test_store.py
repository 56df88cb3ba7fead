"""Clients' states on the host: the same run as with arrays on the device, exact through interruptions and saving."""

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.engines import simulator
from fedminimax.engines.store import ClientStore, RowFormat

METHOD = fm.CODASCA(0.03, 0.03, local_steps=3, batch_size=2, cohort_size=3)


@pytest.fixture
def task(x64):
    return fm.problems.quadratic(6, examples=8, noise=0.3, seed=1)


def go(task, rounds=6, algorithm=METHOD, client_store=None, devices=1, **options):
    engine = fm.Simulator(devices=devices, client_store=client_store)
    return fm.run(task.problem, task.clients, algorithm, rounds=rounds, **{"engine": engine, "seed": 2, **options})


def close(a, b):
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("where", ["host", "file"])
def test_a_run_is_that_with_states_on_the_device(task, tmp_path, where, devices):
    reference = go(task, client_store="device")
    result = go(task, client_store=tmp_path / "states" if where == "file" else where, devices=devices)
    close(reference.state, result.state)
    close(reference.client_states, result.client_states.dense())
    assert (tmp_path / "states" / "written.npy").exists() == (where == "file")


def test_methods_without_states_need_no_store(task, tmp_path):
    result = go(task, algorithm=fm.CDMA(0.03, 0.03, local_steps=2), client_store=tmp_path / "states")
    assert result.client_states is None
    assert not (tmp_path / "states").exists()


def test_large_states_go_to_the_host_by_themselves(task, monkeypatch):
    monkeypatch.setattr(simulator, "_ON_DEVICE", 100)
    result = go(task)
    assert isinstance(result.client_states, ClientStore)
    close(go(task, client_store="device").state, result.state)


def test_runs_continue_and_survive_saving(task, tmp_path):
    whole = go(task, client_store="host")
    half = go(task, rounds=3, client_store=tmp_path / "states")
    loaded = fm.Result.load(half.save(tmp_path / "half"))
    for options in ({"client_store": "host"}, {"client_store": "device"}, {"engine": "isolated"}):
        rest = go(task, rounds=3, start=loaded, **options)
        close(whole.state, rest.state)
    in_place = go(task, rounds=3, start=half, client_store=tmp_path / "states")
    close(whole.state, in_place.state)
    with pytest.raises(fm.InputError, match="those after 6 rounds, but the run goes on from round 3"):
        go(task, rounds=3, start=half, client_store=tmp_path / "states")
    for options in ({}, {"start": loaded}):
        with pytest.raises(fm.InputError, match="holds the clients' states of another run: name an empty folder"):
            go(task, client_store=tmp_path / "states", **options)
    elsewhere = go(task, rounds=3, start=loaded, client_store=tmp_path / "new")
    close(whole.state, elsewhere.state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_store": "Host"}, "did you mean 'host'"),
        ({"client_store": ""}, "'device', 'host' or a folder"),
        ({"client_store": True}, "'device', 'host' or a folder"),
    ],
)
def test_places_that_are_none_are_named(task, options, message):
    with pytest.raises(fm.InputError, match=message):
        go(task, **options)


def test_interrupted_rounds_leave_no_trace(task, monkeypatch):
    """Ctrl-C while rounds run: what they wrote is taken back, and the run goes on exactly."""
    whole = go(task, client_store="host")
    ready, calls = jax.block_until_ready, []

    def interrupt(carry):
        calls.append(carry)
        if len(calls) == 3:
            ready(carry)
            raise KeyboardInterrupt
        return ready(carry)

    monkeypatch.setattr(simulator.jax, "block_until_ready", interrupt)
    stopped = go(task, client_store="host", eval_every=1)
    monkeypatch.setattr(simulator.jax, "block_until_ready", ready)
    assert stopped.interrupted
    assert stopped.rounds == 2
    rest = go(task, rounds=4, start=stopped, client_store="host")
    close(whole.state, rest.state)
    close(whole.client_states.dense(), rest.client_states.dense())


def test_only_rows_that_were_written_differ_from_the_first(tmp_path):
    store = ClientStore(1000, {"a": np.full(3, 7.0), "b": np.ones((), np.int32)}, tmp_path / "store")
    rows = lambda a, b: store._format.packed([np.asarray(a, float), np.asarray(b, np.int32)])
    store.write_rows([4, 9, 4], np.array([True, False, True]), rows(np.arange(9.0).reshape(3, 3), [1, 2, 3]))
    np.testing.assert_array_equal(store.read([4])["a"], [[6, 7, 8]])
    assert store.written().size == 0  # not lasting yet
    store.rollback()
    np.testing.assert_array_equal(store.read([4, 9])["a"], np.full((2, 3), 7.0))
    store.write_rows([4], np.array([True]), rows(np.zeros((1, 3)), [5]))
    store.commit()
    assert store.written().tolist() == [4]
    np.testing.assert_array_equal(store.dense()["b"], np.where(np.arange(1000) == 4, 5, 1))
    again = ClientStore.restore(store.record())
    np.testing.assert_array_equal(again.dense()["a"], store.dense()["a"])
    assert "1 written" in repr(again)


def test_states_of_any_kind_become_bytes_and_back(x64):
    state = {"half": np.ones((2, 2), np.float16), "flag": np.array(True), "whole": np.arange(3), "real": np.array([0.1, -3.0])}
    format_ = RowFormat(state)
    stacked = jax.tree.map(lambda a: np.stack([a, a]), state)
    back = format_.unpack(jax.jit(format_.pack)(jax.tree.map(jax.numpy.asarray, stacked)))
    for a, b in zip(jax.tree.leaves(stacked), jax.tree.leaves(back), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "states").write_text("")
    with pytest.raises(fm.InputError, match="is a file"):
        ClientStore(3, np.zeros(2), tmp_path / "states")
