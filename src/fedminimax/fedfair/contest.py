"""Which method serves the worst-off site best, found out among sites that keep their rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedminimax import metrics
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.federated.group import Event
from fedminimax.engines.federated.transport import Transport
from fedminimax.fairness.bootstrap import DRAWS
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.contests import Training, tune_all, weighed
from fedminimax.fairness.judging import Busy, Judging, Tell
from fedminimax.fairness.measures import Choice, first_measure, measures_of
from fedminimax.fairness.rows import Rows
from fedminimax.fairness.tuning import Tuned
from fedminimax.fairness.words import settings_of
from fedminimax.fedfair.agreeing import Known, settle
from fedminimax.fedfair.judges import Judges
from fedminimax.fedfair.keeping import Kept
from fedminimax.fedfair.question import Question, problem_of
from fedminimax.fedfair.training import Trainer
from fedminimax.problems.robust import RobustProblem
from fedminimax.result import Result

STAYED = (
    "Trained at {count} sites, whose rows stayed there. There is no pooled model to compare with, since it would need the rows."
)


def contest(
    transport: Transport,
    question: Question,
    *,
    folder: Path | None = None,
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
        folder: where to keep what is trained; a study that is there goes on. None: nowhere.
        timeout: seconds that a site is waited for.
        min_replies: how many sites must answer for a round to count.
        draws: how often test rows are drawn anew for the intervals.
        progress: show progress bars; by default on a terminal only.
        tell: called with a line about each search.
        busy: a context manager to show while something is under way.
        describe: called with what is known of the sites, before training.
        watch: is told which site answered in training, and which did not, and why.
    """
    with nullcontext(folder) if folder is not None else tempfile.TemporaryDirectory() as place:
        kept = Kept(Path(place), question, transport.sites)
        with busy("asking the sites what they have"):
            known, goes_on = _settled(transport, question, timeout, kept)
        if goes_on:
            tell(f"The study in {folder} goes on: what was trained is not trained again.")
        describe(known.federation)
        trained = _train(known, kept, question, timeout, min_replies, progress, tell, busy, watch)
    with busy("judging the models at the sites"):
        judges = Judges(known, question, trained.choice, draws, timeout)
        judged = judges.judged(trained.results)
    federation, classes = known.among(judged.sites), known.federation.classes
    made = Comparison(
        federation, trained.problem, question.network(classes), trained.settings, trained.tuned, trained.results,
        judged.scores, trained.choice, measures_of(federation), Rows.of(federation.test, federation),
        asked=_asked(question, known.federation, draws), weighed=known.federation.names,
    )  # fmt: skip
    words = Judging(federation, trained.problem, question.loss_of(classes), trained.choice, question.weights, draws, tell, busy)
    made = words.with_words(made, {})
    return replace(made, rates=judged.rates(draws), notes=[*judged.left_out, *made.notes])


def _settled(transport: Transport, question: Question, timeout: float, kept: Kept) -> tuple[Known, bool]:
    """Return what the sites have, and whether a study that was begun goes on. One that begins needs all sites."""
    before = kept.told
    known = settle(transport, question, timeout, before)
    if before and not kept.is_of(known.told):
        known, before = settle(transport, question, timeout), {}
    if not before:
        kept.begin(known.told)
    return known, bool(before)


class _Trained(NamedTuple):
    """What training came to."""

    problem: RobustProblem
    choice: Choice
    settings: dict[str, dict[str, float]]
    tuned: dict[str, Tuned]
    results: dict[str, list[Result]]


def _train(
    known: Known,
    kept: Kept,
    question: Question,
    timeout: float,
    min_replies: int,
    progress: bool | None,
    tell: Tell,
    busy: Busy,
    watch: Callable[[Event], None] | None,
) -> _Trained:
    """Find step sizes and train all methods, but for what is kept of an earlier run."""
    federation = known.federation
    choice, classes = first_measure(federation), federation.classes
    problem = problem_of(question, len(federation.features), None if classes is None else len(classes))
    curve = _curve(federation, choice)
    how = Training(
        question.rounds, question.trial_rounds, question.local_steps, question.batch_size, question.seeds,
        max(1, question.rounds // 20), f"{curve.name}/worst20" if progress is None else progress,
    )  # fmt: skip
    trainer = Trainer(known, kept, how, timeout, min_replies, watch)
    given: dict[str, dict[str, float]] = settings_of(question.settings, question.methods)
    tuned = kept.tuned
    if tuned is None:
        clients = RemoteClients.of(federation.train.example, np.asarray(federation.train.sizes).tolist())
        tuned = tune_all(problem, clients, question.methods, given, how, tell, busy, trainer.trials)
        kept.keep_tuned(tuned)
    chosen = list(dict.fromkeys(question.methods))
    final = {name: {**given.get(name, {}), **(tuned[name].settings if name in tuned else {})} for name in chosen}
    results: dict[str, list[Result]] = {}
    for name in chosen:
        results[name] = trainer.train(weighed(problem, name), name, how.common | final[name], curve)
        if results[name][-1].interrupted:
            tell(f"Interrupted: {name} after {results[name][-1].rounds} rounds; what follows is what there is.")
            break
    there = {m: t for m, t in tuned.items() if m in results}
    return _Trained(problem, choice, {m: final[m] for m in results}, there, results)


def _asked(question: Question, federation: Federation, draws: int) -> dict[str, Any]:
    return {
        "loss": question.loss_of(federation.classes), "ridge": question.ridge, "penalty": question.penalty,
        "weights": question.weights, "rounds": question.rounds, "draws": draws, "local_steps": question.local_steps,
        "batch_size": question.batch_size, "seeds": question.seeds, "federation": STAYED.format(count=len(federation.names)),
    }  # fmt: skip


def _curve(federation: Federation, choice: Choice) -> Any:
    """Return what is drawn over rounds: where a class is rare the test loss, as accuracy would praise predicting nobody."""
    if federation.task != CLASSIFICATION:
        return metrics.ClientError(None, 1.0 if federation.target_scale is None else federation.target_scale[1])
    return metrics.ClientLoss() if choice.rare else metrics.ClientAccuracy()
