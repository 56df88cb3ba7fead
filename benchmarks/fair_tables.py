"""Fair models on published tables, five splits each: ``python benchmarks/fair_tables.py``, then ``--page`` for the docs.

Each split divides every site's rows anew into training and test rows, tunes the methods on the training rows, and judges them,
the pooled model, the local ones and the majority on the test rows. A row of ``results/fair_tables.csv`` is a number of a model
on a split, or the lead of ScaffPD over FedAvg with its interval over test rows; a split that is there is not run again.

Splits share rows, so that their spread understates what other data would give. The interval of a mean lead is therefore that of
C. Nadeau and Y. Bengio, "Inference for the generalization error", Machine Learning 52, 2003: the variance over J splits is
taken (1/J + test rows / training rows) times, not 1/J times.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from scipy import stats

from fedminimax.data import published, tabular
from fedminimax.data.federation import Federation
from fedminimax.data.tabular import Table
from fedminimax.fairness import Comparison, contest

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "fair_tables.csv", HERE.parent / "docs" / "fair_results.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
METHODS = ["ScaffPD", "FedAvg", "FedAvg:size"]
SPLITS, ROUNDS, LEVEL = 5, 200, 0.95
PARTS = {"average": "average of sites", "worst20": "worst 20% of sites", "worst": "worst site", "all": "all rows"}


class Case(NamedTuple):
    """A published table, and whose rows are a site."""

    table: str
    client: str
    title: str


CASES = [
    Case("adult", "education", "Adult by education"),
    Case("adult", "race", "Adult by race"),
    Case("compas", "race", "COMPAS by race"),
    Case("german_credit", "purpose", "German credit by purpose"),
    Case("communities_crime", "state", "Communities & Crime by state"),
]


def federation_of(case: Case, split: int) -> Federation:
    """Return a table as sites' data; an official test part is divided anew with the rest."""
    table = published.load_table(case.table, client=case.client)
    if table.test is not None:
        both = pd.concat([table.frame, table.test], ignore_index=True)
        table = Table(table.name, both, table.label, table.client, table.task)
    return tabular.federate(table, seed=split)


def rows_of(case: Case, split: int, found: Comparison) -> list[dict[str, object]]:
    """Return what a split says: every number of the first measure and of the others, and the leads over FedAvg."""
    sizes = {"sites": found.federation.train.count, "train": found.federation.train.total, "test": found.federation.test.total}
    common = {"case": case.title, "split": split, "first": found.choice.measure.name, **sizes}
    rows: list[dict[str, object]] = []
    for name in found.scores:
        for measure in found.measures:
            for part in PARTS:
                number = found.number(name, measure.name, part)
                at = {"model": name, "measure": measure.name, "part": part}
                rows.append({**common, **at, "value": number.value, "low": number.low, "high": number.high})
    for lead in found.leads:
        at = {"model": f"{lead.first} - {lead.other}", "measure": lead.measure, "part": lead.part}
        rows.append({**common, **at, "value": lead.value, "low": lead.low, "high": lead.high})
    return rows


def interval(values: pd.Series, test_to_train: float) -> tuple[float, float]:
    """Return the interval of a mean over splits that share rows."""
    error = float(values.std(ddof=1)) * (1 / len(values) + test_to_train) ** 0.5
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * error
    return float(values.mean()) - reach, float(values.mean()) + reach


def run(cases: list[Case], splits: int, rounds: int) -> None:
    """Run what is not in the table yet."""
    known = pd.read_csv(RESULTS) if RESULTS.exists() else pd.DataFrame(columns=["case", "split"])
    for case in cases:
        for split in range(splits):
            if ((known["case"] == case.title) & (known["split"] == split)).any():
                continue
            found = contest(federation_of(case, split), METHODS, rounds=rounds, seeds=1, progress=False)
            known = pd.concat([known, pd.DataFrame(rows_of(case, split, found))], ignore_index=True)
            known.to_csv(RESULTS, index=False, float_format="%.6g")
            print(f"{case.title}, split {split}: {'; '.join(lead.sentence for lead in found.leads)}", flush=True)


def page(known: pd.DataFrame) -> str:
    """Return the tables as Markdown, and a sentence on each lead."""
    parts = []
    for case in CASES:
        of = known[known["case"] == case.title]
        if of.empty:
            continue
        first = of["first"].iloc[0]
        percent = first not in ("rmse", "mae", "log_loss", "brier")
        show = (lambda v: f"{100 * v:.1f}") if percent else (lambda v: f"{v:.4f}")
        of, ratio = of[of["measure"] == first], float((of["test"] / of["train"]).mean())
        named = f"{first.upper() if first in ('auc', 'rmse') else first.replace('_', ' ')}{', %' if percent else ''}"
        splits = of["split"].nunique()
        held = f"{of['sites'].iloc[0]} sites, {of['train'].iloc[0]:,} training rows, {splits} splits. {named}:"
        lines = [f"### {case.title}", "", held, ""]
        lines += [f"| | {' | '.join(PARTS.values())} |", f"|---|{'---:|' * len(PARTS)}"]
        for model in of["model"].drop_duplicates():
            if " - " in model:
                continue
            cells = []
            for part in PARTS:
                values = of[(of["model"] == model) & (of["part"] == part)]["value"]
                low, high = interval(values, ratio)
                low, high = max(low, 0.0), min(high, 1.0) if percent else high
                cells.append(f"{show(values.mean())} ({show(low)} to {show(high)})")
            named = NAMES.get(model, model) if percent or model != "majority" else "the mean, for everybody"
            lines.append(f"| {named} | {' | '.join(cells)} |")
        leads = of[of["model"].str.contains(" - ")]
        for (model, part), of_part in leads.groupby(["model", "part"], sort=False):
            lines += ["", lead_sentence(str(model), str(part), of_part, ratio, percent)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


NAMES = {"majority": "majority class", "pooled": "pooled (not federated)", "local": "local, one model a site"}


def lead_sentence(model: str, part: str, of: pd.DataFrame, ratio: float, percent: bool) -> str:
    """Return the mean lead with its interval over splits, and whether it is more than noise."""
    first, other = model.split(" - ")
    scale, unit = (100, " points") if percent else (1, "")
    low, high = interval(of["value"], ratio)
    number = (lambda v: f"{scale * v:+.1f}") if percent else (lambda v: f"{v:+.4f}")
    better, worse = int((of["low"] > 0).sum()), int((of["high"] < 0).sum())
    verdict = "better, by more than noise" if low > 0 else "worse, by more than noise" if high < 0 else "not more than noise"
    return (
        f"{first}'s lead over {other}, {PARTS[part]}: {number(of['value'].mean())}{unit} ({number(low)} to {number(high)} over "
        f"splits): **{verdict}**. Over test rows alone it was ahead in {better} and behind in {worse} of {len(of)} splits."
    )


def write_page(known: pd.DataFrame) -> None:
    """Put the tables into the page, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:before]}\n\n{page(known)}\n\n{text[after:]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=[c.title for c in CASES], default=[c.title for c in CASES])
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--page", action="store_true", help="write the docs' tables from what was run, and run nothing")
    options = parser.parse_args()
    if not options.page:
        os.environ.setdefault("FEDMINIMAX_CACHE", "off")
        run([case for case in CASES if case.title in options.cases], options.splits, options.rounds)
    write_page(pd.read_csv(RESULTS))


if __name__ == "__main__":
    main()
