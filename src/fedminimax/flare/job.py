"""The job that is submitted to FLARE: the engine on the server, nothing at the sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedminimax.flare import labels

OUTCOME, SITES, RESULT = "outcome.json", "sites.json", "result.fmx"
"""In the folder of a run: how it ended, how the sites stand, and what came of it."""
PROGRESS, STOP, KNOWN = "progress.json", "stop", "known.fmx"
"""In the folder of a run: how far it is; a file that is put there to end it after the round that is under way; and what the
sites said of themselves, with which it goes on though some of them are away."""
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
"""How a run ends: with all of its rounds, with fewer, or not at all. What has a checkpoint can be gone on with."""


def write_job(folder: Path, run: str, patience: float = 120.0) -> Path:
    """Write the job's folder, which holds three small files of settings and no code; return it.

    Args:
        folder: where to write.
        run: where the server keeps the run, in its kit; a run that is there is gone on with.
        patience: seconds to wait at the start until all sites are there.
    """
    settings = {"run": run, "patience": patience}
    flow = {"id": "coordinator", "path": "fedminimax.flare.coordinator.Coordinator", "args": settings}
    idle = {"tasks": ["*"], "executor": {"id": "idle", "path": "fedminimax.flare.idle.Idle", "args": {}}}
    deploy = {"server": [labels.SERVER], "idle": [labels.COORDINATOR]}
    files: dict[str, dict[str, Any]] = {
        "meta.json": {"name": folder.name, "resource_spec": {}, "min_clients": 1, "deploy_map": deploy},
        "server/config/config_fed_server.json": {"format_version": 2, "workflows": [flow], "components": []},
        "idle/config/config_fed_client.json": {"format_version": 2, "executors": [idle], "components": []},
    }
    for name, contents in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(contents, indent=2), encoding="utf-8")
    return folder
