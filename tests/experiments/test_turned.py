"""Images that every client sees at an angle of its own: a closed walk from 0 to D degrees and back around the ring."""

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.experiments.material import examples
from fedminimax.experiments.turned import turn, turned

OWNER = np.arange(80) % 4


def parts(degrees):
    made = turned("digits", degrees, train=80, validation=20, test=40).divide(OWNER, 4)
    return made, [np.asarray(part["inputs"]).reshape(-1, 8, 8) for part in made.clients]


def test_clients_turn_their_images_by_half_a_cosine():
    _, upright = parts(0)
    made, seen = parts(90)
    np.testing.assert_array_equal(seen[0], upright[0])
    quarter = np.rot90(upright[2], axes=(1, 2))  # the client across the ring: a turn by 90 degrees moves pixels, no more
    np.testing.assert_allclose(seen[2], quarter, atol=1e-6)
    half = turn({"inputs": upright[1]}, 45)["inputs"]
    np.testing.assert_allclose(seen[1], half, atol=1e-6)
    assert np.abs(seen[1] - upright[1]).max() > 0.1
    np.testing.assert_allclose(seen[3], turn({"inputs": upright[3]}, 45)["inputs"], atol=1e-6)  # on the way back
    assert made.clients.count == 4


def test_a_client_is_judged_on_images_at_its_angle_and_labels_stay():
    upright, _ = parts(0)
    made, _ = parts(90)
    for part in ("validation", "test"):
        own, turned_own = list(upright.apart[part]()), list(made.apart[part]())
        for client, angle in enumerate([0, 45, 90, 45]):
            np.testing.assert_array_equal(own[client]["labels"], turned_own[client]["labels"])
            expected = turn(own[client], angle)["inputs"]
            np.testing.assert_allclose(turned_own[client]["inputs"], expected, atol=1e-6)
        pooled = np.concatenate([np.asarray(one["inputs"]) for one in turned_own])
        np.testing.assert_array_equal(np.asarray(made.held[part]["inputs"]), pooled)


def test_without_a_turn_it_is_the_data_set():
    made, _ = parts(0)
    plain = examples("digits", train=80, validation=20, test=40).divide(OWNER, 4)
    for one, other in zip(made.clients, plain.clients, strict=True):
        np.testing.assert_array_equal(one["inputs"], other["inputs"])
        np.testing.assert_array_equal(one["labels"], other["labels"])


def test_an_angle_that_is_none_is_refused():
    with pytest.raises(fm.InputError, match="degrees is 270: give an angle from 0 to 180"):
        turned("digits", 270)
