"""How much should neighbours agree? Accuracy against the coupling, on a ring of ten nodes without a server.

    python examples/personalized_ring.py --out ring.png

Every node has its own classifier and its own noise against it. With coupling 0 they train alone; with more of it they share
what they know; with too much they are one model. Runs on handwritten digits that come with scikit-learn, in
about a minute and a half.
"""

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fedminimax as fm
from fedminimax.data import datasets, partition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.9, help="of a node's examples that are of its major class")
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--couplings", type=float, nargs="+", default=[0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--out", default="ring.png")
    options = parser.parse_args()

    images = datasets.load(options.data)
    split = lambda part: fm.ClientData.from_owner(part, partition.major_class(part["labels"], options.nodes, options.share))
    train, test = split(images.train), split(images.test)
    ring = fm.Network.ring(options.nodes, normalized=True)
    judge = {
        "local": fm.metrics.NodeAccuracy(test),
        "global": fm.metrics.GlobalAccuracy(images.test),
        "spread": fm.metrics.Consensus(),
    }
    results = []
    for c in options.couplings:
        problem = fm.problems.personalized_training(fm.models.MLP((32,)), train, images.classes, c, ring, beta_y=10.0)
        method = fm.DecentralizedExtraGradient(0.05, 0.02, batch_size=16)
        results.append(fm.run(problem, train, method, rounds=options.rounds, metrics=judge, eval_every=options.rounds))
        final = results[-1].final()
        local, shared, spread = (final[name] for name in ("local/mean", "global", "spread/x"))
        print(f"coupling {c:6.3f}: own model {local:.1%}, mean model {shared:.1%}, distance between nodes {spread:.3f}")

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    places = np.arange(len(options.couplings))
    for name, label in (("local/mean", "own model, own test examples"), ("global", "mean model, everybody's")):
        left.plot(places, [r.final()[name] for r in results], "o-", label=label)
    left.set_xticks(places, [f"{c:g}" for c in options.couplings])
    left.set(xlabel="coupling (0: alone)", ylabel="test accuracy")
    left.legend(frameon=False)
    best = int(np.argmax([r.final()["local/mean"] for r in results]))
    each = judge["local"].values(problem, train, results[best].state)
    ring.plot(each, label=f"accuracy, coupling {options.couplings[best]:g}", ax=right)
    figure.savefig(options.out, dpi=130)
    print(f"Best for the nodes: coupling {options.couplings[best]:g}. Figure: {options.out}")


if __name__ == "__main__":
    main()
