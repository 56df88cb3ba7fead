"""AUC maximisation on 500 phones with one digit each: CD-MAGE and CD-MAGE+ beside CD-MA, at the same upload.

    python examples/auc_mnist.py --rounds 120 --out auc.png

Needs MNIST's files (`FEDMINIMAX_DATA`) or a network to fetch them from.
"""

import argparse

import fedminimax as fm
from fedminimax.data import datasets, partition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--network", default="LeNet5", choices=("LeNet5", "MLP"))
    parser.add_argument("--methods", nargs="+", default=["CD-MA", "CD-MAGE", "CD-MAGE+"])
    parser.add_argument("--out", default="auc.png")
    options = parser.parse_args()

    # Zeros are positive, all other digits negative. Each client holds one digit: most have only one kind of label.
    images = datasets.load("mnist")
    owner = partition.by_class(images.train["labels"], options.clients)
    relabelled = lambda a: {"inputs": 2 * a["inputs"] - 1, "labels": partition.one_vs_rest(a["labels"], 0)}
    train, test = relabelled(images.train), relabelled(images.test)

    clients = fm.ClientData.from_owner(train, owner, batching="epochs")
    networks = {"LeNet5": fm.models.LeNet5(last_relu=True, initializer="pytorch"), "MLP": fm.models.MLP(initializer="pytorch")}
    problem = fm.problems.auc(networks[options.network], clients, seed=1)

    common = {"local_steps": 12, "batch_size": 10, "cohort_size": 10}
    methods = {
        "CD-MA": fm.CDMA(0.1, 0.03, **common),
        "CD-MAGE": fm.CDMAGE(0.3, 0.03, **common),  # uploads twice: it gets half the cohort
        "CD-MAGE+": fm.CDMAGEPlus.decaying(0.3, 0.01, 5, 1 / 5, **common),
    }
    methods = {name: methods[name] for name in options.methods}
    judge = {"train": fm.metrics.AUC(), "test": fm.metrics.AUC(data=test)}
    curves = fm.compare(
        problem, clients, methods, rounds=options.rounds, match_upload=True, metrics=judge, eval_every=20, progress="test"
    )
    print(curves.table("test").to_string(float_format="{:.4g}".format))
    curves.plot("test", against="floats_up", label="test AUC").figure.savefig(options.out, dpi=130)
    print(f"Figure: {options.out}")


if __name__ == "__main__":
    main()
