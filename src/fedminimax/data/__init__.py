"""The clients' data: flat storage, data sets, tables, and ways to divide them among clients."""

import importlib
from typing import TYPE_CHECKING, Any

from fedminimax.data import datasets, partition
from fedminimax.data.clients import ClientData
from fedminimax.data.federation import Federation
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.shards import ClientShard
from fedminimax.data.silos import silos

if TYPE_CHECKING:
    from fedminimax.data import published, tabular
    from fedminimax.data.tabular import federate

__all__ = [
    "ClientData", "ClientShard", "Federation", "GeneratedClients", "datasets", "federate", "partition", "published", "silos",
    "tabular",
]  # fmt: skip


if not TYPE_CHECKING:  # a checker would take it to mean that there is every name

    def __getattr__(name: str) -> Any:
        """Return what works on tables when it is first asked for: only that needs pandas."""
        if name in ("published", "tabular"):
            return importlib.import_module(f"{__name__}.{name}")
        if name == "federate":
            return importlib.import_module(f"{__name__}.tabular").federate
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
