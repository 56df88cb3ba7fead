"""The job on FLARE's server in which the engine runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.impl.controller import Controller

from fedminimax.errors import InputError
from fedminimax.flare.agreement import FEDERATION_FILE, Agreement
from fedminimax.flare.conduct import conduct
from fedminimax.flare.fair import BEGUN, conduct_fair
from fedminimax.flare.job import FAILED, KNOWN, OUTCOME, SITES
from fedminimax.flare.transport import FlareTransport
from fedminimax.flare.watch import unknown
from fedminimax.folders import write_atomically

_SECONDS_FOR_ALL = 20.0
"""How long a run that goes on waits for all of its sites: they take so long to find a server that was started again."""


class Coordinator(Controller):
    """The server's part of a job: it runs the study among the sites, or goes on with it from its newest checkpoint.

    Args:
        folder: the federation's files, in the ``local`` folder of the server's kit.
        run: where the run is kept, in the server's kit.
        patience: seconds to wait at the start until all sites are there.
    """

    def __init__(self, folder: str = "fedminimax", run: str = "run", patience: float = 120.0):
        super().__init__()
        self.folder, self.run, self.patience = folder, run, patience

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing is to be prepared."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing is to be put away."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None:
        """There are no tasks."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the study; what goes wrong is a sentence in the run's folder, and the job's failure."""
        root = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        run = root / self.run
        run.mkdir(parents=True, exist_ok=True)
        (run / OUTCOME).unlink(missing_ok=True)  # how an earlier job ended says nothing of this one
        try:
            agreement = Agreement.read(root / "local" / self.folder / FEDERATION_FILE)
            cell = fl_ctx.get_engine().get_cell()
            transport = FlareTransport(cell, agreement.sites, study=agreement.fingerprint, abort=abort_signal)
            begun = run / (BEGUN if agreement.is_fair else KNOWN)
            self._await(transport, run, begun.exists(), agreement.study.min_replies, abort_signal)
            aborted = lambda: bool(abort_signal.triggered)
            if agreement.is_fair:
                conduct_fair(agreement, transport, run)
            else:
                conduct(agreement, transport, run, aborted)
        except Exception as error:
            said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            write_atomically(run / OUTCOME, json.dumps({"status": FAILED, "why": said}).encode())
            self.log_exception(fl_ctx, "the run failed")
            self.system_panic(said, fl_ctx)

    def _await(self, transport: FlareTransport, run: Path, goes_on: bool, enough: int, abort_signal: Any) -> None:
        """Wait until all sites are there, and meanwhile write who is not. A run that goes on does so with enough of them."""
        begun = time.monotonic()
        while away := {site: why for site, why in transport.present().items() if why is not None}:
            waited = time.monotonic() - begun
            if goes_on and waited > min(_SECONDS_FOR_ALL, self.patience) and len(transport.sites) - len(away) >= enough:
                return
            if abort_signal.triggered or waited > self.patience:
                said = ", ".join(f"{site} ({why.text or why.kind})" for site, why in away.items())
                raise InputError(f"Not all sites are there: {said}. Start them, and then `fedminimax federation resume`.")
            standing = unknown(transport.sites)
            for site, why in away.items():
                standing[site]["why"] = why.text
            write_atomically(run / SITES, json.dumps(standing, indent=1).encode())
            time.sleep(0.5)
