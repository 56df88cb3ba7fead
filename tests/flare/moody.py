"""A site's worker that answers wrongly once when a file says how: ``python -m moody FOLDER``, in place of the site's own."""

import os
import sys
import time
from pathlib import Path

import jax
import numpy as np

from fedminimax import wire
from fedminimax.engines.federated.resident import serve
from fedminimax.flare.agreement import SITE_FILE, SiteFile
from fedminimax.flare.worker import worker_of

MOOD = "mood"
VALUES = {
    "nan": lambda leaf: np.full_like(leaf, np.nan),
    "shape": lambda leaf: np.zeros((*leaf.shape, 2), leaf.dtype),
    "type": lambda leaf: leaf.astype(np.float32),
    "huge": lambda leaf: leaf + 1e12,
}


class Moody:
    def __init__(self, worker, site):
        self.worker, self.mood, self.seconds = worker, site.folder / MOOD, site.agreement.study.timeout + 1.5
        self.earlier = b""

    def handle(self, request):
        reply = self.worker.handle(request)
        if b'"letters"' not in bytes(request):
            return reply
        before, self.earlier = self.earlier, reply
        if not self.mood.exists():
            return reply
        mood = self.mood.read_text()
        self.mood.unlink()
        if mood == "old":
            return before
        if mood == "late":
            time.sleep(self.seconds)
            return reply
        message = wire.decode(reply)
        for one in message["replies"]:
            one["value"] = jax.tree.map(VALUES[mood], one["value"])
        return wire.encode(message)


if __name__ == "__main__":
    site = SiteFile.read(Path(sys.argv[1]) / SITE_FILE)
    serve(site.socket, Moody(worker_of(site), site), parent=os.getppid())
