"""A study, run among the sites: what the server's job does once the sites are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from fedminimax import observers
from fedminimax.engines.federated.engine import Federation
from fedminimax.engines.federated.transport import Transport
from fedminimax.errors import InputError
from fedminimax.flare.agreement import Agreement
from fedminimax.flare.job import FINISHED, KNOWN, OUTCOME, RESULT, SITES, STOPPED
from fedminimax.flare.study import Study, secure_of, study_of
from fedminimax.flare.watch import Progress, Standing
from fedminimax.folders import write_atomically
from fedminimax.metrics import Metric, named
from fedminimax.result import Result
from fedminimax.run import run


def conduct(agreement: Agreement, transport: Transport, folder: Path, aborted: Callable[[], bool] = lambda: False) -> Result:
    """Run what was agreed on, from the start or from the folder's newest checkpoint, and write how it ended.

    Args:
        agreement: what the parties agreed on.
        transport: what carries the messages; it is closed at the end.
        folder: where the run is kept.
        aborted: tells whether the carrier wants the run to end; it then does so after a round, with a checkpoint.
    """
    terms = agreement.study
    standing = Standing(transport.sites, folder / SITES)
    try:
        study = study_of(agreement)
        engine = Federation(
            transport,
            timeout=terms.timeout,
            min_replies=terms.min_replies,
            on_lost_state=terms.on_lost_state,
            outliers=terms.outliers,
            loss_outliers=terms.loss_outliers,
            secure=secure_of(agreement),
            known=folder / KNOWN,
            tell=standing,
        )
        result = run(
            study.problem,
            engine.clients,
            study.algorithm,
            rounds=terms.rounds,
            seed=terms.seed,
            eval_every=terms.eval_every,
            metrics=_metrics(study, engine),
            engine=engine,
            record=True,
            progress=False,
            observers=[*observers.checked(study.observers), Progress(folder, aborted)],
            privacy=study.privacy,
            guard=study.guard,
            folder=folder,
            checkpoint_every=terms.checkpoint_every,
        )
    finally:
        standing.write()
        transport.close()
    result.save(folder / RESULT)
    status = FINISHED if result.rounds >= terms.rounds else STOPPED
    told = {"status": status, "rounds": result.rounds, "why": result.stopped or ""}
    write_atomically(folder / OUTCOME, json.dumps(told).encode())
    return result


def _metrics(study: Study, engine: Federation) -> Mapping[str, Metric]:
    """Return a study's metrics by name, those on held-out data with what is known of the sites' shares."""
    found = dict(named(study.metrics))
    for share, make in study.held_out.items():
        more = named(make(engine.held_out(share)))
        twice = set(found) & set(more)
        if twice:
            raise InputError(f"Two metrics of the study are called {twice.pop()!r}: give the one on {share!r} another name.")
        found |= more
    return found
