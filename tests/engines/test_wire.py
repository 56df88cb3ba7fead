import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax.engines import wire
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
    with pytest.raises(fm.InputError, match="holds a Joint: import the module"):
        wire.decode(wire.encode(Point(1, 2)).replace(b"Point", b"Joint"))


def test_nothing_that_is_read_runs_code():
    import pickle

    with pytest.raises(fm.InputError):
        wire.decode(pickle.dumps({"a": 1}))
