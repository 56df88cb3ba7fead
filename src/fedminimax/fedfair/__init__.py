"""``fedminimax fair`` among sites that keep their rows: what leaves a site is counts, sums and numbers about many rows.

A :class:`~fedminimax.fedfair.site.FairSite` has one site's table and answers the server.
:func:`~fedminimax.fedfair.contest.contest` is the server's side, over any
:class:`~fedminimax.engines.federated.transport.Transport`, and returns what :func:`fedminimax.fairness.contest` returns.
"""

from fedminimax.fedfair.contest import contest
from fedminimax.fedfair.question import Question
from fedminimax.fedfair.site import FairSite

__all__ = ["FairSite", "Question", "contest"]
