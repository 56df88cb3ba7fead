"""The experiments of the CD-MAGE paper (section 5): 500 clients of one class each, nine methods, equal upload.

    python benchmarks/cross_device.py auc --rounds 240
    python benchmarks/cross_device.py robust --data fashion_mnist --rounds 300
    python benchmarks/cross_device.py gan --methods CD-MAGE CD-MA --rounds 150 --features 16 --lr 0.2 0.05 --nonsaturating

Each run goes into results/cross_device.csv when it ends, and is not repeated; the figure and the table are made of all that is
there (`--figures` makes them alone). The step sizes are those of the paper's Tables 1, 2 and 3.
"""

import argparse
import time

import jax
import matplotlib

matplotlib.use("Agg")
import numpy as np

import fedminimax as fm
from fedminimax import plots
from fedminimax.compare import at_upload, upload
from fedminimax.data import datasets, partition
from tables import CROSS_DEVICE, Record, Run

FOLDER = CROSS_DEVICE.folder
ROOT = 10**0.5
"""The grids of the paper step by this factor: 3.162e-1 = 10^-0.5."""


def methods(steps: int, batch: int, table: dict) -> dict:
    """Return the nine methods with the step sizes of a table; the cohorts are those of S = 10, to be matched."""
    common = {"local_steps": steps, "batch_size": batch, "cohort_size": 10}
    mage, ma, parallel, plus, extra, momentum, coda, catalyst, codasca = table.values()
    both = lambda lr, **more: {"lr_x": lr, "lr_y": lr, **more, **common}
    prox = lambda lr, theta, every: both(lr, theta=theta, restart_every=every)
    # As in the authors' code: steps a third as long after each K_0 local steps, fresh second batches, no state on clients.
    staged = lambda *setting: prox(*setting) | {"stage_decay": 1 / 3}
    return {
        "CD-MA": fm.CDMA(*ma, **common),
        "CD-MAGE": fm.CDMAGE(*mage, **common),
        "CD-MAGE+": fm.CDMAGEPlus.decaying(*momentum, **common),
        "Parallel SGDA": fm.ParallelSGDA(*parallel, cohort_size=10),
        "Local SGDA+": fm.LocalSGDAPlus(*plus, **common),
        "Extra Step Local SGD": fm.ExtraStepLocalSGD(**both(extra, fresh_batch=True)),
        "CODA+": fm.CODAPlus(**staged(*coda)),
        "CODASCA": fm.CODASCA(**staged(*codasca[:3]), server_lr_x=codasca[3], server_lr_y=codasca[3]),
        "Catalyst-Scaffold-S": fm.CatalystScaffoldS(**prox(*catalyst), keep="nothing"),
    }


NAMES = ("CD-MAGE", "CD-MA", "Parallel SGDA", "Local SGDA+", "Extra Step", "CD-MAGE+", "CODA+", "Catalyst", "CODASCA")
TABLES = {
    # Table 1, MNIST
    ("auc", "mnist"): (
        (1 / ROOT, 0.1 / ROOT), (1.0, 1 / ROOT), (1.0, 1.0), (1.0, 1 / ROOT), 1 / ROOT, (1 / ROOT, 1e-2, 5, 1 / 5),
        (1 / ROOT, 0.0, 2000), (0.1, 0.0, 2000), (1.0, 0.0, 2000, 1.1),
    ),
    # Table 1, CIFAR-10
    ("auc", "cifar10"): (
        (0.1, 1 / ROOT), (1 / ROOT, 0.1 / ROOT), (1.0, 0.1 / ROOT), (0.1, 1e-2), 0.1, (1 / ROOT, 1.0, 10, 1 / 5),
        (0.1, 0.0, 2000), (0.1, 0.0, 2000), (1 / ROOT, 0.0, 2000, 1.0),
    ),
    # Table 2
    ("robust", "mnist"): (
        (1e-3, 1 / ROOT), (1e-3, 0.1 / ROOT), (1e-2, 1.0), (1e-3, 0.1 / ROOT), 1e-3 / ROOT, (1e-2, 1.0, 5, 1 / 3),
        (1e-2, 0.1, 2000), (1e-3, 10.0, 2000), (0.01 / ROOT, 10.0, 2000, 1.0),
    ),
    ("robust", "fashion_mnist"): (
        (1e-3, 1e-1), (1e-3, 0.1 / ROOT), (1e-2, 1 / ROOT), (1e-3, 0.1 / ROOT), 1e-3, (1e-2, 1.0, 5, 1 / 3),
        (1e-3, 0.0, 2000), (1e-3, 0.1, 4000), (0.01 / ROOT, 0.1, 4000, 1.1),
    ),
    # Table 3
    ("gan", "mnist"): (
        (1e-2, 1e-2), (1e-3, 1e-2), (1e-2, 1e-2), (1e-2, 1e-3), 1e-3, (1e-2, 1e-2, 10, 1 / 5),
        (1e-2, 0.0, 2000), (1e-2, 0.0, 2000), (1e-2, 0.1, 4000, 1.0),
    ),
    ("gan", "fashion_mnist"): (
        (1e-2, 1e-3), (1e-3, 1e-3), (1e-2, 1e-2), (1e-3, 1e-3), 1e-3, (1e-2, 1e-3, 10, 1 / 5),
        (1e-2, 0.1, 2000), (1e-2, 0.1, 4000), (1e-2, 0.1, 4000, 1.0),
    ),
}  # fmt: skip


def task(
    kind: str, data: str, features: int, seed: int, cache: str | None = None, saturating: bool = True, pooled: bool = False
):
    """Return the problem, its clients, the metrics, and the metric that the figure shows."""
    images = datasets.load(data)
    arrays = lambda part: {"inputs": 2 * part["inputs"] - 1, "labels": part["labels"]}
    train, test = arrays(images.train), arrays(images.test)
    owner = partition.by_class(train["labels"], 500)
    if kind == "auc":
        train, test = (a | {"labels": partition.one_vs_rest(a["labels"], 0)} for a in (train, test))
        clients = fm.ClientData.from_owner(train, owner, batching="epochs")
        network = (
            fm.models.LeNet5(last_relu=True, initializer="pytorch")
            if data == "mnist"
            else fm.models.TutorialCNN(initializer="pytorch")
        )
        problem = fm.problems.auc(network, clients, seed=seed)
        return problem, clients, {"auc": fm.metrics.AUC(), "test_auc": fm.metrics.AUC(data=test)}, "auc"
    clients = fm.ClientData.from_owner(train, owner, batching="epochs")
    if kind == "robust":
        problem = fm.problems.robust_training(fm.models.MLP(initializer="pytorch"), clients, images.classes, seed=seed)
        # The worst loss in the ball that the penalty stands for: with lambda = 0.001 alone the worst y is thousands long.
        judge = lambda **data: fm.metrics.PGD(radius=1.0, steps=15, restarts=1, examples=1000, **data)
        return problem, clients, {"train": judge(), "test": judge(data=test)}, "train/loss"
    pair = fm.models.DCGANGenerator(features=features), fm.models.DCGANDiscriminator(features=features)
    if pooled:
        pair = fm.models.PooledGenerator(features=features), fm.models.PooledDiscriminator(features=features // 2)
    problem = fm.problems.gan(*pair, clients, saturating=saturating, seed=seed)
    classifier = fm.metrics.train_classifier(data, fm.models.CNN(), epochs=3, cache=cache)
    return problem, clients, {"inception": fm.metrics.InceptionScore(classifier)}, "inception/score"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("auc", "robust", "gan"))
    parser.add_argument("--data", default="mnist", choices=("mnist", "fashion_mnist", "cifar10"))
    parser.add_argument("--rounds", type=int, default=240)
    parser.add_argument("--every", type=int, default=20, help="rounds between evaluations")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--features", type=int, default=32, help="of the GAN's networks")
    parser.add_argument("--lr", type=float, nargs=2, help="step sizes of x and y for all methods, in place of the paper's")
    parser.add_argument("--nonsaturating", action="store_true", help="the generator descends on -log D (GAN only)")
    parser.add_argument("--pooled", action="store_true", help="the networks of the authors' code, at --features 64 (GAN only)")
    parser.add_argument("--cache", help="folder of the classifier that the Inception score is taken with")
    parser.add_argument("--figures", action="store_true", help="run nothing: draw and tabulate what there is")
    options = parser.parse_args()

    if (options.kind, options.data) not in TABLES:
        parser.error(f"The paper has no {options.kind} on {options.data}: there are {', '.join(' '.join(k) for k in TABLES)}.")
    table = dict(zip(NAMES, TABLES[options.kind, options.data], strict=True))
    steps, batch = (20, 30) if options.kind == "gan" else (10 if options.data == "cifar10" else 12, 10)
    chosen = methods(steps, batch, table)
    if (options.kind, options.data) == ("auc", "mnist"):  # from the same grid
        common = {"local_steps": steps, "batch_size": batch, "cohort_size": 10}
        chosen["CD-MAGE+ c=1"] = fm.CDMAGEPlus.decaying(1.0, 0.1 / ROOT, 5, 1 / 5, **common)
        chosen["CD-MAGE+ c=1 rho=third"] = fm.CDMAGEPlus.decaying(1.0, 1e-2, 5, 1 / 3, **common)
        chosen["CD-MA with CD-MAGE steps"] = fm.CDMA(*table["CD-MAGE"], **common)
    if options.lr:
        chosen = {name: method.replace(lr_x=options.lr[0], lr_y=options.lr[1]) for name, method in chosen.items()}
        # With Table 3's c_alpha and rho alpha is 1 for 316 rounds: with constant steps that is CD-MAGE itself.
        chosen["CD-MAGE+"] = chosen["CD-MAGE+"].replace(alpha=fm.PowerDecay(5, 2 / 3, cap=1.0))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in [] if options.figures else options.seeds:
        saturating = not options.nonsaturating
        problem, clients, metrics, _ = task(
            options.kind, options.data, options.features, seed, options.cache, saturating, options.pooled
        )
        floats = upload(problem, clients, chosen["CD-MA"])
        for name in options.methods or chosen:
            run = (options.kind, options.data, name, str(seed))
            method = at_upload(problem, clients, chosen[name], floats)
            setting = {
                "settings": settings(method),
                "rounds": options.rounds,
                "features": options.features,
                "saturating": saturating,
                "pooled": options.pooled,
            }
            saved = CROSS_DEVICE.read().get(run)
            if saved is not None:
                check_same(run, saved, setting)
                continue
            started = time.perf_counter()
            result = fm.run(
                problem, clients, method, rounds=options.rounds, seed=seed, eval_every=options.every, metrics=metrics
            )
            taken = time.perf_counter() - started
            record = {k: np.asarray(v, float).round(6).tolist() for k, v in result.history.items()}
            record |= setting | {"cohort": method.cohort_size, "seconds": round(taken, 1)}
            CROSS_DEVICE.add({run: record})
            numbers = {k: round(v, 4) for k, v in result.final().items() if k not in result.costs}
            print(f"{' '.join(run)}: {numbers} ({taken:.0f} s)", flush=True)
            if options.kind == "gan":
                pictures = problem.generate(result.x, jax.random.key(seed), 100)
                plots.sample_grid(np.asarray(pictures), path=FOLDER / f"{'-'.join(run).replace(' ', '_')}.png")
    draw(options.kind, options.data)


def settings(method: object) -> str:
    """Return the method with what was chosen; without the one argument that is newer than most of the saved runs."""
    return repr(method).replace(", same_cohort=False", "")


def check_same(run: Run, saved: Record, setting: Record) -> None:
    """Stop unless the saved run of that name is the one that is asked for."""
    saved = {"rounds": saved["round"][-1], "pooled": False} | saved
    other = {k: saved[k] for k in setting if k in saved and saved[k] != setting[k]}
    if other:
        raise SystemExit(
            f"{' '.join(run)} was run with {other}, not { ({k: setting[k] for k in other}) }: delete its rows of "
            f"{CROSS_DEVICE.path.name} to run it anew."
        )


def draw(kind: str, data: str) -> None:
    """Draw what has been run: the median over seeds with a band from quartile to quartile, against the rounds."""
    from matplotlib.figure import Figure

    curves: dict[str, list[dict]] = {}
    for (of, on, name, _), record in CROSS_DEVICE.read().items():
        if (of, on) == (kind, data):
            curves.setdefault(name, []).append(record)
    papers = methods(1, 1, dict(zip(NAMES, TABLES[kind, data], strict=True)))
    metric = {"auc": "auc", "robust": "train/loss", "gan": "inception/score"}[kind]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    order = sorted(curves, key=lambda n: np.median([c[metric][-1] for c in curves[n]]), reverse=kind != "robust")
    for name in order:
        runs = curves[name]
        rounds = sorted(set.intersection(*(set(c["round"]) for c in runs)))  # runs may have been evaluated at other rounds
        values = np.array([[c[metric][c["round"].index(t)] for t in rounds] for c in runs])
        last = np.sort(values[:, -1])
        print(f"{name:24s} {metric} median {np.median(last):.4f} mean {last.mean():.4f} from {last[0]:.4f} to {last[-1]:.4f} "
              f"floats up {runs[0]['floats_up'][-1]:.3g} seeds {len(runs)}")  # fmt: skip
        if name in papers:
            low, middle, high = np.quantile(1 - values if kind == "auc" else values, (0.25, 0.5, 0.75), axis=0)
            (line,) = ax.plot(rounds, middle, label=name, linewidth=2.2 if "MAGE" in name else 1.2)
            if kind != "auc" or "MAGE" in name or name == "Parallel SGDA":  # the others' would cover all of the figure
                ax.fill_between(rounds, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
    if kind == "auc":
        ax.set_yscale("log")
    if kind == "robust":
        ax.set_ylim(0.4, 2.5)
    ax.set(xlabel="rounds (equal floats up)", ylabel="1 - AUC" if kind == "auc" else metric.replace("/", " "))
    ax.legend(frameon=False, fontsize=8, loc="lower left" if kind == "auc" else "best")
    figure.savefig(FOLDER / f"{kind}-{data}.png", dpi=130)


if __name__ == "__main__":
    main()
