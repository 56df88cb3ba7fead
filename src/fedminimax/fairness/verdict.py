"""What the numbers say, in sentences: whether a lead is more than noise, and what to be careful about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedminimax.fairness.bootstrap import LEVEL, Scored, interval
from fedminimax.fairness.measures import Measure
from fedminimax.fairness.rows import Rows

FEW = 5
"""A site with fewer test rows of the positive class has an AUC that says little."""
_NAMED = 5
_PARTS = {"worst20": "worst-20%", "average": "average", "worst": "worst site's", "all": "all-rows"}


@dataclass(frozen=True)
class Lead:
    """The difference between two models in one number, over the same test rows.

    Attributes:
        first: the one.
        other: the other.
        measure: the number's name.
        part: which summary of the sites.
        value: the first's less the other's; positive: the first is better, whichever way the measure goes.
        low: of its interval over test rows.
        high: likewise.
        spread: its standard error over seeds; NaN: one seed.
        more_than_noise: whether the interval leaves out 0, and with several seeds the lead is above two standard errors too.
        sentence: all that in words.
    """

    first: str
    other: str
    measure: str
    part: str
    value: float
    low: float
    high: float
    spread: float
    more_than_noise: bool
    sentence: str


def lead(first: str, other: str, scores: dict[str, Scored], measure: Measure, part: str = "worst20") -> Lead | None:
    """Return the lead of one model over another, judged on the same draws of test rows; None where there is no such number."""
    sign = 1.0 if measure.higher_is_better else -1.0
    points = [scores[name].points[measure.name][part] for name in (first, other)]
    draws = [scores[name].draws[measure.name][part] for name in (first, other)]
    value = sign * float(points[0].mean() - points[1].mean())
    if not np.isfinite(value):
        return None
    low, high = interval(sign * (draws[0] - draws[1]))
    spread = np.nan
    if min(len(p) for p in points) > 1:
        spread = float(np.sqrt(sum(np.var(p, ddof=1) / len(p) for p in points)))
    outside = low > 0 or high < 0
    real = outside and not abs(value) <= 2 * spread if np.isfinite(spread) else outside
    return Lead(
        first, other, measure.name, part, value, low, high, spread, real,
        _sentence(first, other, measure, part, value, low, high, outside, real),
    )  # fmt: skip


def _sentence(
    first: str, other: str, measure: Measure, part: str, value: float, low: float, high: float, outside: bool, real: bool
) -> str:
    # A loss that is lower is better: the words go by the number as it is shown.
    shown = value if measure.higher_is_better else -value
    ends = (low, high) if measure.higher_is_better else (-high, -low)
    scale = 100 if measure.percent else 1
    ends = ends if shown >= 0 else (-ends[1], -ends[0])
    spelled = [f"{scale * end:.1f}".replace("-0.0", "0.0") if measure.percent else f"{end:.3g}" for end in ends]
    side = "above" if shown >= 0 else "below"
    text = f"{first}'s {_PARTS[part]} {measure.title} is {measure.gap(shown)}{measure.unit} {side} {other}'s "
    text += f"({LEVEL:.0%} interval {spelled[0]} to {spelled[1]}): "
    better = "better" if value >= 0 else "worse"
    if real:
        return f"{text}{better}, by more than noise."
    return text + ("no more than the spread over seeds." if outside else "not more than noise over these test rows.")


def cautions(
    names: Sequence[str], rows: Rows, scores: dict[str, Scored], methods: Sequence[str], first: Measure, loss: str
) -> list[str]:
    """Return what a reader of the tables should know of them.

    Args:
        names: the sites'.
        rows: the test rows.
        scores: of the models.
        methods: those that are not baselines.
        first: the measure shown first.
        loss: what was trained with.
    """
    found = []
    values = scores[methods[0]].sites[first.name][0]
    without = [name for name, value in zip(names, values, strict=True) if not np.isfinite(value)]
    if without:
        found.append(
            f"{_listed(without)} {'has' if len(without) == 1 else 'have'} test rows of one class only, so no {first.title}: "
            f"left out of the average and the worst 20%, which are over {len(names) - len(without)} sites."
        )
    if first.name == "auc":
        few = [n for n, p, v in zip(names, rows.positives, values, strict=True) if p < FEW and np.isfinite(v)]
        if few:
            verb = "has" if len(few) == 1 else "have"
            found.append(f"{_listed(few)} {verb} fewer than {FEW} positive test rows: an AUC of so few says little.")
    bias = scores[methods[0]].picking * (-1 if first.higher_is_better else 1)
    if len(names) - len(without) > 1 and bias > (0.005 if first.percent else 0.01 * abs(_level(scores[methods[0]], first))):
        found.append(
            f"The worst 20% are picked by the same noisy test rows, so that they look worse than they are, here by about "
            f"{first.gap(bias)}{first.unit}; compare methods by it, and do not take it for what a site will see."
        )
    if rows.classes and loss == "squared":
        found.append("With the squared loss, probabilities are the scores clipped at 0 and normalised: rough ones.")
    return found


def alone(kept: str, local: str, scores: dict[str, Scored], first: Measure) -> list[str]:
    """Return a sentence where sites are better off with models of their own than with the one to keep, by more than noise."""
    own = lead(local, kept, scores, first, "average") if local in scores else None
    if own is None or not own.more_than_noise or own.value < 0:
        return []
    shown = [first.gap(number) for number in (own.value, own.low, own.high)]
    return [
        f"Sites are better off alone: models of their own have an average {first.title} {shown[0]}{first.unit} better than "
        f"{kept}'s ({LEVEL:.0%} interval {shown[1]} to {shown[2]}). One such model cannot serve sites that differ so much; "
        "a larger one (--hidden 32), or a feature that tells them apart, might."
    ]


def _level(scored: Scored, measure: Measure) -> float:
    return float(scored.points[measure.name]["average"].mean())


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
