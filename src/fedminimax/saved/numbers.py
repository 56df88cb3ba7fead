"""Numbers of a summary, found by name and shown with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLES = {
    "auc": "AUC", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy", "recall": "recall",
    "precision": "precision", "log_loss": "log loss", "brier": "Brier score", "rmse": "RMSE", "mae": "MAE",
}  # fmt: skip
"""What the measures of a summary are called."""
LOWER_IS_BETTER = ("log_loss", "brier", "rmse", "mae")
"""Measures that are losses; all others are shares."""


def first_of(summary: Mapping[str, Any]) -> str | None:
    """Return the name of the measure that comes first."""
    return (summary.get("first") or {}).get("measure")


def score_of(summary: Mapping[str, Any], name: str | None, measure: str | None, part: str) -> dict[str, Any] | None:
    """Return {"value", "low", "high", "spread"} of a method or baseline; None where there is no such number."""
    found = (((summary.get("scores") or {}).get(name) or {}).get(measure) or {}).get(part) or {}
    return found if found.get("value") is not None else None


def show(value: float, measure: str) -> str:
    """Return a number as a reader wants it: "66.0%", or "0.123"."""
    if measure not in LOWER_IS_BETTER:
        return f"{100 * value:.1f}%"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"


def with_interval(number: Mapping[str, Any] | None, measure: str) -> str:
    """Return "66.0% (58.8 to 72.9)", with " ± 1.2" where there is a spread over seeds; "–" where there is no number."""
    if number is None or number.get("value") is None:
        return "–"
    plain = lambda value: show(value, measure).rstrip("%")
    text = show(number["value"], measure)
    if number.get("low") is not None and number.get("high") is not None:
        text += f" ({plain(number['low'])} to {plain(number['high'])})"
    return text if number.get("spread") is None else f"{text} ± {plain(number['spread'])}"
