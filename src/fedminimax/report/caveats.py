"""What a reader must know before believing a comparison: what is missing, diverged or shorter, and which methods are one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedminimax.folders import FINISHED, STOPPED, Record
from fedminimax.report.populations import populations, strangers
from fedminimax.report.words import listed

if TYPE_CHECKING:
    from fedminimax.report.evidence import Evidence

_MOST_NAMED = 8
"""So many runs are named one by one."""
_ALIKE = 1e-3
"""Curves that are apart by less than this share of their range are said to be almost the same."""


def notes(evidence: Evidence) -> list[str]:
    """Say what is uneven: runs that are missing, diverged or shorter, and methods that are one."""
    return [*uneven(evidence), *_broken(evidence), *_strangers(evidence), *_twins(evidence)]


def uneven(evidence: Evidence) -> list[str]:
    """Say which runs are not like the others: diverged, unfinished, shorter, with other settings or other seeds."""
    found = []
    for label in evidence.labels:
        if lost := evidence.lost[label]:
            total = len(lost) + len(evidence.counted[label]) + len(evidence.unfinished[label])
            found.append(
                f"{len(lost)} of {total} runs of {label} diverged ({_seeds(lost)}): they are in no mean, and {label} is not "
                "called best while another method kept all its runs."
            )
        if rest := evidence.unfinished[label]:
            far = listed([f"seed {r.seed}: {r.status} at round {r.rounds} of {r.wanted}" for r in rest])
            found.append(f"{label} has unfinished runs that are not counted ({far}).")
        settings = {record.settings for record in evidence.counted[label]}
        if len(settings) > 1:
            found.append(f"Runs called {label} have different settings: {'; '.join(sorted(settings))}.")
    compared = [record for runs in evidence.counted.values() for record in runs]
    if compared and not any(record.status in (FINISHED, STOPPED) for record in compared):
        found.append("No run is finished: this is how they stand.")
    found += _lengths(evidence, compared)
    places = {int(record.history["round"][evidence.at(record)]) for record in compared}
    if len(places) > 1:
        found.append(
            f"They were not evaluated at the same rounds: the nearest before are taken, {min(places)} to {max(places)}."
        )
    seeds = {label: {r.seed for r in runs} for label, runs in evidence.counted.items() if runs}
    if len({frozenset(own) for own in seeds.values()}) > 1:
        found.append(
            "The methods have not all been run with the same seeds: means are over each one's own, tests over the shared."
        )
    return found


def _lengths(evidence: Evidence, compared: list[Record]) -> list[str]:
    """Say which of the runs that are compared are shorter, and up to where they are."""
    end = lambda record: int(record.history["round"][-1])
    longest = max(map(end, compared), default=0)
    short = [record for record in compared if end(record) < longest]
    if not short:
        return []
    how = lambda r: f"{r.label}, seed {r.seed}, at {end(r)}" + ("" if r.status == FINISHED else f" ({r.status})")
    shown = [how(record) for record in sorted(short, key=end)[:_MOST_NAMED]]
    rest = len(short) - len(shown)
    ended = "; ".join([*shown, *([f"and {rest} more"] if rest else [])])
    return [
        f"The runs are not equally long ({evidence.round} to {longest} rounds). They are compared at round {evidence.round}, "
        f"which all have reached, and each method's curve ends where its shortest run does. Shorter than others: {ended}."
    ]


def _strangers(evidence: Evidence) -> list[str]:
    """Say whose clients were not the same."""
    found = []
    if others := strangers(evidence.counted):
        first = next(label for label in evidence.labels if evidence.counted[label])
        whom = "some of its own runs" if others == [first] else first
        found.append(
            f"{listed(others)} had other clients, with the same seed, than {whom}: what sets them apart may be the data, and "
            "not the method."
        )
    groups = populations(evidence.counted)
    if len(groups) > 1:
        found.append(
            f"The clients are not the same in all runs ({len(groups)} kinds of data: {'; '.join(g.name for g in groups[:4])}"
            f"{' ...' if len(groups) > 4 else ''}). A client's numbers and weights are shown for each by itself."
        )
    return found


def _broken(evidence: Evidence) -> list[str]:
    """Say which metrics are not finite where they are compared."""
    found = []
    for metric in evidence.metrics:
        for label, runs in evidence.counted.items():
            own = [run for run in runs if metric in run.metrics]
            broken = [run for run in own if not np.isfinite(run.history[metric][evidence.at(run)])]
            if broken:
                found.append(
                    f"{metric} is not finite at round {evidence.round} in {len(broken)} of {len(own)} runs of {label} "
                    f"({_seeds(broken)}): they are not in its mean, and {label} is not called best on it while another method "
                    "has all its runs."
                )
    return found


def _seeds(records: list[Record]) -> str:
    return ("seed " if len(records) == 1 else "seeds ") + listed([str(record.seed) for record in records])


def _twins(evidence: Evidence) -> list[str]:
    """Say which labels are one curve, or nearly."""
    notes = []
    names = [label for label in evidence.labels if evidence.counted[label]]
    for k, a in enumerate(names):
        for b in names[k + 1 :]:
            apart = [_apart(evidence, a, b, metric) for metric in evidence.metrics]
            known = [gap for gap in apart if gap is not None]
            if known and max(known) == 0.0:
                notes.append(
                    f"{a} and {b} are the same to all digits, in every metric, seed and evaluation: what should tell them "
                    "apart does nothing here."
                )
            elif known and max(known) < _ALIKE:
                notes.append(f"{a} and {b} are almost the same: no metric of theirs is apart by {_ALIKE:.1%} of its range.")
    return notes


def _apart(evidence: Evidence, a: str, b: str, metric: str) -> float | None:
    """Return the greatest difference of two methods' curves over their range; None where they cannot be compared."""
    first, second = ({r.seed: r.history.get(metric) for r in evidence.counted[label]} for label in (a, b))
    gaps = []
    for seed in first.keys() & second.keys():
        one, other = first[seed], second[seed]
        if one is None or other is None or one.shape != other.shape:
            return None
        if np.array_equal(one, other, equal_nan=True):
            gaps.append(0.0)
            continue
        sound = np.isfinite(one) & np.isfinite(other)
        both = np.concatenate([one[sound], other[sound]])
        gaps.append(float(np.max(np.abs(one[sound] - other[sound])) / np.ptp(both)) if sound.any() and np.ptp(both) else 1.0)
    return max(gaps, default=None)
