"""Sets from numbers of other types, and trees without entries."""

import numpy as np

from fedminimax.sets import Box
from fedminimax.sets.trees import direction, norm


def test_bounds_of_any_number_type_are_the_same_box():
    box = Box([0.0, 0.5], 2.0)
    for kind in (np.float16, np.float32, np.float64):
        same = Box(np.asarray([0.0, 0.5], kind), kind(2.0))
        assert same == box
        assert hash(same) == hash(box)
        assert same.low.dtype == np.float64


def test_a_tree_without_entries_has_no_length():
    assert float(norm({})) == 0.0
    assert direction({}) == {}
