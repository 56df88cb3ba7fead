"""The sites of a federation, as a summary has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedminimax.data.federation import Federation


def with_sites(summary: Mapping[str, Any], federation: Federation | None) -> dict[str, Any]:
    """Return the summary with what the federation knows of each site: its rows, and of each class how many.

    Args:
        summary: what was measured; what it says of a site stays.
        federation: the clients' data, if it is there.
    """
    if federation is None:
        return dict(summary)
    said = {row.get("site"): row for row in summary.get("sites") or []}
    train, test = (np.asarray(data.sizes).tolist() for data in (federation.train, federation.test))
    sites = []
    for k, name in enumerate(federation.names):
        known: dict[str, Any] = {"site": name, "train": train[k], "test": test[k]}
        if federation.classes is not None and federation.class_counts is not None:
            known["classes"] = dict(zip(federation.classes, federation.class_counts[k].tolist(), strict=True))
        sites.append({**known, **said.get(name, {})})
    return {**summary, "sites": sites}
