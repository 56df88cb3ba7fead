"""What a type checker says of methods and of users' scripts: mistakes are found, and right use passes."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedminimax"

MISTAKES = """
from typing import NamedTuple

import fedminimax as fm
from fedminimax.authoring import (
    Algorithm, Client, ClientProblem, Clients, Decentralized, LocalUpdates, MinimaxProblem, NodeProblem, Nodes,
    PersonalizedProblem, Point, Reply, RobustClientProblem, RobustMethod, RobustProblem, Rows, Scalar, Tree, Weighed,
    algorithm, state,
)


@state
class Wrong(NamedTuple):
    x: Tree
    y: Tree


@algorithm
class Server(LocalUpdates[Point]):
    lr_x: Scalar
    lr_y: Scalar

    def init(self, problem: MinimaxProblem) -> Point:
        return problem.begin  # WRONG: begin

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        problem.no_such(clients)  # WRONG: no_such
        clients.nope()  # WRONG: nope
        cohort = clients.sample(3)
        cohort.meen(self.local_update, state.x, state.y)  # WRONG: meen
        update = cohort.mean(self.local_update, state.x, state.y)
        update.z  # WRONG: z
        state.zed  # WRONG: zed
        cohort.mean(self.lonely, state.x)  # WRONG: mean
        return problem.project(update)

    def lonely(self, x: Tree) -> Point:
        return Point(x, x)


@algorithm
class OnClients(Algorithm[MinimaxProblem, Point]):
    lr_x: Scalar

    def init(self, problem: MinimaxProblem) -> Wrong:  # WRONG: init
        return Wrong(*problem.start)

    def round(self, problem: MinimaxProblem, state: Point, clients: Clients) -> Point:
        mean = clients.all().mean(self.report, state.x, state.y)
        mean.value  # WRONG: value
        return problem.project(mean)

    def report(self, problem: ClientProblem, client: Client, x: Tree, y: Tree) -> Reply[Point]:
        problem.client_weights  # WRONG: client_weights
        g = problem.gradd(x, y, client.full)  # WRONG: gradd
        client.bach(3)  # WRONG: bach
        end = client.repeat(3, lambda z: problem.project(z), Point(x, y))
        end.w  # WRONG: w
        return Reply(end, note=g)


@algorithm
class OnWeights(RobustMethod[Weighed]):
    lr_x: Scalar

    def init(self, problem: RobustProblem) -> Weighed:
        return Weighed(*problem.start)

    def round(self, problem: RobustProblem, state: Weighed, clients: Clients) -> Weighed:
        reports = clients.all().map(self.report_loss, state.x)
        reports.values.lost  # WRONG: lost
        problem.penalty.pros  # WRONG: pros
        return state

    def other(self, problem: RobustClientProblem, client: Client, x: Tree) -> Tree:
        problem.penalty  # WRONG: penalty
        return problem.grad(x, client.full)


@algorithm
class OnNodes(Decentralized[Point]):
    lr_x: Scalar

    def step(self, problem: PersonalizedProblem, state: Rows, nodes: Nodes) -> Rows:
        nodes.mixed(state)  # WRONG: mixed
        return nodes.map(self.move, state)

    def move(self, problem: NodeProblem, node: Client, z: Point) -> Point:
        problem.no_coupling  # WRONG: no_coupling
        return problem.coupled(problem.grad(z.x, z.y, node.batch(2)), z)


fm.FessGDA(0.1, 0.1, local_step=3)  # WRONG: local_step
fm.FessGDA(0.1, 0.1, batch_size="all")  # WRONG: batch_size
fm.ParallelSGDA(0.1, 0.1, local_steps=3)  # WRONG: local_steps
fm.CDMA(0.1, 0.1, 3)  # WRONG: CDMA
fm.DRFA(0.1, 0.1, local_steps=fm.UniformSteps(1, 2))  # WRONG: local_steps
fm.LocalSGDA(0.1, 0.1, local_steps=fm.UniformSteps(1, 2), batch_size=None, cohort_size=4).replace(lr_x=0.2).local_steps
"""

SCRIPT = """
import jax
import jax.numpy as jnp
import numpy as np

import fedminimax as fm


def make(client: jax.Array) -> dict[str, jax.Array]:
    return {"a": jnp.full((4,), client, float)}


def loss(x: jax.Array, y: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean(batch["a"]) * x * y


def own(x: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean(batch["a"]) * x


stored = fm.ClientData.equal({"a": np.ones(8)}, 2)
made = fm.GeneratedClients(make, 2)
shared = fm.MinimaxProblem(loss, jnp.ones(()), jnp.ones(()))
robust = fm.RobustProblem(own, jnp.ones(()), fm.ChiSquare(0.1))
personal = fm.PersonalizedProblem(loss, jnp.ones(()), jnp.ones(()), 0.1, fm.Network.ring(2))
engine = fm.Simulator(strategy="map", devices=1)

for clients in (stored, made):
    result = fm.run(shared, clients, fm.FessGDA(0.1, 0.1), rounds=3, engine=engine)
    fm.run(robust, clients, fm.DRFA(0.1, 0.1), rounds=3, engine="isolated")
    fm.run(robust.as_minimax(), clients, fm.LocalSGDA(0.1, 0.1), rounds=3, start=result)
    fm.run(personal, clients, fm.Sliding(0.1, 0.1), rounds=3, metrics=fm.metrics.Consensus())
    fm.sweep(personal, clients, fm.LocalNN(0.1, 0.1), rounds=3, grid={"lr_x": [0.1, 0.2]})
    fm.compare(shared, clients, [fm.FSGDA(0.1, 0.1), fm.SAGDA(0.1, 0.1)], rounds=3)
    fm.compare(robust, clients, {"a": fm.FedAvg(0.1), "b": fm.AFL(0.1, 0.1)}, rounds=3)
fm.run(shared.replace(name="other"), stored, fm.CDMAGEPlus.decaying(0.1, 0.1, 0.1, 0.5), rounds=3)
task, nodes = fm.problems.quadratic(3), fm.problems.personalized_quadratic(fm.Network.ring(3), 0.1)
fm.run(task.problem, task.clients, fm.FessGDA(0.1, 0.1), rounds=3)
coupling = nodes.problem.replace(name="other").coupling
bound, data = robust.bind(made)
penalty, take = bound.penalty, data.take([0])
"""


def errors(*files):
    """What mypy, with the project's settings, says of each file: a message by line."""
    # The settings and the folder are those of the project's own check, so that the two share what they have parsed.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": "src"}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said = {file.name: {} for file in files}
    for row in done.stdout.splitlines():
        path, line, kind, message = row.split(":", 3)
        if kind.strip() == "error" and Path(path).name in said:
            said[Path(path).name][int(line)] = message
    return said


def test_mistakes_are_found_and_right_use_passes(tmp_path):
    pytest.importorskip("mypy")
    mistakes, script, method, shown = (tmp_path / f"{name}.py" for name in ("mistakes", "script", "method", "shown"))
    mistakes.write_text(MISTAKES)
    script.write_text(SCRIPT)
    own = (PACKAGE / "algorithms" / "fess_gda.py").read_text()  # a method of the package itself, with a mistake in its round
    first = "        clients.equal_steps("
    assert own.count(first) == 1
    method.write_text(own.replace(first, f"        problem.no_such(clients.nope().meen(7))\n{first}"))
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.S)
    shown.write_text(example)
    said = errors(mistakes, script, method, shown)
    assert not said["script.py"]
    assert not said["shown.py"]
    assert len(said["method.py"]) == 1
    assert all("no_such" in m or "nope" in m for m in said["method.py"].values())
    expected = {n: row.split("# WRONG: ")[1] for n, row in enumerate(MISTAKES.splitlines(), 1) if "# WRONG" in row}
    found = said["mistakes.py"]
    assert found.keys() == expected.keys(), found
    assert not {line: found[line] for line, name in expected.items() if f'"{name}"' not in found[line]}


def parameters(folder):
    """Every annotation of every function of a package: (file, function, parameter or "return", annotation)."""
    for path in sorted((PACKAGE / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                given = node.args
                named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
                for name, annotation in [*((a.arg, a.annotation) for a in named), ("return", node.returns)]:
                    yield path.name, node.name, name, annotation


def is_any(annotation):
    return annotation is not None and any(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(annotation))


def test_what_programs_are_given_has_a_type():
    programs = {"problem", "state", "clients", "cohort", "client", "node", "nodes", "replies"}
    loose = [where for *where, annotation in parameters("algorithms") if where[2] in programs and is_any(annotation)]
    assert not loose


def test_few_signatures_say_nothing():
    loose = [where for f in ("algorithms", "engines", "federation") for *where, a in parameters(f) if is_any(a)]
    assert len(loose) < 100, loose
