"""Runs that survive: stopped anywhere, by anything, and resumed, they are the runs that were never stopped, to the last bit."""

import jax
import numpy as np
import pytest

import fedminimax as fm

METHOD = fm.CODASCA(0.03, 0.03, local_steps=3, batch_size=2, cohort_size=3)


@pytest.fixture(scope="module")
def task():
    return fm.problems.quadratic(6, examples=8, noise=0.3, seed=1)


def go(task, rounds=12, method=METHOD, **options):
    known = {"metrics": {"d": fm.metrics.Distance(task.solution)}, "seed": 2, "eval_every": 5}
    return fm.run(task.problem, task.clients, method, rounds=rounds, **{**known, **options})


def same(a, b):
    """Two runs have the same bytes in all that they leave."""
    for name in ("state", "client_states", "history", "costs"):
        one, other = (getattr(result, name) for result in (a, b))
        one, other = (v.dense() if hasattr(v, "dense") else v for v in (one, other))
        assert jax.tree.structure(one) == jax.tree.structure(other), name
        for p, q in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert np.asarray(p).dtype == np.asarray(q).dtype, name
            assert np.asarray(p).tobytes() == np.asarray(q).tobytes(), name
    assert (a.rounds, a.seed, a.messages) == (b.rounds, b.seed, b.messages)
    assert (a.trace is None) == (b.trace is None)
    if a.trace is not None:
        for p, q in zip(*(jax.tree.leaves(dict(r.trace.__dict__)) for r in (a, b)), strict=True):
            np.testing.assert_array_equal(p, q)


def test_a_run_that_goes_on_is_the_run_that_was_never_stopped(task, tmp_path):
    """Also where the evaluation at the first end is not one of the longer run's."""
    whole = go(task, record=True)
    part = go(task, 7, record=True, folder=tmp_path / "run", checkpoint_every=2)
    assert part.history["round"].tolist() == [0, 5, 7]
    same(go(task, record=True, folder=tmp_path / "run", checkpoint_every=4), whole)
    same(fm.resume(tmp_path / "run"), whole)  # nothing is left to do
    same(fm.resume(tmp_path / "run", rounds=14), go(task, 14, record=True))
    with pytest.raises(fm.InputError, match="has come to round 14, beyond the 12"):
        go(task, record=True, folder=tmp_path / "run")
