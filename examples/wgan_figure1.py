"""Figure 1 of the FESS-GDA paper: a federated Wasserstein GAN learns a Gaussian, with less and less regularisation.

Every method runs its whole grid of step sizes, five seeds each, as one compiled program; its best setting is drawn.

    python examples/wgan_figure1.py --out figure1.png
"""

import argparse
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fedminimax as fm
from fedminimax.problems.gan import wgan_error

PENALTIES = (0.001, 0.005, 0.01)
GRID = {"lr_x": [0.1, 0.01, 0.001], "lr_y": [0.1, 0.01, 0.001], "server_lr_x": [1.0, 2.0], "server_lr_y": [1.0, 2.0]}
COMMON = {"lr_x": 0.1, "lr_y": 0.1, "local_steps": 10, "batch_size": 100}
METHODS = {
    "Fed-Norm-SGDA": fm.FedNormSGDA(**COMMON),
    "SAGDA": fm.SAGDA(**COMMON),
    "FESS-GDA": fm.FessGDA(**COMMON, p=1.0, beta=0.05),
}
TARGET = 1e-4


def settled(error: np.ndarray, target: float = TARGET) -> int | None:
    """Return the first round from which the mean error over seeds stays below the target; None: never."""
    with np.errstate(over="ignore"):  # some settings of the grid diverge
        above = np.flatnonzero(~(error.mean(axis=0) < target))
    first = 0 if above.size == 0 else int(above[-1]) + 1
    return first if first < error.shape[1] else None


def best(found: fm.Sweep) -> int:
    """Return the setting that settles first, far below the target if any does; else the one with the least final error."""
    for target in (TARGET / 100, TARGET):
        rounds = [(settled(error, target), k) for k, error in enumerate(found.values("error"))]
        if there := [(r, k) for r, k in rounds if r is not None]:
            return min(there)[1]
    return found.best("error", "lower", last=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="figure1.png")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--penalties", type=float, nargs="+", default=PENALTIES, help="lambda, a panel of the figure each")
    options = parser.parse_args()
    panels = len(options.penalties)
    figure, axes = plt.subplots(1, panels, figsize=(4 * panels, 3.6), sharey=True, layout="constrained", squeeze=False)
    for ax, penalty in zip(axes[0], options.penalties, strict=True):
        task = fm.problems.wgan(penalty)
        for name, method in METHODS.items():
            began = time.perf_counter()
            found = fm.sweep(
                task.problem,
                task.clients,
                method,
                rounds=options.rounds,
                eval_every=1,
                grid=GRID,
                seeds=options.seeds,
                metrics={"error": wgan_error},
            )
            k = best(found)
            after = settled(found.values("error")[k])
            print(
                f"lambda {penalty}: {name} {'stays' if after is not None else 'does not stay'} below {TARGET:g}"
                f"{f' after {after} rounds' if after is not None else ''}, with {found.settings[k]} "
                f"(error at the end {found.values('error')[k, :, -1].mean():.1e}; "
                f"{len(found.settings) * options.seeds} runs in {time.perf_counter() - began:.1f} s)"
            )
            found.plot("error", k, ax=ax, label=name)
        ax.set(title=f"$\\lambda = {penalty}$", xlabel="communication round", yscale="log", ylabel="")
        ax.axhline(TARGET, color="grey", linewidth=0.8, linestyle=":")
        ax.set_ylim(1e-8, 10)
        ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel(r"$(\mu - \hat\mu)^2 + (\sigma - \hat\sigma)^2$")
    for ax in axes[0, :-1]:
        ax.get_legend().remove()
    figure.savefig(options.out, dpi=130)
    print(f"Figure: {options.out}")


if __name__ == "__main__":
    main()
