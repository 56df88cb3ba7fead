"""What the columns of a table are: numbers, categories, dates, identifiers."""

from __future__ import annotations

from dataclasses import dataclass

NUMBER, CATEGORY, DATE, ID, CONSTANT = "number", "category", "date", "id", "constant"
"""The roles of columns that may be features."""
LABEL, CLIENT = "label", "client"


@dataclass(frozen=True)
class Column:
    """What a column was taken for.

    Attributes:
        name: its name.
        role: "number", "category", "date", "id" (unique or nearly so), "constant", "label" or "client".
        used: whether it is a feature.
        missing: the share of its values that are missing.
        distinct: how many different values it has.
        note: why it is left out, or what was read otherwise than it is written; may be empty.
    """

    name: str
    role: str
    used: bool
    missing: float
    distinct: int
    note: str = ""
