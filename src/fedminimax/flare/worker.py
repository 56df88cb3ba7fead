"""A site's worker as a process: ``python -m fedminimax.flare.worker FOLDER``. It has the site's data, and no network."""

from __future__ import annotations

import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedminimax.engines.federated.inprocess import Handler
from fedminimax.engines.federated.resident import serve
from fedminimax.engines.federated.worker import Worker, logger
from fedminimax.errors import InputError
from fedminimax.flare.agreement import LOG_FILE, SITE_FILE, SiteFile
from fedminimax.flare.fair import fair_worker
from fedminimax.flare.identity import CERTIFICATE, Certified
from fedminimax.flare.study import Study, secure_of, study_of
from fedminimax.problems.personalized import PersonalizedProblem

_LONGEST_LOG = 2**20


def worker_of(site: SiteFile) -> Handler:
    """Return a site's worker, with its data loaded."""
    if site.agreement.is_fair:
        return fair_worker(site)
    study = study_of(site.agreement)
    held_out = {name: site.rows(source) for name, source in site.held_out.items()}
    return Worker(
        study.problem,
        study.algorithm,
        site.rows(),
        site.state,
        held_out,
        privacy=study.privacy,
        budget=site.budget,
        measures=site.measures,
        clients=len(site.agreement.sites),
        secure=secure_of(site.agreement),
        identity=_identity(site, study),
    )


def _identity(site: SiteFile, study: Study) -> Certified | None:
    """Return what signs the site's keys, where it has neighbours to send anything to: the certificate of its kit."""
    startup = site.folder.parent.parent / "startup"
    if not isinstance(study.problem, PersonalizedProblem) or not (startup / CERTIFICATE).exists():
        return None
    return Certified(startup, site.agreement.sites)


def log_to(path: Path) -> None:
    """Let what goes wrong here be written to a file, with its text and traceback."""
    handler = RotatingFileHandler(path, maxBytes=_LONGEST_LOG, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s"))
    logger.addHandler(handler)


def main(folder: str) -> None:
    """Load the site's data, and answer until the FLARE client that started this has ended."""
    parent = os.getppid()
    os.umask(0o077)  # what is written here may hold data, and is for the site's own user
    log_to(Path(folder) / LOG_FILE)
    try:
        site = SiteFile.read(Path(folder) / SITE_FILE)
        worker = worker_of(site)
    except InputError as error:  # a sentence in the site's console, which is for its administrator alone
        logger.error("the worker does not start: %s", error)
        sys.exit(f"Error: {error}")
    except Exception:
        logger.exception("the worker does not start")
        raise
    serve(site.socket, worker, parent=parent)


if __name__ == "__main__":
    main(sys.argv[1])
