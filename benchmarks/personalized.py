"""Figure 1 of the paper on personalised minimax problems, at small scale: accuracy against epochs for T = 40, 400 and 800.

    python benchmarks/personalized.py --out figure.png

Ten nodes with a server's averaging (W = I - 11'/M), a quarter of each one's examples from its major class, a small
convolutional network and noise of its own on every node. Settings of Tables 3 and 4: eta = 0.1, lambda = 1 / (eta T),
theta = r. An epoch is 40 steps, as in the paper, on smaller batches of fewer images. Each run goes into
results/personalized.csv when it ends, and is not repeated; the figure and the table are made of all that is there (`--figures`
makes them alone).
"""

import argparse
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fedminimax as fm
from fedminimax.data import datasets, partition
from tables import PERSONALIZED

LR, EPOCH, BATCH, NODES = 0.1, 40, 16, 10
PERIODS = (40, 400, 800)
METHODS = {"SlidingNN": "Algorithm 1 (SlidingNN)", "LocalNN": "Algorithm 2 (LocalNN)"}
CURVES = {
    "train/mean": ("tab:red", "own model, own training data"),
    "test/mean": ("tab:blue", "own model, own test data"),
    "global": ("black", "mean model, everybody's test data"),
}


def part(arrays: dict, count: int, seed: int) -> dict:
    """Return so many examples, drawn at random."""
    chosen = np.random.default_rng(seed).permutation(len(arrays["labels"]))[:count]
    return {name: values[chosen] for name, values in arrays.items()}


def task(options: argparse.Namespace, period: int, seed: int) -> tuple[fm.PersonalizedProblem, fm.ClientData, dict]:
    """Return the problem, the nodes' data and what is measured."""
    images = datasets.load(options.data)
    train = part(images.train, NODES * EPOCH * BATCH, seed)
    owners = lambda arrays: partition.major_class(arrays["labels"], NODES, 0.25, seed)
    nodes = fm.ClientData.from_owner(train, owners(train), batching="epochs")
    held_out = fm.ClientData.from_owner(images.test, owners(images.test))
    problem = fm.problems.personalized_training(
        fm.models.LeNet5(initializer="lecun"),
        nodes,
        images.classes,
        1.0 / (LR * period),
        fm.Network.complete(NODES),
        beta_y=options.beta_y,
        alike=not options.own_starts,
        seed=seed,
    )
    judge = {
        "train": fm.metrics.NodeAccuracy(),
        "test": fm.metrics.NodeAccuracy(held_out),
        "global": fm.metrics.GlobalAccuracy(images.test),
        "spread": fm.metrics.Consensus(),
    }
    return problem, nodes, judge


def method_of(name: str, period: int, options: argparse.Namespace) -> fm.SlidingNN | fm.LocalNN:
    """Return the method of one run."""
    common = {"local_steps": period, "batch_size": BATCH, "momentum": options.momentum}
    personal = {"personal": "u"} if options.trust == 1 else {}  # with theta = 1 the iterates agree
    if name == "LocalNN":
        return fm.LocalNN(LR, LR, r=options.trust, **common)
    return fm.SlidingNN(LR, LR, theta=options.trust, **personal, **common)


def run(method: fm.SlidingNN | fm.LocalNN, period: int, options: argparse.Namespace, seed: int) -> dict:
    """Return the curves of one run."""
    problem, nodes, judge = task(options, period, seed)
    rounds = options.epochs * EPOCH // period
    every = max(1, 10 * EPOCH // period)  # every ten epochs, or every round
    started = time.perf_counter()
    result = fm.run(problem, nodes, method, rounds=rounds, eval_every=every, metrics=judge, seed=seed, progress=False)
    history = {key: np.asarray(values, float).round(5).tolist() for key, values in result.history.items()}
    return {"settings": repr(method), "seconds": round(time.perf_counter() - started, 1), **history}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--trust", type=float, default=2.0, help="theta and r: 2 for Table 3, 1 and 4 for Table 4")
    parser.add_argument("--momentum", type=float, help="of the local steps; the paper trains with 0.9")
    parser.add_argument("--beta-y", type=float, default=1.0, help="what holds the noise")
    parser.add_argument("--own-starts", action="store_true", help="every node starts from weights of its own")
    parser.add_argument("--periods", type=int, nargs="*", default=PERIODS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="the figure")
    parser.add_argument("--figures", action="store_true", help="run nothing: draw and tabulate what there is")
    options = parser.parse_args()

    PERSONALIZED.folder.mkdir(parents=True, exist_ok=True)
    which = f"{options.data}-{options.trust:g}" + (f"-m{options.momentum:g}" if options.momentum else "")
    which += "-own" if options.own_starts else ""
    for seed in [] if options.figures else options.seeds:
        for period in options.periods:
            for name in METHODS:
                this = (which, name, str(period), str(seed))
                method = method_of(name, period, options)
                saved = PERSONALIZED.read().get(this)
                if saved is not None:
                    if saved["settings"] != repr(method):
                        raise SystemExit(
                            f"{' '.join(this)} was run with {saved['settings']}, not {method!r}: delete its rows of "
                            f"{PERSONALIZED.path.name} to run it anew."
                        )
                    continue
                record = run(method, period, options, seed)
                PERSONALIZED.add({this: record})
                last = {metric: record[metric][-1] for metric in (*CURVES, "spread/x")}
                print(*this, last, f"({record['seconds']:.0f} s)", flush=True)
    draw(which, options.out or PERSONALIZED.folder / f"{which}.png")


def draw(which: str, out: Path) -> None:
    """Draw and tabulate what has been run: the mean over seeds, and a band from the least to the greatest."""
    saved = {run: record for run, record in PERSONALIZED.read().items() if run[0] == which}
    periods = [period for period in PERIODS if any(run[2] == str(period) for run in saved)]
    if not periods:
        raise SystemExit(f"There are no runs of {which} in {PERSONALIZED.path.name}.")
    figure = Figure(figsize=(1.2 + 2.8 * len(periods), 5.4), layout="constrained")
    grid = figure.subplots(len(METHODS), len(periods), sharex=True, sharey=True, squeeze=False)
    print(f"{'':10s} {'T':>4s} " + " ".join(f"{metric:>16s}" for metric in CURVES))
    for row, (name, title) in zip(grid, METHODS.items(), strict=True):
        for ax, period in zip(row, periods, strict=True):
            runs = [record for run, record in saved.items() if run[1:3] == (name, str(period))]
            ax.set_title(f"{title}, T = {period}", fontsize=9)
            if not runs:
                continue
            epochs = np.asarray(runs[0]["round"]) * period / EPOCH
            line = f"{name:10s} {period:4d} "
            for metric, (colour, label) in CURVES.items():
                values = np.array([r[metric] for r in runs])
                ax.plot(epochs, values.mean(0), color=colour, label=label, linewidth=1.6)
                ax.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
                line += f" {values[:, -1].mean():7.1%} +- {values[:, -1].std():5.1%}"
            print(line, f"({len(runs)} seeds)")
            ax.grid(alpha=0.25)
    for ax in grid[-1]:
        ax.set_xlabel("epochs")
    for ax in grid[:, 0]:
        ax.set_ylabel("accuracy")
    labels = max((ax.get_legend_handles_labels() for ax in grid.flat), key=lambda found: len(found[0]))
    figure.legend(*labels, loc="outside lower center", ncols=min(3, len(periods)), frameon=False)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main()
