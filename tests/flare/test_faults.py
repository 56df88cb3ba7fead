"""One federation of real processes, over FLARE with mutual TLS, in which everybody fails in turn: the run goes on, and is the
simulator's run of who answered, round by round."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import federations
import numpy as np
from federations import more, until

from fedminimax.flare.job import write_job

HERE = Path(__file__).parent
MANY = 100_000  # rounds, more than anybody waits for: the last test ends the run


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """The federation, whose site "two" has a worker that can be told to answer wrongly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        kits = federations.kits_of(tmp_path_factory.mktemp("f"), "Scaffold", MANY, timeout=3.0, pause=0.02)
        federations.with_worker(kits, "two", "moody")
        with federations.running(kits) as trial:
            more(trial, "one")
            yield trial


@pytest.fixture(autouse=True)
def _others_are_well(trial):
    """Whatever becomes of a site, it is the loss of nobody else."""
    before = trial.standing()["one"]["failed"]
    yield
    assert trial.standing()["one"]["failed"] == before


def failed(trial, site):
    return trial.standing()[site]["failed"]


def comes_back(trial, site):
    """Wait until the others have gone on without a site, and the site is there again."""
    more(trial, "one")
    more(trial, site)
    assert trial.standing()[site]["stands"] == "answered"


@pytest.fixture
def session(trial):
    """What the person with the admin kit does over FLARE."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session = new_secure_session(trial.kits.agreement.server.admin, str(trial.kits.admin), timeout=10.0)
    yield session
    session.close()


def test_an_admins_commands_are_refused_by_a_site(trial, session):
    assert str(trial.kits.coordinator) in session.get_working_directory("coordinator")  # which has FLARE's own rules
    for command in (session.get_working_directory, session.ls_target, session.tail_target_log):
        with pytest.raises(Exception, match=r"(?i)not.authorized") as refused:
            command("two")
        assert str(trial.kits.site("two")) not in str(refused.value)


def test_a_job_that_is_deployed_to_a_site_is_refused_there(trial, session):
    job = write_job(trial.kits.folder / "intruder", "intruder", patience=1.0)
    meta = json.loads((job / "meta.json").read_text())
    meta["deploy_map"]["idle"] = ["two"]
    (job / "meta.json").write_text(json.dumps(meta))
    id = session.submit_job(str(job))
    until(lambda: "FINISHED" in str(session.get_job_meta(id)["status"]), 60, "the end of the job")
    said = f"two: user '{trial.kits.agreement.server.admin}' is not authorized for 'submit_job'"
    assert said in session.get_job_meta(id)["job_deploy_detail"]
    assert not (trial.server.kit / "intruder").exists()
    assert not (trial.kits.site("two") / id).exists()
    assert len(trial.sites["two"].descendants()) == 1  # its worker, and no job


def test_a_sites_worker_is_killed(trial):
    before = failed(trial, "two")
    (worker,) = trial.sites["two"].descendants()
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: failed(trial, "two") > before, 20, "the worker's absence")
    comes_back(trial, "two")
    assert worker.pid not in [process.pid for process in trial.sites["two"].descendants()]


def test_a_whole_site_is_killed_and_restarts(trial):
    trial.sites["three"].kill()
    until(lambda: trial.standing()["three"]["stands"] in ("slow", "gone"), 20, "the site's absence")
    more(trial, "one")
    trial.sites["three"].start()
    comes_back(trial, "three")


def hangs(trial, site, pid):
    """Hold a process, and see that its site is waited for once, and then never again until it goes on."""
    before = trial.standing()[site]["timeouts"]
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: trial.standing()[site]["timeouts"] > before, 20, "a timeout")
        until(lambda: trial.standing()[site]["stands"] == "gone", 20, "the next question")
        more(trial, "one", 40)
    finally:
        os.kill(pid, signal.SIGCONT)
    comes_back(trial, site)
    assert trial.standing()[site]["timeouts"] == before + 1


def test_a_sites_worker_hangs(trial):
    (worker,) = trial.sites["two"].descendants()
    hangs(trial, "two", worker.pid)


def test_a_whole_site_hangs(trial):
    hangs(trial, "three", trial.sites["three"].pid)


def turns(trial, mood):
    """Let the next answer of the site be wrong, and wait until that was noticed."""
    before = failed(trial, "two")
    (trial.kits.site("two") / "local" / "fedminimax" / "mood").write_text(mood)
    until(lambda: failed(trial, "two") > before, 20, f"the answer {mood!r}")
    return before


@pytest.mark.parametrize("mood", ["nan", "shape", "type", "huge", "old"])
def test_a_site_answers_wrongly(trial, mood):
    before = turns(trial, mood)
    more(trial, "two")
    assert failed(trial, "two") == before + 1  # that reply alone


def test_a_site_answers_late(trial):
    before = trial.standing()["two"]["timeouts"]
    turns(trial, "late")
    comes_back(trial, "two")
    assert trial.standing()["two"]["timeouts"] == before + 1


def test_the_coordinators_job_process_is_killed_and_a_new_job_goes_on(trial):
    (process,) = trial.coordinator.descendants()
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: trial.outcome() is not None, 30, "the end of the job")  # FLARE ends a job that has no client
    assert trial.outcome()["status"] == "stopped"
    reached = max(federations.models(trial.kits.agreement.folder))
    until(lambda: not trial.server.descendants(), 30, "the end of the job's process")
    assert resumed(trial)
    until(lambda: max(federations.models(trial.kits.agreement.folder)) > reached, 60, "the job's return")
    assert trial.outcome() is None


def test_the_server_is_killed_and_a_new_job_goes_on_from_the_checkpoint(trial):
    trial.remember()
    (job,) = trial.server.descendants()
    os.kill(job.pid, signal.SIGKILL)
    trial.server.kill()
    reached = max(federations.models(trial.kits.agreement.folder))
    trial.server.start()
    until(lambda: resumed(trial), 60, "the server's return")
    until(lambda: max(federations.models(trial.kits.agreement.folder)) > reached, 60, "the job's return")


def resumed(trial):
    """Ask for the run to go on, as an admin types it; False: the server is not there yet."""
    command = [sys.executable, "-m", "fedminimax", "federation", "resume", str(trial.kits.admin)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (
        "The server has taken the job" if done.returncode == 0 else "start the kits of the server"
    ) in done.stdout + done.stderr
    return done.returncode == 0


def test_every_round_was_the_simulators_of_who_answered(trial):
    folder = trial.kits.agreement.folder
    (folder / "enough").touch()
    assert trial.wait(20)["status"] == "stopped"
    result, replay = federations.result_of(trial.run), federations.Models()
    wanted = federations.simulated(trial.kits.agreement, result, [replay])
    federations.same(result.state, wanted.state)
    found = federations.models(folder)
    assert sorted(found) == sorted(replay.seen)
    np.testing.assert_allclose(
        np.stack([found[t] for t in sorted(found)]), np.stack([replay.seen[t] for t in sorted(found)]), atol=1e-8, rtol=0
    )
