"""What a contest found: tables with intervals, verdicts, and a summary that a file can hold."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from fedminimax import metrics
from fedminimax.data.federation import Federation
from fedminimax.fairness.baselines import NOTES
from fedminimax.fairness.bootstrap import Number, Scored
from fedminimax.fairness.groups import Rates
from fedminimax.fairness.measures import PARTS, Choice, Measure, shares
from fedminimax.fairness.rows import Rows
from fedminimax.fairness.tuning import Tuned
from fedminimax.fairness.verdict import Lead
from fedminimax.problems.robust import RobustProblem
from fedminimax.result import Result
from fedminimax.sweep import Sweep

if TYPE_CHECKING:
    import pandas as pd

RULE = "The model to keep has the best {measure} of the worst 20% of sites on the training rows: no test row has a say in it."


@dataclass(frozen=True)
class Comparison:
    """What :func:`fedminimax.fairness.contest` found.

    Attributes:
        federation: the clients' data.
        problem: what was solved.
        network: the Flax module.
        settings: the hyper-parameters of each method that were searched or given.
        tuned: the searches of each method that was tuned.
        results: for each method its runs, one a seed.
        scores: for each method and baseline how good it is on the test rows.
        choice: which measure is shown first, and why.
        measures: what predictions are judged by.
        rows: the test rows.
        leads: of the first method over the usual one.
        rates: of each method in each group, where there are groups.
        notes: what to be careful about.
        asked: the arguments, for the record.
        weighed: the sites that have weights in training, where they are not the federation's.
    """

    federation: Federation
    problem: RobustProblem
    network: Any
    settings: dict[str, dict[str, float]]
    tuned: dict[str, Tuned]
    results: dict[str, list[Result]]
    scores: dict[str, Scored]
    choice: Choice
    measures: list[Measure]
    rows: Rows
    leads: list[Lead] = field(default_factory=list)
    rates: dict[str, Rates] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)
    weighed: list[str] = field(default_factory=list)

    # -- what is shown first --------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """What the sites' first numbers are."""
        return self.choice.measure.title

    @property
    def higher_is_better(self) -> bool:
        """Whether larger ones are better."""
        return self.choice.measure.higher_is_better

    @property
    def values(self) -> dict[str, np.ndarray]:
        """For each method every site's first number on its test rows, [seeds, N]; NaN where there is none."""
        return {name: self.scores[name].sites[self.choice.measure.name] for name in self.results}

    @property
    def searches(self) -> dict[str, Sweep]:
        """The last search of each method that was tuned."""
        return {name: tuned.searches[-1] for name, tuned in self.tuned.items()}

    @property
    def baselines(self) -> list[str]:
        """The names of the baselines."""
        return [name for name in self.scores if name not in self.results]

    def summary(self, method: str) -> dict[str, float]:
        """Return mean, worst, worst-20%, best-20% and variance of the sites' first numbers, as means over seeds."""
        there = np.isfinite(self.values[method]).all(axis=0)
        rows = [metrics.summary(jnp.asarray(row[there]), self.higher_is_better) for row in self.values[method]]
        return {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0]}

    # -- the model to keep ----------------------------------------------------------------------------------------------

    def objective(self, method: str) -> float:
        """Return the training objective max_w sum_i w_i f_i(x) - psi(w) at the end, the mean over seeds."""
        return float(np.mean([r.final()["worst_case"] for r in self.results[method]]))

    @property
    def winner(self) -> str:
        """The method to keep: by the first measure of the worst 20% of sites, on training rows. Test rows have no say in it."""
        found = {name: self._loss(self.training(name)) for name in self.results}
        return min(found, key=lambda name: found[name])

    @property
    def winning_run(self) -> int:
        """Which of the winner's runs to keep, by the same number."""
        return int(np.argmin([self._loss(value) for value in self.scores[self.winner].training]))

    def training(self, method: str) -> float:
        """Return the first measure of the worst 20% of sites on the training rows, the mean over seeds."""
        return float(np.mean(self.scores[method].training))

    def _loss(self, value: float) -> float:
        return math.inf if not math.isfinite(value) else -value if self.higher_is_better else value

    @property
    def kept(self) -> Result:
        """The run whose model is to be kept."""
        return self.results[self.winner][self.winning_run]

    @property
    def threshold(self) -> float | None:
        """The probability from which on that model calls a row positive; None: it takes the likeliest class."""
        found = self.scores[self.winner].thresholds
        return found[self.winning_run] if found else None

    # -- tables ---------------------------------------------------------------------------------------------------------

    def number(self, name: str, measure: str, part: str) -> Number:
        """Return one number of a method or baseline with its interval and its spread over seeds."""
        return self.scores[name].number(measure, part)

    def table(self) -> pd.DataFrame:
        """Return one row a method and baseline: the first measure's summary, every measure with its interval, the settings.

        A column such as "auc/worst20" has the number, "auc/worst20_low" and "_high" its interval over test rows, "_std" its
        standard deviation over seeds.
        """
        import pandas as pd

        rows: dict[str, dict[str, Any]] = {}
        for name in self.scores:
            row: dict[str, Any] = {}
            if name in self.results:
                worst = self.scores[name].points[self.choice.measure.name]["worst20"]
                row |= self.summary(name) | {"worst20_std": float(np.std(worst))}
                row["w_entropy"] = float(np.mean([r.final()["w/entropy"] for r in self.results[name]]))
                row["train_objective"] = self.objective(name)
                row["settings"] = ", ".join(f"{k}={v:.3g}" for k, v in self.settings[name].items())
            for measure in self.measures:
                for part in PARTS:
                    value, low, high, spread = self.number(name, measure.name, part)
                    key = f"{measure.name}/{part}"
                    row |= {key: value, f"{key}_low": low, f"{key}_high": high, f"{key}_std": spread}
            rows[name] = row
        return pd.DataFrame.from_dict(rows, orient="index")

    def clients(self) -> pd.DataFrame:
        """Return one row a site: its sizes, and its first number by each method and baseline, with the interval."""
        import pandas as pd

        federation, measure = self.federation, self.choice.measure.name
        columns: dict[str, Any] = {"train": np.asarray(federation.train.sizes), "test": np.asarray(federation.test.sizes)}
        if self.rows.positive is not None:
            columns["test_positive"] = self.rows.positives
        for name, scored in self.scores.items():
            columns[name] = scored.sites[measure].mean(axis=0)
            columns[f"{name}_low"], columns[f"{name}_high"] = scored.intervals
        return pd.DataFrame(columns, index=federation.names)

    def worst_sites(self, count: int = 5) -> list[dict[str, Any]]:
        """Return the sites that the model to keep serves worst: their names, test rows, numbers and intervals."""
        scored, first = self.scores[self.winner], self.choice.measure
        values = scored.sites[first.name].mean(axis=0)
        there = np.flatnonzero(np.isfinite(values))
        order = there[np.argsort(values[there] if first.higher_is_better else -values[there], kind="stable")][:count]
        sizes, positives = np.asarray(self.federation.test.sizes), self.rows.positives
        return [
            {
                "site": self.federation.names[i],
                "test_rows": int(sizes[i]),
                "positive_rows": int(positives[i]) if self.rows.positive is not None else None,
                **{name: float(s.sites[first.name][:, i].mean()) for name, s in self.scores.items()},
                "low": float(scored.intervals[0, i]),
                "high": float(scored.intervals[1, i]),
            }
            for i in order
        ]

    def figures(self, folder: Path) -> list[Path]:
        """Draw everything into a folder, and return the files."""
        from fedminimax.fairness.drawing import draw

        return draw(self, folder)

    # -- for a file -----------------------------------------------------------------------------------------------------

    def summary_dict(self) -> dict[str, Any]:
        """Return all tables, baselines, intervals and sentences as plain values that JSON can hold; NaN is None."""
        first, federation = self.choice.measure, self.federation
        names = federation.classes
        positive = self.rows.positive
        found = {
            "first": {"measure": first.name, "title": first.title, "rare": self.choice.rare, "sentence": self.choice.sentence},
            "task": federation.task,
            "classes": names,
            "class_shares": None if names is None else dict(zip(names, shares(federation), strict=True)),
            "positive": None if positive is None or names is None else names[positive],
            "sites": self._sites(),
            "features": federation.features,
            "left_out": federation.dropped,
            "columns": [asdict(column) for column in federation.columns],
            "reading": federation.notes,
            "asked": self.asked,
            "methods": list(self.results),
            "baselines": {name: NOTES[name] for name in self.baselines},
            "scores": {name: self._numbers(name) for name in self.scores},
            "settings": self.settings,
            "tuning": {
                name: {"tried": t.tried, "edges": t.edges, "grids": list(t.grids), "sentence": t.sentence(name)}
                for name, t in self.tuned.items()
            },
            "train_objective": {name: self.objective(name) for name in self.results},
            "winner": self.winner,
            "winning_run": self.winning_run,
            "rule": RULE.format(measure=first.title),
            "training": {name: self.training(name) for name in self.results},
            "threshold": self.threshold,
            "thresholds": {name: scored.thresholds for name, scored in self.scores.items() if scored.thresholds},
            "verdicts": [one.sentence for one in self.leads],
            "leads": [asdict(one) for one in self.leads],
            "worst_sites": self.worst_sites(),
            "groups": {name: _of_groups(rates) for name, rates in self.rates.items()},
            "notes": self.notes,
        }
        plain: dict[str, Any] = _plain(found)
        return plain

    def _numbers(self, name: str) -> dict[str, Any]:
        return {m.name: {part: self.number(name, m.name, part)._asdict() for part in PARTS} for m in self.measures}

    def _sites(self) -> list[dict[str, Any]]:
        train, test = np.asarray(self.federation.train.sizes), np.asarray(self.federation.test.sizes)
        rows = [{"site": n, "train": a, "test": b} for n, a, b in zip(self.federation.names, train, test, strict=True)]
        if self.rows.positive is not None:
            for row, count in zip(rows, self.rows.positives, strict=True):
                row["test_positive"] = count
        return rows


def _of_groups(rates: Rates) -> dict[str, Any]:
    of = lambda k: {
        "positive": rates.counts[k, 0],
        "negative": rates.counts[k, 1],
        "tpr": rates.tpr[k]._asdict(),
        "fpr": rates.fpr[k]._asdict(),
    }
    return {
        "groups": {name: of(k) for k, name in enumerate(rates.names)},
        "gaps": {rate: gap._asdict() for rate, gap in rates.gaps.items()},
        "few": rates.few,
    }


def _plain(value: Any) -> Any:
    """Return a tree of values that JSON can hold."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (bool, int, str, type(None))) else str(value)
