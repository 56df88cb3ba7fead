"""Which method serves the worst-off client best? Tune several on a federation with equal budgets, run them, and report.

:func:`contest` is what ``fedminimax fair`` calls: it searches step sizes on the training objective, trains, judges every site
on its own test rows beside three baselines, and returns a :class:`Comparison` with tables, intervals and verdicts.
"""

from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.contests import contest
from fedminimax.fairness.tuning import BUDGET, make, search, search_space, smoothness
from fedminimax.fairness.words import penalty_of, penalty_text

__all__ = [
    "BUDGET",
    "Comparison",
    "contest",
    "make",
    "penalty_of",
    "penalty_text",
    "search",
    "search_space",
    "smoothness",
]
