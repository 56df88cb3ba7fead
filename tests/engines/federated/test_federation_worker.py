"""A site answers what it is asked, twice the same, and says nothing of its data that it was not asked for."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics, wire
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.federated import Federation, InProcess, Worker, worker
from fedminimax.engines.federated.outliers import Usual
from fedminimax.testing.contract import close

sys.path.insert(0, str(Path(__file__).parent))
from faulty import NAMES, SCAFFOLD, Faulty, engine, quadratic, regression, run, sites


class Recording(InProcess):
    """Keeps all that goes to and fro."""

    def __init__(self, workers):
        super().__init__(workers)
        self.requests, self.replies = [], []

    def ask(self, requests, timeout):
        answers = super().ask(requests, timeout)
        self.requests += [(site, request) for site, request in requests.items()]
        self.replies += [(site, answers.replies[site]) for site in requests]
        return answers


@pytest.fixture
def conversation(x64):
    """Two rounds of Scaffold, with the workers that have been asked."""
    task = regression()
    carrier = Recording(sites(task, SCAFFOLD))
    run(task, carrier, SCAFFOLD, rounds=2, metrics=metrics.ClientLoss())
    return carrier


def test_what_is_asked_again_is_answered_from_what_was_computed(conversation, monkeypatch):
    site, request = [(s, r) for s, r in conversation.requests if "letters" in wire.decode(r)][-1]
    [*_, (_, reply)] = [(s, r) for s, r in conversation.replies if "replies" in wire.decode(r) and s == site]
    monkeypatch.setattr(worker, "carry_out", None)  # nothing is computed
    assert conversation._workers[site].handle(request) == reply


def test_a_request_of_another_exchange_is_computed(conversation, monkeypatch):
    site, request = [(s, r) for s, r in conversation.requests if "letters" in wire.decode(r)][-1]
    monkeypatch.setattr(worker, "carry_out", None)
    message = {**wire.decode(request), "id": "another/1/0"}
    failed = wire.decode(conversation._workers[site].handle(wire.encode(message)))["failed"]
    assert failed == {"kind": "error", "type": "TypeError"}


def test_no_example_leaves_a_site(conversation):
    task = regression()
    for k, name in enumerate(NAMES):
        rows = [np.asarray(leaf) for leaf in jax.tree.leaves(task.clients.only(k).fields)]
        for site, reply in conversation.replies:
            assert site != name or not any(row.tobytes() in reply for leaf in rows for row in leaf.reshape(len(leaf), -1))


CHANGES = {
    "id": lambda m: {**m, "id": None},
    "id that is a path": lambda m: {**m, "id": "a b"},
    "run": lambda m: {**m, "run": "../../etc"},
    "no run": lambda m: {k: v for k, v in m.items() if k != "run"},
    "state": lambda m: {**m, "state": 3},
    "keep": lambda m: {**m, "keep": "start"},
    "whose": lambda m: {**m, "whose": (3, 0, 0)},
    "number": lambda m: {**m, "whose": m["whose"]._replace(number=3)},
    "letters": lambda m: {**m, "letters": {}},
    "letter": lambda m: {**m, "letters": [1]},
    "key": lambda m: {**m, "letters": [{**m["letters"][0], "key": np.zeros(3, np.uint32)}]},
    "function": lambda m: {**m, "letters": [{**m["letters"][0], "function": "no_such_program"}]},
    "private": lambda m: {**m, "letters": [{**m["letters"][0], "function": "__init__"}]},
    "the server's": lambda m: {**m, "letters": [{**m["letters"][0], "function": "round"}]},
    "parts": lambda m: {"id": m["id"], "whose": m["whose"], "parts": 5},
}


@pytest.mark.parametrize("clients", [4, 2**16 + 1, 2**31 - 1])
def test_a_site_makes_nothing_of_more_clients_than_there_can_be(conversation, clients, monkeypatch):
    """Numbers for each of so many would fill its memory."""
    made, of, task = [], RemoteClients.of, regression()
    monkeypatch.setattr(
        worker.RemoteClients, "of", lambda example, sizes, *rest: made.append(len(sizes)) or of(example, sizes[:3], *rest)
    )
    site, request = [(s, r) for s, r in conversation.requests if "letters" in wire.decode(r)][-1]
    message = {**wire.decode(request), "id": "new/1/0", "whose": wire.decode(request)["whose"]._replace(clients=clients)}
    knows = Worker(task.problem, SCAFFOLD, task.clients.only(0), clients=3)
    for asked in (knows, conversation._workers[site]) if clients > 2**16 else (knows,):
        assert wire.decode(asked.handle(wire.encode(message)))["failed"]["kind"] == "malformed"
    assert made == []


def test_the_number_of_clients_is_agreed_on_where_a_site_knows_it(x64):
    task = regression()
    assert run(task, InProcess(sites(task, SCAFFOLD, clients=3)), SCAFFOLD, rounds=1).rounds == 1
    with pytest.raises(fm.InputError, match="At north the number of clients is 4, but here 3"):
        run(task, InProcess(sites(task, SCAFFOLD, clients=4)), SCAFFOLD, rounds=1)


@pytest.mark.parametrize("change", CHANGES)
def test_a_malformed_request_is_a_category(conversation, change):
    site, request = [(s, r) for s, r in conversation.requests if "letters" in wire.decode(r)][-1]
    message = CHANGES[change]({**wire.decode(request), "id": "new/1/0"})
    failed = wire.decode(conversation._workers[site].handle(wire.encode(message)))["failed"]
    assert failed["kind"] == "malformed"


def test_a_request_for_a_state_that_is_not_there_is_refused(conversation):
    site, request = [(s, r) for s, r in conversation.requests if "letters" in wire.decode(r)][-1]
    for change in ({"state": "never/0/0"}, {"run": "ab" * 8}, {"noted": True}):
        message = {**wire.decode(request), "id": "new/1/0", **change}
        message = message if "run" not in change else {**message, "state": "never/0/0"}
        assert wire.decode(conversation._workers[site].handle(wire.encode(message)))["failed"]["kind"] == "lost"


def test_an_exception_reaches_the_server_by_its_type_alone(x64):
    """Its text may hold data."""
    task = regression()

    class Secret(Exception):
        pass

    def loss(x, batch):
        raise Secret("patient 12345")

    broken = Worker(task.problem.replace(loss=loss), SCAFFOLD, task.clients.only(0))
    carrier = Recording({**sites(task, SCAFFOLD), "north": broken})
    federation = engine(carrier)
    found = run(task, carrier, SCAFFOLD, rounds=2, federation=federation)
    np.testing.assert_array_equal(found.trace.answers[0], [[False, True, True]] * 2)
    assert {e.text for e in federation.events if e.site == "north"} == {"its program failed (Secret)"}
    assert not any(b"12345" in reply or b"patient" in reply for _, reply in carrier.replies)


def test_states_are_kept_while_they_may_be_gone_back_to_and_not_longer(x64, tmp_path):
    task = regression()
    run(task, None, SCAFFOLD, rounds=30, federation=engine(InProcess(sites(task, SCAFFOLD, tmp_path))))
    [folder] = (tmp_path / "north").iterdir()
    assert len(list(folder.glob("state-*.fmx"))) <= 4
    assert not list(folder.glob("*.part"))
    for _ in range(4):
        run(task, None, SCAFFOLD, rounds=1, federation=engine(InProcess(sites(task, SCAFFOLD, tmp_path))))
    assert len(list((tmp_path / "north").iterdir())) == 3


# -- what the sites say of themselves -------------------------------------------------------------------------------------


def test_the_server_knows_the_sites_without_their_data(x64):
    task = regression()
    federation = engine(InProcess(sites(task, SCAFFOLD)))
    known = federation.clients
    assert isinstance(known, RemoteClients)
    assert known.names == NAMES
    np.testing.assert_array_equal(known.sizes, task.clients.sizes)
    same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), known.example, task.clients.example)
    assert all(jax.tree.leaves(same))
    with pytest.raises(fm.InputError, match="with the clients"):
        known.fields  # noqa: B018


def test_sites_that_do_not_fit_are_named(x64):
    task = regression()
    fine = sites(task, SCAFFOLD)
    single = jax.tree.map(lambda a: np.asarray(a, np.float32), task.clients.only(1).fields)
    go = lambda workers: run(task, None, SCAFFOLD, federation=engine(InProcess(workers)))
    with pytest.raises(fm.InputError, match=r"The data of south is .*float32.* but that of north is .*float64"):
        go({**fine, "south": Worker(task.problem, SCAFFOLD, single)})
    with pytest.raises(fm.InputError, match=r"At west the method is Scaffold\(lr_x=0.5.*but here Scaffold\(lr_x=0.02"):
        go({**fine, "west": Worker(task.problem, SCAFFOLD.replace(lr_x=0.5), task.clients.only(2))})
    with pytest.raises(fm.InputError, match="The held-out data of south has other names or shapes than that of north"):
        go({**fine, "south": sites(task, SCAFFOLD, held_out={"test": task.clients.only(1)})["south"]})
    carrier = Faulty(fine)
    carrier.down = {"west"}
    with pytest.raises(fm.InputError, match=r"A run begins when all sites are there, but west \(timeout\) did not answer"):
        run(task, carrier, SCAFFOLD)


def test_what_cannot_be_is_said_before_a_run(x64):
    task = regression()
    federation = engine(InProcess(sites(task, SCAFFOLD)))
    with pytest.raises(fm.InputError, match="A federation needs a transport"):
        fm.run(task.problem, task.clients, SCAFFOLD, rounds=1, engine="federation")
    with pytest.raises(fm.InputError, match=r"give engine\.clients in place of it"):
        fm.run(task.problem, task.clients, SCAFFOLD, rounds=1, engine=federation)
    with pytest.raises(fm.InputError, match=r"give the engine that asks them"):
        fm.run(task.problem, federation.clients, SCAFFOLD, rounds=1)
    with pytest.raises(fm.InputError, match="needs all clients' data in one place"):
        run(task, None, SCAFFOLD, federation=federation, metrics=metrics.DualityGap())
    start = fm.run(task.problem, task.clients, SCAFFOLD, rounds=1, progress=False)
    with pytest.raises(fm.InputError, match="a federation goes on from its own results only"):
        run(task, None, SCAFFOLD, federation=federation, start=start, record=False)
    there = run(task, None, SCAFFOLD, rounds=1, federation=federation)
    with pytest.raises(fm.InputError, match="states of this run are with the sites"):
        fm.run(task.problem, task.clients, SCAFFOLD, rounds=1, start=there)
    with pytest.raises(fm.InputError, match="A site has the data of one client, not of 3"):
        Worker(task.problem, SCAFFOLD, task.clients)
    for wrong in (
        {"timeout": 0},
        {"min_replies": 4},
        {"on_lost_state": "forget"},
        {"outliers": -1.0},
        {"loss_outliers": 0},
        {"retries": -1},
    ):
        with pytest.raises(fm.InputError, match=next(iter(wrong))):
            Federation(InProcess(sites(task, SCAFFOLD)), **wrong)


def test_metrics_are_taken_at_the_sites_on_held_out_data_too(x64):
    task, held = regression(), regression().clients
    workers = {
        name: Worker(task.problem, SCAFFOLD, task.clients.only(k), held_out={"test": held.only(2 - k)})
        for k, name in enumerate(NAMES)
    }
    federation = engine(InProcess(workers))
    there = run(
        task,
        None,
        SCAFFOLD,
        rounds=2,
        federation=federation,
        metrics=metrics.On(metrics.ClientLoss(each=True), federation.held_out("test")),
    )
    swapped = fm.ClientData.from_list([held[2], held[1], held[0]])
    here = fm.run(
        task.problem,
        task.clients,
        SCAFFOLD,
        rounds=2,
        seed=3,
        metrics=metrics.On(metrics.ClientLoss(each=True), swapped),
        progress=False,
    )
    for name, values in here.history.items():
        np.testing.assert_allclose(there.history[name], values, rtol=1e-10)
    with pytest.raises(fm.InputError, match="no held-out data 'validation', but test"):
        federation.held_out("validation")
    with pytest.raises(fm.InputError, match=r"give engine\.held_out\(name\)"):
        run(task, None, SCAFFOLD, federation=federation, metrics=metrics.On(metrics.ClientLoss(), swapped))


def test_problems_that_number_or_seed_their_examples_do_so_at_the_sites(x64):
    """Of as many examples as a site has, and as if all were in one place."""
    task, method = regression(), fm.FessGDA(0.02, 0.02, local_steps=2, batch_size=3)
    shared = task.problem.as_minimax()
    workers = {name: Worker(shared, method, task.clients.only(k)) for k, name in enumerate(NAMES)}
    federation = engine(InProcess(workers))
    there = fm.run(shared, federation.clients, method, rounds=3, engine=federation, progress=False)
    close(there.state, fm.run(shared, task.clients, method, rounds=3, progress=False).state, 1e-8)

    task = quadratic()
    noisy = lambda x, y, batch: (
        task.problem.loss(x, y, {k: v for k, v in batch.items() if k != "_seed"})
        * (1 + jnp.mean(batch["_seed"].astype(float)) / 2**33)
    )
    seeded = task.problem.replace(loss=noisy, seeded=True, best_response=None)
    workers = {name: Worker(seeded, method, task.clients.only(k)) for k, name in enumerate(NAMES)}
    federation = engine(InProcess(workers))
    there = fm.run(
        seeded, federation.clients, method, rounds=3, engine=federation, metrics=metrics.ClientLoss(), progress=False
    )
    here = fm.run(seeded, task.clients, method, rounds=3, metrics=metrics.ClientLoss(), progress=False)
    close(there.state, here.state, 1e-8)
    np.testing.assert_allclose(there.history["client_loss/mean"], here.history["client_loss/mean"], rtol=1e-10)


def test_a_recorded_trace_is_replayed_by_a_federation(x64):
    task, method = regression(), fm.FedAvg(0.02, local_steps=fm.UniformSteps(1, 4), cohort_size=2)
    here = fm.run(task.problem, task.clients, method, rounds=4, seed=3, record=True, progress=False)
    there = run(task, InProcess(sites(task, method)), method, rounds=4, seed=8, trace=here.trace)
    again = fm.run(task.problem, task.clients, method, rounds=4, seed=8, trace=here.trace, progress=False)
    close(there.state, again.state, 1e-8)


# -- replies that are far too long ----------------------------------------------------------------------------------------


def test_a_reply_is_measured_by_the_median():
    usual, like = Usual(100.0, 10.0), lambda length, loss=1.0: {"x": np.full(4, length / 2), "loss": np.asarray(loss)}
    assert usual.refused("f", {"a": like(1.0), "b": like(99.0), "c": like(2.0)}) == []
    assert usual.refused("f", {"a": like(1.0), "b": like(201.0), "c": like(2.0)}) == ["b"]
    assert usual.refused("f", {"a": like(1.0), "b": like(1.0, 11.0), "c": like(1.0)}) == ["b"]
    assert usual.refused("f", {"a": like(1.0), "b": like(1.0, 9.0), "c": like(1.0)}) == []
    assert Usual(None, 10.0).refused("f", {"a": like(1.0), "b": like(1e9, 11.0), "c": like(1e9)}) == ["b"]
    assert Usual(100.0, None).refused("f", {"a": like(1.0), "b": like(1.0, 1e9), "c": like(1e3)}) == ["c"]
    assert usual.refused("f", {"b": like(1e3)}) == ["b"]  # alone, but longer than what was usual
    assert usual.refused("f", {"a": like(1.0), "b": like(1e3)}) == ["b"]
    assert usual.refused("g", {"b": like(1e3)}) == []  # of which nothing is known yet
    assert usual.refused("h", {"a": like(0.0), "b": like(5.0), "c": like(0.0)}) == []
    assert Usual(None, None).refused("f", {"a": like(1.0), "b": like(1e9, 1e9), "c": like(1.0)}) == []
