"""Group calls that put up with faults: who is asked, who is left out for a while, and when there are too few to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from fedminimax.engines.execution import Halted
from fedminimax.engines.federated.messages import Refused
from fedminimax.engines.federated.transport import GONE, MALFORMED, TIMEOUT, Failure, Transport
from fedminimax.wire import Bytes

ANSWERED, BACK = "answered", "back"
_MOST_CALLS = 32
"""The most calls after which a site that is left out is asked again."""

T = TypeVar("T")
Hello = Callable[[Collection[str], float], Mapping[str, Failure]]
"""Asks sites whether they are there, within so many seconds, and returns who is not, and why."""


class Event(NamedTuple):
    """What became of a site in a group call.

    Attributes:
        site: its name.
        what: "answered", "back" (it was left out, and is there again), or the kind of a failure.
        text: what else is known.
        seconds: how long the call took.
    """

    site: str
    what: str
    text: str = ""
    seconds: float = 0.0


@dataclass
class _Absence:
    """How long a site is left out: it is asked again at a call, and after twice as many when it still does not answer.

    ``hangs``: whoever waits for it may wait in vain, where one that is gone says so at once or is being started anew.
    """

    next: int
    hangs: bool
    gap: int = 2


class Group:
    """The sites of a federation, asked all at once.

    A site that did not answer in time, or is gone, is left out: nobody waits for it again. Now and then it is asked whether it
    is there, for a moment only, and is then taken in again; so is one that hangs before others are asked again for replies
    that are too few. A site whose reply is refused has lost that reply alone.

    Args:
        transport: what carries the messages.
        timeout: seconds for a call.
        retries: how often those that did not reply are asked again when there are too few replies.
        pause: seconds before that, twice as many each time.
        probe: seconds for the question whether a site is there again.
        tell: is told every :class:`Event`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float,
        retries: int,
        pause: float,
        probe: float,
        tell: Callable[[Event], None],
    ):
        self.transport, self.timeout, self.retries = transport, timeout, retries
        self._pause, self._probe, self._tell = pause, min(probe, timeout), tell
        self._calls, self._left_out = 0, dict[str, _Absence]()

    @property
    def left_out(self) -> tuple[str, ...]:
        """The sites that are left out for now."""
        return tuple(self._left_out)

    def leave_out(self, site: str, hangs: bool = True) -> None:
        """Leave a site out, until it answers; one that hangs is asked nothing before it has said that it is there."""
        self._left_out[site] = _Absence(self._calls + 1, hangs)

    def rest(self, nth: int) -> None:
        """Wait before sites are asked again, for the nth time from 0 on."""
        time.sleep(self._pause * 2**nth)

    def ask(
        self,
        sites: Collection[str],
        make: Callable[[str], bytes],
        read: Callable[[str, Bytes], T],
        least: int,
        hello: Hello | None = None,
        failures: dict[str, Failure] | None = None,
        halted: Callable[[int, int, int, Mapping[str, Failure]], Halted] | None = None,
        refuse: Callable[[Mapping[str, T]], Mapping[str, Failure]] | None = None,
    ) -> dict[str, T]:
        """Ask some sites, and return what those who replied said.

        Args:
            sites: whom to ask.
            make: makes a site's request.
            read: reads a site's reply, or raises :class:`Refused`.
            least: with fewer replies than this the others are asked again, and then the run is :class:`Halted`.
            hello: asks sites whether they are there; None: whoever is left out is not asked.
            failures: where to note why others did not reply.
            halted: makes the error, as :func:`too_few` does.
            refuse: compares what was said, and returns whose does not count, and why: they have not replied.
        """
        self._calls += 1
        if hello is not None:
            self._look_for([site for site, absence in self._absent(sites) if self._calls >= absence.next], hello)
        failures = {} if failures is None else failures
        failures |= {site: Failure(GONE, "it is left out, as it did not answer") for site in sites if site in self._left_out}
        heard = self._call([site for site in sites if site not in self._left_out], make, read, failures)
        self._drop(heard, refuse, failures)
        for nth in range(self.retries):
            if len(heard) >= min(least, len(sites)):
                break
            self.rest(nth)
            if hello is not None:
                failures |= self._look_for([site for site, absence in self._absent(sites) if absence.hangs], hello)
            hanging = [site for site, absence in self._absent(sites) if absence.hangs]
            again = [site for site in sites if site not in heard and site not in hanging]
            heard |= self._call(again, make, read, failures)
            self._drop(heard, refuse, failures)
        if len(heard) < min(least, len(sites)):
            said = {site: failure for site, failure in failures.items() if site not in heard}
            raise (halted or too_few)(len(heard), len(sites), least, said)
        return {site: heard[site] for site in sites if site in heard}

    def _call(
        self,
        sites: Collection[str],
        make: Callable[[str], bytes],
        read: Callable[[str, Bytes], T],
        failures: dict[str, Failure],
    ) -> dict[str, T]:
        if not sites:
            return {}
        begun = time.monotonic()
        answers = self.transport.ask({site: make(site) for site in sites}, self.timeout)
        took = time.monotonic() - begun
        heard: dict[str, T] = {}
        for site in sites:
            if site in answers.replies:
                self._left_out.pop(site, None)
                try:
                    heard[site] = read(site, answers.replies[site])
                except Refused as refused:
                    failures[site] = refused.failure
                    self._tell(Event(site, *refused.failure, took))
                else:
                    self._tell(Event(site, ANSWERED, "", took))
                continue
            failures[site] = failure = answers.failures.get(site, Failure(MALFORMED, "its carrier said nothing of it"))
            self._tell(Event(site, *failure, took))
            if failure.kind in (TIMEOUT, GONE):
                self.leave_out(site, hangs=failure.kind == TIMEOUT)
        return heard

    def _absent(self, sites: Collection[str]) -> list[tuple[str, _Absence]]:
        return [(site, self._left_out[site]) for site in sites if site in self._left_out]

    def _drop(
        self,
        heard: dict[str, T],
        refuse: Callable[[Mapping[str, T]], Mapping[str, Failure]] | None,
        failures: dict[str, Failure],
    ) -> None:
        for site, failure in ({} if refuse is None else refuse(heard)).items():
            del heard[site]
            failures[site] = failure
            self._tell(Event(site, *failure))

    def _look_for(self, sites: Collection[str], hello: Hello) -> Mapping[str, Failure]:
        """Ask sites that are left out whether they are there, for a moment only, and take in those who are."""
        missing = hello(sites, self._probe) if sites else {}
        for site in sites:
            if site not in missing:
                del self._left_out[site]
                self._tell(Event(site, BACK))
                continue
            absence = self._left_out[site]
            if self._calls >= absence.next:
                absence.next, absence.gap = self._calls + absence.gap, min(2 * absence.gap, _MOST_CALLS)
            self._tell(Event(site, *missing[site]))
        return missing


def too_few(heard: int, asked: int, least: int, failures: Mapping[str, Failure]) -> Halted:
    """Return the error of a run that lacks replies, with the sites that did not reply and why."""
    reasons = "; ".join(f"{site}: {failure.text or failure.kind}" for site, failure in failures.items())
    return Halted(
        f"{heard} of {asked} sites replied, and min_replies is {least} ({reasons}): see to these sites and go on with the same "
        "run, or ask for fewer replies"
    )
