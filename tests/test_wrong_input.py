"""What a person may hand over by mistake is answered by one sentence that names the cause and the cure."""

import warnings

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedminimax as fm

CLIENTS = fm.ClientData.from_list([{"a": np.ones((5, 2), np.float32)}] * 3)
METHOD = fm.ParallelSGDA(0.1, 0.1)


def problem(**changes):
    loss = lambda x, y, batch: jnp.mean(batch["a"] @ x - 1) * y
    return fm.MinimaxProblem(**{"loss": loss, "x0": jnp.zeros(2), "y0": jnp.zeros(()), **changes})


def run(found=None, **options):
    return fm.run(found or problem(), CLIENTS, METHOD, **{"rounds": 1, **options})


def robust(**changes):
    loss = lambda x, batch: jnp.mean(batch["a"] @ x)
    return fm.RobustProblem(**{"loss": loss, "x0": jnp.zeros(2), "penalty": fm.Agnostic(), **changes})


class Tensor:
    """What PyTorch hands over: it has a dtype of its own, and no array while it records gradients."""

    __module__ = "torch"
    dtype, shape = "torch.float32", (2,)

    def __array__(self, *_args, **_options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def client(value):
    return lambda: fm.ClientData.from_list([{"a": value}] * 2)


OBJECTS = np.array([1.0, None], object)
WRONG = {
    "a class of metrics": (lambda: run(metrics=fm.metrics.Value), r"Value is a class: give a metric .* Value\(\.\.\.\)"),
    "a class in a list": (lambda: run(metrics=[fm.metrics.Distance]), "Distance is a class"),
    "a class by name": (lambda: run(metrics={"v": fm.metrics.Value}), "Value is a class"),
    "a metric's name": (lambda: run(metrics="value"), "'value' is not a metric"),
    "a number by name": (lambda: run(metrics={"v": 3}), "3 is not a metric"),
    "a number for metrics": (lambda: run(metrics=3), "3 is not a metric"),
    "a number for a set": (lambda: problem(y_set=0.5), r"y_set is a fedminimax Set or None but 0\.5 was given"),
    "a class for a set": (lambda: problem(x_set=fm.sets.L2Ball), "x_set is a fedminimax Set or None but <class"),
    "a number for a robust set": (lambda: robust(x_set=0.5), "x_set is a fedminimax Set"),
    "a loss without return": (
        lambda: run(problem(loss=lambda x, y, b: None)),
        r"returns nothing \(None\), but must return one",
    ),
    "a loss of two": (lambda: run(problem(loss=lambda x, y, b: (y, y))), "returns a tuple, but must return one real number"),
    "a robust loss without return": (
        lambda: fm.run(robust(loss=lambda x, b: None), CLIENTS, fm.AFL(0.1, 0.1), rounds=1),
        "returns nothing",
    ),
    "a key that no batch has": (
        lambda: run(problem(loss=lambda x, y, b: jnp.mean(b["c"]) * y)),
        "looks up 'c', which is not there: a batch has 'a'.",
    ),
    "a key that no player has": (
        lambda: run(problem(x0={"u": jnp.zeros(2)}, loss=lambda x, y, b: jnp.sum(x["v"]) * y)),
        "looks up 'v', which is not there: a batch has 'a'; x has 'u'.",
    ),
    "objects": (client(OBJECTS), r"\['a'\] of client 0 has objects: convert it to numbers"),
    "objects, pooled": (lambda: fm.ClientData.equal({"a": OBJECTS}, 2), r"\['a'\] has objects"),
    "objects, by owner": (lambda: fm.ClientData.from_owner({"a": OBJECTS}, [0, 1]), r"\['a'\] has objects"),
    "texts": (client(np.array(["x", "y"])), r"\['a'\] of client 0 has texts: number its categories"),
    "texts of pandas": (client(pd.Series(["x", "y"], dtype=object)), "has objects"),
    "bytes": (client(np.array([b"x"])), "has bytes"),
    "dates": (client(np.array(["2020-01-01"], "datetime64[D]")), "has dates: convert them to numbers"),
    "times": (client(np.array([3], "timedelta64[D]")), "has times"),
    "lists": (client([1.0, 2.0]), r"\['a'\]\[0\] of client 0 is a scalar.*give an array, not a list"),
    "a number, pooled": (lambda: fm.ClientData.equal({"a": 3.0}, 1), r"\['a'\] is a scalar"),
    "a DataFrame as a client": (
        lambda: fm.ClientData.from_list([pd.DataFrame({"a": [1.0]})] * 2),
        r"Client 0 is a DataFrame: give arrays, such as .*to_numpy\(\)",
    ),
    "a DataFrame as a field": (client(pd.DataFrame({"u": [1.0]})), r"Field \['a'\] of client 0 is a DataFrame"),
    "a DataFrame, pooled": (lambda: fm.ClientData.equal(pd.DataFrame({"u": [1.0]}), 1), "What is given is a DataFrame"),
    "a tensor": (client(Tensor()), r"client 0 is a PyTorch Tensor: give a NumPy array, .*numpy\(\)"),
    "a tensor, pooled": (lambda: fm.ClientData.equal({"a": Tensor()}, 2), "is a PyTorch Tensor"),
    "a tensor to start from": (lambda: problem(x0=Tensor()), "x0 is a PyTorch Tensor"),
    "a tensor in weights": (lambda: robust(x0={"layer": Tensor()}), r"x0\['layer'\] is a PyTorch Tensor"),
    "texts to start from": (lambda: problem(y0=np.array(["a"])), "y0 has texts"),
    "a number for a grid": (
        lambda: fm.sweep(problem(), CLIENTS, METHOD, rounds=1, grid={"lr_x": 0.1}),
        r"'lr_x' is 0\.1, but must be a list of values",
    ),
    "a text for a width": (lambda: fm.models.MLP(("a",)), "A width in MLP's hidden is 'a': give an integer of at least 1"),
    "no width": (lambda: fm.models.MLP((0,)), "is 0: give an integer"),
    "one width": (lambda: fm.models.MLP(5), r"MLP's hidden is 5: give the width of each hidden layer, such as \(200, 200\)"),
    "a text for classes": (lambda: fm.models.Linear("a"), "Linear's classes is 'a'"),
    "half a class": (lambda: fm.models.Logistic(2.5), r"Logistic's classes is 2\.5"),
    "no classes": (lambda: fm.models.MLP(classes=0), "MLP's classes is 0"),
}


@pytest.mark.parametrize(("mistake", "sentence"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_answered_by_a_sentence(mistake, sentence):
    with pytest.raises(fm.InputError, match=sentence):
        mistake()


def test_numbers_of_other_kinds_are_taken():
    """Whole numbers, truth values, half precision, and a column of pandas."""
    values = {"i": np.arange(2), "b": np.array([True, False]), "h": jnp.ones(2, jnp.bfloat16), "s": pd.Series([1.0, 2.0])}
    assert fm.ClientData.from_list([values] * 2).total == 4
    assert fm.models.MLP([np.int64(3)]).hidden is not None


def test_a_result_is_saved_to_a_file_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(rounds=0)
    for path in (".", "", tmp_path, "/"):
        with pytest.raises(fm.InputError, match=r"is a folder: give the path of a file to write, such as '.*run\.fmx'"):
            result.save(path)
    with pytest.raises(fm.InputError, match=r"The path to save to is 3: give that of a file to write, such as 'run\.fmx'"):
        result.save(3)
    assert not list(tmp_path.iterdir())
    assert fm.Result.load(result.save("run.fmx")).info == result.info


def test_a_step_size_that_is_none_is_said_before_the_run():
    task = fm.problems.robust_regression(2, dim=2, examples=4, rho=0.1, sigma=0.5)
    with pytest.raises(fm.InputError, match=r"ScaffPD\.tau is None: give it a number"):
        fm.run(task.problem, task.clients, fm.ScaffPD(tau=None, sigma=0.1), rounds=1)
    assert fm.ScaffPD(tau=0.1, sigma=0.1).lr_x is None  # which says something


# -- going on with something else --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun():
    task = fm.problems.quadratic(4)
    return task, fm.run(task.problem, task.clients, METHOD, rounds=2)


def go_on(begun, problem=None, clients=None, method=METHOD, **options):
    task, result = begun
    return fm.run(problem or task.problem, clients or task.clients, method, rounds=1, start=result, **options)


def test_the_same_run_goes_on_without_a_word(begun, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert go_on(begun).rounds == 3
        saved = fm.Result.load(begun[1].save(tmp_path / "run.fmx"))
        assert go_on((begun[0], saved)).rounds == 3
        assert go_on(begun, engine="isolated").rounds == 3
        lasting = fm.ParallelSGDA(lambda t: 0.1 / (t + 1), 0.1)
        first = fm.run(begun[0].problem, begun[0].clients, lasting, rounds=1)
        assert go_on((begun[0], first), method=fm.ParallelSGDA(lambda t: 0.1 / (t + 1), 0.1)).rounds == 2


def test_other_clients_and_other_steps_are_noticed(begun):
    with pytest.raises(fm.InputError, match=r"has 4 clients, but here are 5: give the same .* start=Snapshot\(result.state\)"):
        go_on(begun, clients=fm.problems.quadratic(5).clients)
    with pytest.warns(UserWarning, match="goes on, but not as it was: the clients' data are others"):
        go_on(begun, clients=fm.problems.quadratic(4, seed=9).clients)
    with pytest.warns(UserWarning, match=r"the method was ParallelSGDA\(lr_x=0.1, .*, and is ParallelSGDA\(lr_x=0.05, "):
        assert go_on(begun, method=fm.ParallelSGDA(0.05, 0.1)).rounds == 3
    with pytest.warns(UserWarning, match="the problem was heterogeneous quadratics, and is another"):
        go_on(begun, problem=begun[0].problem.replace(name="another"))
    old = fm.Result(**{**begun[1].__dict__, "info": {}})  # saved before results knew what they were made on
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert go_on((begun[0], old)).rounds == 3
