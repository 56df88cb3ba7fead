"""Which method serves the worst-off site best, found out among sites that keep their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from fedminimax import metrics
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.federated.group import Event
from fedminimax.engines.federated.transport import Transport
from fedminimax.fairness.baselines import LOCAL, MAJORITY
from fedminimax.fairness.bootstrap import DRAWS, Scored, scored, worst_fifth
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.contests import Training, tune_all, weighed
from fedminimax.fairness.judging import Busy, Judging, Tell
from fedminimax.fairness.measures import Choice, first_measure, measures_of, shares
from fedminimax.fairness.rows import Rows
from fedminimax.fairness.threshold import HALF, best_threshold
from fedminimax.fairness.words import SIZE, settings_of
from fedminimax.fedfair import asking
from fedminimax.fedfair.agreeing import Known, settle
from fedminimax.fedfair.asking import Asking, counts
from fedminimax.fedfair.judged import Numbers, Told, read_told
from fedminimax.fedfair.question import Question, problem_of
from fedminimax.fedfair.telling import BINS
from fedminimax.fedfair.training import Trainer
from fedminimax.players import Tree
from fedminimax.result import Result

STAYED = (
    "Trained at {count} sites, whose rows stayed there. There is no pooled model to compare with, since it would need the rows."
)


def contest(
    transport: Transport,
    question: Question,
    *,
    timeout: float = 60.0,
    min_replies: int = 1,
    draws: int = DRAWS,
    progress: bool | None = None,
    tell: Tell = lambda line: None,
    busy: Busy = nullcontext,
    describe: Callable[[Federation], None] = lambda federation: None,
    watch: Callable[[Event], None] | None = None,
) -> Comparison:
    """Tune methods, train them among the sites, and judge every site on its own test rows, there.

    Args:
        transport: to the sites, each of which has a :class:`~fedminimax.fedfair.site.FairSite` with the same question.
        question: what is agreed on.
        timeout: seconds that a site is waited for in a round.
        min_replies: how many sites must answer for a round to count.
        draws: how often test rows are drawn anew for the intervals.
        progress: show progress bars; by default on a terminal only.
        tell: called with a line about each search.
        busy: a context manager to show while something is under way.
        describe: called with what is known of the sites, before training.
        watch: is told which site answered in training, and which did not, and why.
    """
    slow = max(timeout, 300.0)  # a first question may have to wait for a site's programs to be compiled
    with busy("asking the sites what they have"):
        known = settle(transport, question, slow)
    federation = known.federation
    describe(federation)
    choice, classes = first_measure(federation), federation.classes
    problem = problem_of(question, len(federation.features), None if classes is None else len(classes))
    curve = _curve(federation, choice)
    how = Training(
        question.rounds, question.trial_rounds, question.local_steps, question.batch_size, question.seeds,
        max(1, question.rounds // 20), f"{curve.name}/worst20" if progress is None else progress,
    )  # fmt: skip
    trainer = Trainer(known, how, timeout, min_replies, watch)
    given: dict[str, dict[str, float]] = settings_of(question.settings, question.methods)
    clients = RemoteClients.of(federation.train.example, np.asarray(federation.train.sizes).tolist())
    tuned = tune_all(problem, clients, question.methods, given, how, tell, busy, trainer.trials)
    chosen = list(dict.fromkeys(question.methods))
    final = {name: {**given.get(name, {}), **(tuned[name].settings if name in tuned else {})} for name in chosen}
    results: dict[str, list[Result]] = {}
    for name in chosen:
        results[name] = trainer.train(weighed(problem, name), name, how.common | final[name], curve)
        if results[name][-1].interrupted:
            tell(f"Interrupted: {name} after {results[name][-1].rounds} rounds; what follows is what there is.")
            break
    with busy("judging the models at the sites"):
        judging = _Judges(known, question, choice, draws, slow)
        scores, numbers, places = judging.scores(results)
    made = Comparison(
        federation, problem, question.network(classes), {m: final[m] for m in results},
        {m: t for m, t in tuned.items() if m in results}, results, scores, choice, measures_of(federation),
        Rows.of(federation.test, federation), asked=_asked(question, federation, draws),
    )  # fmt: skip
    loss = question.loss_of(classes)
    words = Judging(federation, problem, loss, choice, question.weights, draws, tell, busy)
    shown = {name: numbers.rates(places[name][0], draws) for name in scores if name != MAJORITY}
    rates = {name: one for name, one in shown.items() if one is not None}
    return replace(words.with_words(made, {}), rates=rates)


def _asked(question: Question, federation: Federation, draws: int) -> dict[str, Any]:
    return {
        "loss": question.loss_of(federation.classes), "ridge": question.ridge, "penalty": question.penalty,
        "weights": question.weights, "rounds": question.rounds, "draws": draws, "local_steps": question.local_steps,
        "batch_size": question.batch_size, "seeds": question.seeds, "federation": STAYED.format(count=len(federation.names)),
    }  # fmt: skip


class _Judges:
    """Lets the sites judge models, and makes tables of what they tell."""

    def __init__(self, known: Known, question: Question, choice: Choice, draws: int, timeout: float):
        self.known, self.federation, self.question, self.choice, self.draws = known, known.federation, question, choice, draws
        self.asking = Asking(known.transport, timeout)

    def scores(self, results: Mapping[str, Sequence[Result]]) -> tuple[dict[str, Scored], Numbers, dict[str, list[int]]]:
        """Return how good methods and baselines are, the sites' numbers, and the places of each one's models among them."""
        models = [_host(result.x) for runs in results.values() for result in runs]
        places: dict[str, list[int]] = {}
        for name, runs in results.items():
            first = sum(map(len, places.values()))
            places[name] = list(range(first, first + len(runs)))
        places |= {MAJORITY: [len(models)], LOCAL: [len(models) + 1]}
        edges = self._thresholds(models)
        numbers = self._numbers(models, edges)
        sizes = np.asarray(self.federation.train.sizes, float)
        share = sizes if self.question.weights == SIZE else np.ones(len(sizes))
        found = {}
        for name, own in places.items():
            once = [numbers.once(m) for m in own]
            one = scored(
                once,
                numbers.draws(own, self.draws),
                measures_of(self.federation),
                self.choice.measure,
                share=share / share.sum(),
            )
            training = [self._worst(numbers.once(m, training=True).sites[self.choice.measure.name]) for m in own]
            found[name] = replace(one, thresholds=[e for m in own if (e := edges[m]) is not None], training=training)
        return found, numbers, places

    def _worst(self, values: npt.NDArray[np.float64]) -> float:
        return float(worst_fifth(values, self.choice.measure)[0])

    def _thresholds(self, models: list[Tree]) -> list[float | None]:
        """Return where a class is rare the thresholds that the sites' training rows give, by their histograms' sum.

        They are those of the models, of the majority's prediction, and of the sites' own models.
        """
        positive = self.federation.positive
        if not self.choice.rare or positive is None:
            return [None] * (len(models) + 2)
        shape = (len(models) + 1, 2, BINS)
        told = self.asking.all(asking.HISTOGRAMS, lambda _, said: counts(said, shape), models=models)
        edges = [best_threshold(one) for one in np.sum(list(told.values()), axis=0)]
        return [*edges[:-1], HALF, edges[-1]]  # of a prediction that is the same for everybody any threshold is as good

    def _numbers(self, models: list[Tree], edges: Sequence[float | None]) -> Numbers:
        classes, positive = len(self.federation.classes or []), self.federation.positive

        def read(_: str, said: Any) -> Told:
            return read_told(said, len(models) + 2, classes, positive)

        share = shares(self.federation) if classes else np.ones(1)
        told = self.asking.all(asking.JUDGE, read, models=models, thresholds=list(edges), shares=share, draws=self.draws)
        rows = Rows.of(self.federation.test, self.federation)
        sizes = np.zeros((rows.sites, max(classes, 1)), np.int64)
        np.add.at(sizes, (rows.site, rows.labels.astype(np.intp) if classes else np.zeros(len(rows), np.intp)), 1)
        return Numbers(list(told.values()), sizes, positive, classes)


def _host(x: Tree) -> Tree:
    return jax.tree.map(np.asarray, x)


def _curve(federation: Federation, choice: Choice) -> Any:
    """Return what is drawn over rounds: where a class is rare the test loss, as accuracy would praise predicting nobody."""
    if federation.task != CLASSIFICATION:
        return metrics.ClientError(None, 1.0 if federation.target_scale is None else federation.target_scale[1])
    return metrics.ClientLoss() if choice.rare else metrics.ClientAccuracy()
