"""Which runs had the same clients: numbers of single clients are averaged over, and set beside, those of the same ones only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedminimax.folders import Record
from fedminimax.report.words import counted, listed


@dataclass(frozen=True)
class Population:
    """Runs that had the same clients.

    Attributes:
        name: what tells it from the others, such as "seed 0"; empty where there is one alone.
        runs: the runs by label.
        known: whether the runs say which clients they had; where none does, they are taken to have had the same ones.
    """

    name: str
    runs: dict[str, list[Record]]
    known: bool

    def over(self, count: int) -> str:
        """Say what a mean over so many runs of one label is a mean of."""
        means = "one seed" if count == 1 else f"the mean over {count} seeds"
        return means if self.known or count == 1 else f"{means}, whose clients are taken to be the same"


def populations(counted_runs: Mapping[str, list[Record]]) -> list[Population]:
    """Group runs by their clients; those that do not say which they had are a group by themselves if others differ."""
    known = {run.data for runs in counted_runs.values() for run in runs if run.data}
    if len(known) < 2:
        everything = {label: list(runs) for label, runs in counted_runs.items() if runs}
        return [Population("", everything, bool(known))] if everything else []
    groups: dict[str, dict[str, list[Record]]] = {}
    for label, runs in counted_runs.items():
        for run in runs:
            groups.setdefault(run.data, {}).setdefault(label, []).append(run)
    seeds = [{run.seed for run in _all(group)} for group in groups.values()]
    labels = [set(group) for group in groups.values()]
    name = lambda k: _name(seeds[k] if _apart(seeds) or not _apart(labels) else (), labels[k] if not _apart(seeds) else ())
    return [Population(name(k), group, bool(data)) for k, (data, group) in enumerate(groups.items())]


def strangers(counted_runs: Mapping[str, list[Record]]) -> list[str]:
    """Return the labels that had, with the same seed, other clients than the first label that has it."""
    first: dict[int, str] = {}
    found = {}
    for label, runs in counted_runs.items():
        for run in runs:
            if run.data and first.setdefault(run.seed, run.data) != run.data:
                found[label] = True
    return list(found)


def _all(group: Mapping[str, list[Record]]) -> Iterable[Record]:
    return (run for runs in group.values() for run in runs)


def _apart(groups: list[set[int]] | list[set[str]]) -> bool:
    """Tell whether no two groups share anything."""
    return sum(map(len, groups)) == len(set().union(*groups))


def _name(seeds: Iterable[int], labels: Iterable[str]) -> str:
    told = [str(seed) for seed in sorted(seeds)]
    return ", ".join(part for part in (listed(sorted(labels)), counted(told, "seed")) if part)
