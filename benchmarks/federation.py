"""A federation of processes on this machine, over FLARE with mutual TLS.

``python benchmarks/federation.py speed`` measures seconds a group call by payload, ours (to a worker's process at each site)
beside FLARE's own floor (an echo of the same bytes by each site's FLARE client).

``python benchmarks/federation.py conform`` runs every client-server method of the contract suite's table, 5 rounds, 3 sites,
float64, all in one job of one federation, and compares them with the simulator: the tests do so for a third of them. Then
CD-MAGE with secure sums (``secure = true``) and FessGDA with noise (``Study(privacy=...)``), each in a federation of its own
as it is submitted; ``--method secure`` and ``--method privacy`` run these alone.

``python benchmarks/federation.py round`` times rounds of CD-MAGE on LeNet-5 over three sites, beside the simulator's: both on
all cores, 500 images a site, five local steps on batches of ten, full gradients in the first phase.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
for place in (HERE, TESTS / "flare", TESTS / "algorithms"):
    sys.path.insert(0, str(place))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(TESTS / "flare"), os.environ.get("PYTHONPATH", "")])

import federations  # noqa: E402

from fedminimax.commands.federation import make_kits  # noqa: E402
from fedminimax.flare.job import write_job  # noqa: E402
from fedminimax.flare.trial import Trial, submit  # noqa: E402

RESULTS = HERE / "results"


def speed(sites, floats, repeats):
    """Return seconds a group call, by payload."""
    with tempfile.TemporaryDirectory(prefix="fmx") as name:
        folder, names = Path(name), [f"site-{k + 1}" for k in range(sites)]
        federations.SITES, federations.SIZES = tuple(names), (5,) * sites
        federations.write(folder, "FessGDA")
        kits = make_kits(folder)
        for site in names:
            _change(kits.site(site), lambda text: text.replace("fedminimax.flare.site.Site", "federation_echo.EchoSite"))
        _change(kits.server, lambda text: text.replace("fedminimax.flare.coordinator.Coordinator", "federation_echo.EchoMain"))
        with Trial(kits) as trial:
            out = folder / "times.json"
            job = _job(folder / "job", {"sites": names, "floats": floats, "repeats": repeats, "out": str(out)})
            _patiently(lambda: submit(kits.admin, kits.agreement.server.admin, job, 10.0))
            until = time.monotonic() + 300
            while not out.exists():
                assert time.monotonic() < until, "the job gave no times"
                trial.remember()
                time.sleep(0.2)
            found = json.loads(out.read_text())
    return found


def conform(wanted, seconds):
    """Run every method as a federation, all in one job, and on the simulator; return how far apart they end, by name."""
    import many

    numbers = [k for k, name in enumerate(many.NAMES) if wanted.lower() in name.lower()]
    with tempfile.TemporaryDirectory(prefix="fmx") as name:
        found = federations.methods(Path(name), numbers, seconds) if numbers else {}
        apart = {many.NAMES[number]: how_far for number, how_far in found.items()}
        ways = [how for how in federations.PROTECTED if wanted.lower() in how]
        return apart | {how: protected(Path(name) / how, how, seconds) for how in ways}


def protected(folder, how, seconds):
    """Run a study with secure sums, or with noise, as its terms say; return how far it ends from the simulator's run."""
    federations.write(folder, "CDMAGE" if how == "secure" else "FessGDA")
    agreement = federations.protect(folder, how)
    with federations.running(make_kits(folder)) as trial:
        outcome = trial.wait(seconds)
    if outcome["status"] != "finished":
        return str(outcome["why"])
    pairs = zip(
        federations.jax.tree.leaves(federations.result_of(trial.run).state),
        federations.jax.tree.leaves(federations.simulated(agreement).state),
        strict=True,
    )
    return max(float(abs(federations.np.asarray(a) - federations.np.asarray(b)).max()) for a, b in pairs)


ROUND_TERMS = """
name = "rounds"
sites = ["site-1", "site-2", "site-3"]
[server]
port = {port}
[study]
function = "federation_lenet.py:study"
rounds = {rounds}
eval_every = {rounds}
timeout = 60.0
checkpoint_every = {rounds}
[study.settings]
times = "{times}"
[row]
inputs = {{shape = [28, 28, 1], dtype = "float32"}}
labels = {{shape = [], dtype = "int32"}}
"""


def a_round(rounds, images=500):
    """Return seconds a round of CD-MAGE on LeNet-5 over three sites, and in the simulator: medians, without the first five."""
    import numpy as np

    import federation_lenet
    import fedminimax as fm

    rng = np.random.default_rng(0)
    rows = [
        {
            "inputs": rng.uniform(size=(images, 28, 28, 1)).astype("float32"),
            "labels": rng.integers(10, size=images, dtype="int32"),
        }
        for _ in range(3)
    ]
    with tempfile.TemporaryDirectory(prefix="fmx") as name:
        folder = Path(name)
        shutil.copy(federation_lenet.__file__, folder)
        terms = {"port": federations.free_port(), "rounds": rounds, "times": folder / "times.txt"}
        (folder / "federation.toml").write_text(ROUND_TERMS.format(**terms))
        for k, own in enumerate(rows):
            site = folder / "sites" / f"site-{k + 1}"
            site.mkdir(parents=True)
            np.savez(site / "rows.npz", **own)
            (site / "site.toml").write_text(f'name = "{site.name}"\ndata = "rows.npz"\n')
        kits = make_kits(folder)
        with Trial(kits) as trial:
            trial.submit()
            trial.wait(600)
        clients = fm.ClientData.from_list(rows)
        study = federation_lenet.study(clients, folder / "simulated.txt")
        fm.run(
            study.problem, clients, study.algorithm, rounds=rounds, eval_every=rounds, observers=study.observers, progress=False
        )
        return {"federation": _pace(folder / "times.txt"), "simulator": _pace(folder / "simulated.txt"), "rounds": rounds}


def _pace(path, first=5):
    ends = [float(line) for line in path.read_text().split()]
    return statistics.median(b - a for a, b in zip(ends[first:], ends[first + 1 :], strict=False))


def _change(kit, change):
    path = kit / "local" / "resources.json"
    path.write_text(change(path.read_text()))


def _job(folder, settings):
    write_job(folder, "run")
    path = folder / "server" / "config" / "config_fed_server.json"
    config = json.loads(path.read_text())
    config["workflows"] = [{"id": "main", "path": "federation_echo.EchoMain", "args": settings}]
    path.write_text(json.dumps(config))
    return folder


def _patiently(call, seconds=60):
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "conform", "round"])
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--floats", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--method", default="", help="only methods whose name has this in it")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of CD-MAGE on LeNet-5")
    parser.add_argument("--seconds", type=float, default=900.0, help="how long all methods may take")
    given = parser.parse_args()
    if given.what == "speed":
        print("| sites | floats | FLARE's echo, s | ours, s | ratio |\n|---|---|---|---|---|")
        found = []
        for sites in given.sites:
            for row in speed(sites, given.floats, given.repeats):
                found.append({"sites": sites, **row})
                shown = f"{row['floor']:.4f} | {row['ours']:.4f} | {row['ours'] / row['floor']:.2f}"
                print(f"| {sites} | {row['floats']:,} | {shown} |", flush=True)
        _keep("federation_speed.json", found)
    elif given.what == "round":
        found = a_round(given.rounds)
        print("seconds a round, CD-MAGE on LeNet-5, 3 sites: {federation:.3f}; the simulator's {simulator:.3f}".format(**found))
        _keep("federation_round.json", found)
    else:
        apart = conform(given.method, given.seconds)
        for name, how_far in apart.items():
            print(f"{name}: {how_far if isinstance(how_far, str) else f'{how_far:.1e} apart'}")
        _keep("federation_conform.json", apart)


def _keep(name, found):
    (RESULTS / name).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
