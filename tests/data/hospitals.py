"""A made-up table of eight hospitals, with what real ones have: ``python tests/data/hospitals.py hospitals.csv`` writes it.

The hospitals are of very unequal size (3 to 2,100 rows), 4.4% of the patients come back within thirty days, one hospital has
seen nobody come back, each writes its labels in its own way, ages are missing or "unknown", and there are a date and an
identifier. In six hospitals age, the marker and diabetes tell who comes back. In two small ones it is surgery and low pressure,
the marker says nothing, and the young come back: a model for the average is poor there, and one that is fair to sites gains.
"""

import sys

import numpy as np
import pandas as pd

LABEL, SITE, GROUP, POSITIVE = "readmitted", "hospital", "sex", "yes"

# rows, readmitted among them, how the hospital writes no and yes, whether it is one of the two that differ
SITES = {
    "central": (2100, 80, "no", "yes", False),
    "riverside": (1300, 52, "No", "Yes", False),
    "hillcrest": (800, 30, "NO", "YES", False),
    "lakeview": (480, 28, "no", "yes", False),
    "childrens": (300, 24, "no", "yes", True),
    "harbour": (163, 14, " no", "yes ", True),
    "hospice": (57, 0, "no", "yes", False),
    "island": (3, 1, "no", "yes", False),
}


def hospitals(seed: int = 0) -> pd.DataFrame:
    """Return the table, 5,203 rows in random order; another seed makes other patients of the same hospitals."""
    rng = np.random.default_rng(seed)
    frame = pd.concat([_site(rng, name, *what) for name, what in SITES.items()], ignore_index=True)
    frame = frame.iloc[rng.permutation(len(frame))].reset_index(drop=True)
    frame.insert(0, "patient", [f"P{number:06d}" for number in rng.permutation(900_000)[: len(frame)] + 100_000])
    return frame


def _site(rng: np.random.Generator, name: str, rows: int, positives: int, no: str, yes: str, differs: bool) -> pd.DataFrame:
    age = np.clip(rng.normal(47 if differs else 64, 16, rows), 18, 97).round()
    marker = rng.lognormal(1.0, 0.8, rows).round(1)
    stays = rng.poisson(0.8, rows)
    pressure = rng.normal(128 + 0.15 * (age - 60), 14, rows).round()
    diabetes = rng.random(rows) < 0.18
    sex = rng.choice(["female", "male"], rows)
    ward = rng.choice(["surgery", "medicine", "cardiology", "unknown"], rows, p=[0.35, 0.4, 0.2, 0.05])
    z = (age - 60) / 16
    if differs:
        risk = -0.6 * z + 2.0 * (ward == "surgery") - 1.0 * (pressure - 128) / 14 + 0.6 * stays
    else:
        risk = 1.1 * z + 1.2 * (np.log(marker) - 1) + 0.6 * stays + 0.7 * diabetes
    # The largest of risk + Gumbel noise are a draw without replacement by exp(risk): of exactly that many patients.
    back = np.zeros(rows, bool)
    back[np.argsort(-(risk + rng.gumbel(size=rows)))[:positives]] = True

    days = rng.integers(0, 730, rows)
    columns = {
        SITE: name,
        "admitted": (pd.Timestamp("2022-01-01") + pd.to_timedelta(days, "D")).strftime("%Y-%m-%d"),
        "age": age.astype(int).astype(str),
        GROUP: sex,
        "ward": ward,
        "marker": marker,
        "pressure": pressure,
        "stays": stays,
        "diabetes": np.where(diabetes, "yes", "no"),
        "country": "CH",
        LABEL: np.where(back, yes, no),
    }
    frame = pd.DataFrame(columns)
    frame.loc[rng.random(rows) < 0.01, "age"] = "unknown"
    frame.loc[rng.random(rows) < 0.02, "age"] = None
    frame.loc[rng.random(rows) < (0.25 if name == "riverside" else 0.06), "marker"] = np.nan
    frame.loc[rng.random(rows) < 0.03, "pressure"] = np.nan
    frame.loc[rng.random(rows) < 0.01, GROUP] = None
    return frame


if __name__ == "__main__":
    hospitals().to_csv(sys.argv[1], index=False)
