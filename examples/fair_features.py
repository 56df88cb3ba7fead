"""The SCAFF-PD paper's Table 3, on CIFAR-10 features: eight methods, tuned with equal budgets, average and worst-20% accuracy.

A linear classifier with squared loss on frozen features (``cifar10-features.npz`` in the folder FEDMINIMAX_DATA, or any file
of ``extract_features.py``), 20 clients by Dirichlet(alpha), of which 30% lose 70% of their training examples. Step sizes are
searched on the training objective of the first division, then every method is run on three divisions.

    python examples/fair_features.py            # about 20 minutes on two cores
    python examples/fair_features.py --rounds 20 --seeds 1 --alphas 0.05 --methods ScaffPD,FedAvg
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import fedminimax as fm
from fedminimax import fairness, plots
from fedminimax.data import datasets, silos

METHODS = "ScaffPD,FedAvg,FedProx,Scaffold,QFedAvg,DeltaFL,AFL,DRFA"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10_features")
    parser.add_argument("--alphas", default="0.05,0.01")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--local-steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rho", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("fair-features"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = datasets.load(options.data)
    for alpha in (float(a) for a in options.alphas.split(",")):
        found = run(data, alpha, options)
        table = report(found)
        table.to_csv(options.out / f"alpha_{alpha:g}.csv", index_label="method")
        print(f"\nalpha = {alpha:g}: test accuracy (%), mean and standard deviation over {options.seeds} divisions")
        print(table.to_string(float_format="%.2f"), flush=True)
        first = found[0]
        first.figures(options.out / f"alpha_{alpha:g}")
        summary = {m: {k: np.mean([c.summary(m)[k] for c in found]) for k in first.summary(m)} for m in first.values}
        plots.fairness_scatter(summary, label="test accuracy").figure.savefig(options.out / f"scatter_{alpha:g}.png", dpi=150)


def run(data, alpha, options):
    found, settings = [], None
    for seed in range(options.seeds):
        federation = silos(data, options.clients, alpha, seed=seed)
        comparison = fairness.contest(
            federation,
            options.methods.split(","),
            penalty=fm.ChiSquare(options.rho),
            rounds=options.rounds,
            local_steps=options.local_steps,
            batch_size=options.batch_size,
            settings=settings,
            loss="squared",
            baselines=(),
            tell=lambda line: print(line, flush=True),
        )
        found.append(comparison)
        settings = comparison.settings
    return found


def report(found):
    rows = {}
    for method in found[0].values:
        parts = {k: np.array([100 * c.summary(method)[k] for c in found]) for k in ("mean", "worst20", "best20", "worst")}
        variance = np.mean([1e4 * c.summary(method)["variance"] for c in found])
        rows[method] = {
            "average": parts["mean"].mean(),
            "average_std": parts["mean"].std(),
            "worst20": parts["worst20"].mean(),
            "worst20_std": parts["worst20"].std(),
            "best20": parts["best20"].mean(),
            "worst": parts["worst"].mean(),
            "variance": variance,
            "settings": found[0].table().loc[method, "settings"],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


if __name__ == "__main__":
    main()
