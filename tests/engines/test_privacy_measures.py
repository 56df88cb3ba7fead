"""What no noise protects leaves a site only as often as its administrator allows."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics, wire
from fedminimax.commands import federation
from fedminimax.engines.federated import Federation, InProcess, Secure, Worker, execution
from fedminimax.engines.federated.messages import Whose
from fedminimax.flare import worker as flare
from fedminimax.flare.agreement import SiteFile
from fedminimax.flare.study import Study
from fedminimax.metrics import parts
from fedminimax.players import Point

sys.path.insert(0, str(Path(__file__).parent / "federated"))
from faulty import NAMES, quadratic, regression, sites

pytestmark = pytest.mark.usefixtures("x64")
PRIVACY, FEDAVG, SGDA = fm.Privacy(clip=1.0, noise=8.0), fm.FedAvg(0.02, local_steps=2), fm.LocalSGDA(0.02, 0.02)
PRIVATE = {"privacy": PRIVACY, "budget": 60.0}


def go(workers, metric, method=FEDAVG, secure=None, privacy=PRIVACY, **more):
    engine = Federation(InProcess(workers), pause=0.0, secure=secure)
    task = quadratic() if method is SGDA else regression()
    settings = {"rounds": 2, "eval_every": 1, "progress": False, "metrics": metric, "privacy": privacy, **more}
    return engine, fm.run(task.problem, engine.clients, method, engine=engine, **settings)


def asked(metric, told):
    """A server's request for a site's part of a metric, at any players that it likes."""
    one = {"metric": parts.describe(metric, lambda data: "test"), "told": told, "weight": 1.0}
    return wire.encode({"id": "any/parts/1", "whose": Whose(3, 0, 0), "parts": {"m": one}})


def test_no_gradient_leaves_a_site_without_noise():
    task = quadratic()
    told = Point(*(np.ones_like(np.asarray(a)) for a in (task.problem.x0, task.problem.y0)))
    rows = task.clients.only(0)
    open_ = wire.decode(Worker(task.problem, SGDA, rows).handle(asked(metrics.GradientNorms(), told)))
    assert np.abs(open_["parts"]["m"].sum.x).max() > 0  # the gradient itself, not only its norm
    for given in ({"budget": 0.0}, {}):
        worker = Worker(task.problem, SGDA, rows, held_out={"test": rows}, privacy=PRIVACY, **given)
        for metric in (metrics.GradientNorms(), metrics.On(metrics.GradientNorms(), rows)):
            said = wire.decode(worker.handle(asked(metric, told)))
            assert said == {"id": "any/parts/1", "failed": {"kind": "untold", "type": "GradientNorms"}}


def test_a_metric_that_is_none_is_malformed():
    worker = Worker(regression().problem, FEDAVG, regression().clients.only(0), measures={"ClientLoss": 9})
    for metric in (3, parts.Described("On", {}), parts.Described("ClientLoss", 3)):
        request = wire.encode({"id": "a/1", "whose": Whose(3, 0, 0), "parts": {"m": {"metric": metric}}})
        assert wire.decode(worker.handle(request))["failed"]["kind"] == "malformed"


def test_the_server_is_told_before_a_run_begins():
    with pytest.raises(fm.InputError, match=r"north does not tell its part of ClientLoss.*leave out.*measures={'ClientLoss'"):
        go(sites(regression(), FEDAVG, **PRIVATE), metrics.ClientLoss())
    with pytest.raises(fm.InputError, match="north does not tell its part of GradientNorms"):
        go(sites(regression(), FEDAVG, measures={"ClientLoss": 9}, **PRIVATE), [metrics.ClientLoss(), metrics.GradientNorms()])
    with pytest.raises(fm.InputError, match="does not tell its part of Value"):  # without noise too, where a site says so
        go(sites(regression(), FEDAVG, measures={"ClientLoss": 9}), metrics.Value(), privacy=None)


def test_what_is_allowed_is_counted_over_all_runs(tmp_path):
    make = lambda: sites(regression(), FEDAVG, tmp_path, measures={"ClientLoss": 5}, **PRIVATE)
    _, result = go(make(), metrics.ClientLoss())
    assert np.isfinite(result.history["client_loss/mean"]).all()
    kept = tmp_path / "north" / "measures.told"
    assert json.loads(kept.read_text()) == {"ClientLoss": 3}
    engine, result = go(make(), metrics.ClientLoss())  # new processes: two times are left
    np.testing.assert_array_equal(np.isfinite(result.history["client_loss/mean"]), [True, True, False])
    assert json.loads(kept.read_text()) == {"ClientLoss": 5}
    said = {event.text for event in engine.events if event.what == "refused"}
    assert said == {
        "it does not tell its part of that metric, or not any more, as no noise protects it: leave the metric out, or have the "
        "site's administrator allow it by `measures` (ClientLoss)"
    }


@pytest.mark.parametrize("secure", [None, Secure()], ids=["open", "secure"])
def test_a_server_that_asks_all_the_same_learns_nothing(secure, monkeypatch):
    monkeypatch.setattr(execution, "check_told", lambda *given: None)
    workers = sites(quadratic(), SGDA, secure=secure, **PRIVATE)
    engine, result = go(workers, metrics.GradientNorms(), SGDA, secure)
    assert np.isnan(result.history["grad/x"]).all()
    assert any("`measures` (GradientNorms)" in event.text for event in engine.events)
    allowed = sites(quadratic(), SGDA, secure=secure, measures={"GradientNorms": 3}, **PRIVATE)
    assert np.isfinite(go(allowed, metrics.GradientNorms(), SGDA, secure)[1].history["grad/x"]).all()


def test_held_out_data_is_the_sites_data_too():
    task = regression()
    workers = {
        name: Worker(
            task.problem, FEDAVG, task.clients.only(k), held_out={"test": task.clients.only(k)}, measures={"ClientLoss": 2}
        )
        for k, name in enumerate(NAMES)
    }
    engine = Federation(InProcess(workers))
    both = {"seen": metrics.ClientLoss(), "test": metrics.On(metrics.ClientLoss(), engine.held_out("test"))}
    result = fm.run(task.problem, engine.clients, FEDAVG, rounds=1, eval_every=1, engine=engine, metrics=both, progress=False)
    for name, values in result.history.items():
        if name.endswith("/mean"):
            np.testing.assert_array_equal(np.isfinite(values), [True, False], err_msg=name)  # two at once, and no more


def test_nodes_of_a_network_count_too():
    ring = fm.problems.personalized_quadratic(fm.Network.ring(3))
    method = fm.LocalTraining(0.02, 0.02, local_steps=1)
    own = lambda **given: {f"s{k}": Worker(ring.problem, method, ring.clients.only(k), **given) for k in range(3)}
    run = lambda engine: fm.run(
        ring.problem, engine.clients, method, rounds=1, engine=engine, metrics=metrics.NodeLoss(), progress=False
    )
    with pytest.raises(fm.InputError, match="s0 does not tell its part of NodeLoss"):
        run(Federation(InProcess(own(measures={}))))
    engine = Federation(InProcess(own(measures={"NodeLoss": 1})))
    run(engine)
    assert any("`measures`" in event.text for event in engine.events)  # at the second evaluation
    with pytest.raises(fm.InputError, match="add no noise"):
        own(privacy=PRIVACY)


def test_measures_that_cannot_be(tmp_path):
    make = lambda measures: Worker(regression().problem, FEDAVG, regression().clients.only(0), tmp_path, measures=measures)
    with pytest.raises(fm.InputError, match="measures names Clientloss, but the metrics are"):
        make({"Clientloss": 1})
    with pytest.raises(fm.InputError, match=r"measures\['ClientLoss'\] is 0"):
        make({"ClientLoss": 0})
    for said in ("", "[1]", '{"ClientLoss": -1}', '{"ClientLoss": "1"}'):
        (tmp_path / "measures.told").write_text(said)
        with pytest.raises(fm.InputError, match="does not say how often"):
            make({"ClientLoss": 1})


def test_the_file_of_a_site_says_it(tmp_path, monkeypatch):
    federation.init(tmp_path / "f", ["north", "south"])
    folder = tmp_path / "f" / "sites" / "south"
    np.savez(folder / "rows.npz", inputs=np.ones((5, 64)), labels=np.arange(5))
    (folder / "site.toml").write_text('name = "south"\ndata = "rows.npz"\nbudget = 6.0\n[measures]\nClientLoss = 100\n')
    monkeypatch.setattr(flare, "study_of", lambda agreement: Study(regression().problem, FEDAVG, privacy=PRIVACY))
    worker = flare.worker_of(SiteFile.read(folder / "site.toml"))
    said = wire.decode(worker.handle(wire.encode({"id": "hello/1", "hello": True})))["hello"]
    assert said["measures"] == ["ClientLoss"]
    assert said["agrees"]["the number of clients"] == "2"
