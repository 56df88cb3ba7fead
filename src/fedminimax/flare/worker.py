"""A site's worker as a process: ``python -m fedminimax.flare.worker FOLDER``. It has the site's data, and no network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedminimax.engines.federated.resident import serve
from fedminimax.engines.federated.worker import Worker
from fedminimax.flare.agreement import SITE_FILE, SiteFile
from fedminimax.flare.study import study_of


def worker_of(site: SiteFile) -> Worker:
    """Return a site's worker, with its data loaded."""
    study = study_of(site.agreement)
    held_out = {name: site.rows(source) for name, source in site.held_out.items()}
    return Worker(study.problem, study.algorithm, site.rows(), site.state, held_out)


def main(folder: str) -> None:
    """Load the site's data, and answer until the FLARE client that started this has ended."""
    site = SiteFile.read(Path(folder) / SITE_FILE)
    parent = os.getppid()
    serve(site.socket, worker_of(site), parent=parent)


if __name__ == "__main__":
    main(sys.argv[1])
