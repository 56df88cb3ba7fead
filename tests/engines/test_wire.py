import json
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import wire
from fedminimax.algorithms import ALGORITHMS, Algorithm, algorithm
from fedminimax.players import Point


@pytest.mark.parametrize(
    "tree",
    [
        {"a": np.arange(6.0).reshape(2, 3), "b": [np.int32(3), (None, True, "text", 2.5, 7)]},
        Point(np.float32([1, 2]), {"w": np.zeros((0, 4))}),
        [],
        (),
        {},
        np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
        float("inf"),
    ],
    ids=str,
)
def test_trees_come_back_as_they_were(tree):
    back = wire.decode(wire.encode(tree))
    assert type(back) is type(tree)
    assert repr(back) == repr(tree).replace("np.int32(3)", "array(3, dtype=int32)")


def test_what_cannot_be_sent_says_where_it_is():
    with pytest.raises(fm.InputError, match=r"\['x'\]\[1\] is a set"):
        wire.encode({"x": [1, {2}]})
    with pytest.raises(fm.InputError, match="string keys"):
        wire.encode({1: 2})


def test_damage_is_found():
    data = wire.encode({"a": np.arange(100.0)})
    with pytest.raises(fm.InputError, match="not a fedminimax"):
        wire.decode(b"hello, world, this is no message")
    with pytest.raises(fm.InputError, match="damaged or cut short"):
        wire.decode(data[:-8])
    with pytest.raises(fm.InputError, match="damaged or cut short"):
        wire.decode(data.replace(b'"float64"', b'"float65"'))
    with pytest.raises(fm.InputError, match=r"holds a Joint: import the module that defines it first \(fedminimax\.players\)"):
        wire.decode(wire.encode(Point(1, 2)).replace(b"Point", b"Joint"))


def test_nothing_that_is_read_runs_code():
    import pickle

    with pytest.raises(fm.InputError):
        wire.decode(pickle.dumps({"a": 1}))


class Update(NamedTuple):
    """Called as one of ScaffPD's messages is."""

    x: object
    mine: object


def test_classes_of_the_same_name_live_side_by_side():
    wire.message(Update)
    task = fm.problems.robust_regression(3, 2, 4, rho=0.1, sigma=0.5)
    method = fm.ScaffPD(0.1, 0.1, local_steps=2)
    run = lambda engine: fm.run(task.problem, task.clients, method, rounds=1, engine=engine)
    np.testing.assert_allclose(run("isolated").x, run("simulator").x, rtol=1e-5)
    back = wire.decode(wire.encode(Update(np.ones(2), 3)))
    assert type(back) is Update


def test_names_without_a_module_are_found_while_they_are_clear():
    old = wire.encode(Point(1, 2)).replace(b"fedminimax.players:Point", b"Point" + b" " * 19)
    header = json.loads(old[12 : 12 + int.from_bytes(old[4:12], "little")].replace(b" ", b""))
    assert header["n"] == "Point"
    text = json.dumps(header).encode()
    assert wire.decode(old[:4] + len(text).to_bytes(8, "little") + text) == Point(1, 2)


def test_a_class_that_is_not_registered_or_was_defined_anew_is_named():
    def define():
        @wire.message
        class Local(NamedTuple):
            x: object

        return Local

    class Stranger(NamedTuple):
        x: object

    first, second = define(), define()
    assert wire.decode(wire.encode(second(1))) == second(1)
    with pytest.raises(fm.InputError, match="a Local, a class that was defined anew since: make it again"):
        wire.encode({"a": first(1)})
    with pytest.raises(fm.InputError, match="a Stranger, a class that was not registered: decorate it with @state"):
        wire.encode(Stranger(1))


def test_a_method_that_is_called_as_another_is_refused():
    with pytest.raises(fm.InputError, match=r"a method FedAvg already, that of fedminimax\.algorithms\.fed_avg: give yours"):

        @algorithm
        class FedAvg(Algorithm):
            def init(self, problem): ...

            def round(self, problem, state, clients): ...

    assert ALGORITHMS["FedAvg"] is fm.FedAvg
