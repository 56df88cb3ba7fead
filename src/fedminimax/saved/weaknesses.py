"""What a model is known to be bad at, in sentences with numbers: found in the summary of its tests, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedminimax.saved.numbers import LOWER_IS_BETTER, TITLES, first_of, score_of, show, with_interval

MAJORITY, LOCAL = "majority", "local"
_NAMED = 5


def weaknesses(summary: Mapping[str, Any], spec: Mapping[str, Any]) -> list[str]:
    """Return the worst site, the positive class, sites of one class, the largest gap between groups, and what was noted."""
    kept = summary.get("winner") or spec["method"]
    found = [
        *_worst_site(summary, kept),
        *_positive(summary, kept),
        *_nobody(summary, kept),
        *_one_class(summary),
        *_groups(summary, kept),
    ]
    return [*found, *(str(note) for note in summary.get("notes") or [])]


def _worst_site(summary: Mapping[str, Any], kept: str) -> list[str]:
    measure, sites = first_of(summary), summary.get("worst_sites") or []
    if measure is None or not sites or sites[0].get(kept) is None:
        return []
    worst, positive = sites[0], summary.get("positive")
    number = with_interval({"value": worst[kept], "low": worst.get("low"), "high": worst.get("high")}, measure)
    rows = f" on {worst['test_rows']} test rows" if worst.get("test_rows") is not None else ""
    if worst.get("positive_rows") is not None and positive is not None:
        rows += f", {worst['positive_rows']} of them {positive}"
    text = f"The worst site is {worst.get('site')}: {TITLES.get(measure, measure)} {number}{rows}"
    average = score_of(summary, kept, measure, "average")
    if average is not None:
        text += f"; the average of sites is {show(average['value'], measure)}"
    own = worst.get(LOCAL)
    if own is not None and (own < worst[kept] if measure in LOWER_IS_BETTER else own > worst[kept]):
        text += f". A model of that site's own rows alone has {show(own, measure)} there"
    return [text + "."]


def _positive(summary: Mapping[str, Any], kept: str) -> list[str]:
    positive = summary.get("positive")
    recall, precision = (score_of(summary, kept, measure, "all") for measure in ("recall", "precision"))
    if positive is None or recall is None:
        return []
    text = f"Of the test rows that are {positive} it finds {with_interval(recall, 'recall')}"
    if precision is None:
        return [f"{text}. It calls no row {positive}."]
    return [f"{text}; of those that it calls {positive}, {with_interval(precision, 'precision')} are."]


def _nobody(summary: Mapping[str, Any], kept: str) -> list[str]:
    """Say whether predicting the commonest class for everybody gets as much accuracy."""
    own, nobody = (score_of(summary, name, "accuracy", "all") for name in (kept, MAJORITY))
    if own is None or nobody is None or own["value"] > nobody["value"]:
        return []
    return [
        f"Predicting the commonest class for everybody has the accuracy {show(nobody['value'], 'accuracy')} over all test "
        f"rows, the model {show(own['value'], 'accuracy')}: accuracy does not show what it is good for."
    ]


def _one_class(summary: Mapping[str, Any]) -> list[str]:
    names = []
    for row in summary.get("sites") or []:
        counts, positive, tested = row.get("classes"), row.get("test_positive"), row.get("test")
        kinds = sum(count > 0 for count in counts.values()) if counts else 2
        if kinds < 2 or (not counts and positive is not None and positive in (0, tested)):
            names.append(str(row.get("site")))
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [
        "Sites whose rows are all of one class, where nothing shows whether it tells classes apart: "
        f"{', '.join(names[:_NAMED])}{more}."
    ]


def _groups(summary: Mapping[str, Any], kept: str) -> list[str]:
    """Name the two groups that are furthest apart in a rate."""
    rates = (summary.get("groups") or {}).get(kept) or {}
    found = []
    for rate, words in (("tpr", "finds of the positive rows"), ("fpr", "calls of the others")):
        gap = (rates.get("gaps") or {}).get(rate.upper()) or {}
        values = {
            name: group[rate]["value"]
            for name, group in (rates.get("groups") or {}).items()
            if name not in ((rates.get("few") or {}).get(rate.upper()) or [])
            and (group.get(rate) or {}).get("value") is not None
        }
        if gap.get("value") is None or len(values) < 2:
            continue
        high, low = max(values, key=lambda name: values[name]), min(values, key=lambda name: values[name])
        noise = ", which may be noise" if gap.get("low") is not None and gap["low"] <= 0 else ""
        found.append(
            f"Between groups it {words} most in {high} ({show(values[high], rate)}) and least in {low} "
            f"({show(values[low], rate)}), a gap of {with_interval(gap, rate).replace('%', ' points')}{noise}."
        )
    return found
