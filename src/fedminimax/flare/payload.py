"""What a message of FLARE's holds, taken out of FLARE's hands."""

from __future__ import annotations

from typing import Any

from fedminimax.wire import Bytes


def taken(message: Any) -> Bytes:
    """Return the bytes that a message came with, and leave FLARE none of them.

    FLARE keeps every message that it has received for a minute, to acknowledge it again if it is asked to, and the bytes of a
    model with it: many calls of many sites would fill the memory. It looks at their number only, so its view of them is
    released; what is returned is where they are, and not a copy.
    """
    payload = message.payload
    if not isinstance(payload, memoryview):
        return bytes(payload)
    whole = payload.obj
    if not payload.contiguous or not isinstance(whole, bytes | bytearray) or len(whole) != payload.nbytes:
        return bytes(payload)
    payload.release()
    return memoryview(whole).toreadonly()
