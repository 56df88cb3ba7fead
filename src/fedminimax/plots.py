"""Pictures: of fairness (who gets what from a model, and at what price to the others), and of what a generator makes.

Each function draws on axes of matplotlib, its own or given, and returns them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedminimax.result import Result

MOST_NAMES = 40
"""More clients than this are not named on an axis."""


def client_bars(
    values: Mapping[str, Any],
    names: Sequence[str] | None = None,
    *,
    label: str = "accuracy",
    higher_is_better: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw every client's value as bars, one a method side by side, the clients that the last method serves worst first.

    Args:
        values: for each method the value of every client, [N]; two methods read best.
        names: the clients' names.
        label: what the values are.
        higher_is_better: whether larger values are better.
        ax: where to draw.
    """
    if not values:
        raise InputError("client_bars needs at least one method's values.")
    table = {method: np.asarray(v, float) for method, v in values.items()}
    count = len(next(iter(table.values())))
    ax = _axes(ax, width=max(5.0, min(14.0, 2.5 + 0.16 * count * len(table))))
    order = np.argsort(list(table.values())[-1] * (1 if higher_is_better else -1), kind="stable")
    width = 0.84 / len(table)
    for k, (method, value) in enumerate(table.items()):
        place = np.arange(count) + (k - (len(table) - 1) / 2) * width
        ax.bar(place, value[order], width, label=method, color=f"C{k}")
        ax.axhline(value.mean(), color=f"C{k}", linestyle=":", linewidth=1)
    if names is not None and count <= MOST_NAMES:
        turn = 0 if max(len(str(n)) for n in names) <= 2 else 90
        ax.set_xticks(np.arange(count), [str(names[i]) for i in order], rotation=turn, fontsize=8)
    else:
        ax.set_xticks([])
    worst = list(table)[-1]
    ax.set(xlabel=f"clients, from the one that {worst} serves worst", ylabel=label, xlim=(-0.6, count - 0.4))
    # Below the bars' heads there is room only outside the axes.
    ax.legend(frameon=False, ncols=len(table), loc="lower left", bbox_to_anchor=(0, 1))
    return _plain(ax)


def sorted_sites(
    values: Mapping[str, Any],
    *,
    label: str = "accuracy",
    higher_is_better: bool = True,
    dashed: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw each method's clients from its worst to its best, as one curve: for more clients than have names on an axis.

    A point (20%, v) says that a fifth of the clients is no better off than v. The worst fifth is shaded.

    Args:
        values: for each method the value of every client, [N].
        label: what the values are.
        higher_is_better: whether larger values are better.
        dashed: the names of baselines, drawn dashed.
        ax: where to draw.
    """
    if not values:
        raise InputError("sorted_sites needs at least one method's values.")
    ax = _axes(ax, width=6.4)
    for name, given in values.items():
        value = np.sort(np.asarray(given, float))[:: 1 if higher_is_better else -1]
        share = (np.arange(len(value)) + 1) / max(len(value), 1)
        ax.step(100 * share, value, "--" if name in dashed else "-", where="pre", label=name, linewidth=1.6)
    ax.axvspan(0, 20, color="0.9", zorder=0)
    ax.set(xlabel="share of clients (%), each method's worst first; shaded: the worst fifth", ylabel=label, xlim=(0, 100))
    ax.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return _plain(ax)


def fairness_scatter(summaries: Mapping[str, Mapping[str, float]], *, label: str = "accuracy", ax: Axes | None = None) -> Axes:
    """Draw each method's worst-20% against its average (filled) and its best-20% (hollow), as Figure 4 of the SCAFF-PD paper.

    Args:
        summaries: for each method "mean", "worst20" and "best20".
        label: what the values are.
        ax: where to draw.
    """
    ax = _axes(ax)
    for k, (method, numbers) in enumerate(summaries.items()):
        ax.plot(numbers["mean"], numbers["worst20"], "o", color=f"C{k}", markersize=9, label=method)
        ax.plot(numbers["best20"], numbers["worst20"], "o", color=f"C{k}", markersize=9, fillstyle="none")
        ax.plot([numbers["mean"], numbers["best20"]], [numbers["worst20"]] * 2, color=f"C{k}", linewidth=1, alpha=0.4)
    ax.set(xlabel=f"average (filled) and best 20% (hollow) {label}", ylabel=f"worst 20% {label}")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))  # lines cross the whole width
    return _plain(ax)


def values_of(result: Result, name: str) -> np.ndarray:
    """Return a metric's or a cost's values, or say which there are."""
    if name not in result.history:
        raise InputError(f"There is no {name!r} in the history of {result.method}: there are {', '.join(result.history)}.")
    if name in result.vectors:
        raise InputError(
            f"{name!r} is an array at every evaluation, not a number: result.plot({name!r}) draws it, and "
            f"result.vectors[{name!r}] has it."
        )
    return result.history[name]


def bands(
    curves: Mapping[str, Sequence[Result]],
    metric: str,
    *,
    against: str = "round",
    label: str | None = None,
    dashed: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric over rounds for several methods or settings: the mean over seeds, with a band from least to greatest.

    With one curve for each rho this is the trade-off of Figure 3 of the SCAFF-PD paper. Where the runs of one name are not
    equally long, it is drawn as far as all of them go, and the legend says so.

    Args:
        curves: for each name its results, one a seed.
        metric: its name in the histories.
        against: what goes on the x-axis.
        label: what the metric is called.
        dashed: the names of baselines, drawn dashed.
        ax: where to draw.
    """
    ax = _axes(ax)
    for name, results in curves.items():
        found = [values_of(result, metric) for result in results]
        common = min(len(one) for one in found)  # a run that was stopped is shorter
        values = np.array([one[:common] for one in found])
        across = np.mean([values_of(result, against)[:common] for result in results], axis=0)
        shorter = any(len(one) > common for one in found)
        shown = f"{name} (all seeds up to round {results[0].history['round'][common - 1]})" if shorter else name
        (line,) = ax.plot(across, values.mean(axis=0), "--" if name in dashed else "-", label=shown, linewidth=1.8)
        ax.fill_between(across, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set(xlabel=against.replace("_", " "), ylabel=(label or metric).replace("_", " "))
    ax.legend(frameon=False, fontsize=8)
    return _plain(ax)


def weight_history(result: Result, names: Sequence[str] | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the weight of every client over rounds, the largest at the end named, and the weights' entropy (right axis).

    The run needs the metric ``ClientWeights(each=True)``.
    """
    history = result.history
    if "w/each" not in history:
        raise InputError("There is no history of w in this result: run with metrics=ClientWeights(each=True).")
    w = history["w/each"]
    ax = _axes(ax)
    heavy = sorted(np.argsort(-w[-1])[:5].tolist())
    ax.plot(history["round"], np.delete(w, heavy, axis=1), color="0.75", linewidth=0.8, zorder=1)
    for i in heavy:
        ax.plot(history["round"], w[:, i], zorder=2, label=str(i) if names is None else names[i], linewidth=1.8)
    ax.set(xlabel="round", ylabel="weight of a client", ylim=(0, None))
    ax.legend(frameon=False, fontsize=8, title="largest at the end", title_fontsize=8)
    right = ax.twinx()
    right.plot(history["round"], history["w/entropy"], "k:", linewidth=1.2)
    right.set(ylabel="entropy of the weights (dotted)", ylim=(0, 1.05))
    right.spines["top"].set_visible(False)
    return _plain(ax)


def sample_grid(
    images: Any, columns: int = 10, path: str | os.PathLike[str] | None = None, *, zoom: int = 2, ax: Axes | None = None
) -> Axes:
    """Draw images side by side, row after row, with a white line between them.

    Args:
        images: [n, height, width], [n, height, width, 1] (grey) or [n, height, width, 3] (red, green, blue), from -1 to 1.
        columns: how many in a row.
        path: also write the grid as a PNG file, each entry of an image ``zoom`` x ``zoom`` pixels, the lines ``zoom`` wide.
        zoom: the size of an entry in the file.
        ax: where to draw.
    """
    pixels = np.asarray(images, float)
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3) or not pixels.size:
        raise InputError(
            f"sample_grid needs images [n, height, width] with 1 or 3 colours, not {np.shape(images)}: reshape them."
        )
    if columns < 1 or zoom < 1:
        raise InputError(f"columns and zoom must be at least 1, but are {columns} and {zoom}.")
    count, height, width, _ = pixels.shape
    across, down = min(columns, count), -(-count // columns)
    sheet = np.ones((down * (height + 1) + 1, across * (width + 1) + 1, 3))
    for k, image in enumerate(pixels):
        top, left = k // columns * (height + 1) + 1, k % columns * (width + 1) + 1
        # Not a number is black: a broken generator should be seen.
        sheet[top : top + height, left : left + width] = np.nan_to_num(np.clip((image + 1) / 2, 0, 1))
    if path is not None:
        from matplotlib.image import imsave

        imsave(path, sheet.repeat(zoom, axis=0).repeat(zoom, axis=1), format="png")
    ax = _axes(ax)
    ax.imshow(sheet, interpolation="nearest")
    ax.set_axis_off()
    return ax


def _axes(ax: Axes | None, width: float = 5.2) -> Axes:
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=(width, 3.8), layout="constrained").subplots()


def _plain(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, axis="y")
    return ax
