"""Kills runs with ``kill -9``, for real: whole processes, in the middle of whatever they do.

``python tests/killing.py 20`` kills 20 times, at random moments, a process in which three methods run at once, one of them with
its clients' states in files; the last one is left to end. All three must then be the runs that were never stopped.
"""

import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

if __name__ == "__main__":  # JAX's settings are those of the tests, which decide over the last bit
    os.environ.setdefault("FEDMINIMAX_DEVICES", "2")

import jax
import numpy as np
import orbax.checkpoint  # noqa: F401  (before processes are forked: what is loaded once need not be loaded in each)

import fedminimax as fm
from fedminimax.checkpoint import CHECKPOINTS

ROUNDS = 30
"""For each kill: about as many as are run in between."""
NAMES = ("smoothed", "drawn steps", "files")


def total(problem, clients, state):
    """A metric that costs nothing."""
    return sum(leaf.sum() for leaf in jax.tree.leaves(state.x))


def leftovers(result):
    """All that a run leaves, as bytes by name."""
    own = result.client_states
    own = own.dense() if hasattr(own, "dense") else own
    trace = None if result.trace is None else dict(result.trace.__dict__)
    parts = {"state": result.state, "clients": own, "history": result.history, "costs": result.costs, "trace": trace}
    found = {}
    for name, part in parts.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(part):
            array = np.asarray(leaf)
            found[name + jax.tree_util.keystr(path)] = (array.dtype.name, array.shape, array.tobytes())
    return found


def differences(a, b):
    """Say what differs between what two runs leave."""
    one, other = leftovers(a), leftovers(b)
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


# -- every method, stopped after seven rounds ---------------------------------------------------------------------------------


class Hangs:
    """Stops a run in its tracks once its first checkpoint is there, and says so."""

    def __init__(self, folder):
        self.there, self._folder = threading.Event(), folder

    def on_rounds(self, run):
        """Wait for the end, which comes from outside."""
        if run.round > 7:
            while not list((self._folder / CHECKPOINTS).glob("*/checkpoint.json")):
                time.sleep(0.005)
            self.there.set()
            threading.Event().wait()


def settings(row):
    """How every method is run."""
    task = row.main
    return {"problem": task.problem, "clients": task.clients, "algorithm": row.algorithm, "eval_every": 3, "metrics": total}


def hang(folder, names):
    """Begin a run of every method, each in a thread, until all hang after seven rounds; then say so and wait to be killed."""
    from roster import NODES, ROSTER

    rows = {row.name: row for row in [*ROSTER, *NODES]}
    for name in names:
        stops = Hangs(folder / name)
        kept = {"folder": folder / name, "checkpoint_every": 7, "observers": stops, "rounds": 20, "progress": False}
        threading.Thread(target=lambda row=rows[name], kept=kept: fm.run(**settings(row), **kept), daemon=True).start()
        stops.there.wait()
    print("all hang", flush=True)
    signal.pause()


def survivors(folder, names):
    """Go on with every method, and say what differs from the runs that were never stopped."""
    from roster import NODES, ROSTER

    rows = {row.name: row for row in [*ROSTER, *NODES]}
    for name in names:
        given = settings(rows[name])
        survived = fm.run(**given, rounds=20, progress=False, folder=folder / name)
        print(json.dumps([name, differences(fm.run(**given, rounds=20, progress=False), survived)]), flush=True)


# -- three methods, at random moments -----------------------------------------------------------------------------------------


def runs(rounds):
    """The three runs, by name."""
    task = fm.problems.quadratic(6, examples=8, noise=0.3, seed=1)
    common = {"problem": task.problem, "clients": task.clients, "rounds": rounds, "eval_every": 3, "progress": False}
    common |= {"metrics": total, "record": True}
    slow = {"local_steps": 3, "batch_size": 2, "cohort_size": 3}
    methods = (
        fm.FessGDA(0.03, 0.03, p=0.5, beta=0.3, **slow),
        fm.FedNormSGDA(0.03, 0.03, **{**slow, "local_steps": fm.UniformSteps(1, 3)}),
        fm.CODASCA(0.03, 0.03, **slow),
    )
    return {name: common | {"algorithm": method} for name, method in zip(NAMES, methods, strict=True)}


class Tells:
    """Says through a pipe, once, that a run is under way."""

    def __init__(self, pipe):
        self._pipe = pipe

    def on_rounds(self, run):
        """Say it."""
        if self._pipe is not None:
            os.write(self._pipe, b"!")
            self._pipe = None


def go(folder, rounds, every=1, tell=None):
    """Run the three side by side, with checkpoints unless ``every`` is None; return what came of them."""
    done = {}

    def one(name, given):
        # Also the run that is never stopped has its states in files: another program would round in another way.
        files = folder / ("states" if every else f"states of a process {os.getpid()}")
        engine = fm.Simulator(client_store=files if name == "files" else None)
        where = {"folder": folder / name, "checkpoint_every": every} if every else {}
        done[name] = fm.run(**given, **where, engine=engine, observers=Tells(tell))

    threads = [threading.Thread(target=one, args=item) for item in runs(rounds).items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def forked(work):
    """Do something in a process of its own; return its id. (JAX has not started yet here: it cannot be forked after that.)"""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            jax.config.update("jax_disable_most_optimizations", True)
            work()
        finally:
            sys.stdout.flush()
            os._exit(0)
    return child


def judge(folder, rounds):
    """Go on to the end, and compare with the runs that were never stopped."""
    warnings.simplefilter("ignore")
    whole, survived = go(folder, rounds, None), go(folder, rounds, 50)
    for name, result in survived.items():
        print(f"{name}: {differences(whole[name], result) or 'the same'}", flush=True)


def random_kills(folder, kills, seed=0):
    """Kill so many times; return how far the runs had come each time."""
    draw, reached = random.Random(seed), []
    for kill in range(kills):
        ready, tell = os.pipe()

        def work(tell=tell, early=kill % 5 == 4):
            warnings.simplefilter("ignore")
            jax.numpy.zeros(()).block_until_ready()
            if early:  # while it finds out where to go on
                os.write(tell, b"!!!")
            go(folder, ROUNDS * kills, tell=tell)

        child = forked(work)
        os.close(tell)
        for _ in NAMES:
            os.read(ready, 1)
        time.sleep(draw.uniform(0.0, 0.5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        newest = [max((p.name for p in (folder / n / CHECKPOINTS).glob("*")), default="0") for n in NAMES]
        reached.append([int(name.partition(".")[0]) for name in newest])
    return reached


def main(folder, kills, seed=0):
    """Compile, kill, judge, and show what the folders' logs say."""
    fm.cache.keep_programs(folder / "programs")
    os.waitpid(forked(lambda: go(folder, 2, None)), 0)
    began = time.time()
    for rounds in random_kills(folder, kills, seed):
        print("killed after rounds", rounds)
    os.waitpid(forked(lambda: judge(folder, ROUNDS * kills)), 0)
    for name in NAMES:
        print((folder / name / "log.txt").read_text())
    print(f"{time.time() - began:.1f} s, {os.times().children_user + os.times().children_system:.1f} s of cores")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        main(Path(place), *(int(argument) for argument in sys.argv[1:] or ["20"]))
