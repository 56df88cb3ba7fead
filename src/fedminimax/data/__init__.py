"""Data: what clients hold, how datasets are read, and how they are split."""

from fedminimax.data.clients import ClientData

__all__ = ["ClientData"]
