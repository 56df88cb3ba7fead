"""The one error a user meets: what is wrong, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Wrong input. The message is one sentence that names the cause and the cure.

    The command line prints the message alone; in Python it is an ordinary ``ValueError``.
    """


def nearest(name: object, known: Iterable[object]) -> str:
    """Return the words " (did you mean ...?)" with the name that is nearest, or none where nothing is near."""
    small = {str(each).lower(): str(each) for each in known}
    close = difflib.get_close_matches(str(name).lower(), list(small), 1, 0.5)
    return f" (did you mean {small[close[0]]!r}?)" if close else ""
