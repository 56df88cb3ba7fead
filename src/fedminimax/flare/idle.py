"""The client that keeps the server's job company, on the server's host."""

from __future__ import annotations

from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply


class Idle(Executor):
    """A client's part of the job: none. FLARE starts no job that has no client, and this one has nothing to do."""

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Do nothing: no task is ever given."""
        return make_reply(ReturnCode.TASK_UNKNOWN)
