"""The same curves and bars as files: PNG for slides, PDF for papers. Lines differ in dash and marker, not in hue alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedminimax import plots
from fedminimax.report import payload
from fedminimax.report.curves import AXES, ROUND, lines
from fedminimax.report.evidence import Evidence
from fedminimax.report.material import OWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#007A5A", "#A9527F", "#8A6300", "#2A2F36", "#3D87C9", "#6B4BA3")
"""Told apart by eyes that see colours less well; as on the page."""
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 2, 1, 2)))
MOST_POINTS = 600
"""More than a figure in a paper can show."""
MARKERS = "osD^PX*vph"
HATCHES = ("///", "")


def draw(evidence: Evidence, metric: str, folder: Path) -> list[Path]:
    """Draw the curves of a metric, and every client's numbers where there are any, into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = _save(curve_axes(evidence, metric), folder, f"curves_{metric}")
    drawn: set[str] = set()
    for one in payload.bars(evidence):
        name, values = one.metric, one.values
        if name in drawn:  # of clients that differ from run to run the first ones do
            continue
        drawn.add(name)
        shown = [label for label in dict.fromkeys([*evidence.leaders(metric), *values]) if label in values][:2]  # two read best
        higher = evidence.better.get(name) != "lower"
        two = {label: values[label] for label in reversed(shown)}
        numbers = [str(k) for k in range(one.count)]
        ax = plots.client_bars(two, numbers, label=f"{one.title} (dotted: the mean)", higher_is_better=higher)
        for label, bars, mean, hatch in zip(reversed(shown), ax.containers, ax.lines, HATCHES, strict=False):
            colour = COLOURS[evidence.labels.index(label) % len(COLOURS)]
            mean.set_color(colour)
            for bar in bars:
                bar.set(hatch=hatch, facecolor=colour, edgecolor="white")
        ax.legend(frameon=False, ncols=len(shown), loc="lower left", bbox_to_anchor=(0, 1))
        made += _save(ax, folder, f"clients_{name}")
    return made


def curve_axes(evidence: Evidence, metric: str, against: str = ROUND) -> Axes:
    """Draw a metric of every method into a figure of its own."""
    from matplotlib.figure import Figure

    ax = Figure(figsize=(6.0, 4.2), layout="constrained").subplots()
    draw_curves(ax, evidence, metric, against)
    return ax


def draw_curves(
    ax: Axes, evidence: Evidence, metric: str, against: str = ROUND, labels: Sequence[str] = (), legend: bool = True
) -> None:
    """Draw a metric of every method: the mean over seeds, and a band from the least to the greatest.

    Args:
        ax: where.
        evidence: of the runs.
        metric: what to draw.
        against: what to draw it against.
        labels: all methods that have colours, in their order; by default those of the evidence.
        legend: whether to say which curve is whose.
    """
    drawn = [one for one in lines(evidence, MOST_POINTS) if metric in one.bands and against in one.across]
    positive = True
    for one in drawn:
        band, k = one.bands[metric], (labels or evidence.labels).index(one.label)
        x, colour = one.across[against][band.places], COLOURS[k % len(COLOURS)]
        every = max(1, len(x) // 8)
        ax.plot(
            x, band.mean, label=one.label + (f" ({one.note})" if one.note else ""), color=colour, linewidth=1.8,
            linestyle=DASHES[k % len(DASHES)], marker=MARKERS[k % len(MARKERS)], markersize=5, markevery=every,
        )  # fmt: skip
        if one.seeds > 1:
            ax.fill_between(x, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
        positive = positive and bool((band.low > 0).all())
    spans = [one.bands[metric].mean for one in drawn if len(one.bands[metric].mean)]
    if spans and positive and max(s.max() for s in spans) > 50 * min(s.min() for s in spans):
        ax.set_yscale("log")  # a linear axis would show the first rounds only
    if against == ROUND:
        ax.locator_params(axis="x", integer=True)
    ax.set(xlabel=AXES[against], ylabel=evidence.called(metric))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, axis="y")
    if legend:
        ax.legend(frameon=False, fontsize=8, handlelength=3.2)


def _save(ax: Axes, folder: Path, name: str) -> list[Path]:
    import matplotlib

    safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
    paths = [folder / f"{OWN}{safe}.{kind}" for kind in ("png", "pdf")]
    figure = ax.get_figure(root=True)
    assert figure is not None
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # fonts that journals take: outlines, and no programs that draw letters
        for path in paths:
            figure.savefig(path, dpi=160)
            figure.set_layout_engine("none")  # it is laid out once
    return paths
