"""What a paper says should come out, and whether it did: seed by seed, with intervals that know how often they look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedminimax.errors import InputError
from fedminimax.folders import DIVERGED, Record
from fedminimax.report.words import number

HELD, PART, NOT_SHOWN, CONTRADICTS = "held", "held in part", "did not show", "contradicts"
BEYOND = " (asked beyond the paper)"
"""What is said of findings that the verdict is without."""
LEVEL = 0.05
"""The chance that any of an item's intervals leaves out what it should cover, all comparisons together (Bonferroni)."""
FEWEST = 3
_LEAST = 1e-300
"""Zero has no logarithm."""


class Expectation(BaseModel):
    """One thing that should come out.

    A side is a method's label, or "label @ panel" for one of another panel. One of ``than``, ``below``, ``above``, ``slope`` is
    there.

    Attributes:
        says: it, in words.
        metric: the number that is compared, at the end of the runs.
        method: the side that should be ahead.
        than: the sides that it should be ahead of.
        by: a lead that is less than this, in the metric's units, is none.
        like: whether the sides should instead be alike: no further apart than ``by``.
        no_worse: whether it is enough not to be behind by more than ``by``.
        wider_than: a panel, whose lead should be the smaller one: leads are compared, not numbers.
        log: compare powers of ten: leads, and ``by``, are in these. For errors, which differ by orders of magnitude.
        reaches: compare in place of the number the rounds that it takes to reach this.
        below: the number should be at most this.
        above: the number should be at least this.
        slope: between these two should lie the slope of the number's logarithm against that of what panels differ in.
        group: the panels over which the slope is fitted: a group of what the item is drawn across.
        over: these panels, and the number that each stands for; the item has it.
        average: take in place of the number at the end the mean over all evaluations.
        counts: what it takes to reach a level is counted in: "round", or a cost such as "gossip_rounds" or "local_steps".
        panels: the panels in which to look; by default all.
        beyond: whether it is a question of ours that the paper does not answer: it is told, and the verdict is without it.
        reading: where the paper can be read in more than one way, the reading that it belongs to; each has a verdict.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    says: str
    metric: str
    method: str
    than: list[str] = []
    by: float = Field(default=0.0, ge=0)
    like: bool = False
    no_worse: bool = False
    wider_than: str | None = None
    log: bool = False
    reaches: float | None = None
    below: float | None = None
    above: float | None = None
    slope: tuple[float, float] | None = None
    group: str | None = None
    over: dict[str, float] = {}
    average: bool = False
    counts: str = "round"
    panels: list[str] = []
    beyond: bool = False
    reading: str = ""

    @model_validator(mode="after")
    def _one_kind(self) -> Expectation:
        if sum([bool(self.than), *(kind is not None for kind in (self.below, self.above, self.slope))]) != 1:
            raise ValueError("give one of than, below, above, slope")
        if (self.slope is None) != (self.group is None) or (self.slope is not None and self.slope[0] >= self.slope[1]):
            raise ValueError("a slope needs group, and two bounds, the lower one first")
        if (self.average and self.reaches is not None) or (self.counts != "round" and self.reaches is None):
            raise ValueError("average is of a number, and counts of what it takes to reach one")
        if (self.like or self.no_worse) and not self.by:
            raise ValueError("like and no_worse need by: how far apart they may be")
        if self.like + self.no_worse + (self.wider_than is not None) > 1:
            raise ValueError("give one of like, no_worse, wider_than")
        return self

    @property
    def comparisons(self) -> int:
        """How many intervals it looks at in one panel."""
        return max(1, len(self.than))

    @property
    def what(self) -> str:
        """The number that is looked at, in words."""
        if self.reaches is None:
            return f"mean {self.metric}" if self.average else self.metric
        counted = "rounds" if self.counts == "round" else self.counts.replace("_", " ")
        return f"{counted} until {self.metric} is {number(self.reaches)}"


@dataclass(frozen=True)
class Finding:
    """What came of one comparison.

    Attributes:
        says: what was expected.
        panel: where.
        verdict: "held", "did not show" or "contradicts".
        sentence: why, with the numbers.
        lead: how far ahead the one side is, in the metric's units or rounds; positive: as expected. NaN where there is none.
        low: of its interval.
        high: of its interval.
        seeds: how many pairs there were.
        beyond: whether it was a question of ours, beyond the paper.
        reading: of the paper, where it can be read in more than one way.
    """

    says: str
    panel: str
    verdict: str
    sentence: str
    lead: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: int = 0
    beyond: bool = False
    reading: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it: what is no number is None."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in asdict(self).items()
        }


Runs = Mapping[str, Sequence[Record]]
"""The runs of each panel."""


def judge(expected: Sequence[Expectation], runs: Runs) -> list[Finding]:
    """Compare what came out with what was expected."""
    places = [(one, _places(one, runs)) for one in expected]
    looks = sum(one.comparisons * len(panels) for one, panels in places)
    return [
        replace(found, beyond=one.beyond, reading=one.reading)
        for one, panels in places
        for panel in panels
        for found in _judge(one, panel, runs, looks)
    ]


def verdict_of(findings: Sequence[Finding]) -> str:
    """Return the verdict of an item: on all that the paper expects of it."""
    said = {finding.verdict for finding in findings if not finding.beyond}
    if said == {HELD}:
        return HELD
    if HELD in said:
        return PART
    return CONTRADICTS if CONTRADICTS in said else NOT_SHOWN


def in_words(findings: Sequence[Finding]) -> str:
    """Return the verdict of an item, and on each reading of the paper where there are several."""
    apart = "; ".join(f"{reading}: {verdict}" for reading, verdict in readings_of(findings).items())
    return f"{verdict_of(findings)} ({apart})" if apart else verdict_of(findings)


def readings_of(findings: Sequence[Finding]) -> dict[str, str]:
    """Return the verdict on each reading of the paper, where there are several."""
    readings = list(dict.fromkeys(finding.reading for finding in findings if finding.reading))
    return {reading: verdict_of([finding for finding in findings if finding.reading == reading]) for reading in readings}


def _places(one: Expectation, runs: Runs) -> list[str]:
    if one.slope is not None:
        return [one.group or ""]
    return [panel for panel in one.panels or runs if panel in runs]


def _judge(one: Expectation, panel: str, runs: Runs, looks: int) -> list[Finding]:
    if one.slope is not None:
        return [_sloping(one, panel, runs, looks)]
    if not one.than:
        return [_bounded(one, panel, _side(one.method, one, panel, runs))]
    first = _side(one.method, one, panel, runs)
    return [_compared(one, panel, first, other, _side(other, one, panel, runs), looks, runs) for other in one.than]


@dataclass(frozen=True)
class _Side:
    """One method's numbers by seed, and how many of its runs are lost."""

    values: dict[int, float]
    lost: int
    higher: bool
    never: int = 0  # of these, how many never reach the level


def _side(name: str, one: Expectation, panel: str, runs: Runs) -> _Side:
    label, _, elsewhere = (part.strip() for part in name.partition("@"))
    place = elsewhere or panel
    if place not in runs:
        raise InputError(f"{one.says!r} compares with the panel {place!r}, which there is not: there are {', '.join(runs)}.")
    own = [record for record in runs[place] if record.label == label]
    if not own or any(one.metric not in record.history for record in own):
        known = ", ".join(sorted({record.label for record in runs[place]}))
        raise InputError(f"{one.says!r} needs {one.metric} of {label!r} in {place!r}, where there are {known}.")
    higher = own[0].better.get(one.metric) == "higher"
    values: dict[int, float] = {}
    never = 0
    for record in own:
        value = math.nan if record.status == DIVERGED else _number(record, one, higher)
        if math.isfinite(value):
            values[record.seed] = value
            never += one.reaches is not None and value > record.history[one.counts][-1]
    return _Side(values, len(own) - len(values), higher if one.reaches is None else False, never)


def _number(record: Record, one: Expectation, higher: bool) -> float:
    """Return the metric at the end, or its mean, or the rounds until it reaches a level.

    Where it never does they are twice as many as there were; of a slope such a run is no part.
    """
    curve = np.asarray(record.history[one.metric], float)
    if one.reaches is None:
        return float(curve.mean() if one.average else curve[-1])
    there = np.flatnonzero(curve >= one.reaches if higher else curve <= one.reaches)
    counted = record.history[one.counts]
    if not there.size:
        return math.nan if one.slope is not None else float(2 * counted[-1])
    return float(counted[there[0]])


def _bounded(one: Expectation, panel: str, side: _Side) -> Finding:
    """Judge a number that should be at most, or at least, something: with every seed, or with none."""
    bound = one.below if one.below is not None else one.above
    assert bound is not None
    sign, words = (1.0, "at most") if one.below is not None else (-1.0, "at least")
    leads = np.array([sign * (bound - value) for value in side.values.values()])
    total = len(leads) + side.lost
    right = int((leads >= 0).sum())
    verdict = HELD if right == total else CONTRADICTS if right == 0 else NOT_SHOWN
    shown = f"{number(min(side.values.values()))} to {number(max(side.values.values()))}" if side.values else "no finite number"
    sentence = f"{one.what} of {one.method} is {words} {number(bound)} with {right} of {total} seeds ({shown})."
    return Finding(one.says, panel, verdict, sentence, float(leads.min()) if leads.size else math.nan, seeds=len(leads))


def _compared(one: Expectation, panel: str, first: _Side, name: str, other: _Side, looks: int, runs: Runs) -> Finding:
    shared = sorted(first.values.keys() & other.values.keys())
    if first.lost != other.lost and not one.like:
        lost, total = max((first.lost, len(first.values)), (other.lost, len(other.values)))
        whose = one.method if first.lost > other.lost else name
        verdict = CONTRADICTS if first.lost > other.lost else HELD
        return Finding(one.says, panel, verdict, f"{whose} diverged with {lost} of {lost + total} seeds.", seeds=len(shared))
    if len(shared) < FEWEST:
        ends = [", ".join(number(side.values[seed]) for seed in shared) for side in (first, other)]
        found = f"{one.metric}: {one.method} {ends[0]}, {name} {ends[1]}; " if shared else ""
        says = f"{found}{one.method} and {name} share {len(shared)} seeds: too few."
        return Finding(one.says, panel, NOT_SHOWN, says, seeds=len(shared))
    leads = _leads(one, first, other, shared)
    means = [float(np.mean([side.values[seed] for seed in shared])) for side in (first, other)]
    ahead = "ahead by"
    if one.wider_than is not None:
        there = (_side(one.method, one, one.wider_than, runs), _side(name, one, one.wider_than, runs))
        if any(seed not in side.values for seed in shared for side in there):
            says = f"{one.method} or {name} has diverged in {one.wider_than}: their leads cannot be compared."
            return Finding(one.says, panel, NOT_SHOWN, says, seeds=len(shared))
        leads = leads - _leads(one, *there, shared)
        ahead = f"further ahead than in {one.wider_than} by"
    mean, half = float(leads.mean()), _half(leads, LEVEL / looks)
    low, high = mean - half, mean + half
    sentence = (
        f"{one.what}: {one.method} {number(means[0])}, {name} {number(means[1])}; {ahead} {number(mean)} "
        f"[{number(low)}, {number(high)}]{' powers of ten' if one.log else ''}, {len(shared)} seeds."
    )
    for label, side in ((one.method, first), (name, other)):
        if side.never:
            sentence += f" {label} never gets there with {side.never} of {len(side.values)}: counted as twice the run."
    return Finding(one.says, panel, _verdict(one, low, high), sentence, mean, low, high, len(shared))


def _leads(one: Expectation, first: _Side, other: _Side, seeds: Sequence[int]) -> np.ndarray:
    """Return how far the first is ahead, seed by seed."""
    of = (lambda value: math.log10(max(value, _LEAST))) if one.log else (lambda value: value)
    ahead = np.array([of(first.values[seed]) - of(other.values[seed]) for seed in seeds])
    return ahead if first.higher else -ahead


def _verdict(one: Expectation, low: float, high: float) -> str:
    """Judge a lead by its interval."""
    if one.like:
        return _alike(low, high, one.by)
    least = -one.by if one.no_worse else one.by
    return HELD if low > least else CONTRADICTS if high < min(least, 0) else NOT_SHOWN


def numbers(one: Expectation, runs: Runs) -> dict[str, dict[int, float]]:
    """Return the number that a slope is about, by panel and seed."""
    return {panel: _side(one.method, one, panel, runs).values for panel in one.over if panel in runs}


def _sloping(one: Expectation, group: str, runs: Runs, looks: int) -> Finding:
    """Judge a slope: it is fitted seed by seed, and its interval lies within the bounds, beyond them, or across."""
    assert one.slope is not None
    found = numbers(one, runs)
    seeds = sorted(set.intersection(*(set(values) for values in found.values()))) if found else []
    every = {record.seed for panel in found for record in runs[panel]}
    if len(found) < FEWEST or len(seeds) < FEWEST or len(seeds) < len(every):
        why = (
            f"{one.what} of {one.method} is there in {len(found)} panels with {len(seeds)} of {len(every)} seeds in all of them"
        )
        return Finding(one.says, group, NOT_SHOWN, f"{why}: too few for a slope.", seeds=len(seeds))
    across = np.log([one.over[panel] for panel in found])
    up = np.log([[max(values[seed], _LEAST) for seed in seeds] for values in found.values()])
    slopes = np.polyfit(across, up, 1)[0]
    mean, half = float(slopes.mean()), _half(slopes, LEVEL / looks)
    low, high = mean - half, mean + half
    least, most = one.slope
    verdict = HELD if least <= low and high <= most else CONTRADICTS if high < least or low > most else NOT_SHOWN
    ends = [float(np.mean(list(found[panel].values()))) for panel in (next(iter(found)), list(found)[-1])]
    sentence = (
        f"{one.what} of {one.method}: slope {number(mean)} [{number(low)}, {number(high)}], expected {number(least)} to "
        f"{number(most)}; from {number(ends[0])} to {number(ends[1])} over {len(found)} panels, {len(seeds)} seeds."
    )
    return Finding(one.says, group, verdict, sentence, mean, low, high, len(seeds))


def _alike(low: float, high: float, by: float) -> str:
    if -by <= low and high <= by:
        return HELD
    return CONTRADICTS if low > by or high < -by else NOT_SHOWN


def _half(leads: np.ndarray, level: float) -> float:
    """Return half of Student's interval of a mean, at a level of error."""
    from scipy.special import stdtrit

    free = len(leads) - 1
    return float(stdtrit(free, 1 - level / 2) * leads.std(ddof=1) / math.sqrt(len(leads)))
