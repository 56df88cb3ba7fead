"""What came of an experiment: its runs, and a table of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedminimax import folders
from fedminimax.folders import Record

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment.

    Attributes:
        folder: where all of it is.
        records: its runs, as their folders have them.
        status: "finished", or "interrupted" by Ctrl-C.
        failed: why a run ended with an error, by "label/seed-k".
        chosen: the settings that won, of methods of which several were tried.
        report: the report's page, where one was written.
        lost: a sentence for each process that was lost, where the runs were dealt out over several.
    """

    folder: Path
    records: list[Record]
    status: str
    failed: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    report: Path | None = None
    lost: tuple[str, ...] = ()

    @property
    def results(self) -> dict[str, list[Record]]:
        """The runs by label."""
        labels = dict.fromkeys(record.label for record in self.records)
        return {label: [record for record in self.records if record.label == label] for label in labels}

    def frame(self) -> pd.DataFrame:
        """Return every number of every run as one table, with the columns "label" and "seed"."""
        import pandas as pd

        parts = []
        for record in self.records:
            numbers = {name: values for name, values in record.history.items() if values.ndim == 1}
            parts.append(pd.DataFrame({"label": record.label, "seed": record.seed, **numbers}))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def table(self) -> pd.DataFrame:
        """Return a row for each method: every number, its mean over seeds and its standard deviation, as the report has them.

        They are taken at the round that all runs have reached; a run that is not finished is left out where others are, and one
        that diverged always. ``attrs["notes"]`` says what a reader must know of that.
        """
        import pandas as pd

        from fedminimax.frames import Table
        from fedminimax.report import Evidence

        evidence, rows = Evidence.of(self.records), {}
        for label, records in evidence.counted.items():
            row: dict[str, Any] = {"runs": len(records), "rounds": evidence.round if records else 0}
            for name in evidence.metrics:
                if records and all(name in record.metrics for record in records):
                    values = np.array([record.history[name][evidence.at(record)] for record in records])
                    row |= {name: values.mean(), f"{name} (sd)": values.std(ddof=1) if len(values) > 1 else 0.0}
            rows[label] = row
        table = Table(pd.DataFrame.from_dict(rows, orient="index"))
        table.attrs["notes"] = evidence.notes
        return table


def outcome_of(folder: Path) -> Outcome:
    """Return what the folder of an experiment has."""
    from fedminimax.experiments.home import EXPERIMENT, Home

    known = folders.read_json(folder / EXPERIMENT)
    home = Home(folder)
    paths = [home.run(run["label"], run["seed"]) for run in known["wanted"]]
    records = [Record.read(path) for path in paths if (path / folders.RUN).is_file()]
    page = folder / "report.html"
    report, lost = page if page.is_file() else None, tuple(known.get("lost", ()))
    return Outcome(folder, records, known["status"], known["failed"], known["chosen"], report, lost)
