"""Run the tests against mutants of the source: the same program with one thing wrong. A test should fail.

    python tests/mutation/run.py --sample 200            # or --files sets penalties.py; --list shows the mutants and runs none
    python tests/mutation/run.py --report                # writes the tables of README.md from results.csv

Results go to results.csv, and a mutant that is there is not run again (``--again survived`` runs the survivors again).

The usual tools start a process for each mutant. Here that is five seconds of imports, and every program of a test is compiled
anew. This server imports what the package needs once and forks for each mutant; programs come from a compilation cache that
all share, so that only what a mutant changes is compiled. The mutant is put into a copy of the package, and the tests that
enter the changed function run first, the quickest before the others.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import csv
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "src" / "fedminimax"
RESULTS, REASONS = HERE / "results.csv", HERE / "survivors.json"
COLUMNS = ("id", "file", "line", "function", "kind", "before", "after", "status", "test")
WALL = 3600  # seconds; the limit that counts is on the time of the processor, which does not depend on what else runs

OTHERS = 20  # seconds for tests that do not seem to enter the function: something cached in another test may hide it

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "fedminimax-mutation-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "Agg")
sys.path.insert(0, str(HERE))

from mutants import Mutant, mutants, watched  # noqa: E402

ROBUST = ["tests/algorithms/test_robust*.py", "tests/test_penalt*.py"]
NODES = ["tests/algorithms/test_decentralized*.py"]
SHARED = ["tests/algorithms/test_identities*.py", "tests/algorithms/test_exact*.py", "tests/algorithms/test_cross_device*.py"]
TESTS: dict[str, list[str]] = {
    "sets/": ["tests/test_sets*.py"],
    "penalties.py": ["tests/test_penalt*.py"],
    "problems/personalized": [*NODES, "tests/problems/test_r*.py"],
    "problems/linearize": ["tests/problems/test_linearize*.py"],
    "problems/robust_regression": [*ROBUST, "tests/problems/test_random*.py"],
    "problems/robust.py": [*ROBUST, "tests/problems/test_robust*.py", "tests/metrics/test_personal*.py"],
    "problems/base.py": ["tests/problems/test_*.py", "tests/metrics/test_optimality.py", "tests/data/test_clients.py"],
    "problems/": ["tests/problems/test_*.py", "tests/metrics/test_optimality.py"],
    "metrics/personalized": [*NODES, "tests/metrics/test_personal*.py"],
    "metrics/": ["tests/metrics/test_*.py"],
    **dict.fromkeys([f"algorithms/{m}" for m in ("afl", "delta", "drfa", "fed_avg", "q_fed", "robust", "scaff")], ROBUST[:1]),
    **dict.fromkeys([f"algorithms/{m}" for m in ("decentralized", "local_extra", "sliding")], NODES),
    **dict.fromkeys([f"algorithms/{m}" for m in ("catalyst", "cd_mage", "coda", "extra")], SHARED[1:]),
    "algorithms/": [*SHARED[:1], "tests/algorithms/test_solvers.py", "tests/algorithms/test_theory*.py"],
}
"""Where the tests of a file are; of these, the test files that enter the changed function are run. What runs all methods on all
engines (tests/algorithms/test_contract.py) compares engines with each other, not with the truth, and is left out."""


def test_files(file: str) -> list[str]:
    """Return the test modules for a source file."""
    patterns = next(tests for start, tests in TESTS.items() if file.startswith(start))
    patterns = [*patterns, "tests/algorithms/test_starts.py"] if file.startswith("algorithms/") else patterns
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def sources() -> list[str]:
    """Return the files that have mutants, as paths in the package."""
    files = [str(p.relative_to(PACKAGE)) for p in sorted(PACKAGE.rglob("*.py"))]
    return [f for f in files if any(f.startswith(start) for start in TESTS)]


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """Give a directory with a copy of the package, for a while."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        shutil.copytree(PACKAGE, Path(name) / "fedminimax", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(name, quiet=1)
        yield Path(name)


class Watch:
    """A plugin that notes which functions of the package each test enters, and how long it takes."""

    def __init__(self) -> None:
        self.entered, self.tests = defaultdict(set), {}
        self.now = ""  # while a module is imported
        sys.entered = lambda name: self.entered[self.now].add(name)  # see `watched`

    def pytest_collection_modifyitems(self, items):
        self.tests = {item.nodeid: 0.0 for item in items}

    def pytest_runtest_logstart(self, nodeid, location):
        self.now, self.began = nodeid, time.process_time()

    def pytest_runtest_logfinish(self, nodeid, location):
        self.tests[nodeid] = round(time.process_time() - self.began, 2)

    def outcome(self):
        return {"tests": self.tests, "entered": {k: sorted(v) for k, v in self.entered.items()}}


class Order:
    """A plugin that runs the tests that enter the changed function first, and notes the one that fails."""

    def __init__(self, known: dict, function: str) -> None:
        self.first = {t for module in known.values() for t, names in module["entered"].items() if function in names}
        self.seconds = {t: s for module in known.values() for t, s in module["tests"].items()}
        self.failed = ""

    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: (item.nodeid not in self.first, self.seconds.get(item.nodeid, 1.0)))
        spent = 0.0
        for i, item in enumerate(items):
            spent += 0.0 if item.nodeid in self.first else self.seconds.get(item.nodeid, 0.0)
            if spent > OTHERS:  # at worst a mutant survives that one of these would kill
                del items[i:]
                break

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = report.nodeid

    def outcome(self):
        return {"test": self.failed}


def tested(tree: Path, files: list[str], plugin: Watch | Order, seconds: int) -> dict:
    """Run some test modules against the package in ``tree``, in a process of their own; return what the plugin found."""
    answer, log = tree / "answer.json", tree / "log.txt"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        import pytest

        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        sys.path[0] = str(tree)
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = str(tree)
        os.chdir(ROOT)
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files], plugins=[plugin])
        source = getattr(sys.modules.get("fedminimax"), "__file__", None) or str(tree)
        answer.write_text(json.dumps({"code": int(code), "source": source, **plugin.outcome()}))
        os._exit(0)
    began, done = time.time(), 0
    while not done and time.time() < began + WALL:
        done = os.waitpid(child, os.WNOHANG)[0]
        time.sleep(0.05)
    if not done:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = json.loads(answer.read_text()) if answer.exists() else {"code": -1, "test": "", "source": str(tree)}
    assert found["source"].startswith(str(tree)), f"the tests imported {found['source']}"
    return found


def survey(files: list[str]) -> dict:
    """Return which test enters which function: known from before where neither the package nor the test module changed."""
    store = Path(os.environ["JAX_COMPILATION_CACHE_DIR"]) / "mutation-survey.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    package = b"".join(p.read_bytes() for p in sorted(PACKAGE.rglob("*.py")))
    stamps = {name: hashlib.sha1(package + (ROOT / name).read_bytes()).hexdigest() for name in files}
    stale = [name for name in files if known.get(name, {}).get("stamp") != stamps[name]]
    with copied() if stale else contextlib.nullcontext(Path()) as tree:
        for source in sources() if stale else ():
            (tree / "fedminimax" / source).write_text(watched(PACKAGE, source))
        for name in stale:
            print(f"survey of {name}", flush=True)
            found = tested(tree, [name], Watch(), 3000)
            if found["code"]:
                sys.exit(f"{name} fails without a mutant:\n{(tree / 'log.txt').read_text()[-3000:]}")
            known[name] = {"stamp": stamps[name], "tests": found["tests"], "entered": found["entered"]}
            store.parent.mkdir(exist_ok=True)
            store.write_text(json.dumps(known))
    return {name: known[name] for name in files}


def judge(tree: Path, mutant: Mutant, only: list[str] | None) -> dict:
    """Return the row of a mutant: killed by which test, out of time, or survived."""
    where = f"{mutant.file}:{mutant.function}"
    known = {n: {"tests": {}, "entered": {"": [where]}} for n in only} if only else survey(test_files(mutant.file))
    # The lines of a class or a module run when it is imported: then whatever enters one of its functions.
    names = {n: set().union(*m["entered"].values()) for n, m in known.items()}
    entering = lambda place: {n: m for n, m in known.items() if any(e.startswith(place) for e in names[n])}
    chosen = entering(where) or entering(mutant.file)
    budget = int(60 + 4 * sum(sum(m["tests"].values()) for m in chosen.values()))
    target = tree / "fedminimax" / mutant.file
    for cached in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
        cached.unlink()
    target.write_text(mutant.make())
    found = tested(tree, list(chosen), Order(chosen, where), budget) if chosen else {"code": 5, "test": ""}
    shutil.copy(PACKAGE / mutant.file, target)
    status = {0: "survived", 5: "survived", -1: "out of time"}.get(found["code"], "killed")
    test = found["test"] or ("on import" if status == "killed" else "")
    return {c: getattr(mutant, c, "") for c in COLUMNS} | {"status": status, "test": test}


def rows() -> dict[str, dict]:
    """Return the results so far, by mutant."""
    return {row["id"]: row for row in csv.DictReader(RESULTS.open())} if RESULTS.exists() else {}


def reasons() -> dict[str, str]:
    """Return why a survivor is equivalent, by mutant."""
    return json.loads(REASONS.read_text()) if REASONS.exists() else {}


def write(results: dict[str, dict]) -> None:
    """Write the results, in the order of files and lines."""
    with RESULTS.open("w") as out:
        table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(results.values(), key=lambda r: (r["file"], int(r["line"]), r["id"])))


def sample(chosen: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return so many mutants, from every file in proportion to its number, and at least one."""
    by_file = defaultdict(list)
    for mutant in chosen:
        by_file[mutant.file].append(mutant)
    rng = random.Random(seed)
    taken = [m for ms in by_file.values() for m in rng.sample(ms, min(len(ms), max(1, round(count * len(ms) / len(chosen)))))]
    return rng.sample(taken, len(taken))  # in any order, so that a run that is stopped is a sample too


def report() -> None:
    """Write the tables between the marks in README.md: counts by file, and every survivor with its reason."""
    files, results, known = sources(), rows(), reasons()
    made = {m.id: m for file in files for m in mutants(PACKAGE, file)}
    current = [r for r in results.values() if r["id"] in made]
    lines = ["| file | mutants | run | killed | equivalent | survived |", "|---|---:|---:|---:|---:|---:|"]
    total: Counter[str] = Counter()
    for file in [*files, "all"]:
        here = [r for r in current if file in ("all", r["file"])]
        count = Counter("equivalent" if r["id"] in known and r["status"] == "survived" else r["status"] for r in here)
        killed = count["killed"] + count["out of time"]
        size = sum(m.file == file or file == "all" for m in made.values())
        total = count if file == "all" else total
        if size:
            lines.append(f"| {file} | {size} | {len(here)} | {killed} | {count['equivalent']} | {count['survived']} |")
    killed = total["killed"] + total["out of time"]
    share = 100 * killed / max(1, killed + total["survived"])
    lines += ["", f"Killed by now: {killed} of {killed + total['survived']} that are not equivalent, {share:.1f}%.", ""]
    lines += ["| survivor | change | why it lives |", "|---|---|---|"]
    code = lambda text: "`" + (text[:70] + "..." if len(text) > 73 else text).replace("|", "\\|") + "`" if text else "nothing"
    for r in current:
        if r["status"] == "survived":
            where = f"{r['file']}:{made[r['id']].line} {r['function'].replace('<locals>.', '')}"
            why = known.get(r["id"], "**to be killed**")
            lines.append(f"| {where} ({r['id']}) | {code(r['before'])} to {code(r['after'])} | {why} |")
    readme = HERE / "README.md"
    head, mark, _ = readme.read_text().partition("<!-- tables -->")
    readme.write_text(f"{head}{mark}\n\n" + "\n".join(lines) + "\n")


def warm() -> None:
    """Import what the package and the tests import, without starting JAX: the processes that are forked start it."""
    for name in ("flax.linen", "jax", "matplotlib.pyplot", "networkx", "optax", "pandas", "pooch", "pytest", "rich.console"):
        importlib.import_module(name)
    for name in ("scipy.optimize", "sklearn.datasets", "sklearn.metrics", "typer"):
        importlib.import_module(name)


def main() -> None:
    """Choose mutants, run the tests against each, keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="*", default=list(TESTS), help="beginnings of paths in src/fedminimax; default: all")
    parser.add_argument("--sample", type=int, help="so many mutants, from each file in proportion; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--id", nargs="*", help="these mutants only")
    parser.add_argument("--tests", nargs="*", help="these test modules only; default: those that belong to the file")
    parser.add_argument("--again", help="run those of this status again, but for the equivalent ones: survived")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no mutant after so long")
    parser.add_argument("--list", action="store_true", help="show the mutants, and what became of them")
    parser.add_argument("--report", action="store_true", help="write the tables of README.md")
    asked = parser.parse_args()
    if asked.report:
        return report()
    chosen = [m for f in sources() if any(f.startswith(start) for start in asked.files) for m in mutants(PACKAGE, f)]
    chosen = sample(chosen, asked.sample, asked.seed) if asked.sample else chosen
    results = rows()
    if asked.id:
        chosen = [m for m in chosen if m.id in asked.id]
    elif asked.again:
        chosen = [m for m in chosen if results.get(m.id, {}).get("status") == asked.again and m.id not in reasons()]
    elif not asked.list:
        chosen = [m for m in chosen if m.id not in results]
    if asked.list:
        for m in chosen:
            print(
                m.id, f"{m.file}:{m.line}", m.kind, "|", m.before, "->", m.after, "|", results.get(m.id, {}).get("status", "")
            )
        return None
    warm()
    began = time.time()
    with copied() as tree:
        for i, mutant in enumerate(chosen):
            if time.time() > began + 60 * asked.minutes:
                break
            now, row = time.time(), judge(tree, mutant, asked.tests)
            write(rows() | {mutant.id: row})
            said = [row[c] for c in ("id", "file", "line", "kind", "status", "test")]
            print(f"{i + 1}/{len(chosen)}", *said, f"{time.time() - now:.0f} s", flush=True)
    return None


if __name__ == "__main__":
    main()
