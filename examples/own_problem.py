"""A problem of your own in thirty lines: linear regression that is robust to a shared, bounded shift of the inputs.

python examples/own_problem.py --rounds 300
"""

import argparse

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_diabetes

import fedminimax as fm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()

    # The data stays on five clients, split by age: unlike each other, as hospitals are.
    features, target = load_diabetes(return_X_y=True)
    features, target = features / features.std(axis=0), (target - target.mean()) / target.std()
    owner = np.argsort(np.argsort(features[:, 0])) * 5 // len(target)
    fields = {"a": features.astype(np.float32), "b": target.astype(np.float32)}
    clients = fm.ClientData.from_owner(fields, owner)

    # x: the coefficients; y: a shift of all inputs, at most 0.3 long, that hurts the most.
    def loss(x, y, batch):
        return jnp.mean((batch["b"] - (batch["a"] + y) @ x) ** 2) + 0.1 * jnp.sum(x**2) - jnp.sum(y**2)

    problem = fm.MinimaxProblem(loss, x0=jnp.zeros(10), y0=jnp.zeros(10), y_set=fm.sets.L2Ball(0.3), weights="size")
    method = fm.SAGDA(lr_x=0.02, lr_y=0.05, local_steps=5, batch_size=20)
    judges = [fm.metrics.Value(), fm.metrics.Stationarity(10.0)]
    result = fm.run(problem, clients, method, rounds=options.rounds, metrics=judges, eval_every=50)
    print(clients)
    print(result.frame()[["round", "value", "stationarity/x", "stationarity/y", "floats_up"]].to_string(index=False))


if __name__ == "__main__":
    main()
