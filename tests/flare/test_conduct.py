"""A study as the server's job conducts it, over sites in this process: what the terms and the study say reaches the engine."""

import json

import federations
import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import wire
from fedminimax.engines.federated import Federation, InProcess
from fedminimax.flare import conduct
from fedminimax.flare.agreement import Agreement, SiteFile

pytest.importorskip("cryptography")

from fedminimax.flare.worker import worker_of


@pytest.fixture(autouse=True)
def _precision():
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def agreed(folder, method, *terms):
    """A federation's files, with more terms of the study."""
    federations.write(folder, method)
    path = folder / "federation.toml"
    path.write_text(path.read_text().replace("[study]\n", "\n".join(["[study]", *terms, ""])))
    return Agreement.read(path)


def conducted(folder, agreement, shouts=lambda site, reply: reply):
    """Run what was agreed on over workers as sites start them; what a site says may be changed on its way."""
    workers = {}
    for site in agreement.sites:
        own = folder / "sites" / site
        for name in ("federation.toml", "study.py"):
            (own / name).write_bytes((folder / name).read_bytes())
        workers[site] = worker_of(SiteFile.read(own / "site.toml"))

    class Loud(InProcess):
        def ask(self, requests, timeout):
            answers = super().ask(requests, timeout)
            return answers._replace(replies={site: shouts(site, reply) for site, reply in answers.replies.items()})

    (folder / "run").mkdir()
    result = conduct.conduct(agreement, Loud(workers), folder / "run")
    return result, json.loads((folder / "run" / "sites.json").read_text())


def louder(factor):
    """Let the site "two" send replies that are so many times longer."""

    def shouts(site, reply):
        message = wire.decode(reply)
        if site != "two" or "replies" not in message:
            return reply
        for one in message["replies"]:
            one["value"] = jax.tree.map(lambda a: np.asarray(a * factor), one["value"])
        return wire.encode(message)

    return shouts


def test_the_guard_of_a_study_is_the_runs(tmp_path):
    agreement = agreed(tmp_path, "ScaffPD")
    found, _ = conducted(tmp_path, agreement)
    federations.same(found.state, federations.simulated(agreement).state)
    study = conduct.study_of(agreement)
    clients = fm.ClientData.from_list([federations.rows(site) for site in federations.SITES])
    plain = fm.run(study.problem, clients, study.algorithm, rounds=5, seed=3, progress=False)
    assert np.abs(np.asarray(found.x) - np.asarray(plain.x)).max() > 1e-3  # a median is no mean


@pytest.mark.parametrize(("terms", "refused"), [((), 0), (("outliers = 100",), 5), (("outliers = false",), 0)])
def test_the_terms_say_whose_replies_are_too_long(tmp_path, terms, refused):
    agreement = agreed(tmp_path, "FessGDA", *terms)
    _, sites = conducted(tmp_path, agreement, louder(1e3))
    assert {site: known["failed"] for site, known in sites.items()} == {"one": 0, "two": refused, "three": 0}


def test_all_bounds_and_what_becomes_of_a_lost_state_reach_the_engine(tmp_path, monkeypatch):
    given = {}

    class Seen(Federation):
        def __init__(self, transport, **settings):
            given.update(settings)
            super().__init__(transport, **settings)

    monkeypatch.setattr(conduct, "Federation", Seen)
    terms = ("outliers = 50", "loss_outliers = false", 'on_lost_state = "restart"')
    conducted(tmp_path / "some", agreed(tmp_path / "some", "Scaffold", *terms))
    assert (given["outliers"], given["loss_outliers"], given["on_lost_state"]) == (50, None, "restart")
    conducted(tmp_path / "none", agreed(tmp_path / "none", "Scaffold"))
    assert (given["outliers"], given["loss_outliers"], given["on_lost_state"]) == (1e4, 1e3, "refuse")


@pytest.mark.parametrize("how", federations.PROTECTED)
def test_what_protects_the_sites_of_a_study_is_in_force(tmp_path, how):
    """Secure sums to their rounding; of noise so little that what is left of it is the clipping."""
    method = "CDMAGE" if how == "secure" else "FessGDA"
    plain, said = agreed(tmp_path, method), []
    agreement = federations.protect(tmp_path, how)

    def listening(site, reply):
        said.append(wire.decode(reply))
        return reply

    found, _ = conducted(tmp_path, agreement, listening)
    federations.same(found.state, federations.simulated(agreement).state, federations.APART[how])
    if how == "secure":
        assert not [message for message in said if "replies" in message]  # no site's own vector came in the open
        assert [message for message in said if "unmask" in message]
    else:
        unclipped = federations.simulated(plain).state
        assert np.abs(np.asarray(found.x) - np.asarray(unclipped.x)).max() > 1e-3
        sent = [one["value"] for message in said for one in message.get("replies", [])]
        assert all(np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(one))) <= 0.3 + 1e-5 for one in sent)
        assert len(sent) == 15
