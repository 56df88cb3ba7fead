"""A first call of the estimators beside scikit-learn's pooled LogisticRegression: twenty splits of four federations.

    python benchmarks/estimators.py cancer digits adult-race adult-education    # runs what is not in the table yet
    python benchmarks/estimators.py --page                                      # writes the tables of docs/estimators.md

Both have their defaults. LogisticRegression sees all rows pooled and standardised, as a pipeline does it. Every run is a row of
results/estimators.csv. Made-up sites and the division into training and test rows are those of the split's number. Intervals
allow for the rows that splits share, as those of fair_tables.py do.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fair_tables import interval
from fedminimax.data import partition
from fedminimax.data.published import load_table
from fedminimax.sklearn import AUCClassifier, FairClassifier, client_scores

ROOT = Path(__file__).parent.parent
TABLE, PAGE = ROOT / "benchmarks" / "results" / "estimators.csv", ROOT / "docs" / "estimators.md"
SPLITS, TEST_SHARE = 20, 0.25
POOLED, FAIR, AREA = "LogisticRegression, pooled", "FairClassifier", "AUCClassifier"
NAMES = {
    "cancer": "breast cancer, 5 clusters",
    "digits": "digits, 10 sites by Dirichlet(0.1)",
    "adult-race": "Adult by race, 5 sites",
    "adult-education": "Adult by education, 16 sites",
}
SHOWN = {
    "rows": "accuracy, all rows",
    "sites": "mean of the sites",
    "worst_fifth": "worst 20% of the sites",
    "worst": "worst site",
    "worst_loss": "log loss of the worst site",
}


def cancer(split: int):
    X, y = load_breast_cancer(return_X_y=True)
    sizes = StandardScaler().fit_transform(X[:, :10])
    return X, y, KMeans(5, n_init=10, random_state=split).fit_predict(sizes)


def digits(split: int):
    X, y = load_digits(return_X_y=True)
    return X, y, partition.dirichlet(y, 10, 0.1, seed=split, min_size=60)


def adult(client: str):
    table = load_table("adult", client=client)
    frame = pd.concat([table.frame, table.test], ignore_index=True)
    labels, sites = (frame[table.label] == ">50K").astype(int), frame[table.client]
    frame = frame.drop(columns=[table.label, table.client])
    words = [column for column in frame if not pd.api.types.is_numeric_dtype(frame[column])]
    encode = make_column_transformer((OneHotEncoder(sparse_output=False), words), remainder="passthrough")
    X = encode.fit_transform(frame.fillna(dict.fromkeys(words, "unknown")))
    return np.asarray(X, float), labels.to_numpy(), sites.to_numpy()


def federation(name: str, split: int):
    """Return the training and the test part, each with rows, labels and sites."""
    made = {"cancer": cancer, "digits": digits}
    X, y, sites = made[name](split) if name in made else adult(name.partition("-")[2])
    train, test = train_test_split(np.arange(len(y)), test_size=TEST_SHARE, random_state=split, stratify=sites)
    if name == "digits":  # as in SCAFF-PD's setting (fedminimax.data.silos), some sites are small
        train = train[partition.drop_examples(sites[train], 0.3, 0.7, seed=split) >= 0]
    return [(X[part], y[part], sites[part]) for part in (train, test)]


def measured(model, X, y, sites) -> dict[str, float]:
    chance = model.predict_proba(X)
    own = np.maximum(chance[np.arange(len(y)), np.searchsorted(model.classes_, y)], 1e-12)
    each = client_scores(y, model.predict(X), sites)
    loss = client_scores(-np.log(own), own, sites, lambda loss, _: float(loss.mean()))
    area = roc_auc_score(y, chance[:, 1]) if chance.shape[1] == 2 else np.nan
    fifth = np.sort(each.to_numpy())[: max(1, round(0.2 * len(each)))].mean()
    known = {"rows": model.score(X, y), "sites": each.mean(), "worst_fifth": fifth, "worst": each.min()}
    return {**known, "worst_loss": loss.max(), "auc": area}


def run(name: str, split: int, known: pd.DataFrame) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    (X, y, sites), test = federation(name, split)
    models = {POOLED: make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)), FAIR: FairClassifier()}
    models |= {AREA: AUCClassifier()} if len(np.unique(y)) == 2 else {}
    for label, model in models.items():
        if ((known["data"] == name) & (known["split"] == split) & (known["model"] == label)).any():
            continue
        before = time.process_time()
        model.fit(X, y) if label == POOLED else model.fit(X, y, clients=sites)
        spent = time.process_time() - before
        row = {"data": name, "split": split, "model": label, **measured(model, *test), "cpu_seconds": round(spent, 2)}
        print(row, flush=True)
        rows.append(row)
    return rows


def difference(rows: pd.DataFrame, model: str, column: str) -> tuple[float, float]:
    """Return the mean over splits of a model's lead over the pooled one, and half its 95% interval."""
    wide = rows.pivot(index="split", columns="model", values=column)
    low, high = interval(wide[model] - wide[POOLED], TEST_SHARE / (1 - TEST_SHARE))
    return (low + high) / 2, (high - low) / 2


def verdict(mean: float, half: float, lower_is_better: bool) -> str:
    if abs(mean) <= half:
        return "noise"
    return "better" if (mean < 0) == lower_is_better else "worse"


def page(known: pd.DataFrame) -> str:
    lines = ["| data | measure | pooled | FairClassifier | lead | |", "|---|---|---:|---:|---:|---|"]
    for name in (each for each in NAMES if each in set(known["data"])):
        rows = known[known["data"] == name]
        for column, shown in SHOWN.items():
            percent, scale = ("", 1.0) if column == "worst_loss" else ("%", 100.0)
            of = lambda model, c=column, s=scale, r=rows: s * r.loc[r["model"] == model, c].mean()
            mean, half = difference(rows, FAIR, column)
            digits = 1 if percent else 3
            lead = f"{scale * mean:+.{digits}f} ± {scale * half:.{digits}f}"
            values = " | ".join(f"{of(model):.{digits}f}{percent}" for model in (POOLED, FAIR))
            lines.append(f"| {NAMES[name]} | {shown} | {values} | {lead} | {verdict(mean, half, column == 'worst_loss')} |")
    lines += ["", "| data | AUC, pooled | AUC, AUCClassifier | lead | |", "|---|---:|---:|---:|---|"]
    for name in (each for each in NAMES if ((known["data"] == each) & (known["model"] == AREA)).any()):
        rows = known[known["data"] == name]
        mean, half = difference(rows, AREA, "auc")
        values = " | ".join(f"{rows.loc[rows['model'] == model, 'auc'].mean():.4f}" for model in (POOLED, AREA))
        lines.append(f"| {NAMES[name]} | {values} | {mean:+.4f} ± {half:.4f} | {verdict(mean, half, False)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help=", ".join(NAMES))
    parser.add_argument("--page", action="store_true", help="write the tables into docs/estimators.md")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.data) - set(NAMES)):
        sys.exit(f"There is no {unknown[0]}: choose among {', '.join(NAMES)}.")
    known = pd.read_csv(TABLE) if TABLE.exists() else pd.DataFrame(columns=["data", "split", "model"])
    for name in arguments.data:
        for split in range(SPLITS):
            if rows := run(name, split, known):
                known = pd.concat([known, pd.DataFrame(rows)], ignore_index=True)
                known.to_csv(TABLE, index=False, float_format="%.6g")
    if arguments.page:
        begin, end = "<!-- benchmarks/estimators.py -->", "<!-- end -->"
        before, _, rest = PAGE.read_text().partition(begin)
        PAGE.write_text(f"{before}{begin}\n\n{page(known)}\n\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    main()
