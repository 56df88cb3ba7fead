"""Federations of real processes on this machine, over FLARE with mutual TLS: the simulator's run, whoever dies meanwhile."""

import pytest

pytest.importorskip("nvflare")

import federations


@pytest.mark.parametrize("method", ["CDMAGE", "ScaffPD", "Scaffold"])
def test_a_federation_is_the_simulators_run(tmp_path, method):
    kits = federations.write(tmp_path, method)
    with federations.running(kits) as trial:
        outcome = trial.wait(50)
        assert outcome == {"status": "finished", "rounds": 5, "why": ""}
        assert {site: known["stands"] for site, known in trial.standing().items()} == dict.fromkeys(
            federations.SITES, "answered"
        )
    result, wanted = federations.result_of(trial), federations.simulated(kits)
    federations.same(result.state, wanted.state)
    federations.same(result.history["losses"], wanted.history["losses"])
