"""One simulation over many processes: the shares of data, the packed reduction, and real processes on this machine."""

import gc
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import fedminimax as fm
from fedminimax import metrics, problems
from fedminimax.commands.launch import _environments
from fedminimax.data.shards import ClientShard, deal
from fedminimax.engines.layout import AXIS
from fedminimax.engines.mesh.channel import Channel
from fedminimax.engines.mesh.contents import joined
from fedminimax.engines.mesh.evaluation import MeshJudge
from fedminimax.engines.mesh.packing import added, packed_bytes, summed
from fedminimax.engines.mesh.placement import device_mesh
from fedminimax.engines.mesh.rounds import side_by_side
from fedminimax.engines.rows import OwnStates
from fedminimax.engines.simulator import Simulation
from fedminimax.errors import InputError
from fedminimax.federation.round import Conditions
from fedminimax.testing.contract import close, same_costs

SCRIPT = Path(__file__).parent / "mesh_script.py"


def clients(sizes=(5, 1, 7, 2, 2, 9, 4)):
    rng = np.random.default_rng(0)
    return fm.ClientData.from_list([{"a": rng.normal(size=(n, 3)), "b": np.full(n, k)} for k, n in enumerate(sizes)])


# -- shares ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [1, 2, 3, 7])
def test_blocks_are_contiguous_and_the_fullest_is_as_small_as_can_be(places):
    sizes = [5, 1, 7, 2, 2, 9, 4]
    cuts = deal(sizes, places)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, 7, places + 1)
    assert (np.diff(cuts) > 0).all()
    fullest = max(sum(sizes[a:b]) for a, b in itertools.pairwise(cuts))

    divisions = ([0, *inner, 7] for inner in itertools.combinations(range(1, 7), places - 1))
    assert fullest == min(max(sum(sizes[a:b]) for a, b in itertools.pairwise(d)) for d in divisions)


def test_shares_have_every_client_once_and_nothing_else():
    data = clients()
    shares = [data.shard(k, 3) for k in range(3)]
    assert [i for share in shares for i in share.own] == list(range(7))
    for share in shares:
        assert share.places().tolist() == [share.place(i) for i in share.own]
        assert (share.count, share.total, share.smallest, share.largest) == (7, 30, 1, 9)
        for i in share.own:
            jax.tree.map(np.testing.assert_array_equal, share[i], data[i])
            jax.tree.map(np.testing.assert_array_equal, share.numbered()[i], data.numbered()[i])
            jax.tree.map(np.testing.assert_array_equal, share.seeded()[i], data.seeded()[i])
        assert share.fields["a"].shape[0] == max(sum(s.sizes[i] for i in s.own) for s in shares)  # no more than the fullest
    with pytest.raises(InputError, match="with another process"):
        shares[0][6]


def test_a_share_is_read_client_by_client():
    data, asked = clients(), []
    share = ClientShard.read(lambda i: (asked.append(i), data[i])[1], data.sizes, 1, 2)
    assert asked == list(share.own)
    assert 0 < len(asked) < 7
    with pytest.raises(InputError, match="was said to have"):
        ClientShard.read(lambda i: data[0], data.sizes, 1, 2)
    with pytest.raises(InputError, match="start fewer"):
        data.shard(0, 8)
    with pytest.raises(InputError, match="engine='mesh'"):
        fm.run(problems.quadratic(7).problem, problems.quadratic(7).clients.shard(0, 2), fm.LocalSGDA(0.1, 0.1), rounds=1)


def test_a_share_of_files_reads_its_own_rows_only(tmp_path):
    rng = np.random.default_rng(0)
    owner, whole = rng.integers(-1, 5, size=60), {"a": rng.normal(size=(60, 3)), "b": np.arange(60)}
    seen = []

    class Mapped(np.memmap):
        def __getitem__(self, rows):
            seen.append(rows)
            return np.asarray(super().__getitem__(rows))

    for name, values in whole.items():
        np.save(tmp_path / f"{name}.npy", values)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r").view(Mapped) for name in whole}
    for process in range(2):
        seen.clear()
        share = ClientShard.from_owner(mapped, owner, process, 2)
        assert set(np.concatenate(seen)) == set(np.flatnonzero(np.isin(owner, list(share.own))))
        data = fm.ClientData.from_owner(whole, owner)
        assert share.own == data.shard(process, 2).own
        for client in share.own:
            jax.tree.map(np.testing.assert_array_equal, share[client], data[client])
    for wrong in (owner[:-1], owner - 1, owner / 2):
        with pytest.raises(InputError, match="owner"):
            ClientShard.from_owner(whole, wrong, 0, 2)


def test_checksums_of_pieces_are_that_of_the_whole():
    rng = np.random.default_rng(0)
    for first, second in [(0, 5), (7, 0), (33, 1000), (4096, 3)]:
        a, b = rng.bytes(first), rng.bytes(second)
        assert joined(zlib.crc32(a), zlib.crc32(b), second) == zlib.crc32(a + b)


# -- one reduction --------------------------------------------------------------------------------------------------------


def collectives(program):
    """Return how many of each kind there are in a program's text; what is in a loop is there once."""
    kinds = "(?:all|collective|reduce)[-_](?:reduce|gather|to[-_]all|permute|scatter|broadcast)"
    found = re.findall(rf"{kinds}(?=\(|\"\()", program)
    return {kind.replace("-", "_"): found.count(kind) for kind in found}


@pytest.mark.parametrize(("places", "meetings"), [(1, 0), (2, 1), (3, 0), (4, 3), (8, 5)])
def test_pairs_add_up_the_same_everywhere_in_few_meetings(places, meetings, x64):
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(places, 13)))
    go = jax.vmap(lambda row: added(row, AXIS), axis_name=AXIS)
    out = np.asarray(go(rows))
    np.testing.assert_allclose(out[0], rows.sum(0), rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(out, np.broadcast_to(out[0], out.shape))  # to the last bit, or the places would part
    one = jax.make_jaxpr(lambda row: added(row, AXIS), axis_env=[(AXIS, places)])(rows[0])
    sent = [eqn.invars[0].aval.size for eqn in one.eqns if eqn.primitive.name == "ppermute"]
    assert len(sent) == meetings
    if meetings:
        padded = -(-13 // (places // 2)) * (places // 2)
        assert sum(sent) * places == 2 * (places - 1) * padded  # as many bytes as a ring's reduction


def test_a_tree_is_added_up_exactly_in_one_reduction():
    tree = {
        "x": jnp.arange(6.0).reshape(2, 3),
        "i": jnp.array([2**31 - 1 - 5, -7, 12345678], jnp.int32),
        "u": jnp.array([2**32 - 9], jnp.uint32),
        "b": jnp.array([True, False]),
        "s": jnp.float32(0.5),
    }

    def both(tree):
        me = jax.lax.axis_index(AXIS)
        own = {
            k: v & (me == 1) if v.dtype == bool else v * me.astype(v.dtype) if k == "u" else v + me.astype(v.dtype)
            for k, v in tree.items()
        }
        return summed({**own, "i": jnp.where(me == 0, tree["i"], 5)}, AXIS)

    mesh = device_mesh(2)
    program = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False))
    out = program(tree)
    np.testing.assert_allclose(out["x"], 2 * np.arange(6.0).reshape(2, 3) + 1)
    np.testing.assert_array_equal(out["i"], np.array([2**31 - 1, -2, 12345683], np.int32))
    np.testing.assert_array_equal(out["u"], [2**32 - 9])
    np.testing.assert_array_equal(out["b"], [True, False])
    assert collectives(program.lower(tree).as_text()) == {"collective_permute": 1}  # two swap what they have
    assert packed_bytes(tree) == 4 * (6 + 3 * 3 + 3 + 2 + 1)


@pytest.mark.parametrize(
    ("method", "exchanges"),
    [
        (fm.LocalSGDA(0.1, 0.1, local_steps=2, cohort_size=4), 1),
        (fm.FessGDA(0.1, 0.1, local_steps=2), 1),
        (fm.CDMAGE(0.1, 0.1, local_steps=2, cohort_size=4), 2),
    ],
    ids=["local_sgda", "fess_gda", "cdmage"],
)
def test_a_round_has_one_collective_an_exchange_and_no_other(method, exchanges):
    task = problems.quadratic(7)
    run = fm.Mesh(devices=2).open(*task.problem.bind(task.clients), method, Conditions(fm.Guard()))
    compiled = run._program._advance.lower(run._given, run._carry, 0, 1, length=4).compile()
    assert collectives(compiled.as_text()) == {"collective_permute": exchanges}
    assert len(run.packed) == exchanges


def test_nodes_meet_only_their_neighbours_and_count_once_at_the_end():
    task = problems.personalized_quadratic(fm.Network.ring(8), examples=6)
    method = fm.Sliding(0.05, 0.3, inner_steps=3)
    run = fm.Mesh(devices=2).open(*task.problem.bind(task.clients), method, Conditions(fm.Guard()))
    compiled = run._program._advance.lower(run._given, run._carry, 0, 1, length=4).compile()
    mixes = [sent for sent in run.packed if sent]
    assert collectives(compiled.as_text()) == {"collective_permute": len(mixes) + 1}


@pytest.mark.parametrize("size", [1, 4, 10, 1000, 10_000])
@pytest.mark.parametrize("places", [2, 8, 64])
def test_a_drawn_cohort_takes_few_turns_that_are_nearly_full(size, places):
    assert side_by_side(size, 1) == size
    fullest = np.random.default_rng(0).multinomial(size, [1 / places] * places, size=500).max(1)
    width = side_by_side(size, places)
    turns = np.ceil(fullest / width)
    assert 1 <= width <= size
    assert turns.mean() < 1.2 + np.sqrt(fullest.mean() / 8)
    assert (turns * width).mean() < 1.3 * fullest.mean() + 1.5


@pytest.mark.parametrize(
    ("guard", "strategy", "devices"), [(fm.Guard(), "auto", 2), (fm.Guard(aggregate="median"), 2, 2), (fm.Guard(), "auto", 1)]
)
def test_blocks_on_one_device_and_on_two_equal_the_simulator(guard, strategy, devices, x64):
    task = problems.robust_regression(7, 4, 6, rho=0.1, sigma=0.5)
    method = fm.Scaffold(lr_x=0.02, local_steps=2, batch_size=4, cohort_size=4)
    go = lambda engine, **more: fm.run(
        task.problem, task.clients, method, rounds=4, seed=3, eval_every=4, engine=engine, progress=False, guard=guard,
        availability=fm.Availability(0.7), metrics=metrics.ClientLoss(), **more,
    )  # fmt: skip
    here, there = go(fm.Simulator("vmap", 1)), go(fm.Mesh(strategy, devices))
    close(there.state, here.state, 1e-10)
    close(there.client_states, here.client_states, 1e-10)
    same_costs(there, here)
    np.testing.assert_allclose(there.history["client_loss/worst"], here.history["client_loss/worst"], rtol=1e-9)


def test_clients_that_are_made_need_no_shares(x64):
    def make(client):
        a = jax.random.normal(jax.random.key(client), (4, 3))
        return {"a": a, "b": a.sum(axis=1) + client}

    loss = lambda x, y, batch: ((batch["a"] @ x - batch["b"] + y) ** 2).mean() - 2 * y**2
    problem = fm.MinimaxProblem(loss, jnp.zeros(3), jnp.zeros(()))
    method = fm.LocalSGDA(0.02, 0.02, local_steps=2, batch_size=2, cohort_size=3)
    go = lambda engine: fm.run(
        problem, fm.GeneratedClients(make, 1000), method, rounds=4, seed=3, engine=engine, progress=False
    )
    close(go(fm.Mesh(devices=2)).state, go(fm.Simulator("vmap", 1)).state, 1e-10)


def test_a_cohort_of_all_has_nobody_elses_states_on_a_device():
    task, method = (
        problems.robust_regression(32, 64, 3, rho=0.1, sigma=0.5),
        fm.Scaffold(lr_x=0.02, local_steps=2, batch_size=2),
    )
    run = fm.Mesh(2, devices=2).open(*task.problem.bind(task.clients), method, Conditions(fm.Guard()))
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(run._carry.client_states)) / 2
    compiled = run._program._advance.lower(run._given, run._carry, 0, 1, length=1).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * own  # each copy of everybody's would be 2


def presses(monkeypatch, kind, method, when):
    """Press Ctrl-C at the end of a call; return the list of calls that came to their end."""
    ended, work = [], getattr(kind, method)

    def pressed(self, *args):
        out = work(self, *args)
        if len(ended) == when:
            signal.raise_signal(signal.SIGINT)
        ended.append(method)
        return out

    monkeypatch.setattr(kind, method, pressed)
    return ended


@pytest.mark.parametrize("when", [(2, None), (None, 2)], ids=["advance", "evaluate"])
def test_ctrl_c_waits_for_what_all_processes_do_and_loses_nothing_of_it(when, monkeypatch):
    task, words, say = problems.quadratic(7), [], Channel.say
    monkeypatch.setattr(Channel, "say", lambda self, what: (words.append(what.split()[0]), say(self, what)))
    done = {"advance": presses(monkeypatch, Simulation, "advance", when[0])}
    done["evaluate"] = presses(monkeypatch, MeshJudge, "__call__", when[1])
    result = fm.run(
        task.problem, task.clients, fm.LocalSGDA(0.1, 0.1), rounds=9, eval_every=1, engine="mesh", progress=False,
        metrics=metrics.ClientLoss(),
    )  # fmt: skip
    assert result.interrupted
    assert 0 < result.rounds < 9
    assert result.rounds == result.history["round"][-1] == len(result.costs["replies"])
    assert {word: words.count(word) for word in done} == {word: len(calls) for word, calls in done.items()}


def test_of_data_that_the_caller_drops_only_the_share_is_kept():
    task, seen = problems.quadratic(7, examples=6), []

    class Looks:
        def on_end(self, run):
            gc.collect()
            seen.append([leaf() is None for leaf in leaves])

    def data():
        own = fm.ClientData.from_list([jax.tree.map(np.array, task.clients[i]) for i in range(7)])
        leaves.extend(weakref.ref(leaf) for leaf in jax.tree.leaves(own.fields))
        return own

    leaves = []
    fm.run(task.problem, data(), fm.LocalSGDA(0.1, 0.1), rounds=2, engine="mesh", progress=False, observers=Looks())
    assert leaves
    assert seen == [[True] * len(leaves)]


def test_a_metric_that_needs_all_data_is_refused():
    task = problems.quadratic(7)
    with pytest.raises(InputError, match="all clients' data in one place"):
        fm.run(task.problem, task.clients, fm.LocalSGDA(0.1, 0.1), rounds=1, engine="mesh", metrics=lambda p, c, s: 0.0)


# -- real processes -------------------------------------------------------------------------------------------------------


def launched(processes, *arguments, patience=5):
    start = "from fedminimax.commands.launch import launch; import sys"
    code = f"{start}; sys.exit(launch(sys.argv[3:], int(sys.argv[1]), float(sys.argv[2])))"
    command = [sys.executable, "-c", code, str(processes), str(patience), str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=dict(os.environ), check=False)


def test_two_processes_equal_the_simulator_and_refuse_alike(tmp_path):
    done = launched(2, "conform", tmp_path / "file")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Gloo" not in done.stdout, "only process 0 prints, not even what connects them"


SILENT = r"Process {} \(pid \d+ on [^)]+\) was lost: it has not been heard of for \d+ seconds\. The run ends; start it again"
"""What processes say of one that is silent; what the launcher says of one has no machine in it."""


@pytest.mark.parametrize(
    ("process", "what", "says"),
    [(1, "SIGSTOP", SILENT.format(1)), (0, "SIGKILL", "Process 0, through which all others know of each other, was lost")],
)
def test_a_process_that_is_stopped_or_process_0_that_is_killed_ends_the_others(process, what, says, tmp_path):
    patience, told = 2, []
    environments = _environments(2, patience, {})
    command = [sys.executable, str(SCRIPT), "fall", str(tmp_path / "run"), str(process), what]
    started = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for env in environments]
    try:
        other, mark, until = started[1 - process], tmp_path / "run.now", time.monotonic() + 120
        while not mark.exists():
            assert time.monotonic() < until, "the run did not begin"
            assert all(one.poll() is None for one in started)
            time.sleep(0.05)
        told.append(other.communicate(timeout=patience + 30)[1])  # or it hangs
    finally:
        for one in started:
            one.kill()
            one.communicate()
    assert re.search(says, told[0]), told[0][-3000:]
    assert other.returncode == 1


def test_three_processes_equal_the_simulator_and_one_that_is_killed_is_named_and_two_go_on(tmp_path, x64):
    done = launched(3, "conform-fall", tmp_path / "run")
    assert done.returncode == 1
    assert (tmp_path / "run.equal").read_text() == "FessGDA CDMAGE ScaffPD Sliding", done.stderr[-3000:]
    assert re.search(SILENT.format(2), done.stderr), done.stderr[-3000:]
    assert (tmp_path / "run.from").read_text() == "0"
    assert list((tmp_path / "run" / "checkpoints").glob("*/checkpoint.json"))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    newest = max((tmp_path / "run" / "checkpoints").glob("*/checkpoint.json")).parent
    assert len(list(newest.glob("clients-*.rows"))) == 3
    done = launched(2, "go", tmp_path / "run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run.from").read_text() in ("2", "4", "6")  # where a checkpoint was, and not from the start
    ends = [fm.Result.load(tmp_path / f"run-{k}.fmx") for k in range(2)]
    task = problems.robust_regression(7, 4, 6, rho=0.1, sigma=0.5)
    method = fm.Scaffold(lr_x=0.02, local_steps=3, batch_size=4, cohort_size=3)
    alone = fm.run(
        task.problem, task.clients, method, rounds=12, seed=3, eval_every=3, progress=False, metrics=metrics.ClientLoss(),
        folder=tmp_path / "alone",
    )  # fmt: skip
    close(OwnStates.together(end.client_states for end in ends), alone.client_states, 1e-10)
    for end in ends:
        close(end.state, alone.state, 1e-10)
        np.testing.assert_allclose(end.history["client_loss/worst"], alone.history["client_loss/worst"], rtol=1e-9)
    # The simulator takes the folder of the processes for its own: it is the same run, and goes on from where that was killed.
    for folder in ("copy", "run"):
        again = fm.run(
            task.problem, task.clients, method, rounds=12, seed=3, eval_every=3, progress=False, metrics=metrics.ClientLoss(),
            folder=tmp_path / folder,
        )  # fmt: skip
        close(again.state, alone.state, 1e-10)
        close(again.client_states, alone.client_states, 1e-10)
