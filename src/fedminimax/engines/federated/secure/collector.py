"""The server's side of a secure sum: four group calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedminimax import wire
from fedminimax.engines.execution import Halted
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.group import Group
from fedminimax.engines.federated.messages import ACCUSES, OPENED, Malformed, Refused, Whose
from fedminimax.engines.federated.secure.desk import BEFORE, INPUT, KEYS, SHARES, UNMASK, announced, as_arrays, by_site, numbers
from fedminimax.engines.federated.secure.fixed_point import WORD
from fedminimax.engines.federated.secure.party import SEALED, Announced, Told
from fedminimax.engines.federated.secure.primitives import KEY, NotTogether
from fedminimax.engines.federated.secure.settings import Secure
from fedminimax.engines.federated.secure.unmasking import unmasked
from fedminimax.engines.federated.secure.wanted import LEAST_SHARE, Hello, Summed, Wanted
from fedminimax.engines.federated.transport import MALFORMED, REFUSED, Failure

_ROOM = 2**16
"""Bytes that a reply of a step may have, and 1024 more for each site that it tells of."""

_T = TypeVar("_T")


class _TooFew(Exception):
    """An attempt has lost too many sites.

    Args:
        halted: what to say if no other attempt is made; None: that there are too few.
    """

    def __init__(self, halted: Halted | None = None):
        super().__init__()
        self.halted = halted


class _Given(NamedTuple):
    """What a site gave in step 3: its masked vector, and what else it said."""

    vector: np.ndarray
    said: Any


class Collector:
    """Asks sites for secure sums.

    Args:
        secure: what was agreed on.
        group: asks the sites.
        hello: asks some whether they are there again.
        whose: which client each site is.
    """

    def __init__(self, secure: Secure, group: Group, hello: Hello, whose: Mapping[str, Whose]):
        self.secure, self.group, self.hello, self.whose = secure, group, hello, whose

    def sum(self, wanted: Wanted) -> Summed:
        """Return a secure sum. An attempt that has lost too many sites is made anew, under new keys; then the run is halted.

        A site of which more than half of the others say that they cannot use what it sent is left out of the next attempt.
        None is made anew once sites were asked to take the masks off: the sums over two groups of sites would tell what the
        groups differ in.
        """
        left_out: dict[str, Failure] = {}
        for nth in range(self.group.retries + 1):
            if nth:
                self.group.rest(nth - 1)
            attempt = _Attempt(self, wanted, f"{wanted.exchange}/{nth}", left_out)
            try:
                return attempt.carry_out()
            except _TooFew as few:
                halted = few.halted or self.halted(wanted, "has too few of them left", attempt.failures)
                left_out |= attempt.accused
        raise halted

    def halted(self, wanted: Wanted, what: str, failures: Mapping[str, Failure]) -> Halted:
        """Return the error of a run whose secure sum cannot be had, with the sites that failed and why."""
        by_reason: dict[str, list[str]] = {}
        for site, failure in failures.items():
            by_reason.setdefault(failure.text or failure.kind, []).append(site)
        reasons = "; ".join(f"{', '.join(sites)}: {reason}" for reason, sites in by_reason.items())
        fewest = max(self.secure.fewest(len(wanted.sites)), wanted.fewest)
        return Halted(
            f"A secure sum over {len(wanted.sites)} sites {what}, where it needs {fewest} whose weights are at least "
            f"{LEAST_SHARE:.0%} of the largest ({reasons or 'no site failed'}): see to these sites and go on with the same "
            "run, or agree on another Secure(least=)"
        )


class _Attempt:
    """One attempt at a secure sum."""

    def __init__(self, collector: Collector, wanted: Wanted, name: str, left_out: Mapping[str, Failure]):
        self._collector, self._wanted, self._name, self._secure = collector, wanted, name, collector.secure
        self._sites = [site for site in wanted.sites if site not in left_out]
        self._numbers = {site: collector.whose[site].number for site in self._sites}
        self._before: dict[str, frozenset[int]] = {}  # by site: over whom it says that it has opened this very sum before
        self.failures, self.accused = dict(left_out), dict[str, Failure]()

    def carry_out(self) -> Summed:
        """Take the four steps."""
        nothing: Callable[[str], dict[str, Any]] = lambda site: {"secure": {}}
        known = self._ask(KEYS, self._sites, nothing, self._read_keys, hello=True)
        self._enough(known, len(known))
        texts = as_arrays({self._numbers[site]: b"".join(keys) for site, keys in known.items()})
        sealed = self._ask(SHARES, known, lambda site: {"secure": {KEYS: texts}}, self._reader_of_shares(known))
        self._enough(sealed, len(known))
        found = self._ask(INPUT, sealed, lambda site: self._work(site, sealed), self._read_input)
        found = self._as_before(found)
        self._enough(found, len(known))
        if self._wanted.whole and len(found) < len(self._wanted.sites):
            return Summed(None, {site: given.said for site, given in found.items()})
        told = self._told(tuple(found), tuple(sealed), self._secure.needed(len(known)))
        total = self._total(known, {site: given.vector for site, given in found.items()}, sealed, told)
        return Summed(total, {site: given.said for site, given in found.items()})

    def _as_before(self, found: dict[str, _Given]) -> dict[str, _Given]:
        """Return those that the sum is over: where most say that they have opened it before, the sites of then.

        A sum over others the sites would not open; that of the few who say so is theirs to refuse.
        """
        here, said = found.keys() | self._before.keys(), Counter(self._before.values())
        before, times = said.most_common(1)[0] if said else (frozenset[int](), 0)
        if 2 * times <= len(here):
            return found
        names = [site for site, whose in self._collector.whose.items() if whose.number in before]
        if all(name in found for name in names):
            return {name: found[name] for name in names}
        cure = {"start": [name for name in names if name not in here], "stop": sorted(here - set(names))}
        steps = [f"{what} {', '.join(those)}" for what, those in cure.items() if those]
        raise _TooFew(
            Halted(
                f"A secure sum over {', '.join(names)} was opened before, and one over others or with other weights would tell "
                f"what they differ in: {' and '.join(steps) or 'take the weights of then'}, and go on with the same run, or "
                "begin another one"
            )
        )

    def _total(
        self,
        known: Mapping[str, Announced],
        vectors: Mapping[str, np.ndarray],
        sharing: Collection[str],
        told: Mapping[int, Told],
    ) -> np.ndarray:
        """Return the sum of vectors, without their masks."""
        number = self._numbers.__getitem__
        announced_by = {number(site): keys for site, keys in known.items()}
        masked = {number(site): vector for site, vector in vectors.items()}
        lost = [number(site) for site in sharing if site not in vectors]
        try:
            return unmasked(self._name, self._secure.needed(len(known)), announced_by, masked, lost, told)
        except (NotTogether, Malformed):
            raise self._collector.halted(self._wanted, "was told shares that do not fit together", self.failures) from None

    def _enough(self, left: Collection[str], sharing: int) -> None:
        fewest = max(self._secure.fewest(sharing), self._wanted.fewest)
        if len(left) < fewest or len(set(left) & set(self._wanted.counting)) < self._secure.least:
            raise _TooFew

    def _ask(
        self,
        step: str,
        sites: Collection[str],
        make: Callable[[str], dict[str, Any]],
        read: Callable[[str, dict[str, Any]], _T],
        hello: bool = False,
    ) -> dict[str, _T]:
        id, collector, accusers = f"{self._name}/{step}", self._collector, dict[str, list[str]]()
        room = self._wanted.room if step == INPUT else _ROOM + 1024 * len(self._wanted.sites)

        def checked(site: str, reply: wire.Bytes) -> _T:
            try:
                return read(site, messages.read(reply, id, step, room))
            except Malformed as malformed:
                raise Refused(Failure(MALFORMED, f"in a step of a secure sum {malformed}")) from None
            except Refused as refused:
                self._wanted.refused(site, refused)
                if refused.withheld == OPENED and refused.whom:
                    self._before[site] = refused.whom
                whom = [other for other, number in self._numbers.items() if number in refused.whom and other != site]
                if refused.withheld != ACCUSES or not whom:
                    raise
                for other in whom:
                    accusers.setdefault(other, []).append(site)
                raise Refused(Failure(REFUSED, f"it cannot use what {', '.join(whom)} sent to it in a secure sum")) from None

        request = lambda site: wire.encode({"whose": collector.whose[site], **make(site), "id": id})
        heard = collector.group.ask(sites, request, checked, 0, collector.hello if hello else None, failures=self.failures)
        for accused, those in accusers.items():
            if 2 * len(those) > len(sites) - 1:
                self.accused[accused] = Failure(
                    REFUSED, f"it is left out, as {', '.join(those)} cannot use what it sent to them"
                )
        return heard

    def _told(self, among: tuple[str, ...], sharing: tuple[str, ...], needed: int) -> dict[int, Told]:
        """Ask those whose vectors have come for their shares, and again until enough have told them."""
        asked = {"secure": {"survivors": sorted(self._numbers[site] for site in among)}}
        wrong = {self._numbers[site] for site in among}, {self._numbers[site] for site in sharing if site not in among}

        def read(site: str, message: dict[str, Any]) -> Told:
            said = message[UNMASK] if isinstance(message[UNMASK], dict) else {}
            told = Told(*(by_site(said.get(kind), KEY) for kind in ("seeds", "keys")))
            if (told.seeds.keys(), told.keys.keys()) != wrong:
                raise Malformed("the shares are of other sites")
            return told

        told: dict[str, Told] = {}
        for nth in range(self._collector.group.retries + 1):
            if nth:
                self._collector.group.rest(nth - 1)
            left = [site for site in among if site not in told]
            told |= self._ask(UNMASK, left, lambda site: asked, read, hello=nth > 0)
            if len(told) >= needed:
                return {self._numbers[site]: one for site, one in told.items()}
        raise self._collector.halted(self._wanted, "has too few left to take its masks off", self.failures)

    def _work(self, site: str, sealed: Mapping[str, Mapping[int, bytes]]) -> dict[str, Any]:
        own, work = self._numbers[site], self._wanted.work(site)
        texts = {self._numbers[other]: shares[own] for other, shares in sealed.items() if other != site}
        return {**work, "secure": {**work["secure"], SHARES: as_arrays(texts)}}

    def _read_keys(self, site: str, message: dict[str, Any]) -> Announced:
        return announced(by_site({"0": message[KEYS]}, 3 * KEY)[0])

    def _reader_of_shares(self, known: Collection[str]) -> Callable[[str, dict[str, Any]], dict[int, bytes]]:
        def read(site: str, message: dict[str, Any]) -> dict[int, bytes]:
            shares = by_site(message[SHARES], SEALED)
            if shares.keys() != {self._numbers[other] for other in known if other != site}:
                raise Malformed("the shares are for other sites")
            return shares

        return read

    def _read_input(self, site: str, message: dict[str, Any]) -> _Given:
        vector, before = message[INPUT], message.get(BEFORE)
        if not isinstance(vector, np.ndarray) or vector.dtype != WORD or vector.shape != (self._wanted.words,):
            raise Malformed("the vector is none")
        if before is not None:
            self._before[site] = frozenset(numbers(before))
        return _Given(vector, self._wanted.read(site, message))
