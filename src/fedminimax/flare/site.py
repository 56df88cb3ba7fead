"""A site's side of FLARE: a component of its FLARE client that watches the worker and passes bytes to it and back."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from fedminimax.engines.federated.resident import Failed, Resident
from fedminimax.engines.federated.transport import ERROR, GONE, REFUSED, TIMEOUT
from fedminimax.errors import InputError
from fedminimax.flare import labels
from fedminimax.flare.agreement import SITE_FILE, SiteFile
from fedminimax.flare.payload import taken

_MOST_WAITING = 4
"""Requests that may wait for the worker at once: the server asks for one, and again for one whose reply was lost."""
_SECONDS_TO_START = 120.0


class Site(FLComponent):
    """Answers a federation's requests at a site. It is listed in ``local/resources.json`` of the site's kit.

    It takes requests from jobs on the server only, and of the study only that the site's own files describe; FLARE has
    authenticated the server by its certificate. Whatever goes wrong here reaches the server as a category, without text that
    could hold data. Nothing that the server sends is ever run or unpickled here: bytes go to the worker as they are.

    A worker that hangs is noticed by its first late answer. From then on the site says at once that it is not there, so that
    nobody waits for it, until the worker answers again.

    Args:
        folder: the site's files, in the kit's ``local`` folder.
        worker: the module that is run as the site's worker, with the folder of its files as argument. An administrator's own
            may wrap :func:`fedminimax.flare.worker.main`.
    """

    def __init__(self, folder: str = "fedminimax", worker: str = "fedminimax.flare.worker"):
        super().__init__()
        self.folder, self.worker = folder, worker
        self._worker: Resident | None = None
        self._awake: Future[memoryview] = Future()
        self._latest: Future[Any] | None = None
        self._study, self._trouble = "", ""
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="fedminimax")
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Start the worker with the client, listen once the client is registered, and stop the worker at the end."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._start(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()) / "local" / self.folder)
        elif event_type == EventType.AFTER_CLIENT_REGISTER:
            cell = fl_ctx.get_engine().get_cell()
            for topic, answer in ((labels.ASK, self._ask), (labels.HELLO, self._hello)):
                cell.register_request_cb(channel=labels.CHANNEL, topic=topic, cb=answer)
        elif event_type == EventType.SYSTEM_END:
            self.close()

    def _start(self, folder: Path) -> None:
        try:
            site = SiteFile.read(folder / SITE_FILE)
        except InputError as error:  # the client stays, and tells that there is no worker
            self.logger.error(str(error))
            return
        self._study = site.agreement.fingerprint
        command = [sys.executable, "-m", self.worker, str(folder)]
        self._worker = Resident(command, site.socket)
        self._wake()

    def _wake(self) -> None:
        """Have the worker started, or waited for. It answers anything once it has loaded its data, and is there then."""
        assert self._worker is not None
        self._awake = self._pool.submit(self._worker.ask, b"", _SECONDS_TO_START)

    def close(self) -> None:
        """Stop the worker."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._worker is not None:
            self._worker.close()

    def _ask(self, request: Any) -> Any:
        """Pass a request to the worker, on a thread of our own: FLARE's are for FLARE."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if not self._waiting.acquire(blocking=False):
            return _failure(REFUSED, "the site is busy with earlier requests")
        answer: Future[Any] = self._pool.submit(self._answer, request)
        self._latest = answer
        answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: Future[Any]) -> None:
        self._waiting.release()
        if self._latest is answer:  # which has the reply in it, perhaps a large one
            self._latest = None

    def _hello(self, request: Any) -> Any:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if self._latest is not None and not self._latest.done():
            return _failure(GONE, "its worker is busy with an earlier request")
        if not self._awake.done():
            return _failure(GONE, self._trouble or "its worker is not there yet")
        if (error := self._awake.exception()) is not None:
            hangs = isinstance(error, Failed) and error.failure.kind == TIMEOUT
            self._trouble = "its worker hangs" if hangs else labels.NOT_STARTING
            self._wake()
            return _failure(GONE, self._trouble)
        self._trouble = ""
        return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, b"")

    def _refusal(self, request: Any) -> Any:
        """Return the answer to a request that is none of ours; None: it is one of ours."""
        origin = str(request.get_header(MessageHeaderKey.ORIGIN) or "")
        if not origin.startswith(f"{labels.SERVER}."):
            return _failure(REFUSED, "only jobs on the server may ask")
        if self._worker is None:
            return _failure(GONE, labels.NOT_STARTING)
        if request.get_header(labels.STUDY) != self._study:
            return _failure(REFUSED, "this site's files describe another study")
        return None

    def _answer(self, request: Any) -> Any:
        assert self._worker is not None
        try:
            seconds = float(request.get_header(labels.TIMEOUT))
            reply = self._worker.ask(taken(request), seconds)
        except Failed as failed:
            if failed.failure.kind == TIMEOUT and self._awake.done():
                self._wake()
            return _failure(*failed.failure)
        except Exception as error:  # whatever it says may hold data, and stays here
            self.logger.error("a request failed", exc_info=True)
            return _failure(ERROR, f"the worker failed ({type(error).__name__})")
        return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, reply)


def _failure(kind: str, text: str) -> Any:
    headers = {MessageHeaderKey.RETURN_CODE: ReturnCode.OK, labels.FAILURE: kind, labels.TEXT: text}
    return new_cell_message(headers, b"")
