"""Fair classification of images with a convolutional network, as in the FESS-GDA paper's section 4.2.

    python examples/fair_images.py --data fashion_mnist --rounds 30 --out fair.png

Needs the dataset's files (`FEDMINIMAX_DATA`) or a network to fetch them from.
"""

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import fedminimax as fm
from fedminimax.data import datasets, partition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--methods", nargs="+", default=["FESS-GDA", "Fed-Norm-SGDA+"])
    parser.add_argument("--out", default="fair.png")
    options = parser.parse_args()

    images = datasets.load(options.data)
    clients = fm.ClientData.from_owner(images.train, partition.iid(images.train["labels"], options.clients))
    problem = fm.problems.fair_classification(fm.models.CNN(images.classes), clients, images.classes)
    common = {"lr_x": 0.1, "lr_y": 0.01, "local_steps": 5, "batch_size": options.batch_size}
    methods = {
        "FESS-GDA": fm.FessGDA(**common, p=0.1, beta=0.9),
        "Fed-Norm-SGDA+": fm.FedNormSGDAPlus(**common, snapshot_every=5),
    }
    judge = fm.metrics.ClassAccuracy(images.test, images.classes)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for name in options.methods:
        method = methods[name]
        result = fm.run(problem, clients, method, rounds=options.rounds, eval_every=5, metrics=judge, progress="accuracy/worst")
        print(f"{name}: average {result.final()['accuracy/mean']:.1%}, worst class {result.final()['accuracy/worst']:.1%}")
        for ax, metric in zip(axes, ("accuracy/mean", "accuracy/worst"), strict=True):
            result.plot(metric, ax=ax, label=name)
    figure.savefig(options.out, dpi=130)
    print(f"Figure: {options.out}")


if __name__ == "__main__":
    main()
