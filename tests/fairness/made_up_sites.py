"""Tables of a few sites, made up."""

import numpy as np
import pandas as pd

from fedminimax.data import federate
from fedminimax.data.tabular import Table


def people(rows=240, seed=0):
    """A table of four sites, of which one, the smallest, is unlike the others."""
    rng = np.random.default_rng(seed)
    site = rng.choice(["north", "south", "east", "island"], size=rows, p=[0.4, 0.3, 0.22, 0.08])
    age, blood = rng.normal(60, 10, rows), rng.choice(["A", "B", "0"], rows)
    risk = (age - 60) / 10 * np.where(site == "island", -1.5, 1.0) + (blood == "A") * 0.8 + rng.normal(0, 0.3, rows)
    return pd.DataFrame(
        {"site": site, "age": age, "blood": blood, "outcome": np.where(risk > 0.3, "ill", "well"), "risk": risk}
    )


def patients(classes=("no", "yes"), rare=0.1, rows=600, seed=1):
    """A table of five sites with a rare class, which the last site has not; of the two classes, or of three."""
    rng = np.random.default_rng(seed)
    site = rng.choice(list("abcde"), rows, p=[0.4, 0.25, 0.15, 0.12, 0.08])
    x = rng.normal(size=(rows, 3))
    risk = x[:, 0] + 0.5 * x[:, 1] * np.where(site == "d", -1, 1) + rng.normal(0, 0.5, rows)
    outcome = np.where((risk > np.quantile(risk, 1 - rare)) & (site != "e"), classes[-1], classes[0]).astype(object)
    if len(classes) == 3:
        outcome[(x[:, 2] > 0.3) & (outcome == classes[0])] = classes[1]
    sex = rng.choice(["f", "m", "x"], rows, p=[0.5, 0.48, 0.02])
    return pd.DataFrame({"site": site, "u": x[:, 0], "v": x[:, 1], "t": x[:, 2], "sex": sex, "outcome": outcome})


def as_federation(frame, label="outcome", task="classification", **options):
    return federate(Table("table", frame, label, "site", task), **{"min_rows": 5} | options)
