"""Train, convexify, train: FedAvg finds a network, SCAFF-PD makes its linearisation fair to the worst client.

The two stages of the SCAFF-PD paper for deep models, on handwritten digits split among ten unlike clients (needs no file).
Around trained weights the network is replaced by its first-order model, with which the squared loss is convex.

    python examples/train_convexify_train.py --rounds 60        # about a minute on two cores
"""

import argparse

import fedminimax as fm
from fedminimax import fairness
from fedminimax.data import datasets, silos
from fedminimax.metrics import ClientAccuracy, WorstCase
from fedminimax.problems import linearize, robust_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="of each of the three runs")
    shown = {"rounds": parser.parse_args().rounds}

    federation = silos(datasets.load("digits"), 10, alpha=0.1, seed=0)
    clients, classes = federation.train, len(federation.classes)
    shown["metrics"] = [ClientAccuracy(federation.test), WorstCase()]

    # Stage 1: any network, by federated averaging.
    network = fm.models.MLP((32,), classes)
    average = robust_model(network, clients, classes, loss="entropy", penalty=fm.ChiSquare(0.02))
    first = fm.run(average, clients, fm.FedAvg(0.1, local_steps=20, batch_size=20), **shown)

    # Stage 2: the network's linearisation at those weights, which is a convex problem.
    convex = robust_model(linearize(network, first.x), clients, classes, penalty=fm.ChiSquare(0.02), ridge=1e-3)
    rate = 0.05 / fairness.smoothness(convex, clients)
    fine = {"local_steps": 20, "batch_size": 20}
    stages = {
        "FedAvg, the network": first,
        "then FedAvg, linearised": fm.run(convex, clients, fm.FedAvg(rate, **fine), **shown),
        "then SCAFF-PD, linearised": fm.run(convex, clients, fm.ScaffPD(20 * rate, 1.0, **fine), **shown),
    }
    print(f"{'':28}average  worst 20%  best 20%")
    for name, result in stages.items():
        values = [100 * result.final()[f"client_accuracy/{k}"] for k in ("mean", "worst20", "best20")]
        print(f"{name:28}" + "  ".join(f"{v:7.1f}" for v in values))


if __name__ == "__main__":
    main()
