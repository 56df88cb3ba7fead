"""`fedminimax fair` over FLARE: a site's worker, and what the server's job does once the sites are there."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from fedminimax.engines.federated.transport import Transport
from fedminimax.fairness.comparison import Comparison
from fedminimax.fedfair import study
from fedminimax.fedfair.keeping import TOLD, TRAINING
from fedminimax.fedfair.question import Question
from fedminimax.fedfair.site import LEAST, FairSite
from fedminimax.flare.agreement import Agreement, SiteFile
from fedminimax.flare.job import FINISHED, OUTCOME, SITES
from fedminimax.flare.watch import Standing, Watched
from fedminimax.folders import write_atomically

SAID, FOUND = "said.log", "fair"
"""In the folder of a run: what the server's job printed, and the folder with tables, figures, model and page."""
BEGUN = Path(FOUND) / TRAINING / TOLD
"""In the folder of a run: is there once the sites have told what they have, and the study can go on without some of them."""
_WIDTH = 140


def question_of(agreement: Agreement) -> Question:
    """Return what the parties of a fair study agreed on."""
    return Question.of({"rounds": agreement.study.rounds, "seed": agreement.study.seed, **agreement.study.settings})


def fair_worker(site: SiteFile) -> FairSite:
    """Return a site's worker for a fair study, with its table loaded."""
    question = question_of(site.agreement)
    least = site.config.get("least", LEAST)
    return FairSite(site.name, site.table(), question, least=least, folder=site.state)


def conduct_fair(agreement: Agreement, transport: Transport, folder: Path) -> Comparison:
    """Run a fair study among the sites, and write what came of it.

    Args:
        agreement: what the parties agreed on.
        transport: what carries the messages; it is closed at the end.
        folder: where the run is kept.
    """
    terms = agreement.study
    watched = Watched(transport, Standing(transport.sites, folder / SITES))
    try:
        with (folder / SAID).open("w", encoding="utf-8", buffering=1) as said:
            found = study.conduct_fair(
                watched,
                question_of(agreement),
                folder / FOUND,
                Console(file=said, width=_WIDTH),
                name=agreement.name,
                timeout=terms.timeout,
                min_replies=terms.min_replies,
                shown=Path(FOUND),
            )
    finally:
        watched.close()
    told = {"status": FINISHED, "rounds": found.kept.rounds, "why": ""}
    write_atomically(folder / OUTCOME, json.dumps(told).encode())
    return found
