"""Trained models judged on the test rows, with thresholds from the training rows, beside the baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.data.federation import Federation
from fedminimax.fairness import baselines as base
from fedminimax.fairness.bootstrap import Scored, appraise, worst_fifth
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.groups import group_rates
from fedminimax.fairness.measures import Choice, measures_of, positive_class
from fedminimax.fairness.outputs import Outputs, labels_of, outputs
from fedminimax.fairness.rows import Rows
from fedminimax.fairness.scores import Judge, judge
from fedminimax.fairness.threshold import best_threshold, histogram
from fedminimax.fairness.verdict import alone, cautions, lead
from fedminimax.fairness.words import SIZE
from fedminimax.problems.robust import RobustProblem
from fedminimax.result import Result

USUAL, BY_SIZE = "FedAvg", "FedAvg:size"
"""The methods that the first is compared with, where they are among them."""

Tell = Callable[[str], None]
Busy = Callable[[str], AbstractContextManager[Any]]
Predict = Callable[[ClientData], Outputs]
"""A trained model: the predictions for all rows of some clients."""


@dataclass(frozen=True)
class Judging:
    """How models are judged: on the test rows, with a threshold that comes from the training rows."""

    federation: Federation
    problem: RobustProblem
    loss: str
    choice: Choice
    weights: str
    draws: int
    tell: Tell
    busy: Busy

    @property
    def rows(self) -> Rows:
        """The test rows."""
        return Rows.of(self.federation.test, self.federation)

    def scores(
        self, results: Mapping[str, Sequence[Result]], baselines: Sequence[str]
    ) -> tuple[dict[str, Scored], dict[str, list[Judge]]]:
        """Return how good the methods and baselines are, and the judges of their runs."""
        rows, thresholds, training = self.rows, dict[str, list[float]](), dict[str, list[float]]()
        trained = Rows.of(self.federation.train, self.federation)
        judges: dict[str, list[Judge]] = {}
        for name, predict in (*self._methods(results), *self._baselines(baselines)):
            own = [one(self.federation.train) for one in predict]
            edges = [self._threshold(one) for one in own]
            training[name] = [self._worst(trained, one, edge) for one, edge in zip(own, edges, strict=True)]
            thresholds[name] = [edge for edge in edges if edge is not None]
            judges[name] = [judge(rows, one(self.federation.test), edge) for one, edge in zip(predict, edges, strict=True)]
        sizes = np.asarray(self.federation.train.sizes, float)
        share = sizes if self.weights == SIZE else np.ones(len(sizes))
        with self.busy(f"intervals: {self.draws} draws of the test rows"):
            found = appraise(
                judges, measures_of(self.federation), self.choice.measure, share=share / share.sum(), draws=self.draws
            )
        scored = {n: replace(one, thresholds=thresholds[n], training=training[n]) for n, one in found.items()}
        return scored, judges

    def _methods(self, results: Mapping[str, Sequence[Result]]) -> Iterable[tuple[str, list[Predict]]]:
        for name, runs in results.items():
            yield name, [self._of(result.x) for result in runs]

    def _of(self, x: Any) -> Predict:
        positive = positive_class(self.federation)
        return lambda data: outputs(self.problem, x, data, self.federation, self.loss, positive)

    def _baselines(self, wanted: Sequence[str]) -> Iterable[tuple[str, list[Predict]]]:
        train = self.federation.train
        if base.MAJORITY in wanted:
            yield base.MAJORITY, [lambda data: base.majority(self.federation, data)]
        if base.POOLED in wanted:
            with self.busy("pooled model"):
                yield base.POOLED, [self._of(base.pooled(self.problem, train))]
        if base.LOCAL in wanted:
            numbers = base.local_numbers(self.problem, train)
            if numbers > base.MOST_NUMBERS:
                self.tell(f"Local models are left out: {train.count} of them are too many for a model of this size.")
                return
            with self.busy(f"{train.count} local models"):
                own = base.Local(self.problem, self.federation, self.loss, positive_class(self.federation))
                yield base.LOCAL, [own.outputs]

    def _worst(self, rows: Rows, found: Outputs, threshold: float | None) -> float:
        """Return the first measure of the worst fifth of sites."""
        each = judge(rows, found, threshold)(np.ones((1, len(rows)))).sites[self.choice.measure.name]
        return float(worst_fifth(each, self.choice.measure)[0])

    def _threshold(self, found: Outputs) -> float | None:
        """Return where a class is rare the threshold that the sites' training rows give, by their histograms' sum."""
        positive, train = positive_class(self.federation), self.federation.train
        if not self.choice.rare or positive is None:
            return None
        p = found.probabilities[:, positive]
        is_positive = labels_of(train, self.federation) == positive
        ends = np.cumsum(np.asarray(train.sizes))[:-1]
        by_site = zip(np.split(p, ends), np.split(is_positive, ends), strict=True)
        return best_threshold(np.sum([histogram(own, label) for own, label in by_site], axis=0))

    def with_words(self, made: Comparison, judges: Mapping[str, Sequence[Judge]]) -> Comparison:
        """Return the comparison with its verdicts, its rates by group and its cautions."""
        methods, first = list(made.results), self.choice.measure
        other = next((m for m in (USUAL, *methods[1:]) if m in methods[1:]), None)
        pairs = [] if other is None else [(other, "worst20"), (other, "average")]
        pairs += [(BY_SIZE, "worst20")] if BY_SIZE in methods[1:] and other != BY_SIZE else []
        leads = [lead(methods[0], name, made.scores, first, part) for name, part in pairs]
        rates = {}
        if self.federation.groups is not None and made.rows.positive is not None:
            shown = [*methods, *(b for b in made.baselines if b != base.MAJORITY)]
            rates = {name: group_rates(judges[name][0], self.federation.groups, self.draws) for name in shown}
        return replace(
            made,
            leads=[one for one in leads if one is not None],
            rates=rates,
            notes=[
                *cautions(self.federation.names, made.rows, made.scores, methods, first, self.loss),
                *alone(made.winner, base.LOCAL, made.scores, first),
            ],
        )
