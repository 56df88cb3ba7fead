"""The words that a server's job and a site's FLARE client have in common."""

from __future__ import annotations

CHANNEL = "fedminimax"
"""The channel of FLARE's messages on which all of ours go."""
ASK, HELLO = "ask", "hello"
"""The topics: a request for the site's worker, and a question whether anybody is there."""
TIMEOUT, STUDY, FAILURE, TEXT = (f"{CHANNEL}.{name}" for name in ("timeout", "study", "failure", "text"))
"""Headers: the seconds that a request is waited for; which study it is of; of a reply, why there is none, and in words."""
SERVER = "server"
"""What FLARE calls its server, and what the addresses of the jobs on it begin with."""
COORDINATOR = "coordinator"
"""The client that keeps the server's job company: FLARE starts no job that has no client."""
NOT_STARTING = "its worker does not start"
"""What a site says when its worker ended several times before it was there; why is in the site's own log."""
