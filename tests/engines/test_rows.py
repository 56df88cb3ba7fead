"""Clients' states of several processes: in memory, and in the files of a checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedminimax import checkpoint
from fedminimax.engines.rows import OwnStates, SavedStates
from fedminimax.errors import InputError
from fedminimax.players import Point
from fedminimax.result import Result
from fedminimax.testing.contract import close

ONE = {"c": Point(jnp.zeros((2, 3)), jnp.zeros(5, jnp.float16)), "n": jnp.zeros((), jnp.int32), "b": jnp.zeros(2, bool)}


def states(count=7):
    rng = np.random.default_rng(0)
    return {
        "c": Point(
            rng.normal(size=(count, 2, 3)).astype(np.float32), rng.normal(size=(count, 5)).astype(np.float16)
        ),
        "n": rng.integers(0, 99, count, np.int32),
        "b": rng.integers(0, 2, (count, 2)).astype(bool),
    }  # fmt: skip


def cut(first, last, count=7):
    return OwnStates(first, count, jax.tree.map(lambda a: a[first:last], states(count)))


@pytest.mark.parametrize("step", [1, 2**26])
def test_what_three_processes_wrote_is_read_by_any_number_of_them(tmp_path, monkeypatch, step):
    monkeypatch.setattr("fedminimax.engines.rows.JOURNAL", step)
    parts = [cut(*ends).write(tmp_path) for ends in [(0, 3), (3, 4), (4, 7)]]
    saved = SavedStates(str(tmp_path), 7, [part[:3] for part in parts])
    close(saved.read(ONE), states(), 0)
    for first, last in [(0, 4), (4, 7), (2, 5), (6, 7)]:
        close(saved.read(ONE, first, last), cut(first, last).rows, 0)


def test_parts_are_put_together_only_where_none_lacks():
    close(OwnStates.together([cut(4, 7), cut(0, 4)]), states(), 0)
    for wrong in ([cut(0, 4)], [cut(0, 4), cut(3, 7)], [cut(4, 7)]):
        with pytest.raises(InputError, match="each once"):
            OwnStates.together(wrong)


def test_a_file_that_is_short_or_gone_is_said(tmp_path):
    part = cut(0, 7).write(tmp_path)
    saved = SavedStates(str(tmp_path), 7, [part[:3]])
    (tmp_path / part.file).write_bytes((tmp_path / part.file).read_bytes()[:-1])
    with pytest.raises(InputError, match="too short"):
        saved.read(ONE)
    (tmp_path / part.file).unlink()
    with pytest.raises(InputError, match="cannot be read here"):
        saved.read(ONE)


def result():
    return Result(Point(np.ones(2), np.ones(1)), {"round": np.array([0])}, {}, [], "M", "M()", 0, 4, cut(0, 3))


def test_a_checkpoint_has_the_files_of_all_processes_and_their_hashes(tmp_path):
    place = checkpoint.make(tmp_path, "000000004.000")
    write = lambda: [cut(0, 3).write(place), cut(3, 7).write(place)]
    checkpoint.write(tmp_path, "000000004.000", result(), {}, write)
    found = checkpoint.read(tmp_path, "000000004.000").with_states(lambda: ONE)
    close(found.client_states.read(ONE), states(), 0)
    file = place / "clients-3-7.rows"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(checkpoint.Damaged, match=r"clients-3-7\.rows"):
        checkpoint.read(tmp_path, "000000004.000")


def test_of_a_checkpoint_that_one_process_could_not_write_nothing_is_left(tmp_path):
    place = checkpoint.make(tmp_path, "000000004.000")

    def write():
        cut(0, 3).write(place)
        raise OSError("process 1: no room")

    with pytest.raises(OSError, match="no room"):
        checkpoint.write(tmp_path, "000000004.000", result(), {}, write)
    assert not place.exists()
