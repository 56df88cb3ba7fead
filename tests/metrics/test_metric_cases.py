"""Metrics where their data is out of the ordinary."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics


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
    each = metrics.ClientError().each(problem, clients, problem.start)
    np.testing.assert_allclose(each, [np.sqrt(4 / 2), np.sqrt((9 / 2 + 16 / 2) / 2)])
    assert jnp.shape(each) == (2,)
