"""What a model's outputs become: the score of an example."""

import jax
import jax.numpy as jnp
import numpy as np

import fedminimax as fm


def test_scores_are_the_softmax_the_sigmoid_or_the_output_itself(x64):
    rng = np.random.default_rng(0)
    model, inputs = fm.models.Linear(3), rng.normal(size=(8, 2))
    clients = fm.ClientData.equal({"inputs": inputs, "labels": np.arange(8) % 2}, 2)
    for output in (0, 2):
        of = lambda score, output=output: fm.problems.auc(model, clients, score=score, output=output)
        theta = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), of("linear").x0["theta"])
        outputs = np.asarray(model.apply({"params": theta}, inputs))
        expected = {
            "softmax": np.exp(outputs[:, output]) / np.exp(outputs).sum(axis=1),
            "sigmoid": 1 / (1 + np.exp(-outputs[:, output])),
            "linear": outputs[:, output],
        }
        for score, numbers in expected.items():
            np.testing.assert_allclose(of(score).predict({"theta": theta}, inputs), numbers, rtol=1e-12)
