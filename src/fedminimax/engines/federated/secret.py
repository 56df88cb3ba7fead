"""A site's own secret, from which its noise comes: whoever knows a run's seed knows all else that is random in it."""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedminimax.engines.undo import sync_folder
from fedminimax.errors import InputError

_FILE, _BYTES = "noise.secret", 32


class Secret:
    """A secret of a site, made once from the system's randomness.

    The noise of a reply is keyed with the secret and with everything that was asked. The same question gets the same noise, so
    that one that is asked again tells nothing more; another question, of the same round too, gets other noise, so that no
    difference of two replies is free of it.

    Args:
        folder: where it is kept, for its owner's eyes alone; None: in memory.
    """

    def __init__(self, folder: Path | None):
        self._bytes = os.urandom(_BYTES) if folder is None else _kept(folder)

    def key(self, request: bytes, letter: int) -> np.ndarray:
        """Return the key of the noise of a reply.

        Args:
            request: all that was asked.
            letter: which of the request's letters the reply is to.
        """
        digest = hmac.new(self._bytes, letter.to_bytes(8, "big") + request, hashlib.sha256).digest()
        return np.frombuffer(digest[:8], np.uint32)


def _kept(folder: Path) -> bytes:
    """Return the secret of a folder; where there is none, make it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILE
    with suppress(FileExistsError):
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(made, "wb") as file:
            file.write(os.urandom(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)
    found = path.read_bytes()
    if len(found) != _BYTES:  # a crash while it was made; nothing has been sent with it
        raise InputError(f"{path} is not a whole secret of {_BYTES} bytes: remove it, and another one is made.")
    return found
