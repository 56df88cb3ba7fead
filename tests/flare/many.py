"""Many methods, one after the other, in one job of one federation, as FLARE loads its parts: on the server and as a worker.

What a site is asked begins with the number of the method, and its worker has one for each: ``python -m many FOLDER``.
"""

import json
import os
import sys
import time
from pathlib import Path

import jax
import numpy as np
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.impl.controller import Controller

sys.path.insert(0, str(Path(__file__).parents[1] / "algorithms"))
import roster

import fedminimax as fm
from fedminimax.engines.federated import Federation, Worker
from fedminimax.engines.federated.resident import serve
from fedminimax.flare.agreement import FEDERATION_FILE, SITE_FILE, Agreement, SiteFile
from fedminimax.flare.study import study_of
from fedminimax.flare.transport import FlareTransport

METHODS = [
    row.algorithm.replace(cohort_size=2) if getattr(row.algorithm, "cohort_size", None) else row.algorithm
    for row in roster.ROSTER
]
NAMES = [row.name for row in roster.ROSTER]
ROUNDS, SEED = 5, 3


def problem_of(agreement, number):
    """The study's problem, in the form that a method solves."""
    robust = study_of(agreement).problem
    return robust if METHODS[number].solves is fm.RobustProblem else robust.as_minimax()


def go(agreement, number, clients, **settings):
    """Run a method for a few rounds; return the leaves of its state."""
    problem, method = problem_of(agreement, number), METHODS[number]
    result = fm.run(problem, clients, method, rounds=ROUNDS, seed=SEED, eval_every=ROUNDS, progress=False, **settings)
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(result.state)]


class Numbered:
    """A transport that writes the number of a method before every request."""

    def __init__(self, transport, number):
        self._transport, self._head, self.sites = transport, bytes([number]), transport.sites

    def ask(self, requests, timeout):
        return self._transport.ask({site: self._head + request for site, request in requests.items()}, timeout)


class Main(Controller):
    """The server's part: it runs the methods of some numbers, and writes what came of each."""

    def __init__(self, numbers, out):
        super().__init__()
        self.numbers, self.out = numbers, out

    def start_controller(self, fl_ctx):
        pass

    def stop_controller(self, fl_ctx):
        pass

    def process_result_of_unknown_task(self, *given):
        pass

    def control_flow(self, abort_signal, fl_ctx):
        root, out = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()), Path(self.out)
        agreement = Agreement.read(root / "local" / "fedminimax" / FEDERATION_FILE)
        transport = FlareTransport(fl_ctx.get_engine().get_cell(), agreement.sites, study=agreement.fingerprint)
        while any(transport.present().values()):
            time.sleep(0.2)
        for number in self.numbers:
            try:
                engine = Federation(Numbered(transport, number), timeout=60.0)
                np.savez(out / f"{number}.npz", *go(agreement, number, engine.clients, engine=engine))
            except Exception as error:
                (out / f"{number}.txt").write_text(f"{type(error).__name__}: {error}")
        (out / "over.json").write_text(json.dumps(self.numbers))


class Many:
    """A site's worker, made when it is first asked for its method."""

    def __init__(self, site):
        self.site, self.workers = site, {}

    def handle(self, request):
        if not request:  # whether it is there
            return b""
        number = request[0]
        if number not in self.workers:
            problem = problem_of(self.site.agreement, number)
            self.workers[number] = Worker(problem, METHODS[number], self.site.rows())
        return self.workers[number].handle(request[1:])


if __name__ == "__main__":
    site = SiteFile.read(Path(sys.argv[1]) / SITE_FILE)
    serve(site.socket, Many(site), parent=os.getppid())
