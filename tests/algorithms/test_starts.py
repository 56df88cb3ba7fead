"""Every method starts inside the sets, wherever the problem's own start lies; and what it does by default."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roster import CLASSES

import fedminimax as fm
from fedminimax.network import Network
from fedminimax.penalties import ChiSquare
from fedminimax.sets import L2Ball

FAR = jnp.asarray([3.0, 4.0])
BALLS = {"x_set": L2Ball(0.5), "y_set": L2Ball(0.25)}
PROBLEMS = {
    fm.MinimaxProblem: lambda: fm.MinimaxProblem(lambda x, y, batch: x @ y, FAR, FAR, **BALLS),
    fm.RobustProblem: lambda: fm.RobustProblem(lambda x, batch: x @ x, FAR, ChiSquare(1.0), x_set=L2Ball(0.5), count=4),
    fm.PersonalizedProblem: lambda: fm.PersonalizedProblem(lambda x, y, b: x @ y, FAR, FAR, 0.5, Network.ring(4), **BALLS),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_method_starts_inside_the_sets(kind):
    method = CLASSES[kind].algorithm
    problem = PROBLEMS[method.solves]()
    state = method.init(problem)
    rows = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, 2), state.x)
    np.testing.assert_allclose(rows, np.broadcast_to([0.3, 0.4], rows.shape), rtol=1e-6)
    if method.solves is fm.RobustProblem:
        assert state.y is None or np.ptp(state.y) == 0
    else:
        y = np.asarray(state.y).reshape(-1, 2)
        np.testing.assert_allclose(y, np.broadcast_to([0.15, 0.2], y.shape), rtol=1e-6)


STEPS = {fm.AFL: 1, fm.LocalTraining: 1, fm.LocalNN: 40, fm.SlidingNN: 40}
"""Local steps by default, where they are not ten: the original AFL, and the personalised paper's networks."""


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_by_default_everybody_takes_ten_full_steps_and_the_server_averages(kind):
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}
    assert defaults.get("local_steps", 10) == STEPS.get(kind, 10)
    for name in ("server_lr_x", "server_lr_y"):
        assert defaults.get(name, 1.0) == 1.0
    assert defaults.get("cohort_size") is None
    assert defaults.get("batch_size") is None
