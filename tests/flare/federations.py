"""Small federations of real processes: three sites with float64 rows, a study that names its method, and the simulator's run.

A study may be paced, so that there is time to kill somebody while it runs.
"""

import contextlib
import json
import time

import jax
import numpy as np

import fedminimax as fm
from fedminimax.experiments.kinds import own
from fedminimax.flare.agreement import Agreement
from fedminimax.flare.kits import Kits
from fedminimax.flare.trial import Trial, free_port
from fedminimax.result import Result

SITES = ("one", "two", "three")
SIZES = (5, 9, 7)
STUDY = '''
"""A least-squares model against weights on the sites."""

import time

import jax.numpy as jnp

import fedminimax as fm
from fedminimax.flare.study import Study

LOCAL = {"local_steps": 2, "batch_size": 3}
METHODS = {
    "CDMAGE": fm.CDMAGE(lr_x=0.05, lr_y=0.05, **LOCAL),
    "FessGDA": fm.FessGDA(lr_x=0.05, lr_y=0.05, **LOCAL),
    "Scaffold": fm.Scaffold(lr_x=0.05, **LOCAL),
    "ScaffPD": fm.ScaffPD(0.05, 0.05, mu_x=0.2, **LOCAL),
}


class Pace:
    def __init__(self, seconds):
        self.seconds = seconds

    def on_rounds(self, run):
        time.sleep(self.seconds)


def loss(x, batch):
    return jnp.mean((batch["inputs"] @ x - batch["labels"]) ** 2) / 2


PROBLEM = fm.RobustProblem(loss, jnp.zeros(4), fm.ChiSquare(0.1), name="least squares")


def study(clients, method, pace=0.0):
    shared = method in ("CDMAGE", "FessGDA")
    metrics = {"losses": fm.metrics.ClientLoss(each=True)}
    problem = PROBLEM.as_minimax() if shared else PROBLEM
    return Study(problem, METHODS[method], metrics, observers=[Pace(pace)] if pace else [])
'''
TERMS = """
name = "small"
sites = {sites}
[server]
port = {port}
[study]
function = "study.py:study"
rounds = {rounds}
seed = 3
eval_every = {rounds}
timeout = {timeout}
min_replies = 1
x64 = true
[study.settings]
method = "{method}"
pace = {pace}
[row]
inputs = {{shape = [4], dtype = "float64"}}
labels = {{shape = [], dtype = "float64"}}
"""


def rows(site):
    rng = np.random.default_rng(SITES.index(site))
    inputs = rng.normal(size=(SIZES[SITES.index(site)], 4))
    return {"inputs": inputs, "labels": inputs @ np.arange(4.0) + SITES.index(site) + rng.normal(size=len(inputs))}


def write(folder, method, rounds=5, pace=0.0, timeout=20.0):
    """Write a federation's files, make its kits and bring each site's rows; return the kits."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.py").write_text(STUDY)
    known = {"sites": json.dumps(SITES), "port": free_port(), "rounds": rounds, "method": method, "pace": pace}
    (folder / "federation.toml").write_text(TERMS.format(**known, timeout=timeout))
    kits = Kits.provisioned(Agreement.read(folder / "federation.toml"), folder / "kits")
    for site in SITES:
        np.savez(kits.site(site) / "local" / "fedminimax" / "rows.npz", **rows(site))
        kits.bring(site, "rows.npz")
    return kits


@contextlib.contextmanager
def running(kits):
    """Start a federation and submit its job; at the end all of its processes are gone."""
    with Trial(kits) as trial:
        trial.submit()
        yield trial
    assert not [party for party in trial.parties if party.alive]


def result_of(trial):
    return Result.load(trial.run / "result.fmx")


def simulated(kits, trace=None):
    """Return what the simulator makes of the same study, replaying who answered where a trace is given."""
    agreement = kits.agreement
    with jax.enable_x64(True):
        clients = fm.ClientData.from_list([rows(site) for site in SITES])
        study = own(agreement.study.function, [agreement.folder])(clients, agreement.study.settings["method"])
        rounds, seed = agreement.study.rounds, agreement.study.seed
        settings = {"rounds": rounds, "eval_every": rounds, "seed": seed, "metrics": study.metrics, "trace": trace}
        return fm.run(study.problem, clients, study.algorithm, **settings)


def same(found, wanted, tolerance=1e-8):
    """Assert that two states are the same, and that they are in double precision."""
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert np.asarray(a).dtype in (np.float64, np.int32, np.int64)
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=0)


def until(condition, seconds, what):
    """Wait for a condition, but not for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)
