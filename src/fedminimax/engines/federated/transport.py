"""What carries a federation's messages: one group call to some sites, with missing replies allowed.

A carrier (NVIDIA FLARE, threads in one process) is one class with these two methods. It moves bytes and knows nothing of
what is in them; what is late, lost or refused it says by site, and raises nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from fedminimax.wire import Bytes

TIMEOUT, GONE, REFUSED, ERROR, MALFORMED = "timeout", "gone", "refused", "error", "malformed"


class Failure(NamedTuple):
    """Why a site has no reply in a group call.

    Args:
        kind: "timeout" (not within the time given), "gone" (nobody is there, known at once), "refused" (the site or its
            carrier would not take the request), "error" (the site's program failed) or "malformed" (what came back is none).
        text: a category or a sentence; never data of the site.
    """

    kind: str
    text: str = ""


class Answers(NamedTuple):
    """What a group call brought: of each site that was asked, either a reply or the reason why there is none."""

    replies: dict[str, Bytes]
    failures: dict[str, Failure]


class Transport(Protocol):
    """Carries requests to sites and replies back."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names, which stay; their order is that of the clients' numbers."""

    def ask(self, requests: Mapping[str, bytes], timeout: float) -> Answers:
        """Send every site its request, all at once, and return when all have answered or failed, or the time is over.

        Args:
            requests: by site.
            timeout: seconds for the whole call. Whoever has not answered by then is a failure of kind "timeout".
        """

    def close(self) -> None:
        """Let go of what the carrier holds. The sites stay as they are."""
