"""The figures of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedminimax import plots
from fedminimax.fairness.measures import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedminimax.fairness.comparison import Comparison

_CURVES = {
    "client_accuracy": "test accuracy",
    "client_error": "test RMSE",
    "client_loss": "test loss",
}


def draw(found: Comparison, folder: Path) -> list[Path]:
    """Draw a comparison into a folder, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [_save(site_axes(found), folder, "clients"), _save(interval_axes(found), folder, "intervals")]
    scatter = plots.fairness_scatter({m: found.summary(m) for m in found.results}, label=f"test {found.label}")
    drawn.append(_save(scatter, folder, "scatter"))
    history = next(iter(found.results.values()))[0].history
    curve = next(name for name in _CURVES if f"{name}/mean" in history)
    for part, title in (("worst20", "worst 20%"), ("mean", "average")):
        ax = plots.bands(found.results, f"{curve}/{part}", label=f"{_CURVES[curve]}, {title}")
        drawn.append(_save(ax, folder, f"rounds_{part}"))
    for method, results in found.results.items():
        if results[0].y is not None:
            ax = plots.weight_history(results[0], found.weighed or found.federation.names)
            drawn.append(_save(ax, folder, f"weights_{method.replace(':', '_')}"))
    return drawn


def site_axes(found: Comparison) -> Axes:
    """Draw every site's first number by two methods: bars with names, or sorted curves where there are many sites."""
    methods = list(found.results)[:2]
    values = {m: found.values[m].mean(axis=0) for m in methods}
    there = np.all([np.isfinite(v) for v in values.values()], axis=0)
    names = [name for name, ok in zip(found.federation.names, there, strict=True) if ok]
    shown = {m: v[there] for m, v in values.items()}
    label = f"test {found.label}"
    if len(names) <= plots.MOST_NAMES:
        return plots.client_bars(shown, names, label=label, higher_is_better=found.higher_is_better)
    shown |= {b: v[np.isfinite(v)] for b in found.baselines for v in [found.scores[b].sites[found.choice.measure.name][0]]}
    return plots.sorted_sites(shown, label=label, higher_is_better=found.higher_is_better, dashed=found.baselines)


def interval_axes(found: Comparison) -> Axes:
    """Draw average and worst 20% of the first measure with their intervals, methods above baselines."""
    from matplotlib.figure import Figure

    measure, names = found.choice.measure, list(found.scores)
    ax: Axes = Figure(figsize=(6.4, 1.2 + 0.5 * len(names)), layout="constrained").subplots()
    for k, (part, title) in enumerate({"average": "average of sites", "worst20": "worst 20% of sites"}.items()):
        for place, name in enumerate(names):
            value, low, high, _ = found.number(name, measure.name, part)
            scale = _scale(measure)
            height = len(names) - place + (0.14 if k == 0 else -0.14)
            ax.plot([scale * low, scale * high], [height, height], color=f"C{k}", linewidth=2)
            ax.plot(scale * value, height, "os"[k], color=f"C{k}", label=title if place == 0 else None)
    ax.set_yticks(range(len(names), 0, -1), [n if n in found.results else f"{n} (baseline)" for n in names])
    unit = " (%)" if measure.percent else ""
    ax.set(xlabel=f"test {measure.title}{unit}, with 95% intervals over test rows", ylim=(0.4, len(names) + 0.6))
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, axis="x")
    return ax


def _scale(measure: Measure) -> float:
    return 100.0 if measure.percent else 1.0


def _save(ax: Axes, folder: Path, name: str) -> Path:
    path = folder / f"{name}.png"
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.savefig(path, dpi=150)
    return path
