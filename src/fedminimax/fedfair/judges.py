"""Trained models, judged by the sites on their own rows; a site that does not answer is left out, and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from fedminimax.data.clients import ClientData
from fedminimax.data.federation import Federation
from fedminimax.errors import InputError
from fedminimax.fairness.baselines import LOCAL, MAJORITY
from fedminimax.fairness.bootstrap import Scored, scored, worst_fifth
from fedminimax.fairness.groups import Rates
from fedminimax.fairness.measures import Choice, measures_of, shares
from fedminimax.fairness.rows import Rows
from fedminimax.fairness.threshold import HALF, best_threshold
from fedminimax.fairness.words import SIZE
from fedminimax.fedfair import asking
from fedminimax.fedfair.agreeing import Known
from fedminimax.fedfair.asking import Asking, Some
from fedminimax.fedfair.judged import Numbers, Told, read_histograms, read_told
from fedminimax.fedfair.question import Question
from fedminimax.players import Tree
from fedminimax.result import Result


class Verdicts(NamedTuple):
    """What the sites said of models.

    Attributes:
        sites: those that answered.
        scores: how good methods and baselines are there.
        numbers: the sites' own.
        places: of each method and baseline, which of the models are its.
        left_out: of each site that did not answer, a sentence.
    """

    sites: list[str]
    scores: dict[str, Scored]
    numbers: Numbers
    places: dict[str, list[int]]
    left_out: list[str]

    def rates(self, draws: int) -> dict[str, Rates]:
        """Return the rates by group of each model, where there are groups."""
        found = {name: self.numbers.rates(self.places[name][0], draws) for name in self.scores if name != MAJORITY}
        return {name: one for name, one in found.items() if one is not None}


class Judges:
    """Lets the sites judge models, and makes tables of what they tell.

    Args:
        known: the sites.
        question: what is agreed on.
        choice: which measure comes first.
        draws: how often test rows are drawn anew for the intervals.
        timeout: seconds that a site is waited for.
    """

    def __init__(self, known: Known, question: Question, choice: Choice, draws: int, timeout: float):
        self.known, self.federation, self.question, self.choice, self.draws = known, known.federation, question, choice, draws
        self.timeout = timeout
        self._away: dict[str, str] = {}

    def judged(self, results: Mapping[str, Sequence[Result]]) -> Verdicts:
        """Return how good methods and baselines are at the sites that answer."""
        models = [_host(result.x) for runs in results.values() for result in runs]
        places: dict[str, list[int]] = {}
        for name, runs in results.items():
            first = sum(map(len, places.values()))
            places[name] = list(range(first, first + len(runs)))
        places |= {MAJORITY: [len(models)], LOCAL: [len(models) + 1]}
        edges = self._thresholds(models)
        told = self._numbers(models, edges)
        there = self.known.among(list(told))
        numbers = Numbers(list(told.values()), _sizes(there.test, there), there.positive, len(there.classes or []))
        scores = {name: self._scored(there, numbers, own, edges) for name, own in places.items()}
        left_out = [
            f"{site} did not answer when the models were judged ({why}): its rows are not in these numbers."
            for site, why in self._away.items()
        ]
        return Verdicts(list(told), scores, numbers, places, left_out)

    def _ask(self, kind: str, read: Any, **what: Any) -> dict[str, Any]:
        """Ask the sites that have answered so far; those that do not are left out from then on."""
        sites = tuple(site for site in self.known.transport.sites if site not in self._away)
        told, away = Asking(Some(self.known.transport, sites), self.timeout).some(kind, read, **what)
        self._away |= away
        if not told:
            said = ", ".join(f"{site} ({why})" for site, why in self._away.items())
            raise InputError(f"No site judges the models, which are kept: {said}. Start the sites, and run the study again.")
        return told

    def _scored(self, there: Federation, numbers: Numbers, own: list[int], edges: Sequence[float | None]) -> Scored:
        """Return how good a method or baseline is, by the numbers of its models."""
        sizes = np.asarray(there.train.sizes, float)
        share = sizes if self.question.weights == SIZE else np.ones(len(sizes))
        one = scored(
            [numbers.once(m) for m in own],
            numbers.draws(own, self.draws),
            measures_of(there),
            self.choice.measure,
            share=share / share.sum(),
        )
        training = [self._worst(numbers.once(m, training=True).sites[self.choice.measure.name]) for m in own]
        return replace(one, thresholds=[e for m in own if (e := edges[m]) is not None], training=training)

    def _worst(self, values: npt.NDArray[np.float64]) -> float:
        return float(worst_fifth(values, self.choice.measure)[0])

    def _thresholds(self, models: list[Tree]) -> list[float | None]:
        """Return where a class is rare the thresholds that the sites' training rows give, by their histograms' sum.

        They are those of the models, of the majority's prediction, and of the sites' own models.
        """
        positive = self.federation.positive
        if not self.choice.rare or positive is None:
            return [None] * (len(models) + 2)
        rows = self._by_class(self.federation.train)
        read = lambda site, said: read_histograms(said, len(models) + 1, rows[site], positive)
        told = self._ask(asking.HISTOGRAMS, read, models=models)
        edges = [best_threshold(one) for one in np.sum(list(told.values()), axis=0)]
        return [*edges[:-1], HALF, edges[-1]]  # of a prediction that is the same for everybody any threshold is as good

    def _by_class(self, data: ClientData) -> dict[str, npt.NDArray[np.int64]]:
        """Return how many rows of each class each site has."""
        return dict(zip(self.federation.names, _sizes(data, self.federation), strict=True))

    def _numbers(self, models: list[Tree], edges: Sequence[float | None]) -> dict[str, Told]:
        share = shares(self.federation) if self.federation.classes else np.ones(1)
        rows = self._by_class(self.federation.test)
        read = lambda site, said: read_told(said, len(models) + 2, rows[site], self.federation.positive)
        return self._ask(asking.JUDGE, read, models=models, thresholds=list(edges), shares=share, draws=self.draws)


def _sizes(data: ClientData, there: Federation) -> npt.NDArray[np.int64]:
    """Return how many rows of each class each site has, [N, C]; of a quantity how many it has, [N, 1]."""
    rows = Rows.of(data, there)
    sizes = np.zeros((rows.sites, max(rows.classes, 1)), np.int64)
    np.add.at(sizes, (rows.site, rows.labels.astype(np.intp) if rows.classes else np.zeros(len(rows), np.intp)), 1)
    return sizes


def _host(x: Tree) -> Tree:
    return jax.tree.map(np.asarray, x)
