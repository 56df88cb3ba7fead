"""The clients' data: flat storage, data sets, tables, and ways to divide them among clients."""

from fedminimax.data import datasets, partition, published, tabular
from fedminimax.data.clients import ClientData
from fedminimax.data.federation import Federation
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.silos import silos
from fedminimax.data.tabular import federate

__all__ = ["ClientData", "Federation", "GeneratedClients", "datasets", "federate", "partition", "published", "silos", "tabular"]
