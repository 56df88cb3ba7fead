"""What the methods for weights on clients share, and what they do by default."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

import fedminimax as fm
from fedminimax.algorithms.robust import LossReport, heard


def test_a_client_that_was_not_heard_counts_for_nothing(x64):
    """Clients 3, 0 and 4 of five replied, the last of them refused: 1, 2 and 4 get the mean of the others, and no weight."""
    ids, accepted = jnp.asarray([3, 0, 4]), jnp.asarray([True, True, False])
    placed = jnp.zeros(5).at[ids].set(jnp.asarray([6.0, 2.0, 99.0]))
    reports = heard(SimpleNamespace(ids=ids, accepted=accepted, scatter=lambda count: LossReport(placed)), 5)
    assert reports.present.tolist() == [True, False, False, True, False]
    np.testing.assert_allclose(reports.losses, [2.0, 4.0, 4.0, 6.0, 4.0])
    assert bool(reports.anybody)
    w = jnp.asarray([0.1, 0.2, 0.3, 0.3, 0.1])
    np.testing.assert_allclose(reports.weights(w, ids), [0.75, 0.25, 0.0], rtol=1e-12)  # the whole weight, in proportion
    nobody = heard(SimpleNamespace(ids=ids, accepted=~accepted & False, scatter=lambda count: LossReport(placed)), 5)
    assert not bool(nobody.anybody)
    np.testing.assert_array_equal(nobody.weights(w, ids), 0.0)


def test_delta_fl_trains_the_worse_half_by_default():
    assert fm.DeltaFL(0.1).alpha == 0.5


def test_afl_projects_where_weights_do_not_sum_to_one():
    """With q-fair weights the server's step is no average, so that points of a set add up to one outside of it."""
    clients = fm.ClientData.equal({"one": np.ones(4, np.float32)}, 2)
    problem = fm.RobustProblem(
        lambda x, batch: jnp.mean(batch["one"]) * (1 + x),
        jnp.zeros(()),
        fm.QFair(1.0),
        x_set=fm.sets.Box(-0.1, 0.1),
        w0=[3.0, 3.0],
    )
    result = fm.run(problem, clients, fm.AFL(0.05, 0.01), rounds=1)
    np.testing.assert_allclose(result.x, -0.1, rtol=1e-6)  # and not 6 times -0.05
