"""What a site's own process runs in tests: the worker of one client of :func:`faulty.regression`."""

import os
from pathlib import Path

import jax
from faulty import SCAFFOLD, regression

from fedminimax.engines.federated import Worker


class Fragile:
    """A worker whose process dies in the middle of the work, once, when it is told to by a file."""

    def __init__(self, worker, trigger):
        self._worker, self._trigger = worker, Path(trigger)

    def handle(self, request):
        reply = self._worker.handle(request)
        if b'"letters"' in bytes(request) and self._trigger.exists():
            self._trigger.unlink()
            os.kill(os.getpid(), 9)  # what it has computed is on disk, and its reply is lost
        return reply


def fragile(number, folder, trigger):
    jax.config.update("jax_enable_x64", True)
    return Fragile(Worker(regression().problem, SCAFFOLD, regression().clients.only(int(number)), folder), trigger)
