"""Metrics of a run between neighbours: each site measures its own players, and the coordinator puts the numbers together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedminimax import wire
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.evaluation import Judge, shapes_of_parts
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.execution import Sites
from fedminimax.engines.federated.gossip_messages import MEASURES
from fedminimax.engines.federated.hello import check_told
from fedminimax.errors import InputError
from fedminimax.metrics import parts
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import METRICS, Assembled, Context, Roll
from fedminimax.players import Tree
from fedminimax.problems.personalized import PersonalizedProblem


class Measures:
    """Evaluates metrics that need a node's own row and data, and nothing of anybody else's.

    Args:
        problem: the problem.
        clients: what is known of the sites' data.
        row: the shapes of a node's row, as the only one: [1, ...].
        sites: the sites.
    """

    def __init__(self, problem: PersonalizedProblem, clients: RemoteClients, row: Tree, sites: Sites):
        self._problem, self._clients, self._row, self._sites = problem, clients, row, sites
        self._roll, self._asked = Roll.of(clients), 0
        self._judge = Judge(problem, self._roll)

    def __call__(
        self, metrics: Mapping[str, Metric], about: Mapping[str, dict[str, Any]], session: str, context: Context
    ) -> dict[str, Any]:
        """Return every number of every metric. What lacks a site's part is NaN.

        Args:
            metrics: by name.
            about: by site, the run and the state that is meant.
            session: the coordinator's.
            context: where the run is.
        """
        refuse_others(metrics, self._roll.count)
        check_told(metrics, self._roll.count, self._sites.measures)
        if not metrics:
            return {}
        self._asked += 1
        found = self._ask(metrics, about, f"{session}/measures/{self._asked}")
        whole = {name: parts.added_up([said[name] for said in found]) for name in metrics}
        ready = {name: Assembled(parts.without_data(metric), whole[name]) for name, metric in metrics.items()}
        return self._judge.once(ready, None, context)

    def _ask(self, metrics: Mapping[str, Metric], about: Mapping[str, dict[str, Any]], id: str) -> list[Tree]:
        """Ask all sites for their parts, in one call."""
        weight = 1.0 / self._roll.count  # nodes count equally
        asked = {name: {"metric": parts.describe(metric, _not_here), "weight": weight} for name, metric in metrics.items()}
        expected = {site: self._expected(metrics, asked, k) for k, site in enumerate(self._sites.names)}

        def read(site: str, reply: wire.Bytes) -> Tree:
            message = messages.read(reply, id, MEASURES, messages.room(expected[site]))
            return messages.like(message[MEASURES], expected[site], "a part of a metric")

        make = lambda site: wire.encode({"id": id, **about[site], MEASURES: asked})
        found = self._sites.group.ask(self._sites.names, make, read, 0, self._sites.hello)
        unknown = lambda shapes: jax.tree.map(lambda s: np.full(s.shape, np.nan), shapes)
        return [found[site] if site in found else unknown(expected[site]) for site in self._sites.names]

    def _expected(self, metrics: Mapping[str, Metric], asked: Mapping[str, dict[str, Any]], k: int) -> Tree:
        """Return the shapes of a site's parts."""
        told = lambda metric: jax.eval_shape(lambda row: parts.told(metric, self._problem, None, row, 0), self._row)
        request = {name: {**one, "told": told(metrics[name])} for name, one in asked.items()}
        shares: dict[int | str, Any] = {name: roll.shapes(k) for name, roll in self._sites.held_out.items()}
        return shapes_of_parts(self._problem, k, self._clients.shapes(k), shares, request)


def refuse_others(metrics: Mapping[str, Metric], count: int) -> None:
    """Raise an :class:`InputError` if a metric needs what no node has: others' rows, or all data in one place."""
    refused = [name for name, m in metrics.items() if not parts.of_own_row(m) or parts.needs(m, count) != parts.PARTS]
    if refused:
        able = ", ".join(sorted(name for name, cls in METRICS.items() if getattr(cls, "of_own_row", False) is True))
        raise InputError(
            f"{', '.join(map(repr, refused))} cannot be measured between neighbours: no one there has all nodes' players, nor "
            f"all data. Use {able}, or On(...) of these."
        )


def _not_here(data: Any) -> int:
    raise InputError("Held-out data is with the sites: let each load its share, and give engine.held_out(name) in its place.")
