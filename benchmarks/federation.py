"""A federation of processes on this machine, over FLARE with mutual TLS.

``python benchmarks/federation.py speed`` measures seconds a group call by payload, ours (to a worker's process at each site)
beside FLARE's own floor (an echo of the same bytes by each site's FLARE client).

``python benchmarks/federation.py conform`` runs every client-server method of the contract suite's table, 5 rounds, 3 sites,
float64, and compares it with the simulator: the tests do so for two methods only.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
for place in (HERE, TESTS / "flare", TESTS / "algorithms"):
    sys.path.insert(0, str(place))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(TESTS / "algorithms"), os.environ.get("PYTHONPATH", "")])

import federations  # noqa: E402

from fedminimax.commands.federation import make_kits  # noqa: E402
from fedminimax.flare.job import write_job  # noqa: E402
from fedminimax.flare.trial import Trial, submit  # noqa: E402

METHODS = """
import roster

METHODS = {
    row.name: row.algorithm.replace(cohort_size=2) if getattr(row.algorithm, "cohort_size", None) else row.algorithm
    for row in roster.ROSTER
}
"""


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


def conform(wanted):
    """Run every method as a federation and on the simulator, and say how far apart they end."""
    import jax
    import numpy as np
    import roster

    begin, end = federations.STUDY.index("METHODS = {"), federations.STUDY.index("class Until")
    federations.STUDY = federations.STUDY[:begin] + METHODS + federations.STUDY[end:]
    federations.STUDY = federations.STUDY.replace(
        'method in ("CDMAGE", "FessGDA")', "METHODS[method].solves is fm.MinimaxProblem"
    )
    for row in roster.ROSTER:
        if wanted.lower() not in row.name.lower():
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fmx") as name:
            kits = federations.kits_of(Path(name), row.name)
            with federations.running(kits) as trial:
                outcome = trial.wait(120)
            if outcome["status"] != "finished":
                print(f"{row.name}: {outcome}")
                continue
            found, simulated = federations.result_of(trial.run).state, federations.simulated(kits.agreement).state
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(simulated), strict=True)
        apart = max(float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float)), initial=0.0)) for a, b in pairs)
        print(f"{row.name}: {apart:.1e} apart, {time.monotonic() - begun:.0f} s", flush=True)


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
    parser.add_argument("what", choices=["speed", "conform"])
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--floats", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--method", default="", help="only methods whose name has this in it")
    given = parser.parse_args()
    if given.what == "speed":
        print("| floats | FLARE's echo, s | ours, s | ratio |\n|---|---|---|---|")
        for row in speed(given.sites, given.floats, given.repeats):
            print(f"| {row['floats']:,} | {row['floor']:.4f} | {row['ours']:.4f} | {row['ours'] / row['floor']:.2f} |")
    else:
        conform(given.method)


if __name__ == "__main__":
    main()
