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
from fedminimax.flare.job import FAILED, OUTCOME
from fedminimax.flare.transport import FlareTransport
from fedminimax.folders import write_atomically


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
        try:
            agreement = Agreement.read(root / "local" / self.folder / FEDERATION_FILE)
            cell = fl_ctx.get_engine().get_cell()
            transport = FlareTransport(cell, agreement.sites, study=agreement.fingerprint, abort=abort_signal)
            self._await(transport, abort_signal)
            conduct(agreement, transport, run)
        except Exception as error:
            said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            write_atomically(run / OUTCOME, json.dumps({"status": FAILED, "why": said}).encode())
            self.log_exception(fl_ctx, "the run failed")
            self.system_panic(said, fl_ctx)

    def _await(self, transport: FlareTransport, abort_signal: Any) -> None:
        until = time.monotonic() + self.patience
        while away := {site: why for site, why in transport.present().items() if why is not None}:
            if abort_signal.triggered or time.monotonic() > until:
                said = ", ".join(f"{site} ({why.text or why.kind})" for site, why in away.items())
                raise InputError(f"Not all sites are there: {said}. Start them, and then `fedminimax federation resume`.")
            time.sleep(0.5)
