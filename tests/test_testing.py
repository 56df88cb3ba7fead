"""The door for authors: a method and a problem of one's own, checked by the project's own suite, with verdicts in words."""

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import fedminimax as fm
from fedminimax.algorithms import ALGORITHMS
from fedminimax.authoring import Algorithm, LocalUpdates, Point, Scalar, algorithm, players, server_step, static
from fedminimax.cli import app, main
from fedminimax.testing import check_method, check_problem

QUICK = ["state_is_a_pytree_with_the_players_that_can_be_sent", "seeds_reproduce_bit_for_bit_and_matter"]


@pytest.fixture
def methods():
    """Two methods of somebody else's: one sound, one that never projects."""
    before = set(ALGORITHMS)

    @algorithm
    class Mine(LocalUpdates):
        lr_x: Scalar
        lr_y: Scalar
        local_steps: int = static(default=2, kw_only=True)
        batch_size: int | None = static(default=4, kw_only=True)
        cohort_size: int | None = static(default=3, kw_only=True)
        solver = fm.Plain()

        def init(self, problem):
            return problem.start

        def round(self, problem, state, clients):
            cohort = clients.sample(self.cohort_size)
            return server_step(problem, state, cohort.mean(self.local_update, state.x, state.y), 1.0, 1.0)

    @algorithm
    class Careless(Algorithm):
        lr_x: Scalar
        lr_y: Scalar
        cohort_size: int | None = static(default=3)

        def init(self, problem):
            return problem.start

        def round(self, problem, state, clients):
            g = clients.sample(self.cohort_size).mean(self.gradient, state.x, state.y)
            return Point(players.add(state.x, g.x, -self.lr_x), players.add(state.y, g.y, self.lr_y))

        def gradient(self, problem, client, x, y):
            return problem.grad(x, y, client.full)

    yield Mine(0.02, 0.02), Careless(0.02, 0.02)
    for name in set(ALGORITHMS) - before:
        del ALGORITHMS[name]


def test_what_a_base_declares_stays_a_keyword():
    with pytest.raises(fm.InputError, match=r"Ours has local_steps from a base .* static\(default=..., kw_only=True\)"):

        @algorithm
        class Ours(LocalUpdates):
            lr_x: Scalar
            local_steps: int = static(default=2)


def test_a_sound_method_passes_and_a_careless_one_is_told_why(methods):
    sound, careless = methods
    report = check_method(sound, only=[*QUICK, "points_stay_in_their_sets"])
    assert report.passed
    assert len(report.verdicts) == 3
    told = []
    found = check_method(careless, only=["points_stay_in_their_sets"], raises=False, tell=told.append)
    assert not found.passed
    assert told == found.verdicts
    assert "y has left its set: is it projected on the server?" in str(found)
    with pytest.raises(AssertionError, match="Careless: 0 of 1 checks hold"):
        check_method(careless, only=["points_stay_in_their_sets"])


def test_what_is_no_method_is_named():
    with pytest.raises(fm.InputError, match=r"such as FedAvg\(...\), not FedAvg"):
        check_method(fm.FedAvg)
    with pytest.raises(fm.InputError, match="There is no check 'speed'"):
        check_method(fm.FedAvg(0.1), only=["speed"])


def data():
    rng = np.random.default_rng(0)
    return fm.ClientData.from_list([{"a": rng.normal(size=(6, 3)).astype("float32")} for _ in range(3)])


def loss(x, y, batch):
    return jnp.mean(jnp.square(batch["a"] @ x)) + x @ y - jnp.sum(y**2)


def problem(loss=loss, **options):
    return fm.MinimaxProblem(loss, jnp.ones(3), jnp.zeros(3), **options)


WRONG = {
    "a sum over examples must become a mean": problem(lambda x, y, b: jnp.sum(jnp.square(b["a"] @ x)) + x @ y),
    "the loss is nan": problem(lambda x, y, b: loss(x, y, b) + jnp.log(-jnp.sum(x**2))),
    "the loss changes by": problem(lambda x, y, b: loss(x, y, b) + jnp.round(x[0] * 1e6) * 1e-6),
    "best_response reaches": problem(best_response=lambda x, clients, p: -x / 2),
}


@pytest.mark.parametrize("message", WRONG)
def test_problems_that_methods_could_not_solve_are_told_why(message):
    with pytest.raises(AssertionError, match=message):
        check_problem(WRONG[message], data())


@pytest.mark.parametrize("made", [problem(), problem(best_response=lambda x, clients, p: x / 2), "fair", "robust", "nodes"])
def test_sound_problems_pass(made):
    from fedminimax.testing import tasks

    names = {"fair": "fair", "robust": "classification", "nodes": "nodes"}
    task = tasks.small(names[made]) if isinstance(made, str) else fm.Task(made, data())
    assert check_problem(task.problem, task.clients).passed


def test_the_command_line_gives_verdicts():
    run = CliRunner().invoke(app, ["check", "fedminimax:FedAvg", "--set", "lr_x=0.02", "--only", QUICK[0]])
    assert run.exit_code == 0, run.output
    assert "1 of 1 checks hold" in run.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FedAvg"], "write package.module:Name"),
        (["no_such_package:FedAvg"], "There is no module 'no_such_package'"),
        (["fedminimax:NoSuch"], "fedminimax has no 'NoSuch'"),
        (["fedminimax:FedAvg"], "Give its hyper-parameters by --set name=value"),
        (["fedminimax:FedAvg", "--set", "lr_x"], "write name=value"),
    ],
)
def test_wrong_names_get_a_sentence(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedminimax", "check", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert message in " ".join(capsys.readouterr().err.split())
