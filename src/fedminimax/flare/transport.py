"""FLARE as the carrier of a federation's messages, on the server's side."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from fedminimax.engines.federated.transport import ERROR, GONE, MALFORMED, REFUSED, TIMEOUT, Answers, Failure
from fedminimax.flare import labels
from fedminimax.flare.payload import taken
from fedminimax.wire import Bytes

_KINDS = {
    ReturnCode.TIMEOUT: TIMEOUT,
    ReturnCode.ABORT_RUN: TIMEOUT,  # what a call that was cut short returns
    ReturnCode.INVALID_TARGET: GONE,
    ReturnCode.TARGET_UNREACHABLE: GONE,
    ReturnCode.SERVICE_UNAVAILABLE: GONE,
    ReturnCode.UNAUTHENTICATED: REFUSED,
    ReturnCode.AUTHENTICATION_ERROR: REFUSED,
    ReturnCode.INVALID_SESSION: REFUSED,
}
_SHARE = 0.8
_LOOK_UP = 0.5
"""Seconds after which a call that waits looks whether the job is aborted."""
_SAID = {TIMEOUT, GONE, REFUSED, ERROR, MALFORMED}


class FlareTransport:
    """Carries a federation's messages from a job on FLARE's server to the FLARE clients of the sites, past any job of theirs.

    Whoever failed in the last call is first asked whether it is there, and only for ``patience`` seconds: a site that is down,
    or that is just starting, costs the whole timeout once at most.

    Args:
        cell: the job's place in FLARE's network (``fl_ctx.get_engine().get_cell()``).
        sites: the sites' names in the project, in the order of the clients' numbers.
        study: the fingerprint of the study; a site that has another refuses.
        abort: FLARE's signal that the job is to end; from then on no call waits longer than ``patience``.
        patience: seconds for a site that failed to say that it is back.
    """

    def __init__(self, cell: Any, sites: Sequence[str], *, study: str = "", abort: Signal | None = None, patience: float = 2.0):
        self.sites = tuple(sites)
        self._cell, self._study, self._abort, self._patience = cell, study, abort, patience
        # Calls that were cut short end a moment later than the call that made them: room for two calls at once.
        self._pool = ThreadPoolExecutor(2 * len(self.sites), thread_name_prefix="fedminimax")
        self._failed: set[str] = set()

    def ask(self, requests: Mapping[str, bytes], timeout: float) -> Answers:
        """Send every site its request, all at once, and return when all have answered or failed, or the time is over.

        Args:
            requests: by site.
            timeout: seconds for the whole call.
        """
        cut, until = Signal(), time.monotonic() + timeout
        calls = {site: self._pool.submit(self._call, site, request, until, cut) for site, request in requests.items()}
        outcomes = self._outcomes(calls, until, cut)
        replies = {site: out for site, out in outcomes.items() if not isinstance(out, Failure)}
        failures = {site: out for site, out in outcomes.items() if isinstance(out, Failure)}
        self._failed = (self._failed - set(replies)) | set(failures)
        return Answers(replies, failures)

    def present(self, timeout: float = 2.0) -> dict[str, Failure | None]:
        """Ask all sites whether they are there: by site, None, or why not."""
        cut, until = Signal(), time.monotonic() + timeout
        calls = {site: self._pool.submit(self._send, site, labels.HELLO, b"", until, cut) for site in self.sites}
        outcomes = self._outcomes(calls, until, cut)
        return {site: out if isinstance(out, Failure) else None for site, out in outcomes.items()}

    def close(self) -> None:
        """Make no more calls. The sites stay as they are."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _outcomes(self, calls: Mapping[str, Future[Bytes | Failure]], until: float, cut: Signal) -> dict[str, Bytes | Failure]:
        """Wait for calls, and return what came of them; once the job is aborted, nobody is waited for longer than a moment."""
        left: Collection[Future[Bytes | Failure]] = calls.values()
        while left and (now := time.monotonic()) < until:
            if self._abort is not None and self._abort.triggered:
                until = min(until, now + self._patience)
            left = wait(left, min(until - now, _LOOK_UP)).not_done
        cut.trigger(True)
        return {site: _outcome(call) for site, call in calls.items()}

    def _call(self, site: str, request: bytes, until: float, cut: Signal) -> Bytes | Failure:
        if site in self._failed:
            now = time.monotonic()
            # Not all of the time that there is, so that it is known whose silence ended it.
            there = self._send(site, labels.HELLO, b"", now + min(self._patience, _SHARE * (until - now)), cut)
            if isinstance(there, Failure):
                return Failure(GONE, there.text) if there.kind == TIMEOUT else there
        return self._send(site, labels.ASK, request, until, cut)

    def _send(self, site: str, topic: str, payload: bytes, until: float, cut: Signal) -> Bytes | Failure:
        left = max(until - time.monotonic(), 1e-3)
        headers = {labels.TIMEOUT: left, labels.STUDY: self._study}
        reply = self._cell.send_request(
            channel=labels.CHANNEL,
            topic=topic,
            target=site,
            request=new_cell_message(headers, payload),
            timeout=left,
            optional=True,  # a site that is away is ours to deal with, and no error in the server's log
            abort_signal=cut,
        )
        return _read(reply)


def _read(reply: Any) -> Bytes | Failure:
    """Return what a reply of FLARE's holds, or why it holds nothing."""
    code = reply.get_header(MessageHeaderKey.RETURN_CODE)
    if code != ReturnCode.OK:
        unreachable = ReturnCode.TARGET_UNREACHABLE in str(reply.get_header(MessageHeaderKey.ERROR) or "")
        return Failure(GONE if unreachable else _KINDS.get(code, ERROR), f"FLARE: {code}")
    kind = reply.get_header(labels.FAILURE)
    if kind is not None:
        return Failure(kind if kind in _SAID else MALFORMED, str(reply.get_header(labels.TEXT) or "")[:200])
    if not isinstance(reply.payload, bytes | bytearray | memoryview):
        return Failure(MALFORMED, "the reply is no bytes")
    return taken(reply)


def _outcome(call: Future[Bytes | Failure]) -> Bytes | Failure:
    """Return what came of a call so far."""
    if not call.done():
        call.cancel()
        return Failure(TIMEOUT, "no answer within the time given")
    error = call.exception()
    return call.result() if error is None else Failure(ERROR, f"FLARE: {type(error).__name__}")
