"""Metrics where their data is out of the ordinary."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics
from fedminimax.metrics.base import ascend
from fedminimax.players import Point
from fedminimax.sets import L2Ball


@pytest.mark.parametrize(
    ("labels", "message"), [([1, 1, 2], "are positive"), ([0, -1, 0], "are not positive"), ([], "are not")]
)
def test_labels_of_one_kind_have_no_auc(labels, message):
    with pytest.raises(fm.InputError, match=message):
        metrics.auc_score(np.arange(len(labels)), np.asarray(labels))


def test_the_error_of_a_regression_with_several_outputs_is_over_all_of_them(x64):
    inputs = np.array([[1.0, 2.0], [0.0, 1.0], [2.0, 2.0]])
    labels = np.array([[1.0, 0.0], [3.0, 1.0], [2.0, 6.0]])
    clients = fm.ClientData.from_owner({"inputs": inputs, "labels": labels}, np.array([0, 1, 1]))
    problem = fm.MinimaxProblem(lambda x, y, batch: x + y, 1.0, 0.0, predict=lambda x, inputs: inputs * x)
    each = metrics.ClientError().values(problem, clients, problem.start)
    np.testing.assert_allclose(each, [np.sqrt(4 / 2), np.sqrt((9 / 2 + 16 / 2) / 2)])
    assert jnp.shape(each) == (2,)


def test_a_perturbation_outside_the_ball_is_brought_inside_before_it_counts(x64):
    """F = mean (a'x + y'x)^2 grows without bound, so that a start outside would be the worst of all."""
    loss = lambda x, y, batch: jnp.mean(((batch["inputs"] + y) @ x) ** 2)
    fields = {"inputs": np.array([[1.0, 0.0], [0.0, 2.0]]), "labels": np.zeros(2, int)}
    clients = fm.ClientData.equal(fields, 1)
    predict = lambda x, inputs: inputs @ jnp.stack([x, -x], axis=1)
    problem = fm.MinimaxProblem(loss, jnp.asarray([0.6, 0.8]), jnp.zeros(2), y_set=L2Ball(0.5), predict=predict)
    got = metrics.RobustLoss(tol=1e-9)(problem, clients, Point(problem.x0, jnp.asarray([30.0, 40.0])))
    assert float(got["norm"]) == pytest.approx(0.5)
    assert float(got["loss"]) == pytest.approx(((0.6 + 0.5) ** 2 + (1.6 + 0.5) ** 2) / 2)


def test_the_most_steps_of_an_ascent_are_counted_one_by_one(x64):
    """On a linear function every step leads further, so that so many steps and one more differ."""
    ends = [
        float(ascend(lambda y: y, lambda y: (y, jnp.ones(())), lambda y: y, 0.0, tol=0.0, max_steps=steps))
        for steps in (0, 1, 2, 3)
    ]
    assert ends[:2] == [0.0, 1.0]
    assert ends[1] < ends[2] < ends[3]
