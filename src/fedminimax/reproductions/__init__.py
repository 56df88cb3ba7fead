"""The figures and tables of the papers, each by one command, with a verdict on what it claims.

An item is a file in ``catalogue/``: an experiment (the tables that ``fedminimax run`` reads), at three scales, in one panel or
several, and what the paper says should come out of it. ``fedminimax reproduce`` carries it out, compares seed by seed, and says
whether the claim held.
"""

from fedminimax.reproductions.conduct import reproduce
from fedminimax.reproductions.expectations import Finding, verdict_of
from fedminimax.reproductions.item import Item, find, items

__all__ = ["Finding", "Item", "find", "items", "reproduce", "verdict_of"]
