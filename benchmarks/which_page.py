"""The page "Which method, when", from the table that which_method.py keeps: no number on it is typed by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from which_method import BUDGETS, DIVISIONS, GRADIENTS, ON_CLIENTS, ROOT, SETTINGS, TUNING_SEEDS, UPLOAD, WORKLOADS, read

PAGE, PICTURE = ROOT / "docs" / "which_method.md", ROOT / "docs" / "which_method.png"
LEVEL = 0.05
_SPENT = 0.93
"""Below this share of its budget it is said of a method."""
SAYS = {UPLOAD: "equal upload", GRADIENTS: "equal gradients"}
ABOUT = {
    "wgan": (
        "WGAN", "error", True,
        "A Wasserstein GAN in one dimension learns a Gaussian on ten alike clients, all of which take part (as in "
        "Figure 1 of "
        "fess-gda). The number is the squared error of mean and deviation; at the start it is 1.81, and 0.0100 is a generator "
        "whose deviation has gone to zero.",
    ),
    "fair-classes": (
        "Fair classification", "accuracy, worst class", False,
        "A network with one hidden layer against weights on the ten classes of Fashion-MNIST, on ten clients, half of "
        "whose examples are of one class; all "
        "take part. The number is the test accuracy on the worst class; a model that never says that class has 0.",
    ),
    "fair-clients": (
        "Fair to clients", "accuracy, worst fifth", False,
        "A linear model of Fashion-MNIST against weights on twenty clients (a chi-square penalty of 0.1), four fifths "
        "of whose examples are of one class; all "
        "take part. The number is the mean test accuracy of the worst fifth of the clients. Methods for weights on "
        "clients solve "
        "it as it is, the others as a minimax problem.",
    ),
    "robust": (
        "Robust training", "worst loss in the ball", False,
        "A network with two hidden layers against one shift of all images of MNIST, of length 0.5 at most, on a hundred "
        "clients of one class each, of which ten are asked a round (as in Figure 2 of cd-mage, but in a ball). The number is "
        "the loss on test images under the worst shift that projected ascent finds; a model that says nothing has 2.30.",
    ),
    "auc": (
        "AUC", "area under the curve", False,
        "The area under the ROC curve of one digit against the others, on a hundred clients of one class each, of "
        "which ten are asked a "
        "round (as in Figure 1 of cd-mage). The number is the area on test images; a score that says nothing has 0.5.",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Board:
    """One workload at one budget.

    Attributes:
        values: by method its numbers, a division each.
        better: "lower" or "higher".
        log: whether leads are in powers of ten.
    """

    values: Mapping[str, np.ndarray]
    better: str
    log: bool

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """What can be ranked: the lower, the better; a run without a number comes last."""
        of = (lambda v: np.log10(np.maximum(v, 1e-300))) if self.log else (lambda v: v)
        sign = 1.0 if self.better == "lower" else -1.0
        return {name: np.where(np.isfinite(v), sign * of(v), np.inf) for name, v in self.values.items()}

    @property
    def ranks(self) -> dict[str, np.ndarray]:
        """Each method's rank on every division, from 1."""
        from scipy.stats import rankdata

        table = rankdata(np.stack([*self.scores.values()]), axis=0)
        return dict(zip(self.scores, table, strict=True))

    @property
    def order(self) -> list[str]:
        """The methods, by their mean rank."""
        ranks = self.ranks
        return sorted(ranks, key=lambda name: float(ranks[name].mean()))

    @property
    def best(self) -> str:
        """The method whose mean number is best."""
        scores = self.scores
        return min(scores, key=lambda name: float(scores[name].mean()))

    def level(self) -> list[str]:
        """Return the methods over which the best one's lead is no more than noise."""
        scores, best = self.scores, self.best
        looks = len(scores) - 1
        return [name for name in self.order if name == best or not _ahead(scores[name] - scores[best], looks)]

    @property
    def agreement(self) -> float:
        """Kendall's W: 1 where all divisions rank the methods alike, and near 0 where they have nothing in common."""
        table = np.stack([*self.ranks.values()])
        methods, divisions = table.shape
        total = table.sum(axis=1)
        ties = sum(
            float((counts**3 - counts).sum()) for counts in (np.unique(column, return_counts=True)[1] for column in table.T)
        )
        spread = 12 * float(((total - total.mean()) ** 2).sum())
        return spread / (divisions**2 * (methods**3 - methods) - divisions * ties)

    @property
    def halves(self) -> float:
        """The rank correlation (Spearman) of the mean ranks on one half of the divisions with those on the other."""
        from scipy.stats import spearmanr

        table = np.stack([*self.ranks.values()])
        half = table.shape[1] // 2
        return float(spearmanr(table[:, :half].mean(axis=1), table[:, half:].mean(axis=1)).statistic)


def _ahead(leads: np.ndarray, looks: int) -> bool:
    """Tell whether a lead is beyond its interval, which allows for so many looks (Bonferroni)."""
    from scipy.special import stdtrit

    if not np.isfinite(leads).all():
        return True
    count = len(leads)
    half = float(stdtrit(count - 1, 1 - LEVEL / looks / 2)) * float(leads.std(ddof=1)) / math.sqrt(count)
    return float(leads.mean()) > half


def interval(values: np.ndarray, log: bool) -> tuple[float, float, float]:
    """Return the mean over divisions (geometric where errors differ by orders of magnitude), and its 95% interval."""
    from scipy.special import stdtrit

    kept = np.log10(np.maximum(values, 1e-300)) if log else values
    if not np.isfinite(kept).all():
        return math.nan, math.nan, math.nan
    half = float(stdtrit(len(kept) - 1, 0.975)) * float(kept.std(ddof=1)) / math.sqrt(len(kept))
    ends = (float(kept.mean()), float(kept.mean()) - half, float(kept.mean()) + half)
    return tuple(10**end for end in ends) if log else ends  # type: ignore[return-value]


def boards(rows: list[dict[str, str]]) -> dict[tuple[str, str], Board]:
    """Return a board for each workload and budget in the table."""
    out = {}
    for name in WORKLOADS:
        for budget in BUDGETS:
            own = [row for row in rows if row["workload"] == name and row["budget"] == budget]
            methods = dict.fromkeys(row["method"] for row in own)
            values = {
                m: np.array([float(r["value"]) for r in sorted(own, key=lambda r: int(r["division"])) if r["method"] == m])
                for m in methods
            }
            if own:
                out[name, budget] = Board(values, own[0]["better"], ABOUT[name][2])
    return out


def _shown(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"


def _cell(values: np.ndarray, log: bool) -> str:
    mean, low, high = interval(values, log)
    lost = int((~np.isfinite(values)).sum())
    return f"{_shown(mean)} [{_shown(low)}, {_shown(high)}]" if math.isfinite(mean) else f"{lost} of {len(values)} diverged"


def page(rows: list[dict[str, str]]) -> str:
    """Return the page."""
    known = boards(rows)
    there = [name for name in WORKLOADS if (name, UPLOAD) in known]
    lines = [
        "# Which method, when",
        "",
        "<!-- made by benchmarks/which_method.py -->",
        "",
        f"Every client-server method on {_word(len(there))} workloads, each with {SETTINGS} settings drawn at random "
        f"and tried with "
        f"{len(TUNING_SEEDS)} seeds on one division of the data, chosen there on validation data, and then run on "
        f"{DIVISIONS} other "
        "divisions: other examples, other clients, other initial weights, other cohorts. What is told is of test data "
        "(of the WGAN, "
        "whose solution is known, the error), at two budgets: the floats that all clients send up, and the gradients "
        "of examples that "
        "they compute, both as many as Local SGDA's in its rounds. Settings are chosen anew for each budget. Where "
        "cohorts are drawn, "
        "methods that send twice a round have cohorts of half the size.",
        "",
        "Numbers are means with 95% intervals over divisions; ranks are means over divisions, with the best and the "
        "worst; **bold** are the "
        "methods over which the first one's lead is no more than noise (paired over divisions, allowing for so many looks). "
        "[Choosing a method](choosing.md) says why, and what else counts.",
        "",
        "![Every method on every workload at two budgets, means with intervals](which_method.png)",
        "",
        "## At a glance",
        "",
        "Mean ranks, the first row the best over all columns that a method is in, as a share of the methods there (0 "
        "is always first).",
        "",
    ]  # fmt: skip
    lines += glance(known, there)
    lines += ["", "## Are the ranks stable?", ""]
    lines += [
        "Kendall's W is 1 where every division ranks the methods alike and near 0 where chance does; the other number "
        "correlates the mean "
        "ranks on four divisions with those on the other four.",
        "",
        "| workload | budget | methods | W | one half with the other | first | level with it |",
        "|---|---|---:|---:|---:|---|---:|",
    ]
    for (name, budget), board in known.items():
        lines.append(
            f"| {ABOUT[name][0]} | {SAYS[budget]} | {len(board.values)} | {board.agreement:.2f} | {board.halves:.2f} "
            f"| {board.best} | "
            f"{len(board.level()) - 1} |"
        )
    for name in there:
        title, what, log, about = ABOUT[name]
        lines += ["", f"## {title}", "", about, ""]
        up, gradients = known[name, UPLOAD], known[name, GRADIENTS]
        for budget, board in ((UPLOAD, up), (GRADIENTS, gradients)):
            lines.append(f"{_sentence(board, budget)}")
            lines.append("")
        lines += [
            f"| method | {what}, {SAYS[UPLOAD]} | rank | {SAYS[GRADIENTS]} | rank | rounds |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        top = {budget: known[name, budget].level() for budget in BUDGETS}
        for method in up.order:
            cells = []
            for budget, board in ((UPLOAD, up), (GRADIENTS, gradients)):
                own = _cell(board.values[method], log)
                ranks = board.ranks[method]
                cells += [
                    f"**{own}**" if method in top[budget] else own, f"{ranks.mean():.1f} ({ranks.min():.3g} to "
                    f"{ranks.max():.3g})"
                ]  # fmt: skip
            used = [
                next(r["rounds"] for r in rows if (r["workload"], r["method"], r["budget"]) == (name, method, b))
                for b in BUDGETS
            ]
            lines.append(f"| {method} | {' | '.join(cells)} | {', '.join(dict.fromkeys(used))} |")
    lines += ["", *remarks(rows)]
    return "\n".join(lines) + "\n"


def _word(count: int) -> str:
    return ["no", "one", "two", "three", "four", "five"][count]


def _sentence(board: Board, budget: str) -> str:
    """Say who is first, and over whom that is no more than noise."""
    level = [name for name in board.level() if name != board.best]
    start = f"At {SAYS[budget]} {board.best} is first"
    if not level:
        return f"{start}, ahead of every other method by more than noise."
    if len(level) == len(board.values) - 1:
        return f"{start}, and level with all others: the differences are no more than noise."
    shown = ", ".join(level[:5]) + (f" and {len(level) - 5} more" if len(level) > 5 else "")
    return f"{start}; its lead is no more than noise over {shown}."


def glance(known: Mapping[tuple[str, str], Board], there: list[str]) -> list[str]:
    """Return the table of mean ranks."""
    shares: dict[str, list[float]] = {}
    cells: dict[str, dict[tuple[str, str], str]] = {}
    for key, board in known.items():
        level, ranks = board.level(), board.ranks
        for method, own in ranks.items():
            shares.setdefault(method, []).append((own.mean() - 1) / (len(ranks) - 1))
            text = f"{own.mean():.1f}"
            cells.setdefault(method, {})[key] = f"**{text}**" if method in level else text
    order = sorted(shares, key=lambda m: (m in ON_CLIENTS, float(np.mean(shares[m]))))
    keys = [(name, budget) for name in there for budget in BUDGETS]
    head = [f"{ABOUT[name][0]}, {SAYS[budget].removeprefix('equal ')}" for name, budget in keys]
    lines = [f"| method | share | {' | '.join(head)} |", f"|---|---:|{'---:|' * len(keys)}"]
    for method in order:
        own = [cells[method].get(key, "") for key in keys]
        lines.append(f"| {method} | {np.mean(shares[method]):.2f} | {' | '.join(own)} |")
    return lines


def remarks(rows: list[dict[str, str]]) -> list[str]:
    """Return what one should know of the comparison."""
    seconds = {(row["workload"], row["method"]): float(row["seconds"]) for row in rows}
    first = {}
    for row in rows:
        first.setdefault((row["workload"], row["method"]), row)
    stable = [float(row["diverged"]) for row in first.values()]
    whole = {(r["workload"], r["budget"]): int(r[r["budget"]]) for r in rows if r["method"] == "Local SGDA"}
    used = dict[tuple[str, str, str], float]()
    for r in rows:
        share = int(r[r["budget"]]) / whole.get((r["workload"], r["budget"]), math.inf)
        key = (r["workload"], r["method"], r["budget"])
        used[key] = min(used.get(key, 1.0), share)
    short = [
        f"{m} on {ABOUT[w][0]} ({100 * share:.0f}% of the {'floats' if b == UPLOAD else 'gradients'})"
        for (w, m, b), share in used.items()
        if share < _SPENT
    ]
    return [
        "## What to know of it",
        "",
        "- *Equal tuning is not best tuning.* Twelve draws find a good pair of step sizes; a method with four things "
        "to set is searched "
        "more thinly with them than one with two. That is part of what a method costs.",
        "- *Rows that are the same method.* With equal weights CDMA draws the cohorts of Local SGDA and is it. With "
        "equal local steps "
        "Fed-Norm-SGDA without momentum is FSGDA, so that it is here with momentum; what it is for, unequal local "
        "work, is in "
        "[the reproductions](reproductions.md). Scaff-PD's stale form is SCAFF-PD where nobody is away.",
        "- *Ranges.* The steps of x and y are drawn from the same ranges for all methods of a workload; one step a "
        "round stands for all local "
        "steps, so that methods with one have ranges as many times longer. The settings that won are in the table.",
        "- *Nobody has more than the budget, and some have less*, since a method is read at the last evaluation within it, "
        f"and runs for twice Local SGDA's rounds at most. Below {100 * _SPENT:.0f}% are: {'; '.join(short)}.",
        f"- *Divergence.* {100 * np.mean(stable):.0f}% of the tuning runs of a method diverged in the mean, and at most "
        f"{100 * max(stable):.0f}%.",
        f"- {len(first)} methods on workloads, {len(first) * (SETTINGS * len(TUNING_SEEDS))} runs to tune and up to "
        f"{2 * len(first) * DIVISIONS} to tell: {sum(seconds.values()) / 60:.0f} minutes on two cores, by `python "
        f"benchmarks/which_method.py run`.",
    ]


def figure(rows: list[dict[str, str]], path: Path) -> None:
    """Draw every workload: a line a method, a dot with its interval for each budget."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    known = boards(rows)
    there = [name for name in WORKLOADS if (name, UPLOAD) in known]
    tall = max(len(known[name, UPLOAD].values) for name in there)
    across = min(3, len(there))
    down = -(-len(there) // across)
    fig, axes = plt.subplots(
        down, across, figsize=(4.6 * across, 0.2 * tall * down + 1.2 * down), layout="constrained", squeeze=False
    )
    for ax in axes.flat[len(there) :]:
        ax.set_visible(False)
    for ax, name in zip(axes.flat, there, strict=False):
        order = known[name, UPLOAD].order[::-1]
        for k, (budget, colour) in enumerate(zip(BUDGETS, ("#0072B2", "#D55E00"), strict=True)):
            board = known[name, budget]
            for place, method in enumerate(order):
                mean, low, high = interval(board.values[method], board.log)
                if math.isfinite(mean):
                    at = place + (0.16 if k == 0 else -0.16)
                    ax.plot([low, high], [at, at], color=colour, linewidth=1.6, solid_capstyle="butt")
                    ax.plot([mean], [at], "os"[k], color=colour, markersize=4, label=SAYS[budget] if place == 0 else None)
        if ABOUT[name][2]:
            ax.set_xscale("log")
        ax.set_yticks(range(len(order)), order, fontsize=7.5)
        ax.set_ylim(-0.7, len(order) - 0.3)
        ax.set_title(ABOUT[name][0], fontsize=10)
        ax.set_xlabel(f"{ABOUT[name][1]} ({known[name, UPLOAD].better} is better)", fontsize=8)
        ax.tick_params(axis="x", labelsize=8)
        ax.grid(axis="x", alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    handles = [h for h in axes.flat[0].get_legend_handles_labels()[0]]
    fig.legend(handles, [SAYS[b] for b in BUDGETS], loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    fig.savefig(path, dpi=120)
    plt.close(fig)


def write() -> None:
    """Write the page and its figure."""
    rows = read()
    PAGE.write_text(page(rows))
    figure(rows, PICTURE)
    print(json.dumps({"page": PAGE.name, "rows": len(rows)}))
