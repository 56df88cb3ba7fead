"""Who is best, and is it more than noise? Runs are compared at the same round, seed by seed.

A method's lead on another is tested with a paired t-test over the seeds that both have, two-sided. The best is chosen after the
numbers are seen, from k methods; multiplying its k - 1 p-values by k - 1 (Bonferroni) keeps the chance that a method is praised
which is not the best one below the level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax.errors import InputError
from fedminimax.folders import DIVERGED, FINISHED, STOPPED, Record
from fedminimax.report import caveats
from fedminimax.report.words import listed, number, p_value, quantity

if TYPE_CHECKING:
    import pandas as pd

LEVEL, FEWEST = 0.05, 3
"""The level of the test, and how many pairs of seeds it needs at least."""
BEST, SAME, NOISE, BEHIND, FEW, OUT, UNKNOWN = "best", "same", "noise", "behind", "few", "out", "unknown"
"""What is said of a method: see :attr:`Row.verdict`."""


@dataclass(frozen=True)
class Row:
    """One method on one metric.

    Attributes:
        label: the method.
        metric: the metric.
        values: its value with every seed, at the round of the comparison; those that are finite.
        verdict: "best"; "same" (to all digits as the best), "noise" (not told apart from the best), "behind" (by more than
            noise), "few" (seeds, too few to tell), "out" (has no finite value, or diverged with some seeds), "unknown" (nothing
            says which way the metric is better).
        behind: by how much the best leads, over the seeds that both have; None where there are none.
        interval: a 95% interval of that lead; None with fewer than three pairs.
        pairs: how many seeds both have.
        p: of the paired t-test, times the number of comparisons; None where it was not done.
        constant: whether the lead is the same number with every seed.
        lost: how many of its runs diverged or are not finite here.
        diverged: how many of these diverged.
    """

    label: str
    metric: str
    values: dict[int, float]
    verdict: str = UNKNOWN
    behind: float | None = None
    interval: tuple[float, float] | None = None
    pairs: int = 0
    p: float | None = None
    constant: bool = False
    lost: int = 0
    diverged: int = 0

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(list(self.values.values()))) if self.values else float("nan")

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; NaN of a single one."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else float("nan")

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        how = "diverged" if self.lost == self.diverged else "diverged or not finite" if self.diverged else "not finite"
        lost = f"{self.lost} of {self.lost + len(self.values)} runs {how}" if self.lost else ""
        if self.verdict == BEHIND and self.constant:
            told = f"behind, by the same amount with each of {self.pairs} seeds"
        elif self.verdict == BEHIND:
            told = f"behind by more than noise ({p_value(self.p)}, {self.pairs} pairs)"
        elif self.verdict == NOISE:
            told = f"within noise of the best ({p_value(self.p)}, {self.pairs} pairs)"
        elif self.verdict == FEW:
            told = f"too few seeds to tell ({self.pairs} in common with the best)"
        else:
            told = {BEST: "best", SAME: "the same as the best to all digits", OUT: lost or "not finished", UNKNOWN: ""}[
                self.verdict
            ]
        return told if not lost or self.verdict == OUT else f"{told}; {lost}"


@dataclass
class Evidence:
    """What runs say when they are compared fairly.

    Attributes:
        counted: for each label the runs that are compared: the finished ones, or where nothing is finished all that go on.
        lost: for each label those that diverged.
        unfinished: for each label those that are not finished and not counted.
        round: the round at which they are compared.
        metrics: the metrics that are numbers, in order.
        better: which way they are better.
        on: what data they were taken on, where it is known.
    """

    counted: dict[str, list[Record]]
    lost: dict[str, list[Record]]
    unfinished: dict[str, list[Record]]
    round: int
    metrics: list[str]
    better: dict[str, str]
    on: dict[str, str]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Evidence:
        """Sort runs into those that are compared and those that are not, and say why."""
        found = list(records)
        labels = list(dict.fromkeys(record.label for record in found))
        of = lambda chosen: {label: [r for r in found if r.label == label and chosen(r)] for label in labels}
        done = any(record.status in (FINISHED, STOPPED) for record in found)
        counts = lambda r: len(r.history["round"]) and r.status != DIVERGED and (not done or r.status in (FINISHED, STOPPED))
        counted, lost = of(counts), of(lambda r: r.status == DIVERGED)
        unfinished = of(lambda r: not counts(r) and r.status != DIVERGED)
        compared = [record for runs in counted.values() for record in runs]
        last = min((int(r.history["round"][-1]) for r in compared), default=0)
        directions = {name: word for record in reversed(found) for name, word in record.better.items()}
        data = {name: word for record in reversed(found) for name, word in record.on.items()}
        names = list(dict.fromkeys(name for record in found for name in record.metrics))
        return cls(counted, lost, unfinished, last, names, directions, data)

    @cached_property
    def notes(self) -> list[str]:
        """What a reader must know before believing anything."""
        return caveats.notes(self)

    @property
    def labels(self) -> list[str]:
        """The labels, in order."""
        return list(self.counted)

    def metric(self, wanted: str | None = None) -> str:
        """Return the metric that a page opens with: the one that is wanted, or the first that can be better or worse."""
        if wanted is not None and wanted not in self.metrics:
            raise InputError(f"There is no metric {wanted!r} in these runs: there are {', '.join(self.metrics) or 'none'}.")
        chosen = wanted or next((name for name in self.metrics if name in self.better), next(iter(self.metrics), None))
        if chosen is None:
            raise InputError("These runs have no metric that is a number: run them with metrics=...")
        return chosen

    def rows(self, metric: str) -> list[Row]:
        """Return every method's standing on a metric, in the order of the labels."""
        rows = {label: self._row(label, metric) for label in self.labels}
        if metric not in self.better:
            return list(rows.values())
        sign = 1.0 if self.better[metric] == "higher" else -1.0
        able = [row for row in rows.values() if row.values and not row.lost] or [row for row in rows.values() if row.values]
        if not able:
            return [_with(row, verdict=OUT) for row in rows.values()]
        best = max(able, key=lambda row: sign * row.mean)
        others = [row for row in rows.values() if row is not best and row.values]
        for row in rows.values():
            if row is best:
                rows[row.label] = _with(row, verdict=BEST)
            elif row in others:
                rows[row.label] = _against(best, row, sign, len(others), row in able)
            else:
                rows[row.label] = _with(row, verdict=OUT)
        return list(rows.values())

    def leaders(self, metric: str) -> list[str]:
        """Return the methods that have values, the best first, then by how far they are behind it."""
        far = lambda row: -1.0 if row.verdict == BEST else float("inf") if row.behind is None else row.behind
        return [row.label for row in sorted(self.rows(metric), key=far) if row.values]

    def _row(self, label: str, metric: str) -> Row:
        values: dict[int, float] = {}
        lost = diverged = len(self.lost[label])
        for record in self.counted[label]:
            if metric in record.metrics:
                value = float(record.history[metric][self.at(record)])
                if np.isfinite(value):
                    values[record.seed] = value
                else:
                    lost += 1
        return Row(label, metric, values, lost=lost, diverged=diverged)

    def at(self, record: Record) -> int:
        """Return which evaluation of a run is compared: its last one that is not after the common round."""
        return max(0, int(np.searchsorted(record.history["round"], self.round, side="right")) - 1)

    def headline(self, metric: str) -> str:
        """Return the answer in a sentence or two, with its evidence."""
        rows = self.rows(metric)
        what = self.called(metric)
        best = next((row for row in rows if row.verdict == BEST), None)
        if best is None:
            lone = [row for row in rows if row.values]
            if not lone:
                return f"No run has a finite value of {what}."
            shown = "; ".join(f"{row.label}: {quantity(row.mean, row.spread)}" for row in lone)
            return f"Nothing says which way {what} is better, so nobody is called best. {shown}."
        seeds = "1 seed" if len(best.values) == 1 else f"{len(best.values)} seeds"
        reached = f"{quantity(best.mean, best.spread)} at round {self.round} ({seeds})"
        if len(rows) == 1:
            return f"{best.label} reached {what} of {reached}."
        others = [row for row in rows if row.values and row is not best]
        if not others:
            return f"{best.label} reached {what} of {reached}; no other method has a finite value there."
        same = [row.label for row in others if row.verdict == SAME]
        if same and len(same) == len(others):
            return f"{listed([best.label, *same])} are the same to all digits on {what}, with every seed: {reached}."
        start = f"{best.label} is best on {what} ({self.better[metric]} is better): {reached}. "
        return start + _lead(best, others, same)

    def called(self, metric: str) -> str:
        """Return what a metric is called, with the data it was taken on."""
        return f"{metric} on {self.on[metric]} data" if metric in self.on else metric


def summary(records: Iterable[Record], metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row a method and metric: mean and spread over seeds, who is best, and whether its lead is more than noise.

    Args:
        records: the runs; those of one label are seeds of one thing.
        metrics: which metrics; by default all that are numbers.
    """
    import pandas as pd

    evidence = Evidence.of(records)
    table = pd.DataFrame(columns(evidence, metrics))
    table.attrs["notes"] = evidence.notes
    return table


def columns(evidence: Evidence, metrics: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Return the columns of :func:`summary`."""
    rows = [row for name in (metrics or evidence.metrics) for row in evidence.rows(evidence.metric(name))]
    nan = float("nan")
    return {
        "method": [row.label for row in rows],
        "metric": [row.metric for row in rows],
        "data": [evidence.on.get(row.metric, "") for row in rows],
        "better": [evidence.better.get(row.metric, "") for row in rows],
        "round": [evidence.round for _ in rows],
        "mean": [row.mean for row in rows],
        "spread": [row.spread for row in rows],
        "least": [min(row.values.values(), default=nan) for row in rows],
        "greatest": [max(row.values.values(), default=nan) for row in rows],
        "seeds": [len(row.values) for row in rows],
        "lost": [row.lost for row in rows],
        "best": [row.verdict == BEST for row in rows],
        "behind": [nan if row.behind is None else row.behind for row in rows],
        "pairs": [row.pairs for row in rows],
        "p": [nan if row.p is None else row.p for row in rows],
        "verdict": [row.sentence for row in rows],
    }


def _with(row: Row, **changes: object) -> Row:
    return Row(**{**row.__dict__, **changes})


def _against(best: Row, row: Row, sign: float, comparisons: int, able: bool) -> Row:
    """Compare a method with the best, over the seeds that both have."""
    shared = sorted(best.values.keys() & row.values.keys())
    leads = sign * np.array([best.values[seed] - row.values[seed] for seed in shared])
    if not able:
        return _with(row, verdict=OUT, behind=float(leads.mean()) if shared else None, pairs=len(shared))
    if not shared:
        return _with(row, verdict=FEW)
    known = {"behind": float(leads.mean()), "pairs": len(shared)}
    if not leads.any() and len(best.values) == len(row.values) == len(shared):
        return _with(row, verdict=SAME, **known)
    if len(shared) < FEWEST:
        return _with(row, verdict=FEW, **known)
    scale = max(abs(value) for value in (*best.values.values(), *row.values.values()))
    if np.ptp(leads) <= 1e-12 * scale:  # a test would divide by nothing: the seeds do not matter
        certain = bool(leads.any())
        return _with(row, verdict=BEHIND if certain else SAME, constant=True, p=0.0 if certain else None, **known)
    from scipy.special import stdtr, stdtrit  # Student's t; scipy.stats takes a second to load

    free, error = len(shared) - 1, float(leads.std(ddof=1)) / math.sqrt(len(shared))
    p = min(1.0, 2 * float(stdtr(free, -abs(known["behind"]) / error)) * comparisons)
    half = float(stdtrit(free, 1 - LEVEL / 2)) * error
    # the mean over all seeds may say what the shared ones deny: then nothing is sure
    verdict = BEHIND if p < LEVEL and known["behind"] > 0 else NOISE
    return _with(row, verdict=verdict, interval=(known["behind"] - half, known["behind"] + half), p=p, **known)


def _lead(best: Row, others: list[Row], same: list[str]) -> str:
    """Return what the lead is worth, in words."""
    near = min(others, key=lambda row: np.inf if row.behind is None or row.verdict in (SAME, OUT) else row.behind)
    told = ""
    if near.behind is not None and near.verdict not in (SAME, OUT):
        told = f"It leads {near.label} by {number(near.behind)}"
        told += f" (95% interval {number(near.interval[0])} to {number(near.interval[1])}). " if near.interval else ". "
    tested = [row for row in others if row.p is not None and not row.constant]
    corrected = f", Bonferroni for {len(others)} comparisons" if len(others) > 1 else ""
    test = f"paired t-test over {_counts(tested)}, two-sided{corrected}"
    few = [row.label for row in others if row.verdict == FEW]
    close = [row for row in others if row.verdict == NOISE]
    if few:
        told += f"Whether that is more than noise cannot be told: {listed(few)} and it share fewer than {FEWEST} seeds."
    elif close:
        worst = max(row.p or 0.0 for row in close)
        whom = "that lead" if len(others) == 1 else f"its lead over {listed([row.label for row in close])}"
        told += f"But {whom} is not more than noise ({test}: {p_value(worst)})."
    elif tested:
        told += f"The lead is more than noise ({test}: {p_value(max(row.p or 0.0 for row in tested))})."
    elif any(row.constant for row in others):
        told += "The lead is the same with every seed: the seeds change nothing here."
    if same:
        told += f" {listed(same)} {'is' if len(same) == 1 else 'are'} the same to all digits."
    return told


def _counts(rows: list[Row]) -> str:
    pairs = sorted({row.pairs for row in rows})
    return f"{pairs[0]} seeds" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]} seeds" if pairs else "seeds"
