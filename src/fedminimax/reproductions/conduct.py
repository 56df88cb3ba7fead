"""Carrying an item out: each panel's experiment in a folder of its own, then the verdict, and a page that shows both."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from fedminimax.errors import InputError
from fedminimax.experiments.experiment import Experiment
from fedminimax.experiments.outcome import Outcome
from fedminimax.folders import Record, make_folder, read_json, write_atomically
from fedminimax.report.evidence import Evidence
from fedminimax.reproductions.expectations import Finding, in_words, judge
from fedminimax.reproductions.item import SMALL, SMOKE, Item, find

SUMMARY, PAGE = "reproduction.json", "reproduction.html"
_APART = 1000
"""How far apart the seeds of one division are from those of the next."""


@dataclass(frozen=True)
class Reproduction:
    """What came of an item.

    Attributes:
        item: what was carried out.
        scale: how large.
        folder: where all of it is.
        outcomes: by panel, one for each division.
        findings: what was compared.
        page: its page; None where not all runs are over.
    """

    item: Item
    scale: str
    folder: Path
    outcomes: dict[str, list[Outcome]]
    findings: list[Finding]
    page: Path | None

    @property
    def finished(self) -> bool:
        """Whether all runs are over."""
        every = [outcome for outcomes in self.outcomes.values() for outcome in outcomes]
        return all(outcome.status == "finished" and not outcome.failed for outcome in every)

    @property
    def verdict(self) -> str:
        """The verdict on the claim, and on each reading of it; of runs that are not over, or only tried, there is none."""
        return in_words(self.findings) if self.findings and self.scale != SMOKE else ""

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return f"Verdict: {self.verdict}." if self.verdict else "Only tried, at a scale that says nothing about the claim."

    @property
    def numbers(self) -> list[dict[str, Any]]:
        """What every method has at the end of its runs, panel by panel, beside what the paper prints."""
        lines = []
        for panel, records in self.records.items():
            evidence = Evidence.of(records)
            for metric in self.item.shows:
                for row in evidence.rows(metric):
                    printed = self.item.printed.get(panel, {}).get(row.label, {}).get(metric)
                    known = {"panel": panel, "method": row.label, "metric": metric, "seeds": len(row.values), "lost": row.lost}
                    lines.append(known | {"mean": _finite(row.mean), "spread": _finite(row.spread), "printed": printed})
        return lines

    @property
    def records(self) -> dict[str, list[Record]]:
        """The runs of each panel; those of another division count as other seeds."""
        return {
            panel: [replace(r, seed=_APART * k + r.seed) for k, outcome in enumerate(outcomes) for r in outcome.records]
            for panel, outcomes in self.outcomes.items()
        }


def reproduce(
    name: str | Item, scale: str = SMALL, out: str | Path | None = None, *, resume: bool = False, progress: bool | None = None
) -> Reproduction:
    """Carry an item out, or go on with it, and judge what came of it.

    Args:
        name: the item, such as "scaff-pd/figure-2".
        scale: "small", "paper" or "smoke".
        out: the folder; by default ``runs/`` with the item's name and the scale.
        resume: go on with what the folder has; without it a folder that has something is an error.
        progress: show a progress bar; by default on a terminal only.
    """
    item = name if isinstance(name, Item) else find(name)
    experiments = item.experiments(scale)
    folder = Path("runs") / item.name / scale if out is None else Path(out)
    if folder.is_dir() and any(folder.iterdir()) and not resume:
        raise InputError(f"{folder} has something in it already: go on with it by --resume, or give another folder by --out.")
    make_folder(folder)
    outcomes: dict[str, list[Outcome]] = {panel: [] for panel in experiments}
    with jax.enable_x64(True) if item.float64 else nullcontext():
        for panel, divisions in experiments.items():
            for k, experiment in enumerate(divisions):
                place = folder / _safe(panel) / f"division-{k}" if len(divisions) > 1 else folder / _safe(panel)
                # The reports of short runs take longer than these: one of each panel, and none where it is only tried.
                outcomes[panel].append(experiment.run(place, progress=progress, report=scale != SMOKE and k == 0))
                if outcomes[panel][-1].status != "finished":
                    return Reproduction(item, scale, folder, outcomes, [], None)
    made = Reproduction(item, scale, folder, outcomes, [], None)
    if not made.finished:
        return made
    judged = Reproduction(item, scale, folder, outcomes, judge(item.expected(scale), made.records), folder / PAGE)
    _write(judged, {panel: divisions[0] for panel, divisions in experiments.items()})
    return judged


def summary_of(folder: Path) -> dict[str, Any]:
    """Return what the folder of an item that was carried out says."""
    if not (folder / SUMMARY).is_file():
        raise InputError(f"{folder} has no {SUMMARY}: carry the item out to its end.")
    return dict(read_json(folder / SUMMARY))


def _write(made: Reproduction, experiments: dict[str, Experiment]) -> None:
    from fedminimax.reproductions.page import FIGURE, figure, render, samples

    picture = made.folder / FIGURE
    figure(made, picture)
    pictures = [picture, *samples(made, experiments)]
    seconds = sum(record.seconds for records in made.records.values() for record in records)
    seeds = sorted(
        {len({r.seed for r in rs if r.label == label}) for rs in made.records.values() for label in {r.label for r in rs}}
    )
    known = {
        "item": made.item.name,
        "title": made.item.title,
        "claim": made.item.claim,
        "scale": made.scale,
        "version": made.item.digest(made.scale),
        "verdict": made.verdict,
        "seeds": seeds,
        "runs": sum(len(records) for records in made.records.values()),
        "seconds": round(seconds, 1),
        "differs": made.item.differs.get(made.scale, []),
        "numbers": made.numbers,
        "findings": [finding.as_dict() for finding in made.findings],
    }
    write_atomically(made.folder / SUMMARY, json.dumps(known, indent=1, ensure_ascii=False).encode())
    write_atomically(made.folder / PAGE, render(made, pictures).encode())


def _finite(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else None


def _safe(panel: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in panel)
