"""A classifier that one perturbation of all its inputs cannot fool, trained on clients that are online by day.

    python examples/robust_training.py --data fashion_mnist --rounds 200 --out robust.png

Needs the dataset's files (`FEDMINIMAX_DATA`) or a network to fetch them from. Sixty rounds
take about a minute.
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
    parser.add_argument("--data", default="mnist", choices=("mnist", "fashion_mnist"))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--out", default="robust.png")
    options = parser.parse_args()

    images = datasets.load(options.data)
    train, test = ({**a, "inputs": 2 * a["inputs"] - 1} for a in (images.train, images.test))
    clients = fm.ClientData.from_owner(train, partition.by_class(train["labels"], options.clients), batching="epochs")
    problem = fm.problems.robust_training(fm.models.MLP(), clients, images.classes, radius=3.0)

    # Devices come and go with the time of day, and some are slow: twice as many are invited as are needed.
    devices = fm.Availability(0.6, over_invite=2.0, wave=fm.Wave(0.5, period=48), delay=fm.Delay(5.0))
    method = fm.CDMAGEPlus.decaying(0.02, 1.0, 5, 1 / 3, local_steps=12, batch_size=10, cohort_size=20)
    judge = fm.metrics.RobustLoss(data=test, examples=1000, max_steps=40)
    shown = {"metrics": judge, "eval_every": 20, "progress": "robust/accuracy"}
    result = fm.run(problem, clients, method, rounds=options.rounds, availability=devices, **shown)
    attack = fm.metrics.PGD(data=test, examples=1000)(problem, clients, result.state)
    print(f"test accuracy under the perturbation: {result.final()['robust/accuracy']:.1%}")
    print(f"under the worst of a strong search:   {float(attack['accuracy']):.1%}")
    print(f"simulated waiting for devices: {result.final()['waited'] / 60:.0f} minutes")

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    result.plot("robust/accuracy", against="waited", ax=left, label="CD-MAGE+")
    left.set(xlabel="simulated seconds", ylabel="robust test accuracy")
    worst = np.concatenate([test["inputs"][:5, ..., 0], test["inputs"][:5, ..., 0] + result.y[..., 0]])
    right.imshow(worst.reshape(2, 5, 28, 28).swapaxes(1, 2).reshape(56, 140), cmap="gray", vmin=-1.5, vmax=1.5)
    right.set_axis_off()
    right.set_title("inputs, and the same perturbed")
    figure.savefig(options.out, dpi=130)
    print(f"Figure: {options.out}")


if __name__ == "__main__":
    main()
