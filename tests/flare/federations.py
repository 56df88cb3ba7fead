"""Small federations of real processes: three sites with float64 rows, a study that names its method, and the simulator's run.

A run goes on until a file is there: so there is time to kill somebody meanwhile, however slow the machine is.
"""

import contextlib
import json
import os
import time
from pathlib import Path

import jax
import numpy as np

import fedminimax as fm
from fedminimax.commands.federation import make_kits
from fedminimax.experiments.kinds import own as made_by
from fedminimax.flare.agreement import Agreement
from fedminimax.flare.job import write_job
from fedminimax.flare.trial import Trial, free_port
from fedminimax.result import Result

SITES = ("one", "two", "three")
SIZES = (5, 9, 7)
STUDY = '''
"""A least-squares model against weights on the sites."""

import json
import time
from pathlib import Path

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


class Until:
    """Ends the run when there is a file, and writes every round's model beside it; takes its time until there is another."""

    def __init__(self, path, pause):
        self.path, self.pause = path, pause

    def wants(self, run):
        return run.round + 1

    def on_rounds(self, run):
        with self.path.with_name("models.txt").open("a") as models:
            models.write(json.dumps([run.round, *map(float, run.state.x)]) + "\\n")
        time.sleep(0.0 if self.path.with_name("hurry").exists() else self.pause)
        if self.path.exists():
            run.stop("there was enough")


def loss(x, batch):
    return jnp.mean((batch["inputs"] @ x - batch["labels"]) ** 2) / 2


PROBLEM = fm.RobustProblem(loss, jnp.zeros(4), fm.ChiSquare(0.1), name="least squares")


def study(clients, method, enough, pause, clip=None):
    shared = method in ("CDMAGE", "FessGDA")
    metrics = {"losses": fm.metrics.ClientLoss(each=True)}
    problem = PROBLEM.as_minimax() if shared else PROBLEM
    guard = fm.Guard(aggregate="median") if method == "ScaffPD" else None
    if clip is None:
        return Study(problem, METHODS[method], metrics, observers=[Until(Path(enough), pause)], guard=guard)
    # So little noise that the run is nearly that of clipping alone, as in the simulator. No metric: sites tell none then.
    return Study(problem, METHODS[method], observers=[Until(Path(enough), pause)], privacy=fm.Privacy(clip, 1e-6))
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
checkpoint_every = 20
x64 = true
[study.settings]
method = "{method}"
enough = "{enough}"
pause = {pause}
[row]
inputs = {{shape = [4], dtype = "float64"}}
labels = {{shape = [], dtype = "float64"}}
"""


def rows(site):
    rng = np.random.default_rng(SITES.index(site))
    inputs = rng.normal(size=(SIZES[SITES.index(site)], 4))
    return {"inputs": inputs, "labels": inputs @ np.arange(4.0) + SITES.index(site) + rng.normal(size=len(inputs))}


def write(folder, method, rounds=5, timeout=6.0, pause=0.0):
    """Write a federation's files, with each site's rows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.py").write_text(STUDY)
    known = {"sites": json.dumps(SITES), "port": free_port(), "rounds": rounds, "method": method, "pause": pause}
    (folder / "federation.toml").write_text(TERMS.format(**known, timeout=timeout, enough=folder / "enough"))
    for site in SITES:
        own = folder / "sites" / site
        own.mkdir(parents=True)
        np.savez(own / "rows.npz", **rows(site))
        (own / "site.toml").write_text(f'name = "{site}"\ndata = "rows.npz"\n')
    return Agreement.read(folder / "federation.toml")


def kits_of(folder, method, rounds=5, **settings):
    """Write a federation's files and make its kits."""
    write(folder, method, rounds, **settings)
    return make_kits(Path(os.path.relpath(folder)))  # as a user names it


APART = {"secure": 1e-8, "privacy": 1e-5}
"""How far from the simulator's run: the rounding of sums, and the noise."""
PROTECTED = {"secure": ("[study]\n", "[study]\nsecure = true\n"), "privacy": ("pause = ", "clip = 0.3\npause = ")}
"""What is changed in the terms of a study so that sums hide each site, or that messages are clipped and get noise."""


def protect(folder, how):
    """Change a federation's terms so, and return them."""
    path = folder / "federation.toml"
    path.write_text(path.read_text().replace(*PROTECTED[how]))
    return Agreement.read(path)


@contextlib.contextmanager
def running(kits):
    """Start a federation and submit its job; at the end all of its processes are gone."""
    with Trial(kits) as trial:
        trial.submit()
        yield trial
    assert not [party for party in trial.parties if party.alive]


def result_of(run):
    """Return what came of a run, from its folder."""
    return Result.load(run / "result.fmx")


def simulated(agreement, like=None, observers=()):
    """Return what the simulator makes of the same study, with the rounds of a result, and replaying who answered in it."""
    with jax.enable_x64(True):
        clients = fm.ClientData.from_list([rows(site) for site in SITES])
        study = made_by(agreement.study.function, [agreement.folder])(clients, **agreement.study.settings)
        rounds = agreement.study.rounds if like is None else like.rounds
        settings = {"rounds": rounds, "eval_every": rounds, "seed": agreement.study.seed, "metrics": study.metrics}
        settings |= {"observers": observers, "guard": study.guard, "privacy": study.privacy}
        return fm.run(study.problem, clients, study.algorithm, **settings, trace=None if like is None else like.trace)


def same(found, wanted, tolerance=1e-8):
    """Assert that two states are the same, and that they are in double precision."""
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert np.asarray(a).dtype in (np.float64, np.int32, np.int64)
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=0)


class Models:
    """The model after every round, as an observer of the simulator sees it."""

    def __init__(self):
        self.seen = {}

    def wants(self, run):
        return run.round + 1

    def on_rounds(self, run):
        self.seen[run.round] = np.asarray(run.state.x)


def models(folder):
    """Return the model after every round, as a run has written it; of a round that was run again, the last."""
    lines = [json.loads(line) for line in (folder / "models.txt").read_text().splitlines()]
    return {int(line[0]): np.array(line[1:]) for line in lines}


def answered(trial, site):
    """Return how often a site has answered so far."""
    return trial.standing().get(site, {}).get("answered", 0)


def more(trial, site, times=5, seconds=120):
    """Wait until a site has answered so often again."""
    wanted = answered(trial, site) + times
    until(lambda: answered(trial, site) >= wanted, seconds, f"{times} answers of {site}")


def until(condition, seconds, what):
    """Wait for a condition, but not for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)


def with_worker(kits, site, module):
    """Let a site run another module as its worker."""
    path = kits.site(site) / "local" / "resources.json"
    path.write_text(path.read_text().replace('"folder": "fedminimax"', f'"folder": "fedminimax", "worker": "{module}"'))


def methods(folder, numbers, seconds):
    """Run methods of the contract suite's table in one job of one federation, each for five rounds.

    Return, by number, how far its state is from the simulator's at most, or what went wrong.
    """
    import many

    kits, out = kits_of(folder, "Scaffold"), folder / "out"
    out.mkdir()
    for site in SITES:
        with_worker(kits, site, "many")
    path = kits.server / "local" / "resources.json"
    path.write_text(path.read_text().replace("fedminimax.flare.coordinator.Coordinator", "many.Main"))
    job = write_job(folder / "job", "run")
    path = job / "server" / "config" / "config_fed_server.json"
    flow = {"id": "main", "path": "many.Main", "args": {"numbers": list(numbers), "out": str(out)}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"workflows": [flow]}))
    with Trial(kits) as trial:
        trial.submit(job)
        until(lambda: trial.remember() or (out / "over.json").exists(), seconds, "the end of the methods")
    return {number: _apart(many, kits.agreement, number, out) for number in numbers}


def _apart(many, agreement, number, out):
    if (out / f"{number}.txt").exists():
        return (out / f"{number}.txt").read_text()
    with jax.enable_x64(True), np.load(out / f"{number}.npz") as stored:
        clients = fm.ClientData.from_list([rows(site) for site in SITES])
        wanted = many.go(agreement, number, clients, engine=fm.Simulator("vmap", 1))
        found = [stored[name] for name in stored.files]
        return max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in zip(found, wanted, strict=True))
