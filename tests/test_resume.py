"""Runs that survive: stopped anywhere, by anything, and resumed, they are the runs that were never stopped, to the last bit."""

import json
import os
import tomllib

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import checkpoint, checkpointing, devices, folders, runfolder
from fedminimax.engines import simulator
from fedminimax.engines.store import ClientStore
from fedminimax.engines.undo import UndoLog

METHOD = fm.CODASCA(0.03, 0.03, local_steps=3, batch_size=2, cohort_size=3)


@pytest.fixture(scope="module")
def task():
    return fm.problems.quadratic(6, examples=8, noise=0.3, seed=1)


def go(task, rounds=12, method=METHOD, **options):
    known = {"metrics": {"d": fm.metrics.Distance(task.solution)}, "seed": 2, "eval_every": 5}
    return fm.run(task.problem, task.clients, method, rounds=rounds, **{**known, **options})


def same(a, b):
    """Two runs have the same bytes in all that they leave."""
    for name in ("state", "client_states", "history", "costs"):
        one, other = (getattr(result, name) for result in (a, b))
        one, other = (v.dense() if hasattr(v, "dense") else v for v in (one, other))
        assert jax.tree.structure(one) == jax.tree.structure(other), name
        for p, q in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert np.asarray(p).dtype == np.asarray(q).dtype, name
            assert np.asarray(p).tobytes() == np.asarray(q).tobytes(), name
    assert (a.rounds, a.seed, a.messages) == (b.rounds, b.seed, b.messages)
    assert (a.trace is None) == (b.trace is None)
    if a.trace is not None:
        for p, q in zip(*(jax.tree.leaves(dict(r.trace.__dict__)) for r in (a, b)), strict=True):
            np.testing.assert_array_equal(p, q)


def test_a_run_that_goes_on_is_the_run_that_was_never_stopped(task, tmp_path):
    """Also where the evaluation at the first end is not one of the longer run's."""
    whole = go(task, record=True)
    part = go(task, 7, record=True, folder=tmp_path / "run", checkpoint_every=2)
    assert part.history["round"].tolist() == [0, 5, 7]
    same(go(task, record=True, folder=tmp_path / "run", checkpoint_every=4), whole)
    same(fm.resume(tmp_path / "run"), whole)  # nothing is left to do
    same(fm.resume(tmp_path / "run", rounds=14), go(task, 14, record=True))
    with pytest.raises(fm.InputError, match="has come to round 14, beyond the 12"):
        go(task, record=True, folder=tmp_path / "run")


@pytest.mark.parametrize("store", ["device", "host", "file", "folder"])
def test_clients_states_go_back_to_the_checkpoint(task, tmp_path, monkeypatch, store):
    """Rounds after the last checkpoint leave no trace, wherever clients' states live."""
    if store == "folder":  # states too large for the device go to files in the run's folder by themselves
        monkeypatch.setattr(simulator, "_ON_DEVICE", 100)
    where = {"file": tmp_path / "states", "folder": None}.get(store, store)
    engine = lambda name: fm.Simulator(devices=1, client_store=where if store != "file" else where / name)
    whole = go(task, engine=engine("whole"))

    class Dies:
        def wants(self, run):
            return 9

        def on_rounds(self, run):
            if run.round == 9:
                raise SystemExit("killed")

    with pytest.raises(SystemExit):
        go(task, engine=engine("part"), folder=tmp_path / "run", checkpoint_every=4, observers=Dies())
    if store == "folder":
        assert (tmp_path / "run" / "client_states" / "states.npy").exists()
    survived = go(task, engine=engine("part"), folder=tmp_path / "run", checkpoint_every=4)
    assert "Going on after 8 of 12" in (tmp_path / "run" / "log.txt").read_text()
    same(survived, whole)


def test_states_go_back_past_damaged_checkpoints_and_unfinished_ones(tmp_path):
    """The log of a store: to any checkpoint that is kept, also when going back is itself interrupted."""
    initial, count = np.zeros(3), 8
    store = ClientStore(count, initial, tmp_path)
    random, was = np.random.default_rng(0), {}

    def change(number):
        ids = random.choice(count, 3, replace=False)
        store.write_rows(ids, np.ones(3, bool), random.normal(size=(3, 3)).view(np.uint8))
        store.commit()

    for mark in ("1", "2", "3"):
        change(mark)
        change(mark)
        store.mark(mark)
        was[mark] = store.dense().copy(), store.written()
    change("later")
    with (tmp_path / "undo-3.log").open("ab") as log:  # a batch that was cut short: its rows are as they were
        log.write(b"FMU1" + bytes(20))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for mark in ("3", "2", "1"):
        for name, contents in before.items():
            (tmp_path / name).write_bytes(contents)
        with pytest.raises(OSError, match="the machine stops"):  # in the middle of it
            UndoLog(tmp_path, 24).go_back(mark, lambda *rows: None, _stop)
        again = ClientStore.reopen(tmp_path, count, initial, mark, 5)
        np.testing.assert_array_equal(again.dense(), was[mark][0])
        np.testing.assert_array_equal(again.written(), was[mark][1])
        again.write_rows([0], np.ones(1, bool), np.full((1, 3), 7.0).view(np.uint8))
        again.commit()
        np.testing.assert_array_equal(ClientStore.reopen(tmp_path, count, initial, mark, 5).dense(), was[mark][0])
    again.forget("2")
    assert not (tmp_path / "undo-1.log").exists()


def _stop():
    raise OSError("the machine stops")


def test_a_damaged_checkpoint_gives_way_to_the_one_before(task, tmp_path):
    go(task, 10, folder=tmp_path / "run", checkpoint_every=3)
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [path.name for path in kept] == ["000000006.000", "000000009.000", "000000010.000"]
    largest = max((p for p in (kept[2] / "arrays").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    contents = bytearray(largest.read_bytes())
    contents[len(contents) // 2] ^= 1
    largest.write_bytes(contents)
    manifest = kept[1] / "checkpoint.json"
    manifest.write_bytes(manifest.read_bytes()[:-50])
    with pytest.warns(UserWarning, match="is damaged") as told:
        survived = go(task, folder=tmp_path / "run")
    said = [str(w.message) for w in told]
    assert any("after 10 rounds is damaged" in s and "not as it was written" in s for s in said)
    assert any("after 9 rounds is damaged" in s for s in said)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Going on after 6 of 12" in log
    assert "after 10 rounds is damaged" in log
    same(survived, go(task))


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(task, tmp_path, monkeypatch):
    write, full = checkpoint.write, {8, 12}

    def fails(folder, name, result, facts, elsewhere):
        if result.rounds in full:
            (folder / "checkpoints" / name).mkdir()
            raise OSError(28, "No space left on device")
        write(folder, name, result, facts, elsewhere)

    monkeypatch.setattr(checkpoint, "write", fails)
    with pytest.warns(UserWarning, match=r"could not be saved|the result has them all") as told:
        result = go(task, folder=tmp_path / "run", checkpoint_every=4)
    said = " ".join(str(w.message) for w in told)
    assert "The checkpoint after 8 rounds could not be saved" in said
    assert "No space left on device" in said
    assert "has 4 rounds of the 12 rounds that were run: the result has them all" in said
    same(result, go(task))
    full.clear()
    same(go(task, folder=tmp_path / "run"), result)
    assert "Going on after 4 of 12" in (tmp_path / "run" / "log.txt").read_text()


def test_rows_that_find_no_room_on_disk_wait_in_memory(tmp_path, monkeypatch):
    store = ClientStore(4, np.zeros(2), tmp_path)
    store.mark("0")
    put = lambda row: store.write_rows([1], np.ones(1, bool), np.full((1, 2), row).view(np.uint8))

    def full(*_):
        raise OSError(28, "No space left on device")

    put(5.0)
    with monkeypatch.context() as patched:
        patched.setattr(UndoLog, "keep", full)
        with pytest.warns(UserWarning, match="wait in memory until there is room"):
            store.commit()
    put(6.0)
    store.rollback()  # what was committed stays
    np.testing.assert_array_equal(store.read([1]), [[5, 5]])
    assert store.written().tolist() == [1]
    store.commit()
    np.testing.assert_array_equal(ClientStore.reopen(tmp_path, 4, np.zeros(2), "0", 0).read([1]), [[0, 0]])


def test_a_folder_that_somebody_writes_is_refused(task, tmp_path):
    class Second:
        def on_rounds(self, run):
            with pytest.raises(fm.InputError, match=rf"is being written by process {os.getpid()} on "):
                go(task, 1, folder=tmp_path / "run")

    result = go(task, 3, folder=tmp_path / "run", observers=Second())
    assert result.stopped is None
    go(task, 4, folder=tmp_path / "run")  # and it is let go of


def other_loss(x, y, batch):
    return jax.numpy.mean(batch["b"] ** 2) + x.sum() - (y**2).sum()


def test_a_folder_of_another_run_is_refused_with_what_differs(task, tmp_path):
    folder = tmp_path / "run"
    go(task, 2, folder=folder)

    def refused(**changes):
        kept = {"problem": task.problem, "clients": task.clients, "algorithm": METHOD, "seed": 2, "eval_every": 5}
        kept |= {"metrics": {"d": fm.metrics.Distance(task.solution)}, "rounds": 2, "folder": folder}
        with pytest.raises(fm.InputError) as error:
            fm.run(**{**kept, **changes})
        return str(error.value)

    other = fm.problems.quadratic(6, examples=8, noise=0.3, seed=5)
    said = refused(algorithm=METHOD.replace(lr_x=0.2, local_steps=4))
    assert "lr_x is 0.03 in the folder and 0.2 here" in said
    assert "local_steps is 3 in the folder and 4 here" in said
    assert "the method is CODASCA in the folder and FessGDA here" in refused(algorithm=fm.FessGDA(0.1, 0.1))
    assert "other contents, though both are 6 clients of 8 examples" in refused(clients=other.clients)
    more = fm.problems.quadratic(7, examples=8)
    assert "6 clients of 8 examples in the folder, 7 clients of 8 examples here" in refused(clients=more.clients)
    assert "the problem's loss differs" in refused(problem=task.problem.replace(loss=other_loss))
    assert "the problem's x0 differs" in refused(problem=task.problem.replace(x0=task.problem.x0 + 1))
    assert "the metrics are d in the folder and none here" in refused(metrics=())
    assert "the metric d differs in solution in x" in refused(
        metrics={"d": fm.metrics.Distance(fm.Point([1.0] * 4, [1.0] * 3))}
    )
    assert "the guard differs in max_norm (None in the folder, 3.0 here)" in refused(guard=fm.Guard(max_norm=3.0))
    assert "the seed is 2 in the folder and 3 here" in refused(seed=3)
    assert "eval_every is 5 in the folder and 4 here" in refused(eval_every=4)
    assert "did not begin, and cannot go on with" in _refused_record(task, tmp_path)


def _refused_record(task, tmp_path):
    folders.Record.of(go(task, 1)).write(tmp_path / "sweep")
    with pytest.raises(fm.InputError) as error:
        go(task, 1, folder=tmp_path / "sweep")
    return str(error.value)


def test_who_wrote_a_checkpoint_is_said(task, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "__version__", "0.0.9")
    go(task, 2, folder=folder)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"written by fedminimax 0\.0\.9, .*may round differently"):
        go(task, 3, folder=folder)
    (newest,) = (folder / "checkpoints").glob("000000003.*")
    manifest = json.loads((newest / "checkpoint.json").read_text())
    (newest / "checkpoint.json").write_text(json.dumps({**manifest, "format": 99, "version": "7.0"}))
    with pytest.raises(fm.InputError, match=r"was written by fedminimax 7\.0, which is later than this"):
        go(task, 4, folder=folder)


def test_ctrl_c_saves_where_it_ends(task, tmp_path):
    class Interrupts:
        def wants(self, run):
            return 3

        def on_rounds(self, run):
            if run.round >= 3:
                raise KeyboardInterrupt

    part = go(task, eval_every=2, folder=tmp_path / "run", checkpoint_every="1h", observers=Interrupts())
    assert part.interrupted
    assert part.history["round"].tolist() == [0, 2, 3]
    record = folders.Record.read(tmp_path / "run")
    assert (record.status, record.rounds, record.wanted) == ("interrupted", 3, 12)
    same(go(task, eval_every=2, folder=tmp_path / "run"), go(task, eval_every=2))


def test_checkpoints_come_by_the_clock_too(task, tmp_path, monkeypatch):
    seconds = iter(range(1000))  # one passes whenever somebody looks: at the start, at every call, and at a checkpoint
    monkeypatch.setattr(checkpointing, "monotonic", lambda: float(next(seconds)))
    go(task, 10, eval_every=1, folder=fm.RunFolder(tmp_path / "run", keep=9), checkpoint_every="0.05min")
    assert [int(p.name[:9]) for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [3, 6, 9, 10]


@pytest.mark.parametrize("every", ["5 parsecs", "min", 0, 2.5, "0s"])
def test_intervals_that_are_none_are_named(task, tmp_path, every):
    with pytest.raises(fm.InputError, match="checkpoint_every"):
        go(task, 1, folder=tmp_path / "run", checkpoint_every=every)
    with pytest.raises(fm.InputError, match="needs a folder"):
        go(task, 1, checkpoint_every=3)


@pytest.mark.parametrize("patience", [None, 2])
def test_those_who_count_evaluations_count_on(task, tmp_path, patience):
    """Patience is not begun anew, a log has no row twice, and a run that was stopped stays so."""

    def watching(name):
        rule = {"below": 0.0} if patience is None else {"patience": patience, "better": "higher"}
        return [fm.StopWhen("d/x", **rule), fm.LogCSV(tmp_path / f"{name}.csv")]

    class Dies:
        def on_evaluation(self, run):
            if run.round == 6 and run.resumed is None:
                raise SystemExit

    options = {"eval_every": 2, "checkpoint_every": 5}
    whole = go(task, eval_every=2, observers=watching("whole"))
    with pytest.raises(SystemExit):
        go(task, folder=tmp_path / "run", observers=[*watching("part")[: 1 if patience else 2], Dies()], **options)
    survived = go(task, folder=tmp_path / "run", observers=watching("part"), **options)
    assert survived.stopped == whole.stopped
    assert (whole.stopped is None) == (patience is None)
    same(survived, whole)
    if patience is None:
        assert (tmp_path / "part.csv").read_text() == (tmp_path / "whole.csv").read_text()
    same(go(task, folder=tmp_path / "run", observers=watching("part"), **options), whole)


def test_resuming_needs_no_more_than_it_was_begun_with(task, tmp_path, x64):
    """In float64, from a state of its own; the same process is told nothing again, and elsewhere what is missing is named."""
    task = fm.problems.quadratic(6, examples=8, noise=0.3, seed=1)
    begin = fm.run(task.problem, task.clients, METHOD, rounds=3, seed=4, record=True)
    whole = go(task, 6, start=begin, record=True)
    folder = tmp_path / "run"
    part = go(task, 2, start=begin, record=True, folder=folder)
    assert part.rounds == 5
    same(fm.resume(folder, rounds=9), whole)
    runfolder._REMEMBERED.clear()
    with pytest.raises(fm.InputError, match="in another process: give resume its problem, clients, algorithm too"):
        fm.resume(folder)
    distance = {"d": fm.metrics.Distance(task.solution)}
    same(fm.resume(folder, task.problem, task.clients, METHOD, metrics=distance), whole)
    with pytest.raises(fm.InputError, match=r"There is no identity\.json"):
        fm.resume(tmp_path / "none")


def test_two_devices_and_workers_go_on_as_they_were(task, tmp_path):
    """A run that left its devices open goes on with those that it had; with others it says what that means."""
    two, one = fm.Simulator(devices=2), fm.Simulator(devices=1)
    whole = go(task, engine=two)
    go(task, 4, engine=two, folder=tmp_path / "run")
    same(go(task, folder=tmp_path / "run"), whole)  # a cohort this small would have had one
    with pytest.warns(UserWarning, match=r"devices 2.* goes on with .*devices 1.* to rounding"):
        go(task, 14, engine=one, folder=tmp_path / "run")
    go(task, 2, engine="isolated", folder=tmp_path / "workers")
    same(go(task, 3, engine="isolated", folder=tmp_path / "workers"), go(task, 3, engine="isolated"))


def test_the_record_is_that_of_the_run(task, tmp_path):
    """While it runs and after; notes, labels and what metrics are taken on are kept."""
    seen = []

    class Looks:
        def on_evaluation(self, run):
            if run.round == 5:
                seen.append(folders.Record.read(tmp_path / "run"))

    go(task, 1, folder=tmp_path / "python")
    written = tomllib.loads((tmp_path / "python" / "spec.toml").read_text())
    assert (written["rounds"], written["seeds"], written["methods"]["CODASCA"]["lr_x"]) == (1, [2], 0.03)
    folder = fm.RunFolder(tmp_path / "run", label="mine", spec="rounds = 12\n", on={"d/x": "test"}, notes={"why": "a test"})
    result = go(task, folder=folder, observers=Looks())
    record = folders.Record.read(tmp_path / "run")
    assert (seen[0].status, seen[0].rounds, record.status, record.rounds) == ("running", 0, "finished", 12)
    assert (record.label, record.on, record.notes["why"], record.notes["layout"]["devices"]) == (
        "mine",
        {"d/x": "test"},
        "a test",
        1,
    )
    assert record.hyper["lr_x"] == 0.03
    assert record.better["d/x"] == "lower"
    assert list(record.history) == list(result.history)
    for name, values in result.history.items():
        np.testing.assert_array_equal(record.history[name], values)
    assert (tmp_path / "run" / "spec.toml").read_text() == "rounds = 12\n"
    assert (tmp_path / "run" / "environment.json").exists()


def test_the_observer_alone_saves_what_a_run_starts_from(task, tmp_path):
    whole = go(task)
    go(task, 6, observers=fm.Checkpoints(tmp_path, every=4, keep=1))
    (kept,) = (tmp_path / "checkpoints").iterdir()
    rest = go(task, 6, start=checkpoint.read(tmp_path, kept.name).result)
    same(rest, go(task, 6, start=go(task, 6)))
    np.testing.assert_array_equal(rest.x, whole.x)


def test_comparisons_keep_their_runs(task, tmp_path):
    methods = {"a": METHOD, "b": METHOD.replace(lr_x=0.01)}
    options = {"rounds": 2, "seeds": (0, 1), "folder": tmp_path, "metrics": fm.metrics.Distance(task.solution)}
    curves = fm.compare(task.problem, task.clients, methods, **options)
    records = [folders.Record.read(path) for path in folders.runs_in(tmp_path)]
    assert [(r.label, r.seed) for r in records] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    again = fm.compare(task.problem, task.clients, methods, **options)
    same(again.results["b"][1], curves.results["b"][1])


def test_more_devices_than_cores_are_offered_before_jax_starts(task, tmp_path, monkeypatch):
    go(task, 1, engine=fm.Simulator(devices=2), folder=tmp_path / "run")
    monkeypatch.delenv("FEDMINIMAX_DEVICES")
    monkeypatch.setattr(devices, "cores", lambda: 1)
    devices.offer_recorded(tmp_path / "none")
    assert "FEDMINIMAX_DEVICES" not in os.environ
    devices.offer_recorded(tmp_path / "run")
    assert os.environ.pop("FEDMINIMAX_DEVICES") == "2"
