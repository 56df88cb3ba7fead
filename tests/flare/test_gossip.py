"""Neighbours over FLARE with mutual TLS: every site comes to the simulator's row, and the server has none of them."""

import json
import os
import signal

import jax
import numpy as np
import pytest

pytest.importorskip("nvflare")

import federations

import fedminimax as fm
from fedminimax.commands.federation import make_kits
from fedminimax.engines.federated import NodeModel
from fedminimax.experiments.kinds import own as made_by

STUDY = '''
"""A robust least-squares model of its own at every site, between neighbours on a line."""

from pathlib import Path

import jax.numpy as jnp

import fedminimax as fm
from fedminimax.flare.study import Study


class Until:
    def __init__(self, path):
        self.path = path

    def on_rounds(self, run):
        if self.path.exists():
            run.stop("there was enough")


def loss(x, y, batch):
    return jnp.mean(((batch["inputs"] + y) @ x - batch["labels"]) ** 2) / 2 - 2.0 * jnp.sum(y**2)


LINE = fm.Network.from_edges([(0, 1), (1, 2)])
PROBLEM = fm.PersonalizedProblem(loss, jnp.zeros(4), jnp.zeros(4), 0.3, LINE, y_set=fm.sets.L2Ball(0.5), name="on a line")


def study(clients, method, enough, pause):
    method = fm.LocalExtraStep(0.02, 0.4, batch_size=3)
    return Study(PROBLEM, method, fm.metrics.NodeLoss(each=True), observers=[Until(Path(enough))])
'''


def test_neighbours_over_flare_are_the_simulators_run_though_a_worker_is_killed(tmp_path):
    agreement = federations.write(tmp_path, "LocalExtraStep", rounds=100_000)
    (tmp_path / "study.py").write_text(STUDY)
    kits = make_kits(tmp_path)
    with federations.running(kits) as trial:
        federations.more(trial, "two", 20)
        (worker,) = trial.sites["two"].descendants()
        os.kill(worker.pid, signal.SIGKILL)
        federations.more(trial, "two", 20)
        (tmp_path / "enough").touch()
        outcome = trial.wait(20)
    result = federations.result_of(trial.run)
    assert outcome["status"] == "stopped"
    assert outcome["why"] == "there was enough"
    models = [NodeModel.load(kits.site(site) / "local" / "fedminimax" / "state") for site in federations.SITES]
    assert {model.rounds for model in models} == {result.rounds}
    with jax.enable_x64(True):
        clients = fm.ClientData.from_list([federations.rows(site) for site in federations.SITES])
        study = made_by(agreement.study.function, [agreement.folder])(clients, **agreement.study.settings)
        wanted = fm.run(
            study.problem, clients, study.algorithm, rounds=result.rounds, seed=3, metrics=study.metrics, progress=False
        )
    federations.same([model.x for model in models], list(wanted.x))
    federations.same([model.y for model in models], list(wanted.y))
    federations.same(result.history["node_loss/each"][-1], wanted.history["node_loss/each"][-1])
    numbers = [number.tobytes() for model in models for number in np.asarray(model.x)]
    for path in [path for path in kits.server.rglob("*") if path.is_file()]:
        contents = path.read_bytes()
        assert not any(number in contents for number in numbers), path
    assert json.loads((trial.run / "outcome.json").read_text())["rounds"] == result.rounds
